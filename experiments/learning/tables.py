"""Prints the results beside this file as Markdown, one table a question; what has no result yet is left out.

    python experiments/learning/tables.py
"""

from __future__ import annotations

import json
from statistics import mean

from driver import RESULTS


def percent(share: dict) -> str:
    low, high = share["interval"]
    return f"{share['value']:.0%} ({low:.0%} to {high:.0%})"


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def head(*cells: str) -> list[str]:
    return [row(*cells), "|" + "---|" * len(cells)]


def seeds(result: dict, key: str, value: object, figure: str) -> str:
    return ", ".join(f"{run[figure]['value']:.0%}" for run in result["runs"] if run[key] == value)


def late(result: dict, key: str, value: object, figure: str, last: int = 5) -> float:
    """Mean of a figure over the last steps of all runs."""
    runs = [run for run in result["runs"] if run[key] == value]
    return mean(step[figure] for run in runs for step in run["steps"][-last:] if step.get(figure) is not None)


def arms(result: dict) -> list[str]:
    lines = head("arm", "before, each seed", "after, each seed", "after, together", "reward of the last 5 batches", "p against sao")
    for arm, after in result["after"].items():
        p = result["p_against_sao"].get(arm)
        lines.append(row(arm, seeds(result, "arm", arm, "before"), seeds(result, "arm", arm, "after"), percent(after), f"{late(result, 'arm', arm, 'reward'):.2f}", "–" if p is None else f"{p:.2g}"))
    return lines


def staleness(result: dict) -> list[str]:
    lines = head("lag", "after, each seed", "after, together", "reward of the last 5 batches", "masked tokens, all steps", "of the last 5")
    for lag, after in result["after"].items():
        masked = mean(run["masked_mean"] for run in result["runs"] if run["lag"] == int(lag))
        lines.append(row(lag, seeds(result, "lag", int(lag), "after"), percent(after), f"{late(result, 'lag', int(lag), 'reward'):.2f}", f"{masked:.1%}", f"{late(result, 'lag', int(lag), 'masked'):.1%}"))
    return lines


def forgetting(result: dict) -> list[str]:
    first, second = result["conditions"]["families"]
    lines = head("recipe", f"{first}: before", "after it was learned", f"after {second}", "lost", f"{second}: before", "at the end")
    for arm, phases in result["pooled"].items():
        lines.append(row(arm, *(percent(phase[first]) for phase in phases), f"{100 * result['lost'][arm]:+.0f} points", percent(phases[0][second]), percent(phases[2][second])))
    return [*lines, "", f"sdft against sft in {first} at the end: p = {result['kept_p']:.2g}"]


def teacher(result: dict) -> list[str]:
    lines = head("seed", "student before", "teacher", "student after", "reverse KL, first 3 steps", "last 3 steps")
    for run in result["runs"]:
        gaps = [step["reverse_kl"] for step in run["steps"]]
        lines.append(row(run["seed"], *(percent(run[who]) for who in ("student_before", "teacher", "student_after")), f"{mean(gaps[:3]):.3f}", f"{mean(gaps[-3:]):.3f}"))
    return lines


def feedback(result: dict) -> list[str]:
    lines = head("arm", "before, each seed", "after, each seed", "after, together", "taught share, all steps", "reward of the last 5 batches")
    for arm, after in result["after"].items():
        lines.append(row(arm, seeds(result, "arm", arm, "before"), seeds(result, "arm", arm, "after"), percent(after), f"{late(result, 'arm', arm, 'active', 1000):.0%}", f"{late(result, 'arm', arm, 'reward'):.2f}"))
    return [*lines, "", f"with feedback against scores alone: p = {result['p']:.2g}"]


def style(result: dict) -> list[str]:
    lines = head("arm", "seed", "first three accepts in a row", "accepted of the first third", "of the last third")
    third = result["conditions"]["sessions"] // 3
    for run in result["runs"]:
        when = run["first_three_in_a_row"]
        lines.append(row(run["arm"], run["seed"], f"session {when}" if when else "*never*", f"{run['accepted_first_third']} of {third}", f"{run['accepted_last_third']} of {third}"))
    return lines


def main() -> None:
    for table in (arms, staleness, forgetting, teacher, feedback, style):
        file = RESULTS / f"{table.__name__}.json"
        if file.exists():
            print(f"### {table.__name__}\n", *table(json.loads(file.read_text())), "", sep="\n")


if __name__ == "__main__":
    main()
