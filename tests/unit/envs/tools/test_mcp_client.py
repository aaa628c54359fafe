"""Tools of MCP servers: what a call's arguments cause is an observation, and a server that is gone or lies fails it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rljob_runtime.protocols.environments import EpisodeReport, FailedPart
from tests.support.envs.mcp_server import ADD, StandInMcp, mcp_server
from tests.support.envs.site import Site, call, open_site, scripted

CALL = call("add", '{"a": 2, "b": 3}')


async def report_with(server: StandInMcp, root: Path, site: Site, **options: Any) -> EpisodeReport:
    return await site.report_of(site.tools(root, servers=(server.url,), **options))


@pytest.mark.parametrize("events", [False, True])
async def test_a_call_is_answered_as_json_or_in_a_stream(tmp_path: Path, events: bool) -> None:
    async with mcp_server(events=events) as server, open_site(scripted(CALL, "5")) as site, site.stack:
        report = await report_with(server, tmp_path, site)
        assert (report.failed, report.metrics["tool_errors"]) == (None, 0)
        assert "Add two numbers." in site.prompts()[0]
        assert "<|im_start|>tool\n5<|im_end|>" in site.prompts()[1]
        began = ["initialize", "notifications/initialized", "tools/list", "tools/list"]
        assert server.methods == [*began, "tools/call"]
        assert server.sessions == set()
        assert [pong["result"] for pong in server.pongs] == ([{}] * 4 if events else [])


@pytest.mark.parametrize(
    ("wrong", "seen"),
    [
        ({"result": {"content": [{"type": "text", "text": "no such city"}], "isError": True}}, "error: no such city"),
        ({"error": {"code": -32602, "message": "b is missing"}}, "error: b is missing"),
        ({"result": {"content": [], "structuredContent": {"sum": 5}}}, '{"sum": 5}'),
        ({"result": {"content": [{"type": "image", "data": "…"}]}}, "[image]"),
    ],
)
async def test_what_a_server_answers_to_arguments_is_an_observation(
    tmp_path: Path, wrong: dict[str, Any], seen: str
) -> None:
    async with mcp_server(**wrong) as server, open_site(scripted(CALL, "5")) as site, site.stack:
        assert (await report_with(server, tmp_path, site)).failed is None
        assert f"<|im_start|>tool\n{seen}<|im_end|>" in site.prompts()[1]


LIE = json.dumps({"jsonrpc": "2.0", "id": 999, "result": {}}).encode()


@pytest.mark.parametrize(
    ("wrong", "detail"),
    [
        ({"raw": {"initialize": b"<html>"}}, "no JSON"),
        ({"raw": {"initialize": b"[]"}}, "no JSON-RPC"),
        ({"raw": {"initialize": LIE}}, "no result"),
        ({"raw": {"initialize": b'{"jsonrpc": "2.0", "id": 1, "result": {}}'}}, "says nothing of tools"),
        ({"raw": {"tools/call": LIE}}, "no result"),
        ({"raw": {"tools/call": b'{"jsonrpc": "2.0", "id": 4, "result": []}'}}, "neither a result nor an error"),
        ({"tools": {}}, "lists no tools, but '{}'; a list would be right"),
        (
            {"tools": [{"name": f"t{n}", "inputSchema": {}} for n in range(1025)]},
            "1025 tools; at most 1024 would be right",
        ),
        ({"tools": ["add"]}, "lists 'add' as a tool"),
        ({"tools": [{"name": "add"}]}, "as a tool"),
        ({"result": {"content": "5"}}, "the content '5'; a list of objects would be right"),
        ({"error": {"code": -32603, "message": "the disk is full"}}, "the disk is full"),
        ({"forget": True}, "forgotten its session"),
        ({"break_off": True}, "broke off in tools/call"),
    ],
)
async def test_a_server_that_lies_or_breaks_off_is_a_failure_of_ours(
    tmp_path: Path, wrong: dict[str, Any], detail: str
) -> None:
    async with mcp_server(**wrong) as server, open_site(scripted(CALL, "5")) as site, site.stack:
        report = await report_with(server, tmp_path, site)
        assert (report.reward, report.failed) == (None, FailedPart.TOOL_SERVER)
        assert detail in report.detail
        assert server.calls <= 1


async def test_two_tools_of_one_name_are_refused(tmp_path: Path) -> None:
    async with mcp_server(tools=[ADD, ADD]) as server, open_site() as site, site.stack:
        report = await report_with(server, tmp_path, site)
        assert report.failed is FailedPart.ENVIRONMENT
        assert report.detail == "two tools have the name 'add'"


async def test_a_server_that_is_gone_is_tried_a_few_times(tmp_path: Path) -> None:
    async with mcp_server() as server:
        pass
    async with open_site() as site, site.stack:
        report = await report_with(server, tmp_path, site)
        assert report.failed is FailedPart.TOOL_SERVER
        assert "after 4 tries" in report.detail


async def test_a_call_that_a_server_did_not_accept_is_sent_again(tmp_path: Path) -> None:
    async with mcp_server(refuse=2) as server, open_site(scripted(CALL, "5")) as site, site.stack:
        assert (await report_with(server, tmp_path, site)).failed is None
        assert server.methods.count("tools/call") == 3
        assert server.calls == 1


async def test_a_call_that_broke_off_is_not_executed_twice(tmp_path: Path) -> None:
    async with mcp_server(break_off=True) as server, open_site(scripted(CALL, "5")) as site, site.stack:
        await report_with(server, tmp_path, site)
        assert server.calls == 1


async def test_a_slow_call_is_an_observation_while_its_server_lives(tmp_path: Path) -> None:
    async with mcp_server(hang=True) as server, open_site(scripted(CALL, "5")) as site, site.stack:
        report = await report_with(server, tmp_path, site, tool_seconds=1.0)
        assert report.failed is None
        assert "error: no answer within 1 s" in site.prompts()[1]
        assert server.methods[-1] == "ping"


async def test_a_server_that_answers_no_ping_either_is_a_failure_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljob_env.tools.mcp_client.PING_SECONDS", 0.5)
    async with mcp_server(hang=True, hang_ping=True) as server, open_site(scripted(CALL, "5")) as site, site.stack:
        report = await report_with(server, tmp_path, site, tool_seconds=1.0)
        assert report.failed is FailedPart.TOOL_SERVER
        assert "nor a ping" in report.detail
