"""Samples by handle, and their columns: one value a sample, or one value a response token. Prompts and texts stay
in the host; a column of samples is one call however many it covers, a column of tokens is one call a sample.
"""

from typing import Iterable, Iterator, List, Sequence

from .decisions import train, wait
from .host import Failure, experience, types


class Samples:
    """Samples of this call, in order."""

    def __init__(self, handles: Iterable[int]):
        self.handles: List[int] = list(handles)

    def __len__(self) -> int:
        return len(self.handles)

    def __iter__(self) -> Iterator[int]:
        return iter(self.handles)

    def __getitem__(self, index):
        found = self.handles[index]
        return Samples(found) if isinstance(index, slice) else found

    def first(self, count: int) -> types.Selection:
        """The first `count` as a batch, or to wait for that many."""
        if 0 < count <= len(self):
            return train(self.handles[:count])
        return wait(f"{len(self)} of {count} samples")

    def scores(self) -> List[float]:
        """Score of the report; NaN where it carries none."""
        return experience.scores(self.handles)

    def lags(self) -> List[int]:
        """Releases between the one that sampled and now."""
        return experience.lags(self.handles)

    def releases(self) -> List[str]:
        """Release that sampled the tokens."""
        return experience.releases(self.handles)

    def reference_counts(self) -> List[int]:
        """Inference records that the reports reference."""
        return experience.reference_counts(self.handles)

    def prompt_lengths(self) -> List[int]:
        """Tokens of the prompt."""
        return experience.prompt_lengths(self.handles)

    def response_lengths(self) -> List[int]:
        """Tokens after the first prompt, observations included: T of every per-token column."""
        return experience.response_lengths(self.handles)

    def action_counts(self) -> List[int]:
        """Tokens that the policy sampled."""
        return experience.action_counts(self.handles)

    def mean_logprobs(self) -> List[float]:
        """Mean log-prob of the sampled tokens."""
        return experience.mean_logprobs(self.handles)

    def record_ids(self) -> List[str]:
        """Receipt of the last inference record."""
        return experience.record_ids(self.handles)

    def prompt_keys(self) -> List[str]:
        """Equal prompts have equal keys."""
        return experience.prompt_keys(self.handles)

    def masks(self) -> List[bytes]:
        """1 where the policy sampled, 0 on observations."""
        return [experience.mask(sample) for sample in self.handles]

    def tokens(self) -> List[List[int]]:
        """Ids of the response tokens."""
        return [experience.tokens(sample) for sample in self.handles]

    def logprobs(self) -> List[List[float]]:
        """Recorded log-probs at the sampling temperature; 0 on observations."""
        return [experience.logprobs(sample) for sample in self.handles]

    def parts(self, column: Sequence) -> List[Sequence]:
        """Cuts a concatenated per-token column into one part a sample."""
        parts, start = [], 0
        for length in self.response_lengths():
            parts.append(column[start : start + length])
            start += length
        if start != len(column):
            raise Failure(f"a column of {len(column)} values for {start} response tokens")
        return parts


Pool = Samples
Batch = Samples
