"""Streams of one chat-completions server, and what they say about its speed.

Each stream is a thread that notes when each piece of text arrives; tokens are those of the server's own `usage`.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

ANSWER_SECONDS_MAX = 300


class MeasureError(Exception):
    """A run that measured nothing; the message is a sentence."""


@dataclass(frozen=True)
class Endpoint:
    """Where a server listens, and the fields that only it needs in a body."""

    name: str
    port: int
    model: str
    extra: dict[str, object] = field(default_factory=dict)
    pid: int = 0


@dataclass
class Stream:
    """What one stream saw, in seconds of the monotonic clock."""

    started: float = 0.0
    pieces: list[float] = field(default_factory=list)
    ended: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True)
class Speed:
    """Tokens per second of one run."""

    steady: float
    end_to_end: float
    prompt_tokens: int
    completion_tokens: int


Messages = list[dict[str, str]]


def ask(endpoint: Endpoint, messages: Messages, tokens_max: int, gate: threading.Barrier | None = None) -> Stream:
    """Sends one request, reads its stream to the end."""
    body = {
        "model": endpoint.model,
        "messages": messages,
        "max_tokens": tokens_max,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **endpoint.extra,
    }
    headers = {"content-type": "application/json", "x-reef-scenario": "bench"}
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=ANSWER_SECONDS_MAX)
    connection.connect()
    if gate is not None:
        gate.wait()
    stream = Stream(started=time.monotonic())
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise MeasureError(f"{endpoint.name} answered {response.status}: {response.read(500).decode(errors='replace')}")
        # Events are read when all have come: the client shares the cores of the server that it measures.
        events: list[tuple[float, bytes]] = []
        while line := response.readline():
            if line.startswith(b"data: {"):
                events.append((time.monotonic(), line))
        stream.ended = time.monotonic()
    finally:
        connection.close()
    for arrived, line in events:
        note(stream, arrived, json.loads(line[6:]))
    if stream.completion_tokens == 0:
        raise MeasureError(f"{endpoint.name} ended a stream without saying how many tokens it has")
    return stream


def note(stream: Stream, arrived: float, chunk: dict) -> None:
    """Adds one event of the stream."""
    if any(choice.get("delta", {}).get("content") for choice in chunk.get("choices", [])):
        stream.pieces.append(arrived)
    if usage := chunk.get("usage"):
        stream.prompt_tokens = usage["prompt_tokens"]
        stream.completion_tokens = usage["completion_tokens"]


def ask_together(endpoint: Endpoint, prompts: list[Messages], tokens_max: int) -> list[Stream]:
    """One stream for each prompt, all sent at the same moment."""
    gate = threading.Barrier(len(prompts))
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda messages: ask(endpoint, messages, tokens_max, gate), prompts))


def decode_speed(endpoint: Endpoint, prompts: list[Messages], tokens_max: int) -> Speed:
    """Steady: while every stream decodes, from the last one's first token to the first one's last. End to end: all."""
    streams = ask_together(endpoint, prompts, tokens_max)
    if any(len(stream.pieces) < 2 for stream in streams):
        raise MeasureError(f"{endpoint.name} sent an answer in one piece; its decode speed cannot be seen")
    begin = max(stream.pieces[0] for stream in streams)
    end = min(stream.pieces[-1] for stream in streams)
    if end <= begin:
        raise MeasureError(f"{endpoint.name} never decoded all {len(streams)} streams at once; ask for longer answers")
    within = 0.0
    for stream in streams:
        seen = sum(1 for at in stream.pieces if begin < at <= end)
        within += seen * stream.completion_tokens / len(stream.pieces)
    tokens = sum(stream.completion_tokens for stream in streams)
    took = max(stream.ended for stream in streams) - min(stream.started for stream in streams)
    return Speed(within / (end - begin), tokens / took, streams[0].prompt_tokens, tokens)


def prefill_speed(endpoint: Endpoint, prompt: Messages) -> Speed:
    """Tokens of the prompt over the time to the first token of the answer."""
    stream = ask(endpoint, prompt, 2)
    first = stream.pieces[0] if stream.pieces else stream.ended
    speed = stream.prompt_tokens / (first - stream.started)
    return Speed(speed, speed, stream.prompt_tokens, stream.completion_tokens)
