"""Training beside PyTorch and peft, and what feedback waits for; `--help` lists what can be left out.

Writes docs/training.json, docs/training.md and docs/training.png.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "experiments" / "learning"))

import driver  # noqa: E402
import feedback_time  # noqa: E402

PEERS = ROOT / ".deps" / "peers"
SHAPES = ("32x40+8", "8x192+64")
OURS = "reef"
CONTESTANTS = {OURS: "", "peft, whole": "whole", "peft, cut": "cut"}
RUN_SECONDS_MAX = 900


def say(line: str) -> None:
    print(f"training: {line}", file=sys.stderr, flush=True)


def measure(who: str, shape: str, threads: int, steps: int) -> dict:
    """A fresh process, so that memory is that of this one alone."""
    # Both wait without spinning: the cores are shared.
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "PYTHONPATH": str(PEERS / "peft")}
    if who == OURS:
        command = [driver.REEF, "bench", "--json", "--model", driver.MODEL, "--training", shape, "--threads", threads, "--runs", steps]
    else:
        command = [PEERS / "transformers" / "bin" / "python", HERE / "peft_worker.py", driver.MODEL, threads, shape, steps, CONTESTANTS[who]]
    ended = subprocess.run([str(word) for word in command], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=RUN_SECONDS_MAX, check=False)
    if ended.returncode:
        raise driver.ExperimentError(f"{who} ended with {ended.returncode}: {ended.stderr[-500:]}")
    return json.loads(ended.stdout.strip().splitlines()[-1])


def compare(shape: str, threads: int, rounds: int, steps: int) -> dict:
    """The contestants in turn, round after round, so that all of them see the same minutes."""
    runs: dict[str, list[dict]] = {who: [] for who in CONTESTANTS}
    for number in range(rounds):
        for who in CONTESTANTS:
            runs[who].append(measure(who, shape, threads, steps))
            say(f"{shape}, {threads} threads, round {number + 1}, {who}: {runs[who][-1]['tokens_per_second']:.0f} tokens/s, {runs[who][-1]['resident_mb_peak']:.0f} MB")
    rows = {}
    for figure in ("tokens_per_second", "resident_mb_peak", "resident_mb_loaded"):
        rows[figure] = {who: [run[figure] for run in done] for who, done in runs.items()}
    return {"batch": shape, "threads": threads, **rows, "versions": runs["peft, cut"][0]["versions"]}


def middle(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f} to {max(values):,.0f})"


def table(rows: list[dict]) -> str:
    """Ratios over 1 are ours: faster, or less memory."""
    lines = ["| batch | threads | figure | Reef | peft, whole | peft, cut | Reef against the better peft |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        for figure, name, more in (("tokens_per_second", "tokens/s", True), ("resident_mb_peak", "peak MB", False)):
            values = row[figure]
            ours, theirs = statistics.median(values[OURS]), [statistics.median(values[who]) for who in CONTESTANTS if who != OURS]
            ratio = ours / max(theirs) if more else min(theirs) / ours
            verdict = f"{ratio:.2f}× {'won' if ratio >= 1 else '*lost*'}"
            cells = [row["batch"], str(row["threads"]), name, *(middle(values[who]) for who in CONTESTANTS), verdict]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw(rows: list[dict], file: Path) -> None:
    """Bars with the range of the rounds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, both = plt.subplots(1, 2, figsize=(11, 4))
    for axes, name, title in zip(both, ("tokens_per_second", "resident_mb_peak"), ("tokens a second", "peak resident MB"), strict=True):
        for place, who in enumerate(CONTESTANTS):
            values = [row[name][who] for row in rows]
            middles = [statistics.median(value) for value in values]
            low = [median - min(value) for median, value in zip(middles, values, strict=True)]
            high = [max(value) - median for median, value in zip(middles, values, strict=True)]
            axes.bar([index + 0.26 * (place - 1) for index in range(len(rows))], middles, 0.25, yerr=[low, high], capsize=3, label=who)
        axes.set_xticks(range(len(rows)), [f"{row['batch']}\n{row['threads']} threads" for row in rows])
        axes.set_title(title)
        axes.legend()
    figure.suptitle("A LoRA r16 step on SmolLM2-135M, f32: median and range of the rounds")
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def told(waits: dict) -> str:
    """The figures of feedback as sentences."""
    lines = []
    for name, what in (("feedback_seconds", "from the last report of a batch of 32 to the new release serving, seconds"), ("entropic_ms", "guest time of a whole ttt-discover step on an 8×64 grid, its 512 entropic advantages included, ms")):
        if name in waits:
            values, asked = waits[name]["values"], waits[name]["asked_below"]
            median = statistics.median(values)
            lines.append(f"- {what}: {median:.2f} ({min(values):.2f} to {max(values):.2f}); asked below {asked}: {'kept' if median < asked else '*missed*'}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="fresh processes of each contestant")
    parser.add_argument("--steps", type=int, default=3, help="told steps of each process, after one that is not")
    parser.add_argument("--threads", default="1,2", help="numbers of threads")
    parser.add_argument("--shapes", default=",".join(SHAPES), help="batches, as SAMPLESxPROMPT+RESPONSE")
    parser.add_argument("--only", choices=["peft", "feedback"], help="one half")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "training", help="where to write, without the ending")
    given = parser.parse_args()
    load, rows, waits = os.getloadavg()[0], [], {}
    if given.only != "feedback":
        rows = [compare(shape, int(threads), given.rounds, given.steps) for shape in given.shapes.split(",") for threads in given.threads.split(",")]
    if given.only != "peft":
        waits = feedback_time.measure(say)
    facts = driver.conditions(threads="as told in each row", load_average_before=load, rounds=given.rounds, steps=given.steps)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.with_suffix(".json").write_text(json.dumps({"conditions": facts, "rows": rows, "feedback": waits}, indent=1) + "\n")
    text = f"{facts['processor']}, {facts['cores']} cores, {facts['at'][:10]}; median of {given.rounds} processes (lowest to highest).\n\n"
    text += (table(rows) + "\n" if rows else "") + told(waits)
    given.out.with_suffix(".md").write_text(text)
    if rows:
        draw(rows, given.out.with_suffix(".png"))
    print(text)


if __name__ == "__main__":
    main()
