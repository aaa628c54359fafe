"""Environment routes: where runners of environments lease episodes and report their ends.

    POST /env/lease      POST /env/heartbeat      POST /env/call      POST /env/done

The bearer is a runner key, which names the environment. Runners choose their own names, so the coordinator gets each
below its environment's: no runner speaks for one of another environment. While the coordinator is away the answer is
503, and the runner sends its request again: each may be repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from aiohttp import web

from rljob_api.keys.runner_key import verify_runner_key
from rljob_api.keys.signed_text import KeyRefused
from rljob_runtime.gateway.capability import Capability, mint
from rljob_runtime.gateway.errors import GatewayError
from rljob_runtime.gateway.histories import ContextLimit, Histories
from rljob_runtime.gateway.http import CONTENT_ENCODING, bearer, has_left, read_body, send
from rljob_runtime.gateway.memory import Memory
from rljob_runtime.gateway.wire.fields import Json
from rljob_runtime.gateway.wire.repeats import Repeats
from rljob_runtime.gateway.wire.runner_requests import (
    LeaseRequest,
    assignment_json,
    attempt_json,
    parse_called,
    parse_done,
    parse_heartbeat,
    parse_lease,
)
from rljob_runtime.protocols.environments import Assignment, Environments, EpisodeReport, FailedPart, HarnessLimit
from rljob_runtime.protocols.turns import COORDINATOR_AWAY, AttemptEnded, EpisodeAttempt
from rljob_runtime.scheduling.byte_budget import ByteBudget

T = TypeVar("T")

RUNNER_BYTES = 32 << 20
"""Bodies of all runners that are held at a time; a quarter of them of one environment."""
UNREAD_BYTES = 64 << 20
"""Leased attempts that runners have not read yet, with which no further one is leased; half of them of one environment.
An attempt that another runner goes on with may have 24 MiB."""
MOST_REQUESTS = 1 << 16
"""Requests of an environment's runners that wait for room, are read, or are answered: about one an episode."""


@dataclass(frozen=True)
class RunnerAccess:
    """What the routes know of a job. The keys are those of `runners_key` and `gateway_key`."""

    runners_key: bytes
    capability_key: bytes
    model: str
    agents_url: str | None = None
    """Where agents reach this gateway. None: where their runner does."""
    most_bytes: int = 1 << 20
    read_seconds: float = 30.0
    write_seconds: float = 15.0
    """Longest time in which a runner reads what it leased. The coordinator ends attempts that no runner heartbeats for
    twice as long."""
    look_seconds: float = 2.0
    """A waiting runner that left receives no episode that is leased later than this."""


@dataclass(frozen=True)
class AgentSide:
    """What the gateway holds of the attempts that agents ask for."""

    memory: Memory
    histories: Histories
    context_limit: ContextLimit
    repeats: Repeats

    def true_report(self, episode: EpisodeAttempt, report: EpisodeReport) -> EpisodeReport:
        """Return the report of an attempt with what its harness does not know: why its requests were refused."""
        if report.failed is not None:
            return report
        if (why := self.memory.why_unserved(episode)) is not None:
            return replace(report, reward=None, failed=FailedPart.GATEWAY, detail=why)
        if report.limit is None and self.context_limit.has_ended(episode):
            return replace(report, limit=HarnessLimit.TOKENS)
        return report

    def forget(self, episode: EpisodeAttempt) -> None:
        """Drop what is held of an attempt that has ended."""
        self.memory.forget(episode)
        self.histories.forget(episode)
        self.context_limit.forget(episode)
        self.repeats.forget(episode)


@dataclass
class RunnerStats:
    """Totals of the routes."""

    leased: int = 0
    """Attempts that were passed on to a runner."""
    handed_back: int = 0
    """Attempts whose runner left while it waited for one."""
    calls: int = 0
    """Calls of tools that were stored."""
    reports: int = 0
    ended_unserved: int = 0
    """Reports of attempts that ended while the gateway had no place for a request of theirs."""
    stopped: int = 0
    """Attempts that heartbeats were told to stop. An attempt counts each time."""
    ended_before: int = 0
    """Reports of attempts that had ended without their runner, of calls and of ends."""
    leases_held_back: int = 0
    """Looks for attempts that waited until runners had read others."""
    coordinator_away: int = 0
    """Requests that were answered with 503."""


@dataclass
class EnvironmentRoutes:
    """The routes. `now`: seconds of the epoch."""

    environments: Environments
    access: RunnerAccess
    now: Callable[[], float]
    agents: AgentSide | None = None
    stats: RunnerStats = field(default_factory=RunnerStats)
    memory: Memory = field(default_factory=lambda: Memory(ByteBudget(RUNNER_BYTES, RUNNER_BYTES // 4, MOST_REQUESTS)))
    """The bodies that are held. It is not that of agents, whose requests wait for engines: a heartbeat that waits with
    them would end attempts."""
    unread: ByteBudget[str] = field(default_factory=lambda: ByteBudget(UNREAD_BYTES, UNREAD_BYTES // 2, MOST_REQUESTS))
    """The leased attempts that are held. No heartbeat waits until a runner reads them."""

    def add_to(self, app: web.Application) -> None:
        """Add the routes to an application."""
        app.router.add_post("/env/lease", self.lease)
        app.router.add_post("/env/heartbeat", self.heartbeat)
        app.router.add_post("/env/call", self.called)
        app.router.add_post("/env/done", self.done)

    async def lease(self, request: web.Request) -> web.Response:
        """Answer with attempts, or with 204 if there is none in the time that the runner waits.

        A runner that does not say how many it takes receives one, and not a list.
        """
        environment = self._environment(request)
        async with self._body(request, environment) as body:
            asked = parse_lease(body, environment)
        assignments = await self._wait(request, environment, asked)
        if not assignments:
            return web.Response(status=204)
        self.stats.leased += len(assignments)
        found = [self._assignment(request, one) for one in assignments]
        # What other runners did may be long, and heartbeats must go on.
        text = await asyncio.to_thread(json.dumps, found[0] if asked.most is None else {"assignments": found})
        answer = web.json_response(text=text)
        claim = self.unread.count(environment, answer.content_length or 0)
        try:
            return await send(request, answer, self.access.write_seconds)
        finally:
            self.unread.release(claim)

    def _assignment(self, request: web.Request, assignment: Assignment) -> Json:
        """Return what a runner receives, with the attempt's capability."""
        episode, deadline = assignment.episode, assignment.deadline
        access = {
            "baseUrl": f"{self.access.agents_url or request.url.origin()}/v1",
            "apiKey": mint(self.access.capability_key, Capability(episode, math.ceil(deadline))),
            "model": self.access.model,
        }
        return assignment_json(assignment, deadline - self.now(), access)

    async def heartbeat(self, request: web.Request) -> web.Response:
        """Answer with the attempts that the runner shall stop."""
        environment = self._environment(request)
        async with self._body(request, environment) as body:
            asked = parse_heartbeat(body)
            runner = _full_name(environment, asked.runner)
            stop = await self._asked(self.environments.heartbeat(environment, runner, asked.episodes))
        self.stats.stopped += len(stop)
        return web.json_response({"stop": [attempt_json(episode) for episode in stop]})

    async def called(self, request: web.Request) -> web.Response:
        """Pass on an executed call of a tool; the answer says that it is stored."""
        environment = self._environment(request)
        try:
            async with self._body(request, environment) as body:
                asked = parse_called(body)
                runner = _full_name(environment, asked.runner)
                await self._asked(self.environments.called(environment, runner, asked.episode, asked.call))
        except AttemptEnded as error:
            self.stats.ended_before += 1
            raise GatewayError(410, "attempt_ended", str(error)) from error
        self.stats.calls += 1
        return web.json_response({})

    async def done(self, request: web.Request) -> web.Response:
        """Pass a report on. The same one again has the same answer.

        An attempt for whose request this gateway had no place has failed by us, whatever its harness reports. One whose
        newest request was too long for the context was ended by the limit of tokens.
        """
        environment = self._environment(request)
        try:
            async with self._body(request, environment) as body:
                asked = parse_done(body)
                runner = _full_name(environment, asked.runner)
                report = asked.report
                if self.agents is not None:
                    report = self.agents.true_report(asked.episode, report)
                await self._asked(self.environments.done(environment, runner, asked.episode, report))
        except AttemptEnded as error:
            self.stats.ended_before += 1
            raise GatewayError(410, "attempt_ended", str(error)) from error
        self.stats.reports += 1
        self.stats.ended_unserved += report.failed is FailedPart.GATEWAY
        if self.agents is not None:
            self.agents.forget(asked.episode)
        return web.json_response({})

    async def _wait(self, request: web.Request, environment: str, asked: LeaseRequest) -> Sequence[Assignment]:
        """Wait for attempts in short spans, so that a runner that left is noticed soon.

        Attempts that were leased for it meanwhile are handed back: no other runner can have them before."""
        runner, left = _full_name(environment, asked.runner), asked.wait_seconds
        while True:
            span = min(left, self.access.look_seconds)
            most = asked.most or 1
            found: Sequence[Assignment] = ()
            if self.unread.has_room(environment):
                found = await self._asked(self.environments.lease(environment, runner, span, most, asked.journals))
            else:
                self.stats.leases_held_back += 1
                await asyncio.sleep(span)
            left -= span
            if has_left(request):
                for one in found:
                    await self._hand_back(environment, runner, one)
                return ()
            if found or left <= 0:
                return found

    async def _hand_back(self, environment: str, runner: str, assignment: Assignment) -> None:
        self.stats.handed_back += 1
        report = EpisodeReport(failed=FailedPart.RUNNER, detail="it left before it received the episode")
        try:
            await self._asked(self.environments.done(environment, runner, assignment.episode, report))
        except AttemptEnded:
            return  # Nothing is left to hand back.

    async def _asked(self, answer: Awaitable[T]) -> T:
        """Return the coordinator's answer. Raises `GatewayError` if it is away."""
        try:
            return await answer
        except COORDINATOR_AWAY as error:
            self.stats.coordinator_away += 1
            raise GatewayError(503, "coordinator_away", "the coordinator does not answer; try again") from error

    def _environment(self, request: web.Request) -> str:
        """Return the environment that the request's key opens."""
        try:
            return verify_runner_key(self.access.runners_key, bearer(request))
        except KeyRefused as error:
            raise GatewayError(401, "invalid_runner_key", str(error)) from error

    @contextlib.asynccontextmanager
    async def _body(self, request: web.Request, environment: str) -> AsyncIterator[bytes]:
        """Read a body when there is room for it, and count it as long as the context is open. Raises `GatewayError`."""
        most, announced = self.access.most_bytes, request.content_length
        # An encoded body is longer than it announces.
        amount = most if announced is None or CONTENT_ENCODING in request.headers else min(announced, most)
        async with self.memory.room(environment, amount, self.access.read_seconds) as room:
            body = await read_body(request.clone(client_max_size=most), self.access.read_seconds)
            room.holds(len(body))
            yield body


def _full_name(environment: str, runner: str) -> str:
    """Return a runner's name in the job. A runner's own name has no slash."""
    return f"{environment}/{runner}"
