"""At a server that answers one call after another, each call has the time of those before it, and not for ever."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from rljob_env.tools.call_limits import CallLimits
from rljob_env.tools.harness import ToolsHarness
from rljob_env.tools.mcp_client import McpClient
from rljob_env.tools.toolbox import ToolError
from rljob_runtime.protocols.environments import Assignment, EpisodeReport
from tests.support.envs.mcp_server import StandInMcp, mcp_server
from tests.support.envs.site import MESSAGES, RECORD, Site, call, open_site, scripted
from tests.support.gateway.stand_in_coordinator import attempt_of


@asynccontextmanager
async def client_of(server: StandInMcp, seconds: float, limits: CallLimits | None) -> AsyncIterator[McpClient]:
    async with httpx.AsyncClient(trust_env=False) as http:
        client = McpClient(http, server.url, seconds, limits)
        await client.tools()
        yield client


def added(client: McpClient, number: int) -> asyncio.Task[str]:
    return asyncio.ensure_future(client.call("add", {"a": number, "b": 1}))


async def test_concurrent_calls_wait_for_one_another_at_a_serial_server() -> None:
    """The last call of each episode is answered after several times its own limit."""
    seconds, limits = 1.0, CallLimits(1.0)
    async with (
        mcp_server(serial_seconds=0.5) as server,
        client_of(server, seconds, limits) as one,
        client_of(server, seconds, limits) as other,
    ):
        calls = [added(client, number) for client in (one, other) for number in range(3)]
        assert await asyncio.gather(*calls) == ["1", "2", "3"] * 2


async def test_a_call_without_concurrent_ones_has_its_time_alone() -> None:
    async with mcp_server(serial_seconds=0.8) as server, client_of(server, 1.0, None) as client:
        first, second = added(client, 1), added(client, 2)
        assert await first == "2"
        with pytest.raises(ToolError, match="no answer within 1 s"):
            await second


async def test_a_ping_waits_for_the_calls_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server goes on with all calls that took too long, before it answers the pings."""
    monkeypatch.setattr("rljob_env.tools.mcp_client.PING_SECONDS", 1.5)
    async with mcp_server(serial_seconds=1.0) as server, client_of(server, 0.8, CallLimits(0.8)) as client:
        found = await asyncio.gather(*(added(client, number) for number in range(3)), return_exceptions=True)
        assert [type(one) for one in found] == [ToolError] * 3


async def ended_after(limits: CallLimits, answers: list[float]) -> float:
    """Return the seconds after which a call ends that is not answered, while others are answered at these times."""

    async def answered(seconds: float) -> None:
        async with limits.call():
            await asyncio.sleep(seconds)

    began = time.monotonic()
    hangs = asyncio.ensure_future(answered(60.0))
    others = []
    for before, at in zip([0.0, *answers], answers, strict=False):
        await asyncio.sleep(max(0.0, began + before - time.monotonic()))
        others.append(asyncio.ensure_future(answered(at - before)))
    with pytest.raises(TimeoutError):
        await hangs
    seconds = time.monotonic() - began
    await asyncio.gather(*others, return_exceptions=True)
    return seconds


@pytest.mark.parametrize(
    ("times", "answers", "expected"),
    [
        (4, [], 0.4),
        (4, [0.2], 0.6),
        (4, [0.2, 0.5], 0.9),
        (4, [0.2 * number for number in range(1, 10)], 1.6),
        (1, [0.35], 0.4),
    ],
    ids=["no answer", "one", "two", "answers to others for ever", "no concurrent calls"],
)
async def test_an_answer_renews_the_time_of_the_other_calls(times: int, answers: list[float], expected: float) -> None:
    assert expected <= await ended_after(CallLimits(0.4, times), answers) < expected + 0.3


async def test_a_call_that_ends_without_an_answer_renews_nothing() -> None:
    limits = CallLimits(0.6)

    async def hangs() -> None:
        async with limits.call():
            await asyncio.sleep(60.0)

    first = asyncio.ensure_future(hangs())
    await asyncio.sleep(0.3)
    second = asyncio.ensure_future(hangs())
    began = time.monotonic()
    assert [type(one) for one in await asyncio.gather(first, second, return_exceptions=True)] == [TimeoutError] * 2
    assert time.monotonic() - began < 0.85


async def report_of_stateless(site: Site, harness: ToolsHarness) -> EpisodeReport:
    episode = attempt_of()
    site.coordinator.start(episode)
    await site.run(harness)
    deadline = time.time() + 60.0
    await site.environments.put(Assignment(episode, "calc", RECORD, MESSAGES, deadline, stateless=True))
    return await site.environments.reported(episode)


async def test_an_episode_without_a_state_has_concurrent_calls_at_a_server(tmp_path: Path) -> None:
    asked = "".join(call("add", f'{{"a": {number}, "b": 1}}') for number in range(3))
    async with (
        mcp_server(serial_seconds=1.0) as server,
        open_site(scripted(asked, "done")) as site,
        site.stack,
    ):
        report = await report_of_stateless(site, site.tools(tmp_path, servers=(server.url,), tool_seconds=1.8))
        assert (report.failed, report.metrics["tool_errors"], server.calls) == (None, 0, 3)


@pytest.mark.parametrize("episodes", [1, 2])
async def test_a_runner_has_as_many_processes_of_functions_as_episodes(tmp_path: Path, episodes: int) -> None:
    (tmp_path / "tools.py").write_text("import time\n\ndef rest() -> str:\n    time.sleep(0.3)\n    return 'rested'\n")
    async with open_site(scripted(call("rest", "{}") * 5, "done")) as site, site.stack:
        harness = site.tools(tmp_path, "tools.py:rest", episodes=episodes)
        report = await report_of_stateless(site, harness)
        assert (report.failed, report.metrics["tool_errors"], report.metrics["tool_calls"]) == (None, 0, 5)
        assert harness.tool_workers.stats.started == episodes
