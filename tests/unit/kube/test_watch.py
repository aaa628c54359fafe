"""Watches that a server ends: with an error in the stream, an error in place of it, or in the middle of a line."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from rljob_kube.client import KubeClient
from rljob_kube.connection import Connection
from rljob_kube.credentials import Credentials
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.resources import POD, Json

GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version: 1 (9)"}


def event(change: str, **found: object) -> bytes:
    return json.dumps({"type": change, "object": found}).encode() + b"\n"


@asynccontextmanager
async def server(*lines: bytes, status: int = 200) -> AsyncIterator[tuple[KubeClient, list[web.Request]]]:
    """A server that answers a watch with these lines, and a client of it."""
    asked: list[web.Request] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request)
        return web.Response(status=status, body=b"".join(lines))

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        async with KubeClient(Credentials(Connection(f"http://{host}:{port}"))).opened() as kube:
            yield kube, asked
    finally:
        await runner.cleanup()


async def watched(kube: KubeClient) -> list[tuple[str, Json]]:
    return [seen async for seen in kube.watch(POD, "ns", "7", 60, labels="a=b", fields="metadata.name=p")]


async def test_events_are_yielded_until_the_server_ends_the_stream() -> None:
    lines = event("ADDED", name="p"), event("BOOKMARK", name="none"), event("DELETED", name="p")
    async with server(*lines) as (kube, asked):
        assert await watched(kube) == [("ADDED", {"name": "p"}), ("DELETED", {"name": "p"})]
    assert dict(asked[0].query) == {
        "watch": "true",
        "timeoutSeconds": "60",
        "resourceVersion": "7",
        "labelSelector": "a=b",
        "fieldSelector": "metadata.name=p",
    }


@pytest.mark.parametrize("in_stream", [True, False])
async def test_a_version_that_is_gone_is_expired(in_stream: bool) -> None:
    answer = server(event("ERROR", **GONE)) if in_stream else server(json.dumps(GONE).encode(), status=410)
    async with answer as (kube, asked):
        with pytest.raises(ApiError, match="too old resource version") as gone:
            await watched(kube)
    assert gone.value.expired
    assert len(asked) == 1, "a watcher has to list again"


@pytest.mark.parametrize("line", [b'{"type": "ADDED", "obj', b'{"kind": "Pod"}\n', b"<html>\n"])
async def test_a_line_that_is_no_event_breaks_the_watch(line: bytes) -> None:
    async with server(event("ADDED", name="p"), line) as (kube, _):
        with pytest.raises(Unreachable, match="watch of /api/v1/namespaces/ns/pods"):
            await watched(kube)
