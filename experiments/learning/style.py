"""When has a person's taste been learned? openclaw-rl on sessions with a scripted person who rejects one style.

The person wants an answer of at most three words, whatever it says, and sends longer ones back. Nothing is reported: a
scripted judge reads the person's next message, as a model would, and votes. The figure is the first session that ends three
accepted ones in a row (published for GSM8K with Qwen3-4B: 14 of 72); record-only tells what chance alone makes of it. The
bare right word would be no style that this model has: it gives it once in thirty times, and never where tools are offered.
    python experiments/learning/style.py [--sessions 72] [--seeds 1,2,3]
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import driver
from driver import ExperimentError, Scenario, say, shown
from tasks import ANSWER_TOKENS, Course, Task

FAMILY = "repeat"
BATCH = 4
IN_A_ROW = 3
ARMS = ("openclaw-rl", "record-only")
WELCOME = "Thanks, just how I like it."
REFUSED = "Not like that. I want a short answer, without a sentence around it."
HINT = "The person wants an answer of one word, or of two or three, and never a sentence."
WORDS_MAX = 3
# openclaw-rl follows requests that offer tools.
TOOLS = [{"type": "function", "function": {"name": "note", "parameters": {"type": "object", "properties": {}}}}]
SHOWN = {"turns": "turns_learned_from", "hinted": "turns_hinted", "unplaced": "hints_unplaced", "score": "score_mean", "failed": "judge_requests_failed", "loss": "policy/loss"}


class Judge(BaseHTTPRequestHandler):
    """A model behind the chat dialect that answers the recipe's two questions by what the person said."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        text = "\n".join(str(message["content"]) for message in asked["messages"])
        refused = REFUSED in text
        if "[HINT_START]" in text:
            vote = f"[HINT_START]{HINT}[HINT_END] \\boxed{{1}}" if refused else "\\boxed{-1}"
        else:
            vote = "\\boxed{-1}" if refused else "\\boxed{1}"
        choices = [{"index": index, "message": {"role": "assistant", "content": vote}, "finish_reason": "stop"} for index in range(asked.get("n", 1))]
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        body = json.dumps({"id": "vote", "object": "chat.completion", "created": 0, "model": "judge", "choices": choices, "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def judge() -> Iterator[str]:
    """A running judge; its address."""
    running = ThreadingHTTPServer(("127.0.0.1", 0), Judge)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{running.server_address[1]}"
    finally:
        running.shutdown()


def session(scenario: Scenario, name: str, task: Task, seed: int) -> tuple[bool, str]:
    """One question and what the person says to the answer; was it accepted?"""
    messages = task.chat()
    answer = scenario.ask(messages, ANSWER_TOKENS, seed=seed, tools=TOOLS, session=name)
    accepted = 0 < len(answer.text.split()) <= WORDS_MAX
    reply = [{"role": "assistant", "content": answer.text}, {"role": "user", "content": WELCOME if accepted else REFUSED}]
    scenario.ask(messages + reply, 1, seed=seed, tools=TOOLS, session=name)
    return accepted, answer.text


def run(arm: str, seed: int, sessions: int) -> dict[str, object]:
    began, course = time.monotonic(), Course(FAMILY, seed)
    config = {"batch_size": BATCH, "learning_rate": 5e-4, "evaluate_tasks": 0} if arm == "openclaw-rl" else {}
    accepted, rows, answers = [], [], []
    with judge() as url:
        upstream = {"providers": {"judge": {"url": url, "models": {"judge": "judge"}}}, "bindings": {"judge": {"provider": "judge", "model": "judge"}}}
        with driver.server(arm, "style", **upstream) as server:
            scenario = server.scenario(f"{arm}-{seed}", recipe_config=config)
            for number, (task, sampling) in enumerate(zip(course.tasks(sessions), course.seeds(sessions), strict=True)):
                liked, text = session(scenario, f"s{number}", task, sampling)
                accepted.append(liked)
                answers.append(text)
                if arm == "openclaw-rl" and (number + 1) % BATCH == 0:
                    rows.append(shown(scenario.wait_step(len(rows)), SHOWN))
                    say(f"seed {seed} session {number + 1}: accepted {sum(accepted)}, {rows[-1]}")
    row = next((end for end in range(IN_A_ROW, sessions + 1) if all(accepted[end - IN_A_ROW : end])), None)
    if len(accepted) != sessions:
        raise ExperimentError("sessions are missing")
    return {
        "arm": arm, "seed": seed, "first_three_in_a_row": row, "accepted": accepted, "answers": answers,
        "accepted_first_third": sum(accepted[: sessions // 3]), "accepted_last_third": sum(accepted[-(sessions // 3) :]),
        "steps": rows, "seconds": round(time.monotonic() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=72)
    parser.add_argument("--seeds", type=driver.seeds, default="1,2,3")
    parser.add_argument("--fresh", action="store_true", help="forget the runs that are there")
    given = parser.parse_args()
    facts = driver.conditions(family=FAMILY, batch=BATCH, sessions=given.sessions, published=14, accepted=f"at most {WORDS_MAX} words")
    result = driver.begin("style", facts, given.fresh)
    for seed in given.seeds:
        for arm in ARMS:
            if not driver.done(result, arm=arm, seed=seed):
                result["runs"].append(run(arm, seed, given.sessions))
                driver.write("style", result)
    say(str([(done["arm"], done["seed"], done["first_three_in_a_row"]) for done in result["runs"]]))


if __name__ == "__main__":
    main()
