"""Runs the comparison and writes docs/serving.json and docs/serving.md; `--help` lists what can be left out."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import decode
import gateway
import servers
from figures import Row, table
from streams import MeasureError

PEERS = ("reef", "llama.cpp", "transformers", "python-reef")


def say(line: str) -> None:
    print(f"serving: {line}", file=sys.stderr, flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["engine", "gateway"], help="one half of the rows")
    parser.add_argument("--servers", default=",".join(PEERS), help="which to start, of " + ", ".join(PEERS))
    parser.add_argument("--runs", type=int, default=3, help="measured runs of each row, after a warm-up")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of one run of a gateway row")
    parser.add_argument("--streams", default="1,8,32", help="numbers of streams of the decode rows")
    parser.add_argument("--tokens", type=int, default=decode.TOKENS, help="new tokens of one stream")
    parser.add_argument("--out", type=Path, default=servers.ROOT / "docs" / "serving", help="where to write, without the ending")
    return parser.parse_args()


def processor() -> str:
    names = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


def conditions(given: argparse.Namespace, load_before: float) -> dict[str, object]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=servers.ROOT, capture_output=True, text=True, check=False)
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "processor": processor(),
        "cores": os.cpu_count(),
        "load_average_before": load_before,
        "model": servers.MODEL.stem,
        "reef_binary": str(servers.REEF.resolve().relative_to(servers.ROOT)) if servers.REEF.resolve().is_relative_to(servers.ROOT) else "another checkout's",
        "threads": servers.THREADS,
        "runs": given.runs,
        "statistic": "median",
        "new_tokens": given.tokens,
        "gateway_body_bytes": gateway.BODY_BYTES,
        "gateway_run_seconds": given.seconds,
        "chunk_interval_ms": gateway.CHUNK_INTERVAL_MS,
        "recording": "on, durable",
        "load_generator": "on the same machine",
        "commit": commit.stdout.strip(),
        "pins": pins(),
    }


def pins() -> dict[str, str]:
    file = servers.PEERS / "pins.json"
    return json.loads(file.read_text()) if file.exists() else {}


def main() -> int:
    given = arguments()
    wanted = given.servers.split(",")
    if unknown := [name for name in wanted if name not in PEERS]:
        say(f"'{unknown[0]}' is no server of this comparison; known are {', '.join(PEERS)}")
        return 2
    load_before = os.getloadavg()[0]
    about: dict[str, object] = {}
    rows: list[Row] = []
    try:
        if given.only != "gateway":
            streams = [int(count) for count in given.streams.split(",")]
            rows, about = decode.measure(streams, given.runs, wanted, say, given.tokens)
        if given.only != "engine":
            rows += gateway.measure(given.runs, given.seconds, wanted, say)
    except MeasureError as error:
        say(f"error: {error}")
        return 1
    facts = conditions(given, load_before)
    whole = {"conditions": facts, "servers": about, "rows": [row.as_json() for row in rows]}
    halves = [[row for row in rows if not row.name.startswith("gateway")], [row for row in rows if row.name.startswith("gateway")]]
    text = "\n".join(table(half) for half in halves if half)
    spread = f"median of {given.runs} runs (lowest to highest)" if given.runs > 1 else "one run"
    head = f"{facts['processor']}, {facts['cores']} cores, {facts['at'][:10]}; {spread} of {given.tokens} tokens, load {load_before:.1f} before.\n\n"
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.with_suffix(".json").write_text(json.dumps(whole, indent=1) + "\n")
    given.out.with_suffix(".md").write_text(head + text)
    print(head + text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
