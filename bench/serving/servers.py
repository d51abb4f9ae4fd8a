"""Starts the servers that are compared, each with a fresh data folder, and ends them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from streams import Endpoint, MeasureError, Messages, Speed

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / ".deps" / "peers"
MODEL = ROOT / ".deps" / "models" / "smollm2-135m-instruct-q4_1.gguf"
REEF = Path(os.environ.get("REEF", ROOT / "target" / "release" / "reef"))
LLAMA_SERVER = Path(os.environ.get("LLAMA_SERVER", PEERS / "bin" / "llama-server"))
PYTHON_REEF = PEERS / "python-reef" / "bin" / "reef"
TRANSFORMERS = PEERS / "transformers" / "bin" / "python"
MOCK = PEERS / "load" / "release" / "mock"
LOAD = PEERS / "load" / "release" / "load"

THREADS = 2
# Prompt and answer of one stream.
CONTEXT_TOKENS = 768
START_SECONDS_MAX = 300
STOP_SECONDS_MAX = 20


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fresh_folder(name: str) -> Path:
    """An empty folder on the disk of the checkout: records are to be durable, and /tmp may be memory."""
    folder = PEERS / "data" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


@contextlib.contextmanager
def process(name: str, command: list[str | Path], folder: Path, ready_url: str) -> Iterator[subprocess.Popen]:
    """Runs a server in `folder` until the block ends; its output goes to a log there."""
    if not Path(command[0]).exists():
        raise MeasureError(f"{name} is not installed: {command[0]} is missing; run bench/serving/run.sh")
    log = folder / "server.log"
    with log.open("wb") as sink:
        child = subprocess.Popen(
            [str(word) for word in command], cwd=folder, stdout=sink, stderr=sink, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        wait_ready(name, child, ready_url, log)
        yield child
    finally:
        stop(child)


def wait_ready(name: str, child: subprocess.Popen, url: str, log: Path) -> None:
    end = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < end:
        if child.poll() is not None:
            raise MeasureError(f"{name} ended while it started; see {log}")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise MeasureError(f"{name} was not ready within {START_SECONDS_MAX} seconds; see {log}")


def stop(child: subprocess.Popen) -> None:
    """Ends the process and those it started; they share a session of their own."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, how)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_SECONDS_MAX)
            return


@contextlib.contextmanager
def reef(**engine: int) -> Iterator[Endpoint]:
    """Reef with its embedded engine; it records every exchange. `engine`: more keys of that section."""
    port, folder = free_port(), fresh_folder("reef")
    config = {
        "listen": f"127.0.0.1:{port}",
        "data": str(folder / "data"),
        "model": str(MODEL),
        "engine": {"threads": THREADS, "batch_max": 32, "context_max": 2048, **engine},
    }
    # JSON is YAML.
    (folder / "reef.yaml").write_text(json.dumps(config))
    command: list[str | Path] = [REEF, "serve", "-c", folder / "reef.yaml"]
    with process("Reef", command, folder, f"http://127.0.0.1:{port}/healthz") as child:
        # The end token (id 2 of this model) is made impossible: every answer has its full length.
        yield Endpoint("Reef", port, MODEL.stem, {"logit_bias": {"2": -100}}, child.pid)


@contextlib.contextmanager
def llama_cpp(streams: int) -> Iterator[Endpoint]:
    """llama.cpp's server on the same file; it records nothing."""
    port, folder = free_port(), fresh_folder(f"llama-{streams}")
    flags = ["-t", THREADS, "-tb", THREADS, "-np", streams, "-c", streams * CONTEXT_TOKENS, "--no-cache-prompt", "--cache-ram", 0]
    command: list[str | Path] = [LLAMA_SERVER, "-m", MODEL, "--host", "127.0.0.1", "--port", str(port), *map(str, flags)]
    extra: dict[str, object] = {"cache_prompt": False, "ignore_eos": True}
    with process("llama.cpp", command, folder, f"http://127.0.0.1:{port}/health"):
        yield Endpoint("llama.cpp", port, MODEL.stem, extra)


class Transformers:
    """Hugging Face transformers, loaded once, asked over a pipe."""

    name = "transformers"

    def __init__(self) -> None:
        if not TRANSFORMERS.exists():
            raise MeasureError(f"transformers is not installed: {TRANSFORMERS} is missing; run bench/serving/run.sh")
        worker = Path(__file__).with_name("transformers_worker.py")
        log = (fresh_folder("transformers") / "server.log").open("wb")
        self.child = subprocess.Popen(
            [TRANSFORMERS, worker, MODEL, str(THREADS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
        self.versions = self._read()

    def _read(self) -> dict:
        assert self.child.stdout is not None
        if line := self.child.stdout.readline():
            return json.loads(line)
        raise MeasureError(f"transformers ended; see {PEERS}/data/transformers/server.log")

    def speed(self, kind: str, prompts: list[Messages], tokens: int) -> Speed:
        """One run of `kind`, decode or prefill."""
        assert self.child.stdin is not None
        self.child.stdin.write(json.dumps({"kind": kind, "prompts": prompts, "tokens": tokens}) + "\n")
        self.child.stdin.flush()
        return Speed(**self._read())

    def close(self) -> None:
        """Ends the worker."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait(STOP_SECONDS_MAX)


@contextlib.contextmanager
def mock(chunks: int, interval_ms: int) -> Iterator[str]:
    """The upstream of the gateways; gives its address."""
    port, folder = free_port(), fresh_folder("mock")
    command: list[str | Path] = [MOCK, str(port), str(chunks), str(interval_ms)]
    with process("the mock upstream", command, folder, f"http://127.0.0.1:{port}/v1/models"):
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def python_reef(upstream: str) -> Iterator[str]:
    """The Python Reef in front of the upstream, with the recipe that only records; gives its address."""
    port, folder = free_port(), fresh_folder("python-reef")
    flags = ["--inference.upstream-url", upstream, "--inference.upstream-model", "mock", "--reef.port", str(port)]
    command: list[str | Path] = [PYTHON_REEF, "serve", *flags, "--reef.run-dir", folder / "run"]
    with process("the Python Reef", command, folder, f"http://127.0.0.1:{port}/healthz"):
        yield f"http://127.0.0.1:{port}"


def reef_gateway_config(listen: str, data: Path, upstream: str) -> dict[str, object]:
    """The configuration of Reef as a gateway: it serves the model `mock` from `upstream`, and records."""
    provider = {"url": upstream, "models": {"mock": "mock"}}
    return {"listen": listen, "data": str(data), "model": str(MODEL), "providers": {"mock": provider}}


@contextlib.contextmanager
def reef_gateway(upstream: str) -> Iterator[str]:
    """Reef in front of the upstream; it records every exchange. Gives its address."""
    port, folder = free_port(), fresh_folder("reef-gateway")
    config = reef_gateway_config(f"127.0.0.1:{port}", folder / "data", upstream)
    (folder / "reef.yaml").write_text(json.dumps(config))
    command: list[str | Path] = [REEF, "serve", "-c", folder / "reef.yaml"]
    with process("Reef", command, folder, f"http://127.0.0.1:{port}/healthz"):
        yield f"http://127.0.0.1:{port}"
