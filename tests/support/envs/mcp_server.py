"""Stand-in MCP server: streamable HTTP with a session, and every way in which a server may be wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

ADD = {
    "name": "add",
    "description": "Add two numbers.",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}


@dataclass
class StandInMcp:
    """A server with one tool. The fields say what it does wrong."""

    events: bool = False
    """It answers in a stream of events, with a notification and a ping before the answer."""
    refuse: int = 0
    """So many calls of its tool are answered with 503."""
    forget: bool = False
    break_off: bool = False
    hang: bool = False
    hang_ping: bool = False
    serial_seconds: float = 0.0
    """It answers one request at a time, and a call takes so long."""
    result: Any = None
    """Its answer to a call, instead of the sum."""
    error: dict[str, Any] | None = None
    raw: dict[str, bytes] = field(default_factory=dict)
    """Its body for a method, instead of an answer."""
    tools: Any = field(default_factory=lambda: [ADD])
    methods: list[str] = field(default_factory=list)
    calls: int = 0
    pongs: list[Any] = field(default_factory=list)
    sessions: set[str] = field(default_factory=set)
    url: str = ""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.method == "DELETE":
            self.sessions.discard(request.headers.get("Mcp-Session-Id", ""))
            return web.Response()
        assert request.headers["Accept"] == "application/json, text/event-stream"
        body = await request.json()
        if "method" not in body:
            self.pongs.append(body)
            return web.Response(status=202)
        self.methods.append(body["method"])
        if body["method"] == "initialize":
            self.sessions.add(f"s{len(self.methods)}")
            headers = {"Mcp-Session-Id": f"s{len(self.methods)}"}
            found = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "calc"}}
            return await self._answer(request, body, found, headers)
        if request.headers.get("Mcp-Session-Id") not in self.sessions:
            return web.Response(status=404)
        assert request.headers["MCP-Protocol-Version"] == "2025-06-18"
        if body["method"] == "notifications/initialized":
            return web.Response(status=202)
        return await self._request(request, body)

    async def _request(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if not self.serial_seconds:
            return await self._answered(request, body)
        # As a server of one thread, it goes on with what its client has given up.
        return await asyncio.shield(asyncio.ensure_future(self._in_turn(request, body)))

    async def _in_turn(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        async with self._turn:
            await asyncio.sleep(self.serial_seconds if body["method"] == "tools/call" else 0.0)
            return await self._answered(request, body)

    async def _answered(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if body["method"] == "ping":
            await asyncio.sleep(3600 if self.hang_ping else 0)
            return await self._answer(request, body, {})
        if body["method"] == "tools/list":
            first = "cursor" not in body["params"]
            page = {"tools": self.tools, "nextCursor": "2"} if first else {"tools": []}
            return await self._answer(request, body, page)
        if self.refuse > 0:
            self.refuse -= 1
            return web.Response(status=503)
        self.calls += 1
        if self.forget:
            return web.Response(status=404)
        if self.break_off:
            assert request.transport is not None
            request.transport.close()
        if self.hang:
            await asyncio.sleep(3600)
        given = body["params"]["arguments"]
        result = self.result or {"content": [{"type": "text", "text": str(given.get("a", 0) + given.get("b", 0))}]}
        return await self._answer(request, body, result)

    async def _answer(
        self, request: web.Request, body: dict[str, Any], result: Any, headers: dict[str, str] | None = None
    ) -> web.StreamResponse:
        answer = {"jsonrpc": "2.0", "id": body["id"], "result": result}
        if self.error is not None and body["method"] == "tools/call":
            answer = {"jsonrpc": "2.0", "id": body["id"], "error": self.error}
        if not self.events:
            data = self.raw.get(body["method"], json.dumps(answer).encode())
            return web.Response(body=data, content_type="application/json", headers=headers)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", **(headers or {})})
        await response.prepare(request)
        for message in ({"method": "notifications/progress", "params": {}}, {"method": "ping", "id": 7}, answer):
            text = json.dumps({"jsonrpc": "2.0", **message}).encode()
            for part in (b"event: message\r\nid: 1\r\ndata: ", text[:9], text[9:], b"\r\n\r", b"\n"):
                await response.write(part)
        return response


@contextlib.asynccontextmanager
async def mcp_server(**wrong: Any) -> AsyncIterator[StandInMcp]:
    """Serve a stand-in on loopback."""
    server = StandInMcp(**wrong)
    app = web.Application()
    app.router.add_route("*", "/mcp", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/mcp"
        yield server
    finally:
        await runner.cleanup()
