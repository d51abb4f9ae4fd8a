"""Does a second task cost the first? sdft and sft learn two families from demonstrations, one after the other.

The demonstration is the right answer, and an answer is right if its last word is: the teacher of sdft is the model itself
with the demonstration before it, and one this small says it in a sentence. With the recipe's own template the teacher is
right in 6 to 25 of 100 tasks and has nothing to teach; with `TEMPLATE` in 91 to 97 (`--teacher` measures both). Both families are
measured before, after the first and after the second.
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
# What the teacher reads after the task.
TEMPLATE = '\n\nThe right answer is "{demonstration}". Reply with exactly that.'
CONFIG: dict[str, dict[str, object]] = {"sdft": {"context_template": TEMPLATE}, "sft": {}}


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
        scenario = server.scenario(f"{arm}-{seed}", recipe_config={"batch_size": BATCH, "evaluate_tasks": 0, **CONFIG[arm]})
        phases, rows = [{family: course.measure(scenario, Task.ends) for family, course in courses.items()}], []
        for course in courses.values():
            for _ in range(steps):
                demonstrate(scenario, course.tasks(BATCH), course.seeds(BATCH))
                rows.append(shown(scenario.wait_step(len(rows)), {"distance": ARMS[arm]}))
                say(f"{arm} seed {seed}: {rows[-1]}")
            phases.append({family: course.measure(scenario, Task.ends) for family, course in courses.items()})
    return {
        "arm": arm, "seed": seed, "steps": rows, "seconds": round(time.monotonic() - began, 1),
        "phases": [{family: share(right) for family, right in phase.items()} for phase in phases], "right": phases,
    }


def teacher() -> None:
    """How often the model is right with the demonstration before it, by template: what a teacher can teach at most."""
    own = "A good answer to this, as an example: <example>{demonstration}</example> Now answer in your own words."
    with driver.server("record-only", "forgetting-teacher") as server:
        scenario = server.scenario("teacher")
        for family in FAMILIES:
            for name, template in (("alone", ""), ("own", own), ("ours", TEMPLATE)):
                right = Course(family, 1).measure(scenario, Task.ends, told=template.replace("{demonstration}", "{answer}"))
                say(f"{family}, template {name}: {sum(right)} of {len(right)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--seeds", type=driver.seeds, default="1,2,3")
    parser.add_argument("--fresh", action="store_true", help="forget the runs that are there")
    parser.add_argument("--teacher", action="store_true", help="measure what the teacher could teach, and nothing else")
    given = parser.parse_args()
    if given.teacher:
        return teacher()
    result = driver.begin("forgetting", driver.conditions(families=FAMILIES, batch=BATCH, steps_each=given.steps, right="last word", template=TEMPLATE), given.fresh)
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
