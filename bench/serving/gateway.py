"""What a gateway costs: the Python Reef and Reef in front of one mock upstream, and that upstream alone as the bound."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import servers
from figures import SUBJECT, Row
from streams import MeasureError

CONNECTIONS = (1, 16, 64)
BODY_BYTES = 2048
RATE = 1000
# Connections of the open loop: requests that may be under way before the schedule has to wait.
RATE_CONNECTIONS = 128
STREAMS = 500
CHUNKS = 64
CHUNK_INTERVAL_MS = 200
ALONE = "mock alone"
PYTHON_REEF = "Python Reef"


@dataclass(frozen=True)
class Target:
    """A server under load, by name and address."""

    name: str
    address: str

    def load(self, kind: str, *numbers: float) -> dict:
        """Runs the load generator against it."""
        url = f"{self.address}/v1/chat/completions"
        command = [str(servers.LOAD), kind, url, *map(str, numbers)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise MeasureError(f"the load generator failed against {self.name}: {done.stderr.strip()}")
        seen = json.loads(done.stdout)
        if seen["answered"] == 0:
            raise MeasureError(f"{self.name} answered none of {seen['failed']} requests: {seen['last_error']}")
        return seen


def measure(runs: int, seconds: float, wanted: Sequence[str], say: Callable[[str], None]) -> list[Row]:
    """All rows."""
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(servers.mock(CHUNKS, CHUNK_INTERVAL_MS))
        targets = [Target(ALONE, upstream)]
        if "reef" in wanted:
            targets.append(Target(SUBJECT, stack.enter_context(servers.reef_gateway(upstream))))
        if "python-reef" in wanted:
            targets.append(Target(PYTHON_REEF, stack.enter_context(servers.python_reef(upstream))))
        # The first request creates the scenario.
        for target in targets:
            target.load("closed", 1, 1, BODY_BYTES)
        rows = [throughput(targets, count, runs, seconds, say) for count in CONNECTIONS]
        rows += added_latency(targets, runs, seconds, say)
        rows += added_per_chunk(targets, runs, say)
    return rows


def throughput(targets: list[Target], connections: int, runs: int, seconds: float, say: Callable[[str], None]) -> Row:
    plural = "connection" if connections == 1 else "connections"
    row = Row(f"gateway, {connections} {plural}", "req/s", True, bounds={ALONE})
    for _ in range(runs):
        for target in targets:
            seen = target.load("closed", connections, seconds, BODY_BYTES)
            note_failures(row, target, seen)
            row.add(target.name, seen["answered_per_second"])
            say(f"{row.name}: {target.name} {seen['answered_per_second']:.0f} req/s, p50 {seen['p50_ms']:.2f} ms, p99 {seen['p99_ms']:.2f} ms")
    return row


def added_latency(targets: list[Target], runs: int, seconds: float, say: Callable[[str], None]) -> list[Row]:
    what = f"gateway, added latency at {RATE:,} req/s"
    return added(
        targets, runs, what, say, lambda target: target.load("open", RATE_CONNECTIONS, seconds, BODY_BYTES, RATE)
    )


def added_per_chunk(targets: list[Target], runs: int, say: Callable[[str], None]) -> list[Row]:
    what = f"gateway, added per chunk, {STREAMS} streams of {CHUNKS} chunks"

    # Starts are spread over one interval, so that chunks do not come in bursts.
    def load(target: Target) -> dict:
        seen = target.load("streams", STREAMS, CHUNK_INTERVAL_MS / 1000, BODY_BYTES)
        if seen["times"] != seen["answered"] * CHUNKS:
            raise MeasureError(f"{target.name} passed on {seen['times']} chunks of {seen['answered']} streams of {CHUNKS}")
        return seen

    return added(targets, runs, what, say, load)


def added(targets: list[Target], runs: int, what: str, say: Callable[[str], None], load: Callable[[Target], dict]) -> list[Row]:
    """A time of each gateway less that of the upstream alone in the same round."""
    rows = {key: Row(f"{what}, {key[:3]}", "ms", False, bounds={ALONE}) for key in ("p50_ms", "p99_ms")}
    for _ in range(runs):
        alone: dict = {}
        for target in targets:
            seen = load(target)
            alone = alone or seen
            say(f"{what}: {target.name} p50 {seen['p50_ms']:.2f} ms, p99 {seen['p99_ms']:.2f} ms, {seen['failed']} failed")
            for key, row in rows.items():
                note_failures(row, target, seen)
                row.add(target.name, seen[key] if target.name == ALONE else seen[key] - alone[key])
    return list(rows.values())


def note_failures(row: Row, target: Target, seen: dict) -> None:
    if seen["failed"]:
        row.notes.append(f"{row.name}: {target.name} failed {seen['failed']} requests in one run: {seen['last_error']}")
