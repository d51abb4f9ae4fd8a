"""Speed of the engines: decode at several numbers of streams, and prefill. Servers take turns, run by run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import prompts
import servers
from figures import Row
from streams import Endpoint, MeasureError, Speed, decode_speed, prefill_speed

TOKENS = 128
TRANSFORMERS = servers.Transformers.name


def measure(
    streams: Sequence[int], runs: int, wanted: Sequence[str], say: Callable[[str], None], tokens: int = TOKENS
) -> tuple[list[Row], dict[str, object]]:
    """Rows, and what the peers say about themselves."""
    about: dict[str, object] = {}
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        endpoints: list[Endpoint] = []
        worker: servers.Transformers | None = None
        if "reef" in wanted:
            endpoints.append(stack.enter_context(servers.reef()))
        if "transformers" in wanted:
            worker = servers.Transformers()
            stack.callback(worker.close)
            about[TRANSFORMERS] = worker.versions
        for count in streams:
            with contextlib.ExitStack() as inner:
                here = list(endpoints)
                if "llama.cpp" in wanted:
                    here.append(inner.enter_context(servers.llama_cpp(count)))
                rows += decode_rows(count, runs, here, worker, tokens, say)
        with contextlib.ExitStack() as inner:
            here = list(endpoints)
            if "llama.cpp" in wanted:
                here.append(inner.enter_context(servers.llama_cpp(1)))
            rows.append(prefill_row(runs, here, worker, say))
    return rows, about


def decode_rows(
    count: int, runs: int, endpoints: list[Endpoint], worker: servers.Transformers | None, tokens: int, say: Callable[[str], None]
) -> list[Row]:
    plural = "stream" if count == 1 else "streams"
    steady = Row(f"decode, {count} {plural}, steady", "tok/s", True)
    whole = Row(f"decode, {count} {plural}, end to end", "tok/s", True)
    lengths: dict[str, list[int]] = {}
    for run in range(runs + 1):
        for endpoint in endpoints:
            speed = decode_speed(endpoint, prompts.stories(count), tokens)
            keep(steady, whole, endpoint.name, speed, run, say)
            lengths.setdefault(endpoint.name, []).append(speed.completion_tokens)
        if worker is not None:
            keep(steady, whole, worker.name, worker.speed("decode", prompts.stories(count), tokens), run, say)
    for name, seen in lengths.items():
        if min(seen) < count * tokens:
            steady.notes.append(
                f"{name}, {count} {plural}: some answers ended by themselves; {min(seen)} of {count * tokens} tokens in the shortest run"
            )
    return [steady, whole]


def keep(steady: Row, whole: Row, name: str, speed: Speed, run: int, say: Callable[[str], None]) -> None:
    """The first run is the warm-up."""
    label = "warm-up" if run == 0 else f"run {run}"
    say(
        f"{steady.name}: {name} {speed.steady:.1f} tok/s, {speed.end_to_end:.1f} end to end ({label}, "
        f"{speed.prompt_tokens} prompt tokens, {speed.completion_tokens} generated)"
    )
    if run > 0:
        steady.add(name, speed.steady)
        whole.add(name, speed.end_to_end)


def prefill_row(runs: int, endpoints: list[Endpoint], worker: servers.Transformers | None, say: Callable[[str], None]) -> Row:
    row = Row(f"prefill, {prompts.PREFILL_TOKENS} tokens", "tok/s", True)
    words = prompts.words_for_prefill(endpoints[0]) if endpoints else prompts.PREFILL_TOKENS - 20
    for run in range(runs + 1):
        measured = [(endpoint.name, prefill_speed(endpoint, prompts.long_prompt(words))) for endpoint in endpoints]
        if worker is not None:
            measured.append((worker.name, worker.speed("prefill", [prompts.long_prompt(words)], 1)))
        for name, speed in measured:
            if endpoints and speed.prompt_tokens != prompts.PREFILL_TOKENS:
                raise MeasureError(f"{name} counts {speed.prompt_tokens} tokens where the first server counts {prompts.PREFILL_TOKENS}")
            say(f"{row.name}: {name} {speed.steady:.0f} tok/s ({'warm-up' if run == 0 else f'run {run}'}, {speed.prompt_tokens} tokens)")
            if run > 0:
                row.add(name, speed.steady)
    return row
