"""Health server: $POD_IP:8080 with `/healthz` (the process answers), `/readyz` (it can work) and `/metrics`.

The coordinator's has more routes (`sample_server`)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from rljob_api.constants import HEALTH_PORT
from rljob_kube import bounded_server
from rljob_kube.bounded_server import ConnectionLimits


class PortTaken(Exception):
    """The port is in use, or the address is not local; the message says which."""


@contextlib.asynccontextmanager
async def serve(
    host: str,
    why_not_ready: Callable[[], str | None],
    registry: CollectorRegistry,
    port: int = HEALTH_PORT,
    routes: Sequence[web.RouteDef] = (),
) -> AsyncIterator[None]:
    """Answer while the context is open. `why_not_ready` returns None when ready. Raises `PortTaken`."""

    async def healthz(request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(request: web.Request) -> web.Response:
        reason = why_not_ready()
        return web.Response(text="ok\n") if reason is None else web.Response(status=503, text=f"{reason}\n")

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), content_type="text/plain")

    app = web.Application()
    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics), *routes])
    async with contextlib.AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(bounded_server.serve(app, host, port, ConnectionLimits()))
        except OSError as error:
            raise PortTaken(f"health cannot be served on {host}:{port}: {error.strerror}") from error
        yield
