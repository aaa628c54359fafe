"""Runner: leases episodes, runs each in its harness, and reports its end.

Every episode has a task of its own. Harnesses wait for other processes and for the network only, so heartbeats go out
while they run. Each attempt that was leased is reported once, or has ended without this runner: the gateway said so,
or it lapses because heartbeats no longer name it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from dataclasses import dataclass, replace
from functools import partial

import httpx

from rljob_env.config import Config
from rljob_env.episode import Assignment, Attempt, Harness, Limit, Report
from rljob_env.failures import EpisodeOver, Failed, GatewayAway, GatewayRefused, Part
from rljob_env.gateway_client import GatewayClient

log = logging.getLogger(__name__)

LAST_SECONDS = 1.0
"""Time before an attempt's deadline in which the coordinator may refuse turns: its own deadline comes first, by the way
of the attempt to the runner."""


@dataclass(frozen=True)
class RunnerSettings:
    """Bounds of a runner."""

    episodes: int
    """Most episodes at a time."""
    heartbeat_seconds: float = 2.0
    grace_seconds: float = 10.0
    overrun_seconds: float = 25.0
    """A harness that has not ended so long after its deadline is cancelled (`EnvironmentConfig.overrun_seconds`)."""
    once: bool = False
    """The runner ends after the first episodes that it leases."""

    @classmethod
    def of(cls, config: Config, once: bool = False) -> RunnerSettings:
        """Return the bounds that a runner's settings state."""
        environment = config.environment
        return cls(
            environment.episodes, config.heartbeat_seconds, config.grace_seconds, environment.overrun_seconds, once
        )


@dataclass
class RunnerStats:
    """Totals of a runner."""

    leased: int = 0
    leases: int = 0
    """Answers with episodes. Each has as many as there are, up to the free places."""
    resumed: int = 0
    """Attempts that another runner began."""
    reported: int = 0
    failed: int = 0
    """Reports of failures of ours."""
    handed_back: int = 0
    """Reports of attempts that others shall run: the runner was told to end."""
    stopped: int = 0
    """Attempts that ended because a heartbeat said so."""
    ended_before: int = 0
    """Attempts that had ended when they were reported."""
    refused: int = 0
    """Reports that could not be delivered as they were, so that their attempts failed."""
    not_reported: int = 0
    """Attempts whose report found no gateway."""
    heartbeats_missed: int = 0


class Runner:
    """A runner with its open attempts."""

    def __init__(self, gateway: GatewayClient, harness: Harness, settings: RunnerSettings) -> None:
        self.stats = RunnerStats()
        self._gateway = gateway
        self._harness = harness
        self._settings = settings
        self._open: dict[Attempt, asyncio.Task[Report]] = {}
        """The harness of each attempt, until the attempt is reported."""
        self._stopped: set[Attempt] = set()
        self._ending = False
        self._missed = -math.inf
        """Monotonic time of the last heartbeat that the gateway did not answer."""

    async def run(self, end: asyncio.Event) -> None:
        """Run episodes until `end` is set; then hand back those that run, so that others take them.

        It returns before that if it runs `once`. Raises `GatewayAway` and `GatewayRefused`.
        """
        heartbeats = asyncio.create_task(self._heartbeats())
        ended = asyncio.create_task(end.wait())
        leases = asyncio.create_task(self._lease_and_run())
        try:
            await asyncio.wait({ended, leases, heartbeats}, return_when=asyncio.FIRST_COMPLETED)
            for task in (leases, heartbeats):
                if task.done():
                    task.result()
        finally:
            ended.cancel()
            leases.cancel()
            # Reports of attempts need the lease of heartbeats, so these end last.
            await asyncio.wait({leases})
            heartbeats.cancel()
            await asyncio.wait({heartbeats})
            await self._harness.close()

    async def _lease_and_run(self) -> None:
        changed, episodes = asyncio.Event(), set[asyncio.Task[None]]()

        def ended(task: asyncio.Task[None]) -> None:
            episodes.discard(task)
            changed.set()
            if not task.cancelled() and (error := task.exception()) is not None:
                self.stats.not_reported += 1
                log.error("an attempt is not reported, and lapses", exc_info=error)

        try:
            while True:
                while not (free := self._settings.episodes - len(episodes)):
                    changed.clear()
                    await changed.wait()
                # One request for all free places: with one each, the last of many episodes waits for all before it.
                assignments = await self._gateway.lease(free)
                self.stats.leases += bool(assignments)
                self.stats.leased += len(assignments)
                for assignment in assignments:
                    task = asyncio.create_task(self._episode(assignment))
                    episodes.add(task)
                    task.add_done_callback(ended)
                if self._settings.once and episodes:
                    await asyncio.wait(episodes)
                    return
        finally:
            await self._end(episodes)

    async def _end(self, episodes: set[asyncio.Task[None]]) -> None:
        """End the open attempts within the grace."""
        self._ending = True
        for work in self._open.values():
            work.cancel()
        if not episodes:
            return
        _, late = await asyncio.wait(episodes, timeout=self._settings.grace_seconds)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    async def _episode(self, assignment: Assignment) -> None:
        attempt, began = assignment.attempt, time.monotonic()
        self.stats.resumed += assignment.resume is not None
        assignment = replace(assignment, called=partial(self._gateway.called, attempt))
        work = self._open[attempt] = asyncio.create_task(self._harness.run(assignment))
        if self._ending:
            work.cancel()
        try:
            bound = assignment.seconds_left() + self._settings.overrun_seconds
            _, late = await asyncio.wait({work}, timeout=bound)
            if late:
                work.cancel()
                await asyncio.wait(late)
            report = self._report_of(attempt, work)
            if report is not None and _lacked(report, assignment) and await self._was_away(began):
                # A reward would blame the policy for our failure.
                detail = f"the gateway was away in the episode's time: {report.detail}"
                report = Report(failed=Part.ENVIRONMENT, detail=detail)
            if report is not None:
                await self._deliver(attempt, report)
        finally:
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
            del self._open[attempt]
            self._stopped.discard(attempt)

    def _report_of(self, attempt: Attempt, work: asyncio.Task[Report]) -> Report | None:
        """Return what to report of a harness that has ended; None if the attempt had ended before."""
        if attempt in self._stopped:
            self.stats.stopped += 1
            return None
        if work.cancelled():
            if self._ending:
                return Report(failed=Part.RUNNER, detail="it was told to end")
            return Report(failed=Part.ENVIRONMENT, detail="the harness did not end at its deadline")
        match work.exception():
            case None:
                return work.result()
            case Failed() as error:
                return Report(failed=error.part, detail=str(error))
            case GatewayAway() as error:
                return Report(failed=Part.ENVIRONMENT, detail=str(error))
            case EpisodeOver():
                self.stats.ended_before += 1
                return None
            case error:
                log.error("%s: the harness failed unexpectedly", attempt, exc_info=error)
                return Report(failed=Part.ENVIRONMENT, detail=f"the runner failed: {error!r}")

    async def _deliver(self, attempt: Attempt, report: Report) -> None:
        if report.failed is Part.RUNNER:
            self.stats.handed_back += 1
        elif report.failed is not None:
            self.stats.failed += 1
            # A harness may state half a character, which no log's file takes.
            detail = report.detail.encode(errors="backslashreplace").decode()
            log.warning("%s: %s failed: %s", attempt, report.failed, detail)
        try:
            await self._report(attempt, report)
            self.stats.reported += 1
        except EpisodeOver as error:
            self.stats.ended_before += 1
            log.info("%s", error)
        except (GatewayAway, GatewayRefused) as error:
            self.stats.not_reported += 1
            log.error("%s is not reported, and lapses: %s", attempt, error)

    async def _report(self, attempt: Attempt, report: Report) -> None:
        """Report an end. If the gateway refuses it, or JSON cannot hold it, report a failure of the environment."""
        try:
            await self._gateway.done(attempt, report)
        except (GatewayRefused, ValueError) as error:
            # A gateway that does not know these lives as long as its coordinator's pod. It may know limits alone.
            if report.answer is not None:
                log.warning(
                    "%s: the stated answer is not scored, since the report with it is refused: %s", attempt, error
                )
                await self._report(attempt, replace(report, answer=None))
                return
            if report.limit is not None:
                await self._report(attempt, replace(report, limit=None))
                return
            log.warning("%s: the report is refused: %s", attempt, error)
            self.stats.refused += 1
            detail = f"the report of its harness is refused: {error}".encode("ascii", "backslashreplace").decode()
            await self._gateway.done(attempt, Report(failed=Part.ENVIRONMENT, detail=detail))

    async def _was_away(self, since: float) -> bool:
        """Return whether the gateway missed a heartbeat since then, or misses one now."""
        if self._missed < since:
            await self._send_heartbeat()
        return self._missed >= since

    async def _heartbeats(self) -> None:
        while True:
            await self._send_heartbeat()
            await asyncio.sleep(self._settings.heartbeat_seconds)

    async def _send_heartbeat(self) -> None:
        try:
            self._stop(await self._gateway.heartbeat(tuple(self._open)))
        except (httpx.TransportError, GatewayAway, ValueError, KeyError, TypeError) as error:
            self._missed = time.monotonic()
            self.stats.heartbeats_missed += 1
            log.warning("the gateway misses a heartbeat: %r", error)

    def _stop(self, attempts: list[Attempt]) -> None:
        for attempt in attempts:
            work = self._open.get(attempt)
            if work is not None and not work.done():
                self._stopped.add(attempt)
                work.cancel()


def _lacked(report: Report, assignment: Assignment) -> bool:
    """Return whether an episode may have lacked the model or time: then an outage of the gateway explains its end."""
    if report.failed is not None:
        return False
    return report.gave_up or report.limit is Limit.SECONDS or assignment.seconds_left() < LAST_SECONDS
