"""HTTP: what all routes read of a request, within bounds."""

from __future__ import annotations

import asyncio

from aiohttp import web

from rljob_runtime.gateway.errors import GatewayError

CONTENT_ENCODING = "Content-Encoding"


def bearer(request: web.Request) -> str:
    """Return the bearer key of a request; empty if it has none."""
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


async def read_body(request: web.Request, seconds: float) -> bytes:
    """Return a body that arrives in time. The request bounds its size. Raises `GatewayError`."""
    try:
        async with asyncio.timeout(seconds):
            body: bytes = await request.read()
            return body
    except TimeoutError as error:
        raise GatewayError(408, "request_timeout", f"the body did not arrive within {seconds:g} s") from error
