#!/usr/bin/env python3
"""Puts measured figures into README.md, between their markers: docs/learning.md, docs/bench.json and docs/sandbox.json.

Run by `make learning-table`, `make bench-table` and `make sandbox-table`; no figure of the README is typed by hand.
"""

import json
import pathlib
import re

root = pathlib.Path(__file__).resolve().parent.parent
readme = root / "README.md"


def between(text, name, body):
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.S)
    return pattern.sub(lambda match: f"{match[1]}{body.strip()}\n{match[2]}", text)


def flat(figures, prefix=""):
    """Numbers by name; groups become words in front of the names of their members."""
    for name, value in figures.items():
        if isinstance(value, dict) and name != "conditions":
            yield from flat(value, f"{prefix}{name} ")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield f"{prefix}{name}".replace("_", " "), value


def bench_table(figures):
    rows = [f"| {name} | {value:,.1f} |" for name, value in flat(figures)]
    conditions = ", ".join(f"{key} {value}" for key, value in figures["conditions"].items())
    return "| figure | median |\n|---|---|\n" + "\n".join(rows) + f"\n\nConditions: {conditions}."


text = readme.read_text()
learning, bench = root / "docs/learning.md", root / "docs/bench.json"
if learning.exists():
    text = between(text, "learning", learning.read_text())
if bench.exists():
    # The sandbox has a table of its own.
    figures = {name: value for name, value in json.loads(bench.read_text()).items() if name != "sandbox"}
    text = between(text, "bench", bench_table(figures))
sandbox = root / "docs/sandbox.json"
if sandbox.exists():
    text = between(text, "sandbox", bench_table(json.loads(sandbox.read_text())))
readme.write_text(text)
