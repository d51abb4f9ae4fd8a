"""How old may an answer be? sao with every answer sampled by the release 0, 1, 4 or 16 steps before the head.

The lag is exact: each request is pinned to the release it is to come from. It grows from 0, since there is none before
the first.
    python experiments/learning/staleness.py [--steps 20] [--seeds 1,2,3]
"""

from __future__ import annotations

import argparse
import time

import driver
from arms import ARMS, BATCH, FAMILY, SHOWN, STEPS, practise
from driver import say, shown
from tasks import Course, share

LAGS = (0, 1, 4, 16)


def run(lag: int, seed: int, steps: int) -> dict[str, object]:
    began = time.monotonic()
    with driver.server("sao", "staleness") as server:
        scenario, course = server.scenario(f"lag{lag}-{seed}", recipe_config=ARMS["sao"], max_staleness=lag), Course(FAMILY, seed)
        before, rows = course.measure(scenario), []
        for number in range(steps):
            releases = scenario.releases()
            practise(scenario, course.tasks(BATCH), course.seeds(BATCH), releases[max(0, len(releases) - 1 - lag)])
            rows.append(shown(scenario.wait_step(number), SHOWN))
            say(f"lag {lag} seed {seed} step {number + 1}: {rows[-1]}")
        after = course.measure(scenario)
    masked = [row["masked"] for row in rows if row["masked"] is not None]
    return {
        "lag": lag, "seed": seed, "before": share(before), "after": share(after), "right_after": after,
        "masked_mean": sum(masked) / len(masked), "steps": rows, "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seeds", type=driver.seeds, default="1,2,3")
    parser.add_argument("--fresh", action="store_true", help="forget the runs that are there")
    given = parser.parse_args()
    result = driver.begin("staleness", driver.conditions(family=FAMILY, batch=BATCH, steps=given.steps), given.fresh)
    for seed in given.seeds:
        for lag in LAGS:
            if not driver.done(result, lag=lag, seed=seed):
                result["runs"].append(run(lag, seed, given.steps))
                driver.write("staleness", result)
    result["after"] = {lag: share([hit for done in result["runs"] if done["lag"] == lag for hit in done["right_after"]]) for lag in LAGS}
    driver.write("staleness", result)
    say(str(result["after"]))


if __name__ == "__main__":
    main()
