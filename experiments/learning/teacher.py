"""Does a student come to its teacher? opd from the same model after sft, on the student's own answers.

The teacher is a retained release of another scenario, named in the bindings of a second server on the same data.
    python experiments/learning/teacher.py [--teach 8] [--steps 10] [--seeds 1,2,3]
"""

from __future__ import annotations

import argparse
import time

import driver
from driver import each, say, shown
from forgetting import demonstrate
from tasks import ANSWER_TOKENS, Course, Task, share

BATCH = 16
FAMILY = "repeat"
SHOWN = {"reverse_kl": "policy/loss", "divergence": "policy/divergence", "lag": "lag_mean", "apart": "train_rollout_logprob_abs_diff"}


def run(seed: int, teach: int, steps: int) -> dict[str, object]:
    began, course, data = time.monotonic(), Course(FAMILY, seed), "teacher"
    config = {"batch_size": BATCH, "evaluate_tasks": 0}
    with driver.server("sft", data) as server:
        scenario = server.scenario(f"teacher-{seed}", recipe_config=config)
        before = course.measure(scenario)
        for number in range(teach):
            demonstrate(scenario, course.tasks(BATCH), course.seeds(BATCH))
            scenario.wait_step(number)
        taught, teacher = course.measure(scenario), scenario.releases()[-1]
    say(f"seed {seed}: the teacher is right in {sum(taught)} of {len(taught)}")
    bindings = {"teacher": {"provider": "embedded", "model": teacher}}
    with driver.server("opd", data, keep_data=True, bindings=bindings) as server:
        scenario, rows = server.scenario(f"student-{seed}", recipe_config=config), []
        for number in range(steps):

            def one(item: tuple[Task, int]) -> None:
                task, sampling = item
                scenario.report(scenario.ask(task.chat(), ANSWER_TOKENS, seed=sampling).receipt)

            each(one, list(zip(course.tasks(BATCH), course.seeds(BATCH), strict=True)))
            rows.append(shown(scenario.wait_step(number), SHOWN))
            say(f"student seed {seed}: {rows[-1]}")
        after = course.measure(scenario)
    return {
        "seed": seed, "student_before": share(before), "teacher": share(taught), "student_after": share(after),
        "right": {"before": before, "teacher": taught, "after": after}, "steps": rows, "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--teach", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seeds", type=driver.seeds, default="1,2,3")
    parser.add_argument("--fresh", action="store_true", help="forget the runs that are there")
    given = parser.parse_args()
    facts = driver.conditions(family=FAMILY, batch=BATCH, teacher_steps=given.teach, student_steps=given.steps)
    result = driver.begin("teacher", facts, given.fresh)
    for seed in given.seeds:
        if not driver.done(result, seed=seed):
            result["runs"].append(run(seed, given.teach, given.steps))
            driver.write("teacher", result)
    result["pooled"] = {who: share([hit for done in result["runs"] for hit in done["right"][who]]) for who in ("before", "teacher", "after")}
    driver.write("teacher", result)
    say(str(result["pooled"]))


if __name__ == "__main__":
    main()
