"""What repack is told beside a replica's metrics: its name, and how full its cache will become."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from rljob_runtime.scheduling.lending.policy import ExpectedLengths, Unfinished, peak_kv_tokens
from rljob_runtime.scheduling.round_planner.survival import Survival

LENGTHS_KEPT = 8192
"""Of the responses that ended last: a round's, as Laminar has them."""


class Lengths:
    """How long responses become, by those of the job so far."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._ended: deque[int] = deque(maxlen=LENGTHS_KEPT)
        self.expected = ExpectedLengths(Survival(()), longest)

    def ended(self, tokens: int) -> None:
        """Record that a response ended with `tokens` tokens."""
        self._ended.append(tokens)

    def learn(self, running: Iterable[int]) -> None:
        """Take in what ended, and that these have come so far: without them the long ones would be unknown."""
        self.expected = ExpectedLengths(Survival(self._ended, running), self._longest)

    def peak(self, unfinished: Sequence[Unfinished]) -> int:
        """Tokens in the KV cache at their peak, if these are generated together."""
        return round(peak_kv_tokens(unfinished, self.expected))


def name_of(replica: int) -> str:
    """Return the name for the policy; ties go by name, so numbers are filled up with zeros."""
    return f"replica-{replica:04}"


def number_of_replica(name: str) -> int:
    """Invert `name_of`."""
    return int(name.rpartition("-")[2])
