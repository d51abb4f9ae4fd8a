"""What is a sentence of feedback worth? sdpo where few answers succeed, with and without feedback.

A report carries the score 1 or 0 and says in words what the answer should have been; one arm reads the words, the other
has only siblings that succeeded. An answer is right if its last word is: where hardly any is, as with the exact answer, no
group has a success to learn from. The teacher is the model itself, and one this small does not understand the recipe's own
template: `--teacher` measures how often it is right after that one and after `TEMPLATES`, which both arms use.
    python experiments/learning/feedback.py [--steps 16] [--seeds 1,2,3]
"""

from __future__ import annotations

import argparse
import time

import driver
from driver import Scenario, each, say, shown
from tasks import ANSWER_TOKENS, Course, Task, share, sign_p

GROUPS = 4
ROLLOUTS = 4
FAMILY = "first-word"
# At 1 this model is right once in twenty times, and hardly any group has a success.
TEMPERATURE = 0.5
ARMS = {"with feedback": True, "scores alone": False}
# With the default, 5e-4, answers of one form took over within sixteen steps in either arm.
LEARNING_RATE = 1e-4
TEMPLATES = {
    "solution_template": 'A right answer is "{solution}". Reply with exactly that.',
    "feedback_template": "{feedback} Reply with exactly that.",
    "closing_line": "",
}
SHOWN = {"reward": "reward_mean", "active": "active_share", "success": "success_share", "lost_groups": "groups_without_success", "loss": "policy/loss"}


def practise(scenario: Scenario, tasks: list[Task], seeds: list[int]) -> None:
    """Groups of answers to one prompt each, with a score and a sentence."""

    def one(item: tuple[Task, int]) -> None:
        task, seed = item
        answer = scenario.ask(task.chat(), ANSWER_TOKENS, seed=seed, temperature=TEMPERATURE)
        right = task.ends(answer.text)
        told = "" if right else f'The right answer is "{task.wanted}".'
        scenario.report(answer.receipt, score=float(right), metadata={"feedback": told})

    each(one, list(zip([task for task in tasks for _ in range(ROLLOUTS)], seeds, strict=True)))


def run(arm: str, seed: int, steps: int) -> dict[str, object]:
    began, course = time.monotonic(), Course(FAMILY, seed)
    config = {"groups_per_step": GROUPS, "rollouts_per_group": ROLLOUTS, "include_environment_feedback": ARMS[arm], "evaluate_tasks": 0, "learning_rate": LEARNING_RATE, **TEMPLATES}
    with driver.server("sdpo", "feedback") as server:
        scenario, rows = server.scenario(f"feedback-{seed}", recipe_config=config), []
        before = course.measure(scenario, Task.ends)
        for number in range(steps):
            practise(scenario, course.tasks(GROUPS), course.seeds(GROUPS * ROLLOUTS))
            rows.append(shown(scenario.wait_step(number), SHOWN))
            say(f"{arm} seed {seed}: {rows[-1]}")
        after = course.measure(scenario, Task.ends)
    return {
        "arm": arm, "seed": seed, "before": share(before), "after": share(after), "right_after": after,
        "steps": rows, "seconds": round(time.monotonic() - began, 1),
    }


def teacher() -> None:
    """How often the model is right with the answer before it, by template: what a teacher can teach at most."""
    own = "\n\nA correct answer to this: <solution>{answer}</solution>\n\nNow answer the original request."
    ours = "\n\n" + TEMPLATES["solution_template"].replace("{solution}", "{answer}")
    with driver.server("record-only", "feedback-teacher") as server:
        scenario = server.scenario("teacher")
        for name, template in (("alone", ""), ("own", own), ("ours", ours)):
            right = Course(FAMILY, 1).measure(scenario, Task.ends, told=template)
            say(f"template {name}: {sum(right)} of {len(right)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--seeds", type=driver.seeds, default="1,2,3")
    parser.add_argument("--fresh", action="store_true", help="forget the runs that are there")
    parser.add_argument("--teacher", action="store_true", help="measure what the teacher could teach, and nothing else")
    given = parser.parse_args()
    if given.teacher:
        return teacher()
    facts = driver.conditions(family=FAMILY, groups=GROUPS, rollouts=ROLLOUTS, steps=given.steps, right="last word", temperature=TEMPERATURE, learning_rate=LEARNING_RATE, templates=TEMPLATES)
    result = driver.begin("feedback", facts, given.fresh)
    for seed in given.seeds:
        for arm in ARMS:
            if not driver.done(result, arm=arm, seed=seed):
                result["runs"].append(run(arm, seed, given.steps))
                driver.write("feedback", result)
    right = {arm: [hit for done in result["runs"] if done["arm"] == arm for hit in done["right_after"]] for arm in ARMS}
    result["after"] = {arm: share(hits) for arm, hits in right.items()}
    result["p"] = sign_p(*right.values())
    driver.write("feedback", result)
    say(f"{result['after']} p {result['p']}")


if __name__ == "__main__":
    main()
