"""Prompts that no server has seen: each begins with a number of its own, so that no prefix can be reused."""

from __future__ import annotations

import itertools
import time

from streams import Endpoint, MeasureError, Messages, ask

PREFILL_TOKENS = 512
# Six digits are six tokens of this model, whatever the number.
_numbers = (number % 900_000 + 100_000 for number in itertools.count(time.time_ns() // 1000))

_TOPICS = ("the sea", "a lighthouse", "an old train", "two brothers", "a lost dog", "the first snow", "a baker", "the moon")
_WORDS = ("the", "time", "people", "water", "house", "world", "school", "city", "group", "work", "place", "year")


def stories(count: int) -> list[Messages]:
    """Short prompts, about 30 tokens with the template, whose answers are long."""
    return [
        [
            {"role": "system", "content": f"{next(_numbers)}: you are a storyteller."},
            {"role": "user", "content": f"Tell a very long story about {topic}."},
        ]
        for topic in itertools.islice(itertools.cycle(_TOPICS), count)
    ]


def long_prompt(words: int) -> Messages:
    """A prompt of this many words after its number."""
    text = " ".join(itertools.islice(itertools.cycle(_WORDS), words))
    return [{"role": "system", "content": f"{next(_numbers)} {text}"}, {"role": "user", "content": "Go on."}]


def words_for_prefill(endpoint: Endpoint) -> int:
    """How many words make PREFILL_TOKENS tokens, found by asking the server."""
    words = PREFILL_TOKENS
    for _ in range(4):
        tokens = ask(endpoint, long_prompt(words), 2).prompt_tokens
        if tokens == PREFILL_TOKENS:
            return words
        words -= tokens - PREFILL_TOKENS
    raise MeasureError(f"{endpoint.name}: no prompt of {PREFILL_TOKENS} tokens was found; it counts {tokens} for {words} words")
