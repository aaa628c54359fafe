"""Repeats: whether a request that equals an earlier one is sent again, or asks for another answer.

OpenAI's clients say it in a header; other clients do not. One that lost its answer must receive the recorded one. One
that samples the same prompt several times must not. So a request without the header is a retry if the equal request
before it lost its answer: its client left before the answer was sent, or it was refused. If that client has its answer,
or waits for it, the request asks for another one.

What happened to a request is known to one process. Of an equal request that this process does not know, the record
decides: its turn is given again. A client that gives up while its answer is on the way counts as one that has it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rljob_runtime.protocols.turns import EpisodeAttempt

MOST_REQUESTS = 1 << 16
"""Different requests that are remembered. The one that was sent longest ago is forgotten first."""

Key = tuple[EpisodeAttempt, bytes]


@dataclass
class RepeatStats:
    """Totals of the repeats."""

    repeats: int = 0
    """Requests without the header that equal one whose client has its answer, or waits for it."""


@dataclass
class Asked:
    """A request. `retry`: whether it is one; None if nothing is known of it."""

    retry: bool | None
    has_left: Callable[[], bool] | None
    """Whether its client has left; None when its work is done."""
    is_answered: bool = False
    """Whether its answer was sent to its client."""

    @property
    def is_lost(self) -> bool:
        """Whether its client is without an answer, and does not wait for it."""
        return not self.is_answered and (self.has_left is None or self.has_left())


class Repeats:
    """The requests of a gateway that came without the header. Others are not remembered."""

    def __init__(self, most: int = MOST_REQUESTS) -> None:
        self.stats = RepeatStats()
        self._most = most
        self._newest: OrderedDict[Key, Asked] = OrderedDict()

    @contextlib.contextmanager
    def asked(self, key: Key | None, said: bool | None, has_left: Callable[[], bool]) -> Iterator[Asked]:
        """Decide about a request, and remember it. `said`: what its client says about it; None if it says nothing.

        `key`: its attempt and its digest; None of one that need not be remembered, because its client says something.
        """
        asked = Asked(said, has_left)
        if key is not None:
            asked.retry = self._is_retry(key)
            self._remember(key, asked)
        try:
            yield asked
        finally:
            asked.has_left = None

    def _is_retry(self, key: Key) -> bool | None:
        if (before := self._newest.get(key)) is None:
            return None
        if before.is_lost:
            return True
        self.stats.repeats += 1
        return False

    def _remember(self, key: Key, asked: Asked) -> None:
        self._newest[key] = asked
        self._newest.move_to_end(key)
        if len(self._newest) > self._most:
            self._newest.popitem(last=False)


def request_digest(path: str, body: bytes) -> bytes:
    """Return what identifies a request within an attempt: its bytes. A long body takes many milliseconds."""
    return hashlib.blake2b(body, digest_size=16, key=hashlib.blake2b(path.encode(), digest_size=16).digest()).digest()
