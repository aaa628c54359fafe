"""Repeats: whether a request that equals earlier ones is sent again, or asks for another answer.

OpenAI's clients say it in a header; other clients do not. One that lost its answer must receive the recorded one. One
that samples the same prompt several times must not. So each answer of equal requests has a number. A request without
the header is a retry of the first number whose answer is lost: its client left before the answer was sent, or it was
refused. A retry takes the number over, so that no further request has it while this one waits. If no answer is lost,
the request asks for another one, with a number of its own.

What happened to a request is known to one process. Of an equal request that this process does not know, the record
decides: its turn is given again. So the numbers are those of a series, which tells what this process asked for from
what the record has of others. A client that gives up while its answer is on the way counts as one that has it.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rljob_runtime.protocols.turns import EpisodeAttempt, RequestNumber

MOST_REQUESTS = 1 << 16
"""Different requests that are remembered. The first to be forgotten is of the attempt that asked longest ago."""

SERIES_BYTES = 4
"""Of the name of a series: those of one attempt do not collide."""

Key = tuple[EpisodeAttempt, bytes]


@dataclass
class RepeatStats:
    """Totals of the repeats."""

    repeats: int = 0
    """Requests without the header that equal others whose clients all have their answers, or wait for them."""


@dataclass(eq=False, slots=True)
class Asked:
    """A request. `retry`: whether a recorded answer is given to it, if there is one.

    `number`: that of its answer among those of equal requests; None of a request that is not remembered.
    """

    retry: bool
    has_left: Callable[[], bool] | None
    """Whether its client has left; None when its work is done."""
    number: RequestNumber | None = None
    is_answered: bool = False
    """Whether its answer was sent to its client."""

    @property
    def is_lost(self) -> bool:
        """Whether its client is without an answer, and does not wait for it."""
        return not self.is_answered and (self.has_left is None or self.has_left())


@dataclass(slots=True)
class _Equal:
    """Equal requests of an attempt.

    A number is added only while the clients of all unanswered ones wait. So there are never more unanswered ones than
    an attempt may have requests under way.
    """

    numbers: int = 0
    series: str = field(default_factory=lambda: secrets.token_hex(SERIES_BYTES))
    unanswered: dict[RequestNumber, Asked] = field(default_factory=dict)
    """The newest request of each number whose answer was not sent, in the order of their numbers."""

    def ask(self, has_left: Callable[[], bool]) -> Asked:
        """Return a further request: with the first number that is lost, or with a new one."""
        lost = next((number for number, one in self.unanswered.items() if one.is_lost), None)
        if lost is not None:
            asked = Asked(True, has_left, lost)
        else:
            asked = Asked(not self.numbers, has_left, RequestNumber(self.series, self.numbers))
            self.numbers += 1
        assert asked.number is not None
        self.unanswered[asked.number] = asked
        return asked

    def end(self, asked: Asked) -> None:
        """Record that the work on a request is done."""
        asked.has_left = None
        if asked.is_answered and asked.number is not None and self.unanswered.get(asked.number) is asked:
            del self.unanswered[asked.number]


class Repeats:
    """The requests of a gateway that came without the header. Others are not remembered."""

    def __init__(self, most: int = MOST_REQUESTS) -> None:
        self.stats = RepeatStats()
        self._most = most
        self._attempts: OrderedDict[EpisodeAttempt, OrderedDict[bytes, _Equal]] = OrderedDict()
        self._remembered = 0

    @property
    def remembered(self) -> int:
        """Different requests that are remembered now."""
        return self._remembered

    @contextlib.contextmanager
    def asked(self, key: Key | None, said: bool, has_left: Callable[[], bool]) -> Iterator[Asked]:
        """Decide about a request, and remember it. `said`: whether its client says that it is a retry.

        `key`: its attempt and its digest; None of one that need not be remembered, because its client says something.
        """
        if key is None:
            yield Asked(said, has_left)
            return
        equal = self._equal(key)
        asked = equal.ask(has_left)
        self.stats.repeats += not asked.retry
        try:
            yield asked
        finally:
            equal.end(asked)

    def forget(self, episode: EpisodeAttempt) -> None:
        """Forget the requests of an attempt that has ended."""
        self._remembered -= len(self._attempts.pop(episode, ()))

    def _equal(self, key: Key) -> _Equal:
        episode, digest = key
        requests = self._attempts.setdefault(episode, OrderedDict())
        self._attempts.move_to_end(episode)
        if (equal := requests.get(digest)) is None:
            equal = requests[digest] = _Equal()
            self._remembered += 1
        requests.move_to_end(digest)
        if self._remembered > self._most:
            self._forget_oldest()
        return equal

    def _forget_oldest(self) -> None:
        """Forget the oldest request of the attempt that asked longest ago."""
        oldest, requests = next(iter(self._attempts.items()))
        requests.popitem(last=False)
        self._remembered -= 1
        if not requests:
            del self._attempts[oldest]


def request_digest(path: str, body: bytes) -> bytes:
    """Return what identifies a request within an attempt: its bytes. A long body takes many milliseconds."""
    return hashlib.blake2b(body, digest_size=16, key=hashlib.blake2b(path.encode(), digest_size=16).digest()).digest()
