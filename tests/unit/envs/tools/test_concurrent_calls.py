"""Calls of a turn run concurrently where no call depends on another, and no stored call is executed twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_env.episode import Assignment, Attempt, ExecutedCall, Json, Resume
from rljob_env.failures import Failed, GatewayRefused, Part
from rljob_env.gateway_client import GatewayClient
from rljob_env.tools.call_limits import CONCURRENT_CALLS
from rljob_env.tools.calls import Calls
from rljob_env.tools.toolbox import Toolbox
from rljob_runtime.scheduling.episodes.resumption import CallId, CallStatus, Recovery, ToolJournal


class Source:
    """A tool that answers after as many steps of the event loop as a call asks for."""

    def __init__(self) -> None:
        self.executed: list[int] = []
        self.running = 0
        self.most = 0

    async def tools(self) -> Sequence[Json]:
        return [{"name": "wait", "description": "", "parameters": {}}]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        self.executed.append(arguments["place"])
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for _ in range(arguments["steps"]):
                await asyncio.sleep(0)
            if arguments["steps"] == FAILS:
                raise Failed(Part.TOOL_SERVER, "gone")
            return f"answer {arguments['place']}"
        finally:
            self.running -= 1


FAILS = 7
"""Steps of a call that ends the attempt."""


def asked(*steps: int) -> list[Json]:
    """Return the calls of a turn, by the steps that each takes."""
    return [
        {"id": f"call_2_{place}", "function": {"name": "wait", "arguments": f'{{"place": {place}, "steps": {count}}}'}}
        for place, count in enumerate(steps)
    ]


def assignment(stateless: bool = True, resume: Resume | None = None, called: Any = None) -> Assignment:
    return Assignment(Attempt("0.0.0", 1), {}, (), 1e9, "", "", "", resume, None, stateless, called)


async def played(source: Source, given: Assignment, calls: list[Json]) -> list[str]:
    """Take over what another runner did, then execute the calls of a turn."""
    toolbox = Toolbox()
    await toolbox.add(source)
    made = Calls(given, toolbox)
    await made.go_on()
    return await made.observations(calls)


async def test_calls_without_a_state_run_concurrently_up_to_a_bound() -> None:
    source = Source()
    found = await played(source, assignment(), asked(9, 8, 6, 5, 4, 3))
    assert found == [f"answer {place}" for place in range(6)], "observations are in the order of the calls"
    assert source.most == CONCURRENT_CALLS
    assert source.executed == list(range(6)), "they begin in their order"


async def test_calls_with_a_state_run_one_after_another() -> None:
    source = Source()
    assert await played(source, assignment(stateless=False), asked(3, 1, 2)) == ["answer 0", "answer 1", "answer 2"]
    assert (source.most, source.executed) == (1, [0, 1, 2])


@pytest.mark.parametrize("stateless", [True, False])
async def test_a_call_that_fails_ends_the_others(stateless: bool) -> None:
    source = Source()
    with pytest.raises(Failed, match="gone"):
        await played(source, assignment(stateless), asked(FAILS, *[50] * 8))
    assert (source.running, source.executed) == (0, list(range(CONCURRENT_CALLS if stateless else 1)))


@given(st.lists(st.integers(0, 6), min_size=1, max_size=10), st.integers(0, 30))
async def test_no_stored_call_is_executed_twice_after_a_loss(steps: list[int], loss: int) -> None:
    """The runner is lost after some steps of the event loop, in the middle of its calls and reports."""
    journal, stored = ToolJournal(Recovery.NEXT_TURN), list[ExecutedCall]()

    async def report(call: ExecutedCall, resumption: int) -> None:
        await asyncio.sleep(0)
        place = int(call.id.rpartition("_")[2])
        assert journal.take(CallId(2, place), call.observation.encode(), resumption) is CallStatus.NEW
        stored.append(call)
        await asyncio.sleep(0)

    first, second = Source(), Source()
    task = asyncio.ensure_future(played(first, assignment(called=lambda call: report(call, 0)), asked(*steps)))
    for _ in range(loss):
        await asyncio.sleep(0)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert first.running == 0
    known = [int(one.id.rpartition("_")[2]) for one in stored]
    resume = Resume(None, tuple(stored), replays=False)
    found = await played(second, assignment(resume=resume, called=lambda call: report(call, 1)), asked(*steps))
    assert found == [f"answer {place}" for place in range(len(steps))]
    assert set(second.executed) == set(range(len(steps))) - set(known)
    assert len(journal) == len(steps)


async def test_the_seconds_of_another_runners_calls_count() -> None:
    toolbox = Toolbox()
    known = [
        ExecutedCall("call_2_0", "wait", "{}", "5", 2.5),
        ExecutedCall("call_2_1", "wait", "{}", "error: no", None),
    ]
    await Calls(assignment(resume=Resume(None, known, replays=False)), toolbox).go_on()
    assert (toolbox.stats.calls, toolbox.stats.errors, toolbox.stats.seconds) == (2, 1, 2.5)


@pytest.mark.parametrize("knows", [True, False])
async def test_a_gateway_that_knows_no_seconds_gets_none(knows: bool) -> None:
    """It lives as long as its coordinator's pod, and runners are replaced before."""
    bodies: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        refused = not knows and "seconds" in bodies[-1]
        return httpx.Response(400 if refused else 200, json={"error": {"message": "seconds is not known"}})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        client = GatewayClient(http, "http://gateway", "key", "r1", 1.0, 1.0)
        for place in range(2):
            await client.called(Attempt("0.0.0", 1), ExecutedCall(f"call_2_{place}", "wait", "{}", "5", 2.5))
    assert [one.get("seconds") for one in bodies] == ([2.5, 2.5] if knows else [2.5, None, None])


async def test_a_call_that_is_refused_without_its_seconds_is_refused() -> None:
    transport = httpx.MockTransport(lambda request: httpx.Response(400, json={"error": {"message": "no call"}}))
    async with httpx.AsyncClient(transport=transport) as http:
        client = GatewayClient(http, "http://gateway", "key", "r1", 1.0, 1.0)
        with pytest.raises(GatewayRefused, match="no call"):
            await client.called(Attempt("0.0.0", 1), ExecutedCall("call_2_0", "wait", "{}", "5", 2.5))


@pytest.mark.parametrize(("late_seconds", "away"), [(60.0, False), (0.0, True)])
async def test_a_report_on_its_way_at_the_deadline_is_no_outage(
    late_seconds: float, away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rljob_env.tools.calls.LATE_SECONDS", late_seconds)
    sent, toolbox = asyncio.Event(), Toolbox()
    await toolbox.add(Source())

    async def called(call: ExecutedCall) -> None:
        sent.set()
        await asyncio.Event().wait()

    calls = Calls(assignment(called=called), toolbox)
    task = asyncio.create_task(calls.observations(asked(0)))
    await sent.wait()
    await asyncio.sleep(0.02)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert calls.waiting == away


async def test_a_report_that_is_answered_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rljob_env.tools.calls.LATE_SECONDS", -1.0)
    toolbox = Toolbox()
    await toolbox.add(Source())

    async def called(call: ExecutedCall) -> None:
        await asyncio.sleep(0)

    calls = Calls(assignment(called=called), toolbox)
    await calls.observations(asked(1, 2))
    assert not calls.waiting
