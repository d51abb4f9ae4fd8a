"""Starts a Reef server with one recipe and drives a scenario of it over HTTP, as any client would.

The experiments import it. Every wait has a bound; nothing here reaches into the server.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REEF = Path(os.environ.get("REEF", ROOT / "target" / "release" / "reef"))
RECIPES = Path(os.environ.get("RECIPES", ROOT / "target" / "wasm32-wasip2" / "recipe"))
MODEL = Path(os.environ.get("MODEL", ROOT / ".deps" / "models" / "smollm2-135m-instruct-q4_1.gguf"))
DATA = Path(os.environ.get("EXPERIMENT_DATA", ROOT / ".deps" / "experiments"))
RESULTS = Path(__file__).parent / "results"

# One thread: a figure is to come out the same however busy the other core is.
THREADS = 1
IN_FLIGHT = 32
START_SECONDS_MAX = 120
STOP_SECONDS_MAX = 30
# Long, as a machine that others use may stand still for minutes.
REQUEST_SECONDS_MAX = 3600
STEP_SECONDS_MAX = 3600
POLL_SECONDS = 0.1
TRIES_MAX = 4

Messages = list[dict[str, str]]


class ExperimentError(Exception):
    """The server did something that the experiment cannot go on from."""


@dataclass
class Answer:
    text: str
    receipt: str
    release: str


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def server(recipe: str, data: str, keep_data: bool = False, **config: object) -> Iterator[Server]:
    """A server with the recipe on `DATA/data`, which is emptied first unless it is kept. `config`: more keys."""
    folder, port = DATA / data, free_port()
    if not keep_data:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    component = RECIPES / f"reef_recipe_{recipe.replace('-', '_')}.wasm"
    for file, remedy in ((REEF, "make build, or set REEF"), (component, "make recipes, or set RECIPES"), (MODEL, "make setup, or set MODEL")):
        if not file.exists():
            raise ExperimentError(f"{file} is missing; {remedy}")
    whole = {
        "listen": f"127.0.0.1:{port}",
        "data": str(folder / "data"),
        "model": str(MODEL),
        "recipe": str(component),
        "engine": {"threads": THREADS, "context_max": 2048, "adapters_retained_max": 24},
        # No candidate waits behind a gate: what the recipe makes of its data is to be seen as it is.
        "scenarios": {"gate": {"kind": "always"}},
        "training": {"share": 1.0},
        **config,
    }
    # JSON is YAML.
    (folder / "reef.yaml").write_text(json.dumps(whole))
    with (folder / "server.log").open("ab") as log:
        child = subprocess.Popen(
            [REEF, "serve", "-c", folder / "reef.yaml"], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
    running = Server(port)
    try:
        running.wait_ready(child, folder / "server.log")
        yield running
    finally:
        for how in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(STOP_SECONDS_MAX)
                break


class Server:
    """The routes of a running server."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.connections = threading.local()

    def wait_ready(self, child: subprocess.Popen, log: Path) -> None:
        end = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < end:
            if child.poll() is not None:
                raise ExperimentError(f"the server ended while it started; see {log}")
            with contextlib.suppress(OSError, ExperimentError):
                self.call("GET", "/readyz")
                return
            time.sleep(POLL_SECONDS)
        raise ExperimentError(f"the server was not ready within {START_SECONDS_MAX} seconds; see {log}")

    def call(self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> tuple[dict, dict[str, str]]:
        """The answer's JSON and headers. A connection that was closed while it lay idle is opened again."""
        for _ in range(TRIES_MAX - 1):
            with contextlib.suppress(ConnectionError, HTTPException):
                return self.once(method, path, body, headers or {})
            time.sleep(POLL_SECONDS)
        return self.once(method, path, body, headers or {})

    def once(self, method: str, path: str, body: object, headers: dict[str, str]) -> tuple[dict, dict[str, str]]:
        """One try. Each thread keeps one connection."""
        connection = getattr(self.connections, "open", None)
        if connection is None:
            connection = self.connections.open = HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_SECONDS_MAX)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), {"content-type": "application/json", **headers})
            reply = connection.getresponse()
            text = reply.read()
        except Exception:
            self.connections.open = None
            raise
        if reply.status >= 400:
            raise ExperimentError(f"{method} {path} is answered {reply.status}: {text[:500].decode(errors='replace')}")
        return json.loads(text or b"{}"), {name.lower(): value for name, value in reply.getheaders()}

    def scenario(self, name: str, **settings: object) -> Scenario:
        """A new scenario with these settings."""
        self.call("POST", "/reef/scenarios", {"scenario": name, **settings})
        return Scenario(self, name)


class Scenario:
    """One thing that learns."""

    def __init__(self, server: Server, name: str) -> None:
        self.server = server
        self.name = name

    def ask(self, messages: Messages, tokens: int, *, seed: int = 0, greedy: bool = False, capture: bool = True, release: str | None = None, session: str = "", **more: object) -> Answer:
        """One answer; `release` pins the request, `capture=False` keeps it out of what is learned from."""
        headers = {"x-reef-scenario": self.name}
        if not capture:
            headers["x-reef-capture"] = "off"
        if session:
            headers["x-reef-tag-session"] = session
        if release:
            headers["x-reef-release-id"] = release
        body = {"model": self.name, "messages": messages, "temperature": 0.0 if greedy else 1.0, "max_tokens": tokens, "seed": seed, **more}
        reply, got = self.server.call("POST", "/v1/chat/completions", body, headers)
        return Answer(reply["choices"][0]["message"]["content"] or "", got["x-reef-agent-record-id"], got["x-reef-release-id"])

    def report(self, receipt: str, **report: object) -> None:
        # An id of its own: a report that is sent again is counted once.
        body = {"references": [receipt], "agent_record_id": str(uuid.uuid4()), **report}
        self.server.call("POST", "/reef/report", body, {"x-reef-scenario": self.name})

    def status(self) -> dict:
        rows = self.server.call("GET", "/reef/status")[0]["scenarios"]
        return next(row for row in rows if row["scenario"] == self.name)

    def steps(self) -> list[dict]:
        """Steps, oldest first."""
        return sorted(self.server.call("GET", f"/reef/scenarios/{self.name}/steps")[0]["steps"], key=lambda step: step["step"])

    def releases(self) -> list[str]:
        """Ids of the releases, oldest first."""
        rows = self.server.call("GET", f"/reef/scenarios/{self.name}/releases")[0]["releases"]
        return [row["release_id"] for row in sorted(rows, key=lambda row: row["sequence"])]

    def wait_step(self, known: int) -> dict:
        """The step after the first `known` ones, once it has ended."""
        end = time.monotonic() + STEP_SECONDS_MAX
        while time.monotonic() < end:
            status = self.status()
            if status["step"] > known and not status["running"]:
                step = self.steps()[known]
                if step["kind"] == "failed":
                    raise ExperimentError(f"{self.name}: step {known + 1} failed: {step['reason']}")
                if step["kind"] != "running":
                    return step
            if status["last_error"] and not status["running"]:
                raise ExperimentError(f"{self.name}: {status['last_error']}")
            time.sleep(POLL_SECONDS)
        raise ExperimentError(f"{self.name}: no step within {STEP_SECONDS_MAX} seconds; the learner says: {self.status().get('waiting')}")


def each(work: Callable, items: Sequence) -> list:
    """The work on every item, several at a time, in the order of the items."""
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        return list(pool.map(work, items))


def shown(step: dict, names: dict[str, str]) -> dict[str, object]:
    """Of a step: how it ended, and some of its figures under short names."""
    return {"step": step["step"], "outcome": step["kind"], **{name: step["metrics"].get(key) for name, key in names.items()}}


def seeds(text: str) -> list[int]:
    """Seeds of a command line."""
    return [int(seed) for seed in text.split(",")]


def conditions(**more: object) -> dict[str, object]:
    """What a result is to be read with."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit.stdout.strip(),
        "processor": names[0] if names else "unknown",
        "cores": os.cpu_count(),
        "threads": THREADS,
        "model": MODEL.stem,
        **more,
    }


def begin(name: str, facts: dict[str, object], fresh: bool = False) -> dict:
    """The result to go on with: one under the same conditions, if there is any, unless it is to be fresh."""
    file = RESULTS / f"{name}.json"
    if file.exists() and not fresh:
        before = json.loads(file.read_text())
        moving = {"at", "commit"}
        if {key: value for key, value in before["conditions"].items() if key not in moving} == json.loads(
            json.dumps({key: value for key, value in facts.items() if key not in moving})
        ):
            return before
    return {"conditions": facts, "runs": []}


def done(result: dict, **which: object) -> bool:
    """Is this run there already?"""
    return any(all(run[key] == value for key, value in which.items()) for run in result["runs"])


def write(name: str, result: dict) -> None:
    """Keeps a result; written after every run, so that an end in between loses only what was running."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
