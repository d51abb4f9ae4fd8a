"""How long feedback waits until it serves, and what a large grid costs inside the guest. Over HTTP, as a client sees it."""

from __future__ import annotations

import time
from collections.abc import Callable

import driver
from tasks import ANSWER_TOKENS, Course

BATCH = 32
STEPS = 6
FEEDBACK_SECONDS = 5.0
GROUPS = 8
ROLLOUTS = 64
ENTROPIC_MS = 2.0
RELEASE_SECONDS_MAX = 120
POLL_SECONDS = 0.02


def measure(say: Callable[[str], None]) -> dict[str, dict]:
    # As the defaults are: all cores, for serving and training alike.
    everything = {"engine": {"threads": 0, "context_max": 2048}, "training": {"share": 0.5}}
    with driver.server("sao", "feedback-time", **everything) as server:
        waits = feedback_seconds(server, say)
    with driver.server("ttt-discover", "entropic", **everything) as server:
        guest = entropic_ms(server, say)
    return {
        "feedback_seconds": {"values": waits, "asked_below": FEEDBACK_SECONDS, "batch": BATCH},
        "entropic_ms": {"values": guest, "asked_below": ENTROPIC_MS, "groups": GROUPS, "rollouts": ROLLOUTS},
    }


def feedback_seconds(server: driver.Server, say: Callable[[str], None]) -> list[float]:
    """From the answer to the last report of a batch to a new head that answers."""
    scenario, course, waits = server.scenario("s", recipe_config={"batch_size": BATCH}), Course("repeat", 1), []
    for number in range(STEPS + 1):

        def one(item: tuple, scenario: driver.Scenario = scenario) -> tuple[str, float]:
            task, seed = item
            answer = scenario.ask(task.chat(), ANSWER_TOKENS, seed=seed)
            return answer.receipt, task.reward(answer.text)

        scored = driver.each(one, list(zip(course.tasks(BATCH), course.seeds(BATCH), strict=True)))
        before = scenario.status()["head"]["release_id"]
        for receipt, score in scored:
            scenario.report(receipt, score=score)
        began = time.perf_counter()
        if number == 0:
            # The critic's warm-up releases nothing.
            scenario.wait_step(0)
            continue
        while (head := scenario.status()["head"]["release_id"]) == before:
            if time.perf_counter() - began > RELEASE_SECONDS_MAX:
                raise driver.ExperimentError(f"no release within {RELEASE_SECONDS_MAX} seconds; the learner says: {scenario.status()}")
            time.sleep(POLL_SECONDS)
        answer = scenario.ask(course.test[0].chat(), 1, greedy=True, capture=False)
        waits.append(time.perf_counter() - began)
        if answer.release != head:
            raise driver.ExperimentError(f"the head is {head}, and {answer.release} answered")
        scenario.wait_step(number)
        say(f"feedback to release, step {number + 1}: {waits[-1]:.2f} s")
    return waits


def entropic_ms(server: driver.Server, say: Callable[[str], None]) -> list[float]:
    """The guest's processor time in `propose` on a whole grid whose scores all differ: an upper bound of its advantages."""
    # Without the pull to the base model, which is training and not the guest's.
    scenario = server.scenario("s", recipe_config={"kl_coefficient": 0.0})
    shape = {"step": 0, "groups_per_step": GROUPS, "rollouts_per_group": ROLLOUTS}

    def one(place: int) -> None:
        answer = scenario.ask([{"role": "system", "content": "."}, {"role": "user", "content": "Hi"}], 1, seed=place)
        metadata = {**shape, "group": place // ROLLOUTS, "rollout": place % ROLLOUTS}
        scenario.report(answer.receipt, score=(place * 7919 % 1000) / 1000, metadata=metadata)

    driver.each(one, range(GROUPS * ROLLOUTS))
    step = scenario.wait_step(0)
    calls = {call["function"]: call for call in step["calls"]}
    if step["kind"] == "skipped" or "propose-update" not in calls:
        raise driver.ExperimentError(f"the grid taught nothing: {step}")
    guest = calls["propose-update"]["guest_us"] / 1000
    say(f"guest time of the grid's step: {guest:.2f} ms, fuel {calls['propose-update']['fuel']}")
    return [guest]
