"""Rerun: a program that was lost with its runner runs again from its beginning, and receives the answers that it had.

    runner lost → Rerun(turns so far) → repeat, repeat … → none left: the program is where it was, and goes on

What a program did is in its memory. If it asks the same again, and receives the same answers, it is in the same state.
So each turn is given once more, to the first request with the body of its own. Of equal requests with numbers, it is
the one with the number of its own.

A program that asks for something else, where a turn has not been repeated, has become another one: the turns that it
did not repeat would be trained on with a reward that they did not earn. Then the attempt ends as a failure of ours, and
its response begins again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rljob_runtime.protocols.turns import unnumbered
from rljob_runtime.scheduling.episodes.ends import AbortCause
from rljob_runtime.scheduling.episodes.turns import index_of


@dataclass(frozen=True)
class MadeTurn:
    """A turn that the lost program asked for.

    `after`: the sampled node that its prompt goes on from, or `ROOT`.
    """

    id: int
    digest: str
    after: int


class Rerun:
    """The turns that the program which runs again has not repeated. `cause`: of the attempt's end if it never does."""

    def __init__(self, turns: Iterable[MadeTurn], cause: AbortCause) -> None:
        self.cause = cause
        self._left = {turn.id: turn for turn in sorted(turns, key=lambda turn: turn.id)}

    @property
    def left(self) -> tuple[int, ...]:
        """The ids of the turns that were not repeated, in the order in which they were opened."""
        return tuple(self._left)

    def repeat(self, digest: str) -> int | None:
        """Return the first turn that is left of a request with this digest, and take it out; None without one.

        Of equal requests it is that of the same number, so that a retry finds it. Without one it is any of them.
        """
        request, asked = unnumbered(digest)
        equal: dict[int, int] = {}
        for turn, one in self._left.items():
            made, number = unnumbered(one.digest)
            if made == request:
                equal[turn] = index_of(number)
        found = next((turn for turn, index in equal.items() if index == index_of(asked)), next(iter(equal), None))
        if found is not None:
            del self._left[found]
        return found

    def misses(self, after: int) -> int | None:
        """Return a turn that is left where a new one would go on from the same sampled node; None without one."""
        return next((turn.id for turn in self._left.values() if turn.after == after), None)

    def forget(self, turn: int) -> None:
        """Take out a turn that was given up without an answer."""
        self._left.pop(turn, None)
