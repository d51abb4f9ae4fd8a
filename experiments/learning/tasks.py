"""Small tasks that a program can check, and how sure a share of right answers is.

Words are those of `reef demo`. Training and test tasks of one seed never share a word.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from driver import ROOT, Messages, Scenario, each

WORDS = (ROOT / "host" / "src" / "demo" / "words.txt").read_text().split()
TEST_WORDS = len(WORDS) // 2
TEST_TASKS = 100
ANSWER_TOKENS = 8
Z_95 = 1.959963984540054


@dataclass(frozen=True)
class Task:
    messages: tuple[tuple[str, str], ...]
    wanted: str

    def chat(self) -> Messages:
        return [{"role": role, "content": content} for role, content in self.messages]

    def exact(self, answer: str) -> bool:
        return answer.strip() == self.wanted

    def ends(self, answer: str) -> bool:
        """Is the last word the right one? Who answers in a sentence is right too."""
        words = answer.split()
        return bool(words) and words[-1].strip("\"'.") == self.wanted

    def reward(self, answer: str) -> float:
        """Half for similarity, which gives a slope to climb, half for the exact answer."""
        return 0.5 * similarity(answer.strip(), self.wanted) + 0.5 * self.exact(answer)


def similarity(a: str, b: str) -> float:
    """Twice the longest common subsequence over both lengths, in [0, 1]."""
    row = [0] * (len(b) + 1)
    for x in a:
        diagonal = 0
        for place, y in enumerate(b, 1):
            above = row[place]
            row[place] = diagonal + 1 if x == y else max(above, row[place - 1])
            diagonal = above
    return 2 * row[-1] / (len(a) + len(b)) if a or b else 1.0


def asked(system: str, user: str, wanted: str) -> Task:
    return Task((("system", system), ("user", user)), wanted)


def repeat(deck: Deck) -> Task:
    word = deck.word()
    return asked("Answer with one word.", f"Repeat this word and nothing else: {word}", word)


def first_word(deck: Deck) -> Task:
    first, second = deck.word(), deck.word()
    return asked("Answer with one word.", f"Say only the first word: {first} {second}", first)


def title_case(deck: Deck) -> Task:
    word = deck.word()
    return asked("Answer with the result only.", f"Write this word with a capital first letter: {word}", word.capitalize())


FAMILIES = {"repeat": repeat, "first-word": first_word, "title-case": title_case}


class Deck:
    """Words in random order, every word once before any comes again."""

    def __init__(self, words: list[str], chance: random.Random) -> None:
        self.words, self.chance, self.next = list(words), chance, 0

    def word(self) -> str:
        if self.next == len(self.words):
            self.chance.shuffle(self.words)
            self.next = 0
        self.next += 1
        return self.words[self.next - 1]


class Course:
    """Tasks of one family and seed: `test`, and as many for training as anybody wants."""

    def __init__(self, family: str, seed: int, tests: int = TEST_TASKS) -> None:
        self.make, self.chance = FAMILIES[family], random.Random(seed)
        words = list(WORDS)
        self.chance.shuffle(words)
        test, self.deck = Deck(words[:TEST_WORDS], self.chance), Deck(words[TEST_WORDS:], self.chance)
        self.test = [self.make(test) for _ in range(tests)]

    def tasks(self, count: int) -> list[Task]:
        return [self.make(self.deck) for _ in range(count)]

    def seeds(self, count: int) -> list[int]:
        """Seeds of sampling."""
        return [self.chance.getrandbits(62) for _ in range(count)]

    def measure(self, scenario: Scenario, right: Callable[[Task, str], bool] = Task.exact, told: str = "") -> list[bool]:
        """Which test tasks the head answers right, greedily; nothing of it is learned from. `told` stands behind each task,
        with the right answer in the place of {answer}: what a model that reads it could teach."""

        def hit(task: Task) -> bool:
            *before, last = task.chat()
            messages = [*before, {**last, "content": last["content"] + told.replace("{answer}", task.wanted)}]
            return right(task, scenario.ask(messages, ANSWER_TOKENS, greedy=True, capture=False).text)

        return each(hit, self.test)


def wilson(hits: float, count: int) -> tuple[float, float]:
    """95 % interval of a share (E. B. Wilson, 1927)."""
    share, z2 = hits / count, Z_95**2
    centre = share + z2 / (2 * count)
    half = Z_95 * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    return max(0.0, (centre - half) / (1 + z2 / count)), min(1.0, (centre + half) / (1 + z2 / count))


def share(right: list[bool]) -> dict[str, object]:
    """A share with its interval."""
    return {"value": sum(right) / len(right), "interval": wilson(sum(right), len(right)), "n": len(right)}


def sign_p(ours: list[bool], theirs: list[bool]) -> float:
    """Two-sided exact sign test on pairs (McNemar): the chance of so uneven a split of the pairs that differ."""
    wins = sum(a and not b for a, b in zip(ours, theirs, strict=True))
    losses = sum(b and not a for a, b in zip(ours, theirs, strict=True))
    n = wins + losses
    tail = sum(math.comb(n, k) for k in range(min(wins, losses) + 1)) / 2**n if n else 1.0
    return min(1.0, 2 * tail)
