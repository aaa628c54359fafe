"""Attempt: one attempt of an episode, as the coordinator holds it: its tree, its open turns, and what it is to report.

The coordinator's loops see the attempt as one response. The turns that the store has are its tokens, in the order in
which they were stored, and the runner's report is its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from rljob_runtime.protocols import Delta, GenerateRequest
from rljob_runtime.protocols.environments import EpisodeReport
from rljob_runtime.protocols.trajectory import FinishReason, PromptKey, Sampling, TrajectoryKey
from rljob_runtime.protocols.turns import EpisodeAttempt, RecordedTurn, TurnCall
from rljob_runtime.scheduling.episodes.ends import AbortCause, EndState
from rljob_runtime.scheduling.episodes.episode import Episode, Versions
from rljob_runtime.scheduling.episodes.limits import Limit
from rljob_runtime.scheduling.episodes.node import last_answer
from rljob_runtime.scheduling.episodes.resumption import Recovery, ToolJournal
from rljob_runtime.scheduling.episodes.times import (
    AttemptTimes,
    Pause,
    TurnSpan,
    attempt_times,
    counted_seconds,
    limit_start,
)
from rljob_runtime.scheduling.episodes.turns import Turn


class Holder(Protocol):
    """The replica that has an attempt: it generates its turns and reports what is stored."""

    @property
    def generates(self) -> bool:
        """Whether turns are generated here, as far as is known."""
        ...

    def hold(self, attempt: Attempt) -> None:
        """Go on with an attempt: report what is not reported yet, and generate its open turns."""
        ...

    def tell(self, attempt: Attempt) -> None:
        """Report what is stored of an attempt that is held here."""
        ...

    def generate(self, attempt: Attempt, live: OpenTurn) -> None:
        """Submit an open turn; one that needs newer weights waits for their load."""
        ...

    def stop(self, attempt: Attempt, turns: Mapping[int, OpenTurn]) -> None:
        """Forget an attempt that is over here, and stop turns that no client waits for."""
        ...


@dataclass
class OpenTurn:
    """A turn that an engine generates, or that waits for one. `token_ids`: what has arrived of it."""

    turn: Turn
    call: TurnCall
    forked: bool
    answer: asyncio.Future[RecordedTurn]
    launches: int = 0
    """The attempt of its request. It rises with each submission, and is higher than those of earlier coordinators."""
    replica: Holder | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    version: int | None = None
    """The weights that generate it; None before its first submission."""
    submitted: float = 0.0
    """When it was submitted last, on the event loop's clock, as the times below."""
    waits_since: float | None = None
    """Since when it waits for a load of weights; None while it does not."""
    waited: float = 0.0
    """Seconds that it has waited for loads."""
    interrupted: bool = False
    """Whether a load has interrupted it."""
    was_without_engine: bool = False
    """Whether no engine generated it for a time that its client has waited for."""

    def wait(self, now: float, interrupted: bool = False) -> None:
        """Wait for a load of weights: no engine has the turn."""
        self.replica = None
        self.interrupted |= interrupted
        if self.waits_since is None:
            self.waits_since = now

    def submit(self, replica: Holder, now: float) -> None:
        """Record that a replica generates it from now on."""
        self.was_without_engine |= self.submitted > 0.0
        self.replica, self.submitted = replica, now
        if self.waits_since is not None:
            self.waited += now - self.waits_since
            self.waits_since = None

    def begin_again(self, version: int) -> int:
        """Let a version generate it, without the tokens of another one. Return how many tokens that costs."""
        if self.version == version:
            return 0
        lost, self.version = len(self.token_ids), version
        self.token_ids, self.logprobs = [], []
        return lost


@dataclass
class Attempt:
    """One attempt.

    `lease`: the attempt of the response that it is, as the loops count them. `version`: the oldest weights that may
    generate a turn of it."""

    id: EpisodeAttempt
    environment: str
    version: int
    episode: Episode
    journals: bool = False
    """Whether another runner may go on with it: its runner knows of resumptions, and reports the calls of its tools."""
    lost: float = 0.0
    """The last contact of the runner before the present one."""
    lost_by: AbortCause = AbortCause.ENVIRONMENT
    """What ended the runner before: the cause of the attempt's end if this one cannot bring it to where it was."""
    lease: int = 0
    sampling: Sampling | None = None
    holder: Holder | None = None
    """The replica that has it; None while it is stopped. Its open turns wait then."""
    open: dict[int, OpenTurn] = field(default_factory=dict)
    unstored: dict[int, OpenTurn] = field(default_factory=dict)
    """The complete turns that the store does not have yet. No client has their answers."""
    recorded: dict[int, RecordedTurn] = field(default_factory=dict)
    """The stored turns by node, in the order in which they were stored."""
    token_ids: list[int] = field(default_factory=list)
    """Of the stored turns."""
    logprobs: list[float] = field(default_factory=list)
    call_characters: int = 0
    """Of the calls of tools that this process has stored."""
    told: int = 0
    """Tokens that its holder has reported."""
    report: EpisodeReport | None = None
    reporter: str | None = None
    """The runner that ended it."""
    stored: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when its end is stored."""
    stored_limit: Limit | None = None
    """The limit that refuses turns, once it is stored."""
    scored: bool = False
    """Whether its reward was asked for: the loop has its end."""
    ended_at: float | None = None
    """Seconds of the epoch."""
    spans: dict[int, TurnSpan] = field(default_factory=dict)
    """When the stored turns were open, by node; without those of a store of an earlier format."""
    tools: list[TurnSpan] = field(default_factory=list)
    """When calls of tools ran, as far as that is known."""
    pauses: list[Pause] = field(default_factory=list)
    """When it had no runner, in order."""
    outage: float | None = None
    """Seconds of its time in which no coordinator answered, as far as this one knows; None if one always did."""
    began: float = field(init=False)
    """When its first runner received it; before that, when it began."""

    def __post_init__(self) -> None:
        self.began = self.episode.started
        self.calls = ToolJournal(self.episode.rules.recovery)
        """The executed calls of tools."""

    def begin_resumption(self, last_contact: float, cause: AbortCause) -> None:
        """Let another runner go on. What the former one names is no attempt any more.

        `cause`: of the attempt's end, if the next runner cannot bring it to where it was."""
        self.id = replace(self.id, resumption=self.id.resumption + 1)
        self.lost, self.lost_by = last_contact, cause
        if self.reruns:
            self.episode.run_again(cause)

    def take(self, now: float) -> None:
        """Let the runner that receives it now have it. Time without a runner does not count towards its limit.

        A former runner that did not receive it prolongs the time without one."""
        if not self.id.resumption:
            self.began = now
        else:
            again = bool(self.pauses) and self.pauses[-1].until == self.lost
            self.pauses.append(Pause(self.pauses.pop().since if again else self.lost, now))
            self.lost = now
            if self.reruns:
                # Its program has all of its time again, after the outage.
                self.outage = None
        self.count_limit()

    def count_limit(self) -> None:
        """Let the time limit count from the moment that follows from its times. Time of an outage does not count."""
        self.episode.started = self.harness_start + (self.outage or 0.0)

    @property
    def harness_start(self) -> float:
        """From when its harness counts its time: no harness knows that its coordinator was away."""
        return limit_start(self.began, self.pauses, self.reruns)

    @property
    def reruns(self) -> bool:
        """Whether the next runner runs a program again from its beginning."""
        return self.episode.rules.recovery is Recovery.RERUN

    def asked_by(self, turn: int) -> int | None:
        """Return the resumption whose program asked for a turn last; None where the loop is ours.

        Of a turn that the present program has not asked for it is the one before, whichever asked."""
        if not self.reruns or not self.journals:
            return None
        return self.id.resumption - (turn in self.episode.unrepeated)

    @property
    def key(self) -> TrajectoryKey:
        """The response that the attempt is."""
        return self.id.key

    @property
    def is_mixed(self) -> bool:
        """Whether newer weights may generate later turns."""
        return self.episode.rules.versions is Versions.MIXED

    @property
    def least_version(self) -> int:
        """The oldest version that may generate the next turn: an episode never goes back to older weights."""
        return max(self.version, self.episode.newest_version or self.version)

    @property
    def begins_again(self) -> bool:
        """Whether its response begins again at a launch without tokens: its reward failed, or it was not needed."""
        end = self.episode.end
        return self.scored or (end is not None and end.cause is AbortCause.NOT_NEEDED)

    @property
    def deadline(self) -> float:
        """Seconds of the epoch."""
        assert self.episode.deadline is not None, "every environment has a longest time"
        return self.episode.deadline

    @property
    def is_generated(self) -> bool:
        """Whether an engine has it, or may have it."""
        return self.holder is not None and self.holder.generates

    @property
    def waits_for_engine(self) -> bool:
        """Whether a client waits for a turn that no engine generates, or generated for a time."""
        if any(live.waits_since is not None or live.was_without_engine for live in self.open.values()):
            return True
        return bool(self.open) and not self.is_generated

    @property
    def ended(self) -> bool:
        """Whether its end is stored."""
        return self.stored.is_set()

    @property
    def times(self) -> AttemptTimes | None:
        """Its seconds in the model and outside; None while it is open, or where a turn's time is not known."""
        if self.ended_at is None or self.spans.keys() != self.recorded.keys():
            return None
        return attempt_times(self.began, self.ended_at, self.spans.values(), self.pauses)

    @property
    def seconds(self) -> float:
        """Its seconds with a runner. It has ended."""
        assert self.ended_at is not None
        return counted_seconds(self.began, self.ended_at, self.pauses)

    def record(self, turn: RecordedTurn, span: TurnSpan | None) -> None:
        """Add a stored turn. `span`: when it was open, if that is known."""
        self.recorded[turn.node] = turn
        if span is not None:
            self.spans[turn.node] = span
        self.token_ids += turn.token_ids
        self.logprobs += turn.logprobs

    def take_delta(self) -> Delta | None:
        """Return what is stored and not yet reported: tokens, the end, or both; None if there is nothing."""
        begin, self.told = self.told, max(self.told, len(self.token_ids))
        if begin == self.told and not self.ended:
            return None
        return Delta(
            key=self.key,
            attempt=self.lease,
            offset=begin,
            token_ids=tuple(self.token_ids[begin:]),
            logprobs=tuple(self.logprobs[begin:]),
            weight_version=self.version,
            finish_reason=self._finish_reason() if self.ended else None,
        )

    def _finish_reason(self) -> FinishReason:
        end = self.episode.end
        is_cut = end is not None and end.state is EndState.TRUNCATED
        is_cut = is_cut or (bool(self.recorded) and last_answer(self.episode.nodes).is_cut)
        return FinishReason.LENGTH if is_cut else FinishReason.STOP


def goes_on(attempt: Attempt, request: GenerateRequest) -> bool:
    """Return whether a request continues an attempt: of the same draw, and with tokens that the attempt has.

    Without tokens it may be that none was received of what the attempt has: its replica or its coordinator was lost.
    """
    prefix = len(request.prefix_token_ids)
    if request.weight_version != attempt.version or (attempt.begins_again and not prefix):
        return False
    if not attempt.is_mixed and attempt.least_version > attempt.version:
        # Its versions were mixed before an edit of the job.
        return False
    return prefix <= len(attempt.token_ids)


def turn_key(attempt: EpisodeAttempt, turn: int) -> TrajectoryKey:
    """Return the key of a turn's request.

    >>> turn_key(EpisodeAttempt(TrajectoryKey(PromptKey(0, 3, "math"), 1), 7), 2)
    TrajectoryKey(prompt=PromptKey(epoch=0, index=3, source='7.2:math'), sample=1)
    """
    prompt = attempt.key.prompt
    return TrajectoryKey(
        PromptKey(prompt.epoch, prompt.index, f"{attempt.attempt}.{turn}:{prompt.source}"), attempt.key.sample
    )


def turn_of(key: TrajectoryKey) -> tuple[int, int] | None:
    """Return the number of the attempt and the turn that a key belongs to; None for another key.

    >>> [turn_of(TrajectoryKey(PromptKey(0, 3, source), 1)) for source in ("7.2:math", "evaluation:a")]
    [(7, 2), None]
    """
    number, point, turn = key.prompt.source.partition(":")[0].partition(".")
    return (int(number), int(turn)) if point and number.isdecimal() and turn.isdecimal() else None
