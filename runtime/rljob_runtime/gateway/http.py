"""HTTP: how all routes read a request and send its answer, within bounds."""

from __future__ import annotations

import asyncio
import logging

from aiohttp import web

from rljob_runtime.gateway.errors import GatewayError

log = logging.getLogger(__name__)

CONTENT_ENCODING = "Content-Encoding"


def bearer(request: web.Request) -> str:
    """Return the bearer key of a request; empty if it has none."""
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def has_left(request: web.Request) -> bool:
    """Tell whether the client of a request has closed its connection."""
    return request.transport is None or request.transport.is_closing()


async def read_body(request: web.Request, seconds: float) -> bytes:
    """Return a body that arrives in time. The request bounds its size. Raises `GatewayError`."""
    try:
        async with asyncio.timeout(seconds):
            body: bytes = await request.read()
            return body
    except TimeoutError as error:
        raise GatewayError(408, "request_timeout", f"the body did not arrive within {seconds:g} s") from error
    except ConnectionError as error:
        raise GatewayError(408, "client_left", "the client left before its body was complete") from error


async def send(request: web.Request, response: web.Response, seconds: float) -> web.Response:
    """Send an answer within the handler, so that its bytes can be counted. A client that does not read loses it.

    Nothing is lost with it: a retry receives a stored turn, and an attempt whose runner is silent ends."""
    await was_sent(request, response, seconds)
    return response


async def was_sent(request: web.Request, response: web.Response, seconds: float) -> bool:
    """Send an answer as `send` does; return whether its bytes were taken by the connection."""
    try:
        async with asyncio.timeout(seconds):
            await response.prepare(request)
            await response.write_eof()
        return True
    except TimeoutError:
        log.warning("a client did not read its answer within %g s; its connection is ended", seconds)
        if request.transport is not None:
            request.transport.abort()
    except ConnectionError as error:
        log.info("a client left before its answer: %s", error)
    return False
