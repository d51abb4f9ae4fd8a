"""Draws results.json as results.png: what each arm had found after how many evaluations, and the best packings.

Run it as `python plot.py` beside results.json, in an environment with matplotlib==3.11.2.
"""

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

FIELD = {26: 2.635983, 32: 2.939573}
COLOURS = {"puct": "tab:blue", "greedy": "tab:orange", "restarts": "tab:grey"}
HERE = Path(__file__).parent


def draw_progress(axes, runs, circles):
    """Distance to the field's best over evaluations, one line a seed."""
    for run in runs:
        found = [improvement["evaluations"] for improvement in run["improvements"]] + [run["evaluations"]]
        gaps = [max(FIELD[circles] - improvement["sum"], 1e-7) for improvement in run["improvements"]]
        axes.step(found, gaps + gaps[-1:], where="post", color=COLOURS[run["arm"]], alpha=0.7, label=run["arm"])
    axes.set(xscale="log", yscale="log", title=f"{circles} circles", xlabel="evaluations of the objective")
    axes.set_ylabel("short of the field's best (floor 1e-7)")
    handles, labels = axes.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    axes.legend(unique.values(), unique.keys())


def draw_packing(axes, run):
    """The circles in their square."""
    for x, y, r in json.loads(run["packing"]):
        axes.add_patch(plt.Circle((x, y), r, fill=False))
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=[], yticks=[])
    axes.set_title(f"{run['best']:.9f} ({run['arm']}, seed {run['seed']})")


def main():
    runs = json.loads((HERE / "results.json").read_text())["runs"]
    figure, grid = plt.subplots(2, 2, figsize=(10, 9))
    for column, circles in enumerate(FIELD):
        own = [run for run in runs if run["circles"] == circles]
        draw_progress(grid[0][column], own, circles)
        draw_packing(grid[1][column], max(own, key=lambda run: run["best"]))
    figure.tight_layout()
    figure.savefig(HERE / "results.png", dpi=90)


main()
