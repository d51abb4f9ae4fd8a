"""Draws the results beside this file, one picture a question; what has no result yet is left out.

    python experiments/learning/plot.py          needs matplotlib==3.11.2
"""

from __future__ import annotations

import json
from collections.abc import Callable

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

from driver import RESULTS  # noqa: E402

COLOURS = ["tab:blue", "tab:orange", "tab:grey", "tab:green"]


def lines(axes: plt.Axes, groups: dict[str, list[list[float | None]]], label: str) -> None:
    """One thin line a seed and their mean, thick."""
    for (name, runs), colour in zip(groups.items(), COLOURS, strict=False):
        for run in runs:
            axes.plot(range(1, len(run) + 1), [float("nan") if value is None else value for value in run], color=colour, alpha=0.3, lw=1)
        length = min(map(len, runs))
        columns = [[run[place] for run in runs if run[place] is not None] for place in range(length)]
        axes.plot(range(1, length + 1), [sum(column) / len(column) if column else float("nan") for column in columns], color=colour, lw=2, label=name)
    axes.set(xlabel="step", ylabel=label)
    axes.legend()


def bars(axes: plt.Axes, shares: dict[str, dict], title: str) -> None:
    """Shares with their 95 % intervals."""
    values = [share["value"] for share in shares.values()]
    low = [max(0.0, share["value"] - share["interval"][0]) for share in shares.values()]
    high = [max(0.0, share["interval"][1] - share["value"]) for share in shares.values()]
    axes.bar(range(len(values)), values, yerr=[low, high], capsize=4, color=[COLOURS[place % len(COLOURS)] for place in range(len(values))])
    axes.set_xticks(range(len(values)), list(shares))
    axes.set(title=title, ylim=(0, 1.05))


def by(result: dict, key: str, figure: str) -> dict[str, list[list[float | None]]]:
    groups: dict[str, list[list[float | None]]] = {}
    for run in result["runs"]:
        groups.setdefault(str(run[key]), []).append([step.get(figure) for step in run["steps"]])
    return groups


def arms(result: dict) -> plt.Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    lines(left, by(result, "arm", "reward"), "mean reward of the batch")
    bars(right, result["after"], "held-out accuracy after, three seeds together")
    return figure


def staleness(result: dict) -> plt.Figure:
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4))
    lines(left, by(result, "lag", "reward"), "mean reward of the batch")
    lines(middle, by(result, "lag", "masked"), "share of tokens masked by the ratio")
    bars(right, result["after"], "held-out accuracy after, by lag")
    return figure


def forgetting(result: dict) -> plt.Figure:
    figure, both = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
    for axes, family in zip(both, result["conditions"]["families"], strict=True):
        for place, ((arm, phases), colour) in enumerate(zip(result["pooled"].items(), COLOURS, strict=False)):
            shares = [phase[family] for phase in phases]
            values = [share["value"] for share in shares]
            spread = [[max(0.0, v - s["interval"][0]) for v, s in zip(values, shares, strict=True)], [max(0.0, s["interval"][1] - v) for v, s in zip(values, shares, strict=True)]]
            axes.errorbar([x + 0.04 * place for x in range(3)], values, yerr=spread, capsize=4, color=colour, label=arm)
        axes.set_xticks(range(3), ["before", "after the first", "after the second"])
        axes.set(title=f"held-out accuracy in {family}", ylim=(0, 1.05))
        axes.legend()
    return figure


def teacher(result: dict) -> plt.Figure:
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    lines(left, {"student": [[step["reverse_kl"] for step in run["steps"]] for run in result["runs"]]}, "reverse KL to the teacher, nats a token")
    left.axhline(0, color="black", lw=0.5)
    names = {"before": "student before", "teacher": "teacher", "after": "student after"}
    bars(right, {names[who]: share for who, share in result["pooled"].items()}, "held-out accuracy, three seeds together")
    return figure


def feedback(result: dict) -> plt.Figure:
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4))
    lines(left, by(result, "arm", "reward"), "mean reward of the batch")
    lines(middle, by(result, "arm", "active"), "share of answers with a teacher that knows more")
    bars(right, result["after"], "held-out accuracy after")
    return figure


def style(result: dict) -> plt.Figure:
    figure, axes = plt.subplots(figsize=(8, 4))
    window = 8
    for run in result["runs"]:
        colour = COLOURS[0 if run["arm"] == "openclaw-rl" else 2]
        accepted = run["accepted"]
        axes.plot([sum(accepted[max(0, end - window) : end]) / min(window, end) for end in range(1, len(accepted) + 1)], color=colour, alpha=0.6, label=f"{run['arm']}, seed {run['seed']}")
        if run["first_three_in_a_row"]:
            axes.axvline(run["first_three_in_a_row"] - 1, color=colour, ls=":")
    axes.axvline(result["conditions"]["published"] - 1, color="black", ls="--", label="published: session 14")
    axes.set(xlabel="session", ylabel=f"accepted of the last {window}")
    axes.legend(fontsize=7)
    return figure


def main() -> None:
    pictures: list[Callable[[dict], plt.Figure]] = [arms, staleness, forgetting, teacher, feedback, style]
    for picture in pictures:
        file = RESULTS / f"{picture.__name__}.json"
        if file.exists():
            figure = picture(json.loads(file.read_text()))
            figure.tight_layout()
            figure.savefig(file.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
