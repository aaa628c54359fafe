"""Resumption: whether another runner goes on with an attempt, and what its reports of tools' calls mean.

    call executed → reported → stored → next turn       runner lost → may_resume → next runner, one resumption later

Where the loop is ours, a runner reports each call of a tool before it asks for the next turn. So its successor knows
which calls were executed. Where tools keep nothing between calls, it takes the stored observations, and executes what
is missing. Where they keep a state, it executes all stored calls once more, in their order: the attempt goes on if it
observes the same. A foreign program runs again from its beginning, see `rerun`.

The number of the resumption is the fencing token of a runner: what an earlier one asks, reports or ends is refused.
Nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from rljob_runtime.scheduling.episodes.times import TurnSpan

MOST_RESUMPTIONS = 4
"""Resumptions of one attempt. What its calls do may be what ends its runners."""


class Recovery(StrEnum):
    """How the next runner goes on."""

    NEXT_TURN = "next turn"
    """Tools keep nothing between calls: no stored call is executed again."""
    REPLAY = "replay"
    """Tools keep a state, in the runner or at their server: stored calls are executed again and compared."""
    RERUN = "rerun"
    """A program runs again from its beginning, and gets the recorded answers to what it asks again."""


@dataclass(frozen=True)
class LostRunner:
    """An attempt whose runner is silent, or handed it back.

    `journals`: whether that runner goes on with attempts of others, and others with its own. `seconds_left`: from
    its last contact to the attempt's deadline.
    """

    recovery: Recovery | None
    journals: bool
    resumptions: int
    seconds_left: float


def may_resume(lost: LostRunner) -> bool:
    """Return whether the next runner goes on with the attempt; else it ends, and its response begins again.

    >>> may_resume(LostRunner(Recovery.REPLAY, True, 0, 5.0)), may_resume(LostRunner(None, True, 0, 5.0))
    (True, False)
    """
    return lost.recovery is not None and lost.journals and lost.resumptions < MOST_RESUMPTIONS and lost.seconds_left > 0


@dataclass(frozen=True, order=True)
class CallId:
    """A call of a tool: the turn that asks for it, and its place among the calls of that turn."""

    node: int
    place: int

    def __str__(self) -> str:
        return f"call {self.place} of turn {self.node}"


@dataclass(frozen=True)
class JournaledCall:
    """A stored call. `digest`: of name, arguments and observation. `resumption`: of the runner that made it last.

    `span`: when it was executed first, if that is known."""

    id: CallId
    digest: bytes
    resumption: int
    span: TurnSpan | None = None


class CallStatus(StrEnum):
    """What a reported call is."""

    NEW = "new"
    """Store it."""
    KNOWN = "known"
    """The same report again: its answer was lost."""
    REPLAYED = "replayed"
    """The successor observes the same."""
    DIFFERENT = "observes something else"
    """The attempt ends: its next turn would follow from what is no more."""
    MISSED = "comes before all stored calls were executed again"
    """The attempt ends: the state of the tools is not that of the stored turns."""
    TWICE = "was executed again, and its tools keep nothing between calls"
    """The attempt ends: a stored call must not have its effect twice."""

    @property
    def ends(self) -> bool:
        """Whether the attempt ends by it, as a failure of ours."""
        return self in (CallStatus.DIFFERENT, CallStatus.MISSED, CallStatus.TWICE)


class ToolJournal:
    """The calls of one attempt. `stored`: those of a former process."""

    def __init__(self, recovery: Recovery | None, stored: Iterable[JournaledCall] = ()) -> None:
        self.recovery = recovery
        self._calls = {call.id: call for call in stored}

    def __len__(self) -> int:
        return len(self._calls)

    def take(self, call: CallId, digest: bytes, resumption: int) -> CallStatus:
        """Decide about a report of the runner of this resumption; what is new is known from now on."""
        known = self._calls.get(call)
        if known is None:
            if self.recovery is Recovery.REPLAY and any(one.resumption < resumption for one in self._calls.values()):
                return CallStatus.MISSED
            self._calls[call] = JournaledCall(call, digest, resumption)
            return CallStatus.NEW
        if known.resumption == resumption:
            return CallStatus.KNOWN if known.digest == digest else CallStatus.DIFFERENT
        if self.recovery is not Recovery.REPLAY:
            return CallStatus.TWICE
        if known.digest != digest:
            return CallStatus.DIFFERENT
        self._calls[call] = replace(known, resumption=resumption)
        return CallStatus.REPLAYED
