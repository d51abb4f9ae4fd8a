"""Does a second task cost the first? sdft and sft learn two families from demonstrations, one after the other.

The demonstration is the right answer. Both families are measured before, after the first and after the second.
    python experiments/learning/forgetting.py [--steps 6] [--seeds 1,2,3]
"""

from __future__ import annotations

import argparse
import time

import driver
from driver import Scenario, each, say, shown
from tasks import ANSWER_TOKENS, Course, Task, share, sign_p

BATCH = 16
FAMILIES = ("title-case", "first-word")
ARMS = {"sdft": "policy/divergence", "sft": "demonstration_nll"}


def demonstrate(scenario: Scenario, tasks: list[Task], seeds: list[int]) -> None:
    """Answers, each reported with what it should have been."""

    def one(item: tuple[Task, int]) -> None:
        task, seed = item
        answer = scenario.ask(task.chat(), ANSWER_TOKENS, seed=seed)
        scenario.report(answer.receipt, metadata={"demonstration": task.wanted})

    each(one, list(zip(tasks, seeds, strict=True)))


def run(arm: str, seed: int, steps: int) -> dict[str, object]:
    began, courses = time.monotonic(), {family: Course(family, seed) for family in FAMILIES}
    with driver.server(arm, f"forgetting-{arm}") as server:
        scenario = server.scenario(f"{arm}-{seed}", recipe_config={"batch_size": BATCH, "evaluate_tasks": 0})
        phases, rows = [{family: course.measure(scenario) for family, course in courses.items()}], []
        for course in courses.values():
            for _ in range(steps):
                demonstrate(scenario, course.tasks(BATCH), course.seeds(BATCH))
                rows.append(shown(scenario.wait_step(len(rows)), {"distance": ARMS[arm]}))
                say(f"{arm} seed {seed}: {rows[-1]}")
            phases.append({family: course.measure(scenario) for family, course in courses.items()})
    return {
        "arm": arm, "seed": seed, "steps": rows, "seconds": round(time.monotonic() - began, 1),
        "phases": [{family: share(right) for family, right in phase.items()} for phase in phases], "right": phases,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--seeds", type=driver.seeds, default="1,2,3")
    parser.add_argument("--fresh", action="store_true", help="forget the runs that are there")
    given = parser.parse_args()
    result = driver.begin("forgetting", driver.conditions(families=FAMILIES, batch=BATCH, steps_each=given.steps), given.fresh)
    for seed in given.seeds:
        for arm in ARMS:
            if not driver.done(result, arm=arm, seed=seed):
                result["runs"].append(run(arm, seed, given.steps))
                driver.write("forgetting", result)

    def pooled(arm: str, phase: int, family: str) -> list[bool]:
        return [hit for done in result["runs"] if done["arm"] == arm for hit in done["right"][phase][family]]

    first = FAMILIES[0]
    result["pooled"] = {arm: [{family: share(pooled(arm, phase, family)) for family in FAMILIES} for phase in range(3)] for arm in ARMS}
    # The first family after the second was learned, and how much of it went meanwhile.
    result["kept_p"] = sign_p(pooled("sdft", 2, first), pooled("sft", 2, first))
    result["lost"] = {arm: (sum(pooled(arm, 1, first)) - sum(pooled(arm, 2, first))) / len(pooled(arm, 1, first)) for arm in ARMS}
    driver.write("forgetting", result)
    say(f"{result['lost']} p {result['kept_p']}")


if __name__ == "__main__":
    main()
