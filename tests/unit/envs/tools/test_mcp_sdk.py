"""A server of the MCP SDK, as it is: its tools are called in a session of each episode."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvicorn

from tests.support.envs.site import call, open_site, scripted


@contextlib.asynccontextmanager
async def sdk_server(json_response: bool, stateless: bool) -> AsyncIterator[str]:
    """Serve two tools on loopback."""
    from mcp.server import MCPServer  # half a second, which each process that collects tests would take

    server = MCPServer("calculator")

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool()
    def divide(a: float, b: float) -> float:
        """Divide two numbers."""
        return a / b

    app = server.streamable_http_app(json_response=json_response, stateless_http=stateless)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        web = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        serving = asyncio.create_task(web.serve([listener]))
        async with asyncio.timeout(60):
            while not web.started:  # noqa: ASYNC110, the server has no event
                await asyncio.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        finally:
            web.should_exit = True
            await serving


@pytest.mark.parametrize("stateless", [False, True])
@pytest.mark.parametrize("json_response", [False, True])
async def test_tools_of_the_sdk_are_called(tmp_path: Path, json_response: bool, stateless: bool) -> None:
    turns = (call("add", '{"a": 2, "b": 3}'), call("divide", '{"a": 1, "b": 0}'), call("add", '{"a": "x"}'), "5")
    async with sdk_server(json_response, stateless) as url, open_site(scripted(*turns)) as site, site.stack:
        report = await site.report_of(site.tools(tmp_path, servers=(url,)))
        assert (report.failed, report.metrics["tool_calls"], report.metrics["tool_errors"]) == (None, 3, 2)
        first, second, third, fourth = site.prompts()
        assert "Add two numbers." in first
        assert "<|im_start|>tool\n5<|im_end|>" in second
        assert "<|im_start|>tool\nerror: Error executing tool divide" in third
        assert fourth.count("<|im_start|>tool\nerror: ") == 2
