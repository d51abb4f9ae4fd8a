#!/usr/bin/env python3
"""Puts measured figures into README.md, between their markers: docs/learning.md and docs/bench.json.

Run by `make learning-table` and `make bench-table`; no figure of the README is typed by hand.
"""

import json
import pathlib
import re

root = pathlib.Path(__file__).resolve().parent.parent
readme = root / "README.md"


def between(text, name, body):
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.S)
    return pattern.sub(lambda match: f"{match[1]}{body.strip()}\n{match[2]}", text)


def bench_table(figures):
    rows = [f"| {name.replace('_', ' ')} | {value:.1f} |" for name, value in figures.items() if isinstance(value, (int, float))]
    conditions = ", ".join(f"{key} {value}" for key, value in figures["conditions"].items())
    return "| figure | median |\n|---|---|\n" + "\n".join(rows) + f"\n\nConditions: {conditions}."


text = readme.read_text()
learning, bench = root / "docs/learning.md", root / "docs/bench.json"
if learning.exists():
    text = between(text, "learning", learning.read_text())
if bench.exists():
    text = between(text, "bench", bench_table(json.loads(bench.read_text())))
readme.write_text(text)
