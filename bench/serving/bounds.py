"""Memory of Reef under bodies that are refused and bodies that are read whole, 2,000 messages and 1,000 slow readers of long
answers; writes docs/bounds.json.

    cargo build --release -p reef && python3 bench/serving/bounds.py
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import statistics
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import servers

BODY_MB = 100
# Under the limit: read whole, parsed, and refused as longer than the context.
READ_MB = 60
BODIES_AT_ONCE = 4
MESSAGES = 2_000
SLOW_READERS = 1_000
# Far more than the buffers of a socket hold.
SLOW_TOKENS = 256
SLOW_SECONDS = 20
# Requests of a reader that is not slow, one after the other, while the slow ones hold their streams.
QUICK = 5
OUT = servers.ROOT / "docs" / "bounds.json"


def say(line: str) -> None:
    print(f"bounds: {line}", file=sys.stderr, flush=True)


class Memory:
    """Samples the resident memory of a process."""

    def __init__(self, pid: int) -> None:
        self.status = Path(f"/proc/{pid}/status")
        self.peak = self.now()
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def now(self) -> float:
        """Megabytes."""
        line = next(line for line in self.status.read_text().splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) / 1000

    def _watch(self) -> None:
        while not self.stop.wait(0.05):
            with contextlib.suppress(OSError, StopIteration):
                self.peak = max(self.peak, self.now())

    def since(self) -> dict[str, float]:
        """Now, and the peak since the last call."""
        peak, self.peak = self.peak, self.now()
        return {"rss_mb": round(self.peak, 1), "rss_peak_mb": round(max(peak, self.peak), 1)}


def body(messages: list[dict[str, str]], **more: object) -> bytes:
    return json.dumps({"model": servers.MODEL.stem, "messages": messages, **more}).encode()


def post(port: int, payload: bytes, tenant_header: str = "bounds") -> tuple[int, float]:
    """Status and seconds."""
    headers = {"content-type": "application/json", "x-reef-scenario": tenant_header}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/chat/completions", payload, headers)
    began = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=300) as answer:
            answer.read()
            return answer.status, time.monotonic() - began
    except urllib.error.HTTPError as error:
        error.read()
        return error.code, time.monotonic() - began
    except (urllib.error.URLError, OSError):
        # The server may close while a body that it refuses is still being sent.
        return 0, time.monotonic() - began


def large_bodies(port: int, megabytes: int = BODY_MB) -> dict[str, object]:
    payload = body([{"role": "user", "content": "word " * (megabytes * 200_000)}])
    statuses: list[int] = [0] * BODIES_AT_ONCE

    def send(index: int) -> None:
        statuses[index] = post(port, payload)[0]

    threads = [threading.Thread(target=send, args=(index,)) for index in range(BODIES_AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"at_once": BODIES_AT_ONCE, "megabytes": megabytes, "statuses": statuses}


def read_bodies(port: int) -> dict[str, object]:
    return large_bodies(port, READ_MB)


def many_messages(port: int) -> dict[str, object]:
    status, seconds = post(port, body([{"role": "user", "content": f"message {i}"} for i in range(MESSAGES)]))
    return {"messages": MESSAGES, "status": status, "seconds": round(seconds, 3)}


def slow_reader(port: int) -> socket.socket:
    """A stream of which one byte a second is read."""
    payload = body([{"role": "user", "content": "Tell me a story."}], stream=True, max_tokens=SLOW_TOKENS)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: bounds\r\ncontent-type: application/json\r\n"
        f"x-reef-scenario: slow\r\ncontent-length: {len(payload)}\r\n\r\n"
    )
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    connection.sendall(head.encode() + payload)
    connection.setblocking(False)
    return connection


def slow_readers(port: int) -> dict[str, object]:
    connections = [slow_reader(port) for _ in range(SLOW_READERS)]
    end, got = time.monotonic() + SLOW_SECONDS, 0
    quick: list[tuple[int, float]] = []
    reader = threading.Thread(target=lambda: quick.extend(post(port, body([{"role": "user", "content": "Hi."}], max_tokens=8)) for _ in range(QUICK)))
    reader.start()
    while time.monotonic() < end:
        for connection in connections:
            with contextlib.suppress(BlockingIOError, ConnectionError):
                got += len(connection.recv(1))
        time.sleep(1)
    reader.join()
    for connection in connections:
        connection.close()
    return {
        "readers": SLOW_READERS,
        "seconds": SLOW_SECONDS,
        "bytes_read": got,
        "quick_statuses": [status for status, _ in quick],
        "quick_median_seconds": round(statistics.median(seconds for _, seconds in quick), 3),
    }


def main() -> None:
    with servers.reef(queue_max=2 * SLOW_READERS) as endpoint:
        memory = Memory(endpoint.pid)
        time.sleep(1)
        results: dict[str, object] = {"at_start": memory.since()}
        for name, measure in [("large_bodies", large_bodies), ("read_bodies", read_bodies), ("many_messages", many_messages), ("slow_readers", slow_readers)]:
            say(name)
            results[name] = {**measure(endpoint.port), **memory.since()}
        time.sleep(5)
        results["afterwards"] = memory.since()
        memory.stop.set()
    results["conditions"] = {"cores": os.cpu_count(), "body_limit_mb": 67, "slow_tokens": SLOW_TOKENS, "model": servers.MODEL.stem}
    OUT.write_text(json.dumps(results, indent=2) + "\n")
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
