"""Does learning happen, and does the critic or the group make it? sao, sao-grpo-dis and record-only on the same tasks.

Each arm gets the same number of scored answers to training tasks and is measured on the same held-out tasks.
    python experiments/learning/arms.py [--family repeat] [--steps 20] [--seeds 1,2,3]
"""

from __future__ import annotations

import argparse
import time

import driver
from driver import Scenario, each, say, shown
from tasks import ANSWER_TOKENS, Course, Task, sign_p, share

BATCH = 16
GROUP = 8
STEPS = 20
FAMILY = "repeat"
ARMS: dict[str, dict[str, object]] = {
    "sao": {"batch_size": BATCH, "evaluate_tasks": 0},
    "sao-grpo-dis": {"groups_per_step": BATCH // GROUP, "rollouts_per_group": GROUP, "evaluate_tasks": 0},
    "record-only": {},
}
SHOWN = {"reward": "reward_mean", "masked": "pg_clipfrac", "lag": "lag_mean", "apart": "train_rollout_logprob_abs_diff", "first_step_kl": "policy/first_step_kl"}


def practise(scenario: Scenario, tasks: list[Task], seeds: list[int], release: str | None = None) -> list[float]:
    """Answers, scores and reports; the rewards."""

    def one(item: tuple[Task, int]) -> float:
        task, seed = item
        answer = scenario.ask(task.chat(), ANSWER_TOKENS, seed=seed, release=release)
        reward = task.reward(answer.text)
        scenario.report(answer.receipt, score=reward)
        return reward

    return each(one, list(zip(tasks, seeds, strict=True)))


def batch(arm: str, course: Course) -> list[Task]:
    """Prompts that come once, or a few that are answered several times."""
    if arm == "sao-grpo-dis":
        return [task for task in course.tasks(BATCH // GROUP) for _ in range(GROUP)]
    return course.tasks(BATCH)


def run(arm: str, family: str, seed: int, steps: int) -> dict[str, object]:
    began = time.monotonic()
    with driver.server(arm, f"arms-{arm}") as server:
        scenario, course = server.scenario(f"{arm}-{seed}", recipe_config=ARMS[arm]), Course(family, seed)
        before, rows = course.measure(scenario), []
        for number in range(steps):
            rewards = practise(scenario, batch(arm, course), course.seeds(BATCH))
            row: dict[str, object] = {"reward": sum(rewards) / BATCH}
            if arm != "record-only":
                row = shown(scenario.wait_step(number), SHOWN)
            rows.append(row)
            say(f"{arm} seed {seed} step {number + 1}: {row}")
        after = course.measure(scenario)
    return {
        "arm": arm, "seed": seed, "before": share(before), "after": share(after), "right_after": after,
        "answers": steps * BATCH, "steps": rows, "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", default=FAMILY)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seeds", type=driver.seeds, default="1,2,3")
    parser.add_argument("--fresh", action="store_true", help="forget the runs that are there")
    given = parser.parse_args()
    result = driver.begin("arms", driver.conditions(family=given.family, batch=BATCH, steps=given.steps), given.fresh)
    for seed in given.seeds:
        for arm in ARMS:
            if not driver.done(result, arm=arm, seed=seed):
                result["runs"].append(run(arm, given.family, seed, given.steps))
                driver.write("arms", result)
    right = {arm: [hit for done in result["runs"] if done["arm"] == arm for hit in done["right_after"]] for arm in ARMS}
    result["after"] = {arm: share(hits) for arm, hits in right.items()}
    result["p_against_sao"] = {arm: sign_p(right["sao"], hits) for arm, hits in right.items() if arm != "sao"}
    driver.write("arms", result)
    say(f"{result['after']} {result['p_against_sao']}")


if __name__ == "__main__":
    main()
