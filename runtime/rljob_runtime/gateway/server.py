"""Gateway server: the routes, as a thin shell around `gateway`.

    POST /v1/chat/completions    POST /inference/v1/generate    GET /v1/models    GET /v1/conversation    GET /healthz

All but the last need a capability. The runner reads the conversation with that of its attempt, to score it. The same
routes are below `/episodes/EPISODE`, where the address names the episode and a capability of another one is refused.
Sizes, times and the bytes that are held are bounded, and every error has OpenAI's form. The routes of environments'
runners are in `environment_routes`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Self

from aiohttp import web

from rljob_api.gateway_bounds import LEAST_BODIES, REQUESTS_OF_ATTEMPT, GatewayBounds
from rljob_api.keys.signed_text import KeyRefused, Refusal
from rljob_kube import bounded_server
from rljob_kube.bounded_server import ConnectionLimits, ConnectionStats
from rljob_runtime.gateway.answers import Answer
from rljob_runtime.gateway.capability import Capability, verify
from rljob_runtime.gateway.environment_routes import EnvironmentRoutes
from rljob_runtime.gateway.errors import GatewayError
from rljob_runtime.gateway.gateway import CHAT, GENERATE, Gateway
from rljob_runtime.gateway.http import CONTENT_ENCODING, bearer, has_left, read_body, send, was_sent
from rljob_runtime.gateway.memory import Memory, Sender
from rljob_runtime.gateway.own_share import OwnShare, waiting
from rljob_runtime.gateway.wire.repeats import request_digest
from rljob_runtime.protocols.turns import RequestNumber
from rljob_runtime.scheduling.byte_budget import ByteBudget

log = logging.getLogger(__name__)

RETRY_HEADER = "x-stainless-retry-count"
"""OpenAI's clients say in it how often they sent the request before."""
MOST_RETRY_CHARACTERS = 9

CONNECTIONS = ConnectionLimits(total=8192, of_a_host=5120, idle_seconds=120.0)
"""Least bounds. A runner may play 4,096 episodes, each with a connection of its own."""
OF_A_HOST = 0.625
"""Share of all connections that one host may have: a local run has all episodes on one."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Work = Callable[[Capability, bytes, bool, RequestNumber | None], Awaitable[Answer]]


@dataclass(frozen=True)
class ServerSettings:
    """Bounds of a request as bytes."""

    most_bytes: int = 16 << 20
    read_seconds: float = 60.0
    """Longest time in which a body arrives."""
    write_seconds: float = 60.0
    """Longest time in which a client reads its answer. A retry receives the same one."""
    shutdown_seconds: float = 5.0
    held_bytes: int = LEAST_BODIES
    attempt_share: float = 0.25
    """Share of these bytes that one attempt may have. The longest body fits in any case."""
    connections: ConnectionLimits = CONNECTIONS
    requests_of_attempt: int = REQUESTS_OF_ATTEMPT
    """Requests of an attempt that wait for room, are read, or are answered."""
    requests: int = 4096
    """Requests of all attempts that are read or answered. As many more may wait."""
    overtime_seconds: float = 30.0
    """So long after an attempt's deadline its conversation can be read: its runner scores it then, and reports it."""

    @classmethod
    def of(cls, bounds: GatewayBounds, overtime_seconds: float) -> Self:
        """Return the settings for the bounds of a job, and for the longest time of its runners after a deadline."""
        total = max(CONNECTIONS.total, bounds.connections)
        connections = replace(CONNECTIONS, total=total, of_a_host=int(total * OF_A_HOST))
        return cls(
            held_bytes=bounds.body_bytes,
            connections=connections,
            requests=bounds.requests,
            overtime_seconds=overtime_seconds,
        )

    def memory(self) -> Memory:
        """Return the budget of a gateway."""
        share = max(self.most_bytes, int(self.held_bytes * self.attempt_share))
        return Memory(ByteBudget(max(share, self.held_bytes), share, self.requests_of_attempt, self.requests))


@contextlib.asynccontextmanager
async def serve(
    gateway: Gateway,
    key: bytes,
    now: Callable[[], float],
    host: str,
    port: int,
    settings: ServerSettings | None = None,
    environments: EnvironmentRoutes | None = None,
    memory: Memory | None = None,
    connections: ConnectionStats | None = None,
    own: OwnShare | None = None,
) -> AsyncIterator[int]:
    """Serve while the context is open; yield the port. `key`: that of capabilities. `port` 0: any free one.

    `environments`: the routes of runners, where a job has environments. `memory`: by default as the settings say.
    `connections`: where refused ones are counted. `own`: where the
    seconds of the gateway itself are.

    Raises `OSError` if the address is taken.
    """
    settings = settings or ServerSettings()
    app = gateway_app(gateway, key, now, settings, memory, own)
    if environments is not None:
        environments.add_to(app)
    bounds = settings.connections, settings.shutdown_seconds
    async with bounded_server.serve(app, host, port, *bounds, stats=connections) as server:
        try:
            yield server.port
        finally:
            await gateway.close()


def gateway_app(
    gateway: Gateway,
    key: bytes,
    now: Callable[[], float],
    settings: ServerSettings,
    memory: Memory | None = None,
    own: OwnShare | None = None,
) -> web.Application:
    """Return the application."""
    memory, own = memory or settings.memory(), own or OwnShare()

    async def healthz(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def models(request: web.Request) -> web.Response:
        _capability(request, key, now())
        return _response(gateway.models())

    async def answered(request: web.Request, answer: Work) -> web.Response:
        capability = _capability(request, key, now())
        most, announced = settings.most_bytes, request.content_length
        # An encoded body is longer than it announces.
        amount = most if announced is None or CONTENT_ENCODING in request.headers else min(announced, most)
        retry = _retry(request)
        sender = Sender(bool(retry), lambda: has_left(request))
        async with memory.room(capability.episode, amount, capability.expires - now(), sender) as room:
            with waiting():
                body = await read_body(request, settings.read_seconds)
            room.holds(len(body))
            same = None
            if retry is None:
                same = capability.episode, await asyncio.to_thread(request_digest, request.path, body)
            with gateway.repeats.asked(same, sender.retry, sender.has_left) as asked:
                found = await answer(capability, body, asked.retry, asked.number)
                room.holds(len(body) + len(found.body))
                room.answers()
                response, is_there = _response(found), not sender.has_left()
                with waiting():
                    asked.is_answered = await was_sent(request, response, settings.write_seconds) and is_there
                return response

    async def chat(request: web.Request) -> web.Response:
        with own.measured():
            return await answered(request, gateway.chat)

    async def generate(request: web.Request) -> web.Response:
        with own.measured():
            return await answered(request, gateway.generate)

    async def conversation(request: web.Request) -> web.Response:
        found = _capability(request, key, now() - settings.overtime_seconds)
        capability = replace(found, expires=found.expires + math.ceil(settings.overtime_seconds))
        # Its length is known when it is there. A body is in it, so it is not much longer than the longest.
        async with memory.room(capability.episode, settings.most_bytes, capability.expires - now()) as room:
            answer = await gateway.conversation(capability)
            room.holds(len(answer.body))
            return await send(request, _response(answer), settings.write_seconds)

    app = web.Application(middlewares=[_errors], client_max_size=settings.most_bytes)
    app.router.add_get("/healthz", healthz)
    for root in ("", "/episodes/{episode:[^{}]{1,512}}"):
        app.router.add_get(f"{root}/v1/models", models)
        app.router.add_get(f"{root}/v1/conversation", conversation)
        app.router.add_post(f"{root}{CHAT}", chat)
        app.router.add_post(f"{root}{GENERATE}", generate)
    return app


def _capability(request: web.Request, key: bytes, now: float) -> Capability:
    try:
        return verify(key, bearer(request), now, request.match_info.get("episode"))
    except KeyRefused as error:
        status, code = (403, "other_episode") if error.refusal is Refusal.OTHER_EPISODE else (401, "invalid_api_key")
        raise GatewayError(status, code, str(error)) from error


def _retry(request: web.Request) -> bool | None:
    """Return whether a client says that it sends a request again; None if it says nothing."""
    count = request.headers.get(RETRY_HEADER, "")
    return int(count) > 0 if count.isascii() and count.isdigit() and len(count) <= MOST_RETRY_CHARACTERS else None


def _response(answer: Answer) -> web.Response:
    charset = "utf-8" if answer.content_type == "text/event-stream" else None
    return web.Response(body=answer.body, content_type=answer.content_type, charset=charset)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give every error OpenAI's form."""
    try:
        return await handler(request)
    except GatewayError as error:
        return _refused(error)
    except web.HTTPRequestEntityTooLarge as error:
        return _refused(GatewayError(413, "request_too_large", f"the body is too large: {error.text}"))
    except web.HTTPException as error:
        return _refused(GatewayError(error.status, "unknown_route", f"{request.method} {request.path[:200]}: {error}"))
    except Exception:
        log.exception("a request failed unexpectedly")
        return _refused(GatewayError(500, "internal_error", "the gateway failed; its log says why"))


def _refused(error: GatewayError) -> web.Response:
    headers = {"Retry-After": "1"} if error.status in (429, 503) else None
    return web.Response(body=error.body(), status=error.status, content_type="application/json", headers=headers)
