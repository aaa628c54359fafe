"""Resumptions: what runners report of the tools of an attempt, and what the next runner receives of it.

A program of another kind receives nothing: it runs again, and asks for its turns again (`turn_service`).

A call is in the store before its report is answered, and the runner asks for no turn before. So the next runner gets
each call that a stored turn follows from.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from rljob_runtime.coordinator.episodes.attempt import Attempt
from rljob_runtime.coordinator.episodes.journal import Journal
from rljob_runtime.coordinator.episodes.totals import BookTotals
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.tables.tool_calls import call_digest, call_span
from rljob_runtime.protocols.environments import EpisodeReport, Resume, ToolCall
from rljob_runtime.protocols.turns import AttemptEnded
from rljob_runtime.scheduling.episodes.ends import AbortCause, EpisodeEnd
from rljob_runtime.scheduling.episodes.limits import Limit
from rljob_runtime.scheduling.episodes.resumption import CallId, CallStatus, LostRunner, Recovery, may_resume

log = logging.getLogger(__name__)

MOST_RESUME_BYTES = 24 << 20
"""Requests and observations that one answer to a runner can have, and calls of tools that an attempt can have."""


class Resumptions:
    """The handover of attempts from runner to runner. `end`: stores the end of an attempt. `now`: as of the book."""

    def __init__(
        self, journal: Journal, totals: BookTotals, end: Callable[[Attempt, EpisodeEnd], None], now: Callable[[], float]
    ) -> None:
        self._journal = journal
        self._totals = totals
        self._end = end
        self._now = now

    async def lease(self, attempts: Sequence[Attempt], journals: bool) -> None:
        """Record that a runner has these attempts.

        Time without a runner does not count towards the time limit. A program that runs again has all of it again."""
        now = self._now()
        for attempt in attempts:
            attempt.take(now)
            attempt.journals = journals
        rows = [
            (one.id.attempt, one.began, tuple(one.pauses), one.id.resumption if one.journals else None)
            for one in attempts
        ]
        await self._journal.written(lambda store: store.turns.lease(rows))

    def lose(self, attempt: Attempt, last_contact: float, cause: AbortCause, counts: bool = True) -> bool:
        """Let the next runner go on with an attempt whose runner is lost; False if it must end.

        `last_contact`: of that runner. `cause`: of its end, if the next runner cannot bring it to where it was.
        `counts`: its runner was lost, and not its engine."""
        deadline = attempt.episode.deadline
        # A program that runs again has all of its time again.
        left = float("inf") if deadline is None or attempt.reruns else deadline - last_contact
        if not may_resume(LostRunner(attempt.calls.recovery, attempt.journals, attempt.id.resumption, left)):
            return False
        self._totals.resumed += counts
        attempt.begin_resumption(last_contact, cause)
        return True

    async def resume(self, attempt: Attempt) -> Resume | None:
        """Return where the next runner goes on; None if it begins, also again. Raises `ValueError` for too much."""
        if not attempt.id.resumption or attempt.reruns:
            return None
        number = attempt.id.attempt
        under_way = max(attempt.open, default=None)
        # The next runner receives the answer of an open turn. The journal writes all other turns before this read.
        body = None if under_way is None else attempt.open[under_way].call.body

        def read(store: Store) -> tuple[bytes, list[ToolCall] | None]:
            request = store.tool_calls.last_request(number) if body is None else body
            return request, store.tool_calls.of(number, MOST_RESUME_BYTES - len(request))

        request, calls = await self._journal.written(read)
        if calls is None:
            raise ValueError(f"its turns and calls of tools are more than {MOST_RESUME_BYTES} bytes")
        return Resume(request, calls, attempt.calls.recovery is Recovery.REPLAY)

    async def called(self, attempt: Attempt, call: ToolCall) -> None:
        """Store an executed call. Raises `AttemptEnded` if the attempt ends by it."""
        place = CallId(call.node, call.place)
        if place.node not in attempt.recorded:
            self._refuse(attempt, f"its runner reports {place}, and no such turn is stored")
        if attempt.reruns:
            self._refuse(attempt, f"its runner reports {place}, and a program calls its own tools")
        number, resumption, now = attempt.id.attempt, attempt.id.resumption, self._now()
        status = attempt.calls.take(place, call_digest(call), resumption)
        match status:
            case CallStatus.NEW:
                attempt.call_characters += call.size
                if attempt.call_characters > MOST_RESUME_BYTES:
                    most = f"{MOST_RESUME_BYTES} characters can be handed over to another runner"
                    self._refuse(attempt, f"its calls of tools are too long: {most}")
                self._totals.tool_calls += 1
                if (span := call_span(call.seconds, now)) is not None:
                    attempt.tools.append(span)
                await self._journal.written(lambda store: store.tool_calls.add(number, call, resumption, now))
            case CallStatus.KNOWN:
                # The first report may not be stored yet.
                await self._journal.written(lambda store: None)
            case CallStatus.REPLAYED:
                self._totals.replayed_calls += 1
                await self._journal.written(lambda store: store.tool_calls.replayed(number, place, resumption))
            case CallStatus.TWICE:
                self._totals.calls_executed_twice += 1
                self._journal.write(
                    lambda store: store.tool_calls.executed_again(number, place, resumption), lambda _: None
                )
                self._refuse(attempt, f"{place} {status}")
            case CallStatus.DIFFERENT | CallStatus.MISSED:
                self._totals.refused_replays += 1
                self._refuse(attempt, f"{place} {status}", attempt.lost_by)

    def complete(self, attempt: Attempt, report: EpisodeReport) -> EpisodeEnd:
        """Return the end of an attempt as its environment says. A program that ran again may have left out turns."""
        episode, limit = attempt.episode, report.limit
        self._totals.refused_replays += bool(episode.unrepeated)
        if limit is not None and not episode.reach(Limit(limit), self._now() - attempt.harness_start):
            log.warning("%s: its harness states the limit of %s, which was not reached: ignored", attempt.id, limit)
        if attempt.outage is not None and episode.truncated_by is Limit.SECONDS:
            # Its reward would say that the policy was slow.
            why = "no coordinator answered for a part of its time, and its time was over"
            return episode.abort(AbortCause.GATEWAY, why)
        return episode.complete(report.detail)

    def _refuse(self, attempt: Attempt, why: str, cause: AbortCause = AbortCause.ENVIRONMENT) -> None:
        log.warning("%s is aborted: %s", attempt.id, why)
        self._end(attempt, attempt.episode.abort(cause, why))
        raise AttemptEnded(f"{attempt.id}: {why}")
