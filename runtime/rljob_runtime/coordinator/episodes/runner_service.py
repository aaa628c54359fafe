"""Runner service: gives attempts to the runners of environments, and ends those whose runner is silent or late."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rljob_api.status import StatusWarning
from rljob_runtime.coordinator.core.async_utils import wait_for_event
from rljob_runtime.coordinator.episodes.attempt import Attempt
from rljob_runtime.coordinator.episodes.reports import storable_report, trace_difference
from rljob_runtime.coordinator.episodes.resumptions import MOST_RESUME_BYTES, Resumptions
from rljob_runtime.coordinator.episodes.totals import BookTotals
from rljob_runtime.protocols.environments import (
    Assignment,
    EpisodeReport,
    FailedPart,
    Resume,
    ToolCall,
)
from rljob_runtime.protocols.traces import traceparent
from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey
from rljob_runtime.protocols.turns import AttemptEnded, EpisodeAttempt
from rljob_runtime.scheduling.episodes.ends import AbortCause, EpisodeEnd
from rljob_runtime.scheduling.episodes.resumption import Recovery
from rljob_runtime.scheduling.episodes.runner_loads import RunnerLoads
from rljob_runtime.scheduling.episodes.runners import RunnerLeases

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
CAUSES = {
    FailedPart.ENVIRONMENT: AbortCause.ENVIRONMENT,
    FailedPart.TOOL_SERVER: AbortCause.TOOL_SERVER,
    FailedPart.RUNNER: AbortCause.RUNNER_LEFT,
    FailedPart.GATEWAY: AbortCause.GATEWAY,
}
NO_RUNNER = "NoRunner"
"""Reason of the warning about an environment whose episodes wait, and of which no runner calls."""

Warn = Callable[[str, StatusWarning | None], None]
"""Shows the warning of a reason, or withdraws it with None."""


@dataclass(frozen=True)
class RunnerRules:
    """What is expected of runners.

    `silence`: seconds for which one may be silent. `unserved`: seconds after which an environment without a runner is
    told. `traced_run`: the run whose traces the spans of agents join (`protocols.traces`); None where no traces are
    exported. How long one may report after a deadline is in `EpisodeRules.overtime`.
    """

    silence: float = 30.0
    unserved: float = 60.0
    traced_run: str | None = None


@dataclass(frozen=True)
class _Task:
    """What a runner receives of an attempt: its record, its prompt as messages, and where it goes on."""

    record: Mapping[str, object]
    messages: Sequence[Mapping[str, str]]
    resume: Resume | None


class EpisodePrompts(Protocol):
    """The prompts of a job with environments."""

    def environment(self, key: PromptKey) -> str:
        """Return the name of a prompt's environment."""
        ...

    async def record(self, key: PromptKey) -> Mapping[str, object]:
        """Return a prompt's record as JSON values."""
        ...

    async def messages(self, key: PromptKey) -> Sequence[Mapping[str, str]]:
        """Return a prompt as chat messages."""
        ...


class Attempts(Protocol):
    """The attempts, as the service needs them; `book.EpisodeBook` has them."""

    async def find(self, episode: EpisodeAttempt) -> Attempt:
        """Return an open attempt. Raises `AttemptEnded`."""
        ...

    async def load(self, keys: Iterable[TrajectoryKey]) -> None:
        """Read the attempts of these responses that a former coordinator began."""
        ...

    def number(self, number: int) -> Attempt | None:
        """Return the attempt of this number, if it is known."""
        ...

    def numbers(self) -> Iterable[Attempt]:
        """Return all known attempts."""
        ...

    def end(self, attempt: Attempt, end: EpisodeEnd) -> None:
        """Store the end of an attempt. Then set `Attempt.stored`, and let its replica report the end."""
        ...


class RunnerService:
    """The runners of one coordinator; it implements `protocols.environments.Environments`.

    `now`: seconds of the epoch.
    """

    def __init__(
        self,
        attempts: Attempts,
        resumptions: Resumptions,
        totals: BookTotals,
        rules: RunnerRules,
        now: Callable[[], float],
    ) -> None:
        self._attempts = attempts
        self._totals = totals
        self._resumptions = resumptions
        self._rules = rules
        self._now = now
        self._leases: RunnerLeases[EpisodeAttempt] = RunnerLeases(rules.silence, self._may_be_served, _trains)
        self._offered = asyncio.Event()
        self._asking: Counter[str] = Counter()
        """Runners that ask for attempts now, by environment."""
        self.prompts: EpisodePrompts | None = None
        self.leases = 0
        """Calls of runners that received attempts, each with one call of the store."""

    @property
    def loads(self) -> RunnerLoads[EpisodeAttempt]:
        """What the runners have to do."""
        return self._leases.loads

    @property
    def claims_refused(self) -> int:
        """Attempts that a runner of another environment claimed. An attempt counts each time."""
        return self._leases.claims_refused

    # --- from the book ---

    def offer(self, attempt: Attempt) -> None:
        """Let the next runner that asks have the attempt."""
        self._leases.offer(attempt.id, attempt.environment, self._now())
        self._offered.set()

    def adopt(self, attempt: Attempt) -> None:
        """Wait for the runner that has the attempt from a former coordinator."""
        self._leases.adopt(attempt.id, attempt.environment, self._now())

    def has_begun(self, attempt: Attempt) -> bool:
        """Return whether a runner has received an attempt."""
        return self._leases.has_begun(attempt.id)

    def served(self) -> None:
        """Let runners that ask look again: engines generate attempts that waited for that."""
        self._offered.set()

    def release(self, attempt: Attempt) -> None:
        """Let an attempt leave its runner: no engine generates it, and its runner would wait with it."""
        if attempt.episode.end is None and self._leases.leave(attempt.id, bool(attempt.open)):
            self._take_away(attempt, self._now())

    def _take_away(self, attempt: Attempt, since: float) -> None:
        """Let the next runner go on with an attempt, once an engine has it again. One that cannot go on stays.

        `since`: its time does not count from then on."""
        former = attempt.id
        if self._resumptions.lose(attempt, since, AbortCause.ENGINE, counts=False):
            self._leases.transfer(former, attempt.id, self._now())

    def forget(self, attempt: Attempt) -> None:
        """Forget an attempt that has ended."""
        self._leases.end(attempt.id)

    # --- from the gateway ---

    async def lease(
        self, environment: str, runner: str, wait_seconds: float, most: int = 1, journals: bool = False
    ) -> Sequence[Assignment]:
        """See `protocols.environments.Environments.lease`."""
        until = self._now() + wait_seconds
        self._asking[environment] += 1
        try:
            while not (taken := self._take(environment, runner, most, journals)):
                if (left := until - self._now()) <= 0:
                    return ()
                await wait_for_event(self._offered, min(left, LOOK_SECONDS))
        finally:
            self._asking[environment] -= 1
        self.leases += 1
        return await self._assignments(environment, taken, journals)

    async def heartbeat(
        self, environment: str, runner: str, episodes: Sequence[EpisodeAttempt]
    ) -> Sequence[EpisodeAttempt]:
        """See `protocols.environments.Environments.heartbeat`."""
        foreign = self._leases.heartbeat(environment, runner, episodes, self._now())
        # In the order in which the runner names them: a lost runner's attempts wait for the next one in that order.
        unknown = dict.fromkeys(one for one in foreign if self._attempts.number(one.attempt) is None)
        # One call of the store, whatever number of attempts a runner names.
        await self._attempts.load(one.key for one in unknown)
        others = set(self._leases.heartbeat(environment, runner, unknown, self._now()))
        return [one for one in foreign if one in others or one not in unknown]

    async def done(self, environment: str, runner: str, episode: EpisodeAttempt, report: EpisodeReport) -> None:
        """See `protocols.environments.Environments.done`."""
        known = self._attempts.number(episode.attempt)
        if known is not None and known.id == episode and known.reporter == runner:
            # The same report again: the answer to the first one was lost, or takes long.
            await known.stored.wait()
            return
        attempt = await self._of(environment, runner, episode)
        if report.failed is FailedPart.RUNNER and self._goes_on(attempt, self._now(), AbortCause.RUNNER_LEFT):
            return
        attempt.report, attempt.reporter = storable_report(report, episode), runner
        report = attempt.report
        if difference := trace_difference(attempt, report):
            self._totals.differing_traces += 1
            log.warning("the environment's trace of %s differs: %s. The stored turns count", episode, difference)
        if report.failed is not None:
            end = attempt.episode.abort(CAUSES[report.failed], report.detail)
        elif attempt.waits_for_engine:
            # Its harness gave up while it waited for us. Its reward would say that the policy was slow.
            end = attempt.episode.abort(AbortCause.ENGINE, "no engine generated its turn when its harness ended")
        else:
            end = self._resumptions.complete(attempt, report)
        self._attempts.end(attempt, end)
        await attempt.stored.wait()

    async def called(self, environment: str, runner: str, episode: EpisodeAttempt, call: ToolCall) -> None:
        """See `protocols.environments.Environments.called`."""
        await self._resumptions.called(await self._of(environment, runner, episode), call)

    async def _of(self, environment: str, runner: str, episode: EpisodeAttempt) -> Attempt:
        """Return the open attempt of a runner. Raises `AttemptEnded`."""
        attempt = await self._attempts.find(episode)
        if not self._leases.may_have(episode, environment, runner):
            why = "not run by this runner"
            if attempt.environment != environment:
                why = f"of environment {attempt.environment}, and the runner of {environment}"
            raise AttemptEnded(f"{episode} is {why}")
        return attempt

    def _take(self, environment: str, runner: str, most: int, journals: bool) -> list[EpisodeAttempt]:
        """Return attempts for a runner. If it does not go on with those of others, attempts that others began end."""
        taken = self._leases.take(environment, runner, self._now(), most, self._asking[environment])
        begun = [] if journals else [one for one in taken if one.resumption]
        for one in begun:
            self._fail(one, "its runner was lost, and the next one does not go on with attempts of others", lost=True)
        return [one for one in taken if one not in begun]

    async def _assignments(
        self, environment: str, taken: Sequence[EpisodeAttempt], journals: bool
    ) -> Sequence[Assignment]:
        """Return what a runner receives of these attempts. One whose record cannot be read ends as a failure."""
        attempts = [attempt for one in taken if (attempt := self._attempts.number(one.attempt)) is not None]
        assert len(attempts) == len(taken), "an attempt that has ended does not wait for a runner"
        try:
            read = await self._tasks(attempts)
            # A restarted coordinator must know whose an attempt is, and since when its time counts.
            await self._resumptions.lease([attempt for attempt, _ in read], journals)
            self._leases.begin([attempt.id for attempt, _ in read], self._now())
        except asyncio.CancelledError:
            # No runner receives them. They have not begun, so the next one may have them.
            for one in reversed(taken):
                if self._leases.give_back(one, self._now()):
                    self._offered.set()
            raise
        run = self._rules.traced_run
        return [
            Assignment(
                episode=attempt.id,
                environment=environment,
                record=task.record,
                messages=task.messages,
                deadline=attempt.deadline,
                resume=task.resume,
                traceparent=None if run is None else traceparent(run, attempt.id.attempt),
                stateless=attempt.calls.recovery is Recovery.NEXT_TURN,
            )
            for attempt, task in read
            if attempt.episode.end is None
        ]

    async def _tasks(self, attempts: Sequence[Attempt]) -> list[tuple[Attempt, _Task]]:
        """Return what a runner receives of these attempts, without those that end because it cannot be read.

        Attempts of former runners are read one by one, as far as one answer can have them. Others wait again."""
        fresh = [attempt for attempt in attempts if not attempt.id.resumption]
        tasks = await asyncio.gather(*map(self._task, fresh))
        read = [(attempt, task) for attempt, task in zip(fresh, tasks, strict=True) if task is not None]
        size = 0
        for attempt in attempts:
            if not attempt.id.resumption:
                continue
            if size >= MOST_RESUME_BYTES:
                if self._leases.give_back(attempt.id, self._now()):
                    self._offered.set()
                continue
            if (task := await self._task(attempt)) is not None:
                read.append((attempt, task))
                size += task.resume.size if task.resume is not None else 0
        return read

    async def _task(self, attempt: Attempt) -> _Task | None:
        """Return what a runner receives of an attempt; end it and return None if that cannot be read.

        An error of one attempt must not keep the others from their runner."""
        assert self.prompts is not None, "attempts begin after the prompts were opened"
        prompt, fault, lost = attempt.key.prompt, "another runner cannot go on with it", True
        try:
            resume = await self._resumptions.resume(attempt)
            fault, lost = "its record cannot be read", False
            return _Task(await self.prompts.record(prompt), await self.prompts.messages(prompt), resume)
        except Exception as error:  # data sets are read by foreign code too
            log.exception("%s ends: %s", attempt.id, fault)
            self._fail(attempt.id, f"{fault}: {error}", lost)
            return None

    # --- its task ---

    async def run(self, warn: Warn) -> None:
        """End the attempts of silent and late runners, and warn of environments without any, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            names = self.look(self._now())
            text = f"no runner asks for episodes of {', '.join(names)}; see the logs of the environments' runners"
            warn(NO_RUNNER, StatusWarning(reason=NO_RUNNER, message=text[:2048]) if names else None)

    def look(self, now: float) -> list[str]:
        """End the attempts of runners that are silent or late now; return the environments that have no runner."""
        for one in self._leases.lapsed(now):
            attempt = self._attempts.number(one.attempt)
            if attempt is None or not self._goes_on(attempt, now, AbortCause.ENVIRONMENT):
                self._fail(one, f"its runner was silent for {self._rules.silence:g} s")
        without = {one.id: one for one in self._held() if not one.is_generated}
        for episode, since in self._leases.leavers({number: bool(one.open) for number, one in without.items()}, now):
            self._take_away(without[episode], since)
        for late in self._late(now):
            self._fail(late.id, f"its runner did not end it within {late.episode.rules.overtime:g} s of its deadline")
        return self._leases.unserved(now, self._rules.unserved)

    def _held(self) -> list[Attempt]:
        """Return the attempts of runners that have not ended."""
        held = (self._attempts.number(one.attempt) for one in self._leases.held)
        return [one for one in held if one is not None and one.episode.end is None]

    def _may_be_served(self, episode: EpisodeAttempt) -> bool:
        attempt = self._attempts.number(episode.attempt)
        return attempt is None or attempt.holder is not None

    def _late(self, now: float) -> Collection[Attempt]:
        held = [one for one in self._attempts.numbers() if self._leases.has_begun(one.id)]
        return [
            one
            for one in held
            if one.episode.deadline is not None and one.episode.deadline + one.episode.rules.overtime < now
        ]

    def _goes_on(self, attempt: Attempt, now: float, cause: AbortCause) -> bool:
        """Let the next runner go on with an attempt whose runner is lost; False if it must end.

        `cause`: of its end, if the next runner cannot bring it to where it was."""
        former = attempt.id
        if attempt.episode.end is not None:
            return False
        if not self._resumptions.lose(attempt, self._leases.last_contact(former), cause):
            return False
        log.warning("%s: its runner is lost, and the next one goes on with it", former)
        self._leases.transfer(former, attempt.id, now)
        self._offered.set()
        return True

    def _fail(self, episode: EpisodeAttempt, why: str, lost: bool = False) -> None:
        """End an attempt as a failure. `lost`: because no other runner goes on with it; it counts as its loss does."""
        attempt = self._attempts.number(episode.attempt)
        if attempt is None or attempt.episode.end is not None:
            self._leases.end(episode)
            return
        log.warning("%s is aborted: %s", attempt.id, why)
        cause = attempt.lost_by if lost else AbortCause.ENVIRONMENT
        self._attempts.end(attempt, attempt.episode.abort(cause, why))


def _trains(attempt: EpisodeAttempt) -> bool:
    return attempt.key.prompt.evaluation is None
