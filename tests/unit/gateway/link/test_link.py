"""Calls cross the link, concurrently and with their errors; nothing that arrives ends the coordinator's process."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from array import array
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.gateway.link.client import LinkClient
from rljob_runtime.gateway.link.connection import Connection, LinkSettings
from rljob_runtime.gateway.link.frames import PREFIX, Frame, FrameLimits
from rljob_runtime.gateway.link.messages import PROTOCOL
from rljob_runtime.gateway.link.server import LinkServer, serve_link
from rljob_runtime.protocols.environments import EpisodeReport, FailedPart, HarnessLimit, ToolCall
from rljob_runtime.protocols.errors import PeerGone, PeerTimeout, StaleTerm
from rljob_runtime.protocols.turns import AttemptEnded, StoredTurn, TurnRefused
from rljob_runtime.scheduling.backoff import Backoff
from tests.support.examples import examples
from tests.support.gateway.scripted_coordinator import (
    EPISODE,
    ScriptedCoordinator,
    assignment,
    recorded,
    turn_call,
)
from tests.support.gateway.stand_in_coordinator import attempt_of
from tests.support.waiting import until

QUICK = LinkSettings(backoff=Backoff(0.001, 1.0, 0.001))


@pytest.fixture
def socket() -> Iterator[Path]:
    # A socket's path has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="rljob-") as folder:
        yield Path(folder) / "link.sock"


@contextlib.asynccontextmanager
async def linked(
    socket: Path, coordinator: ScriptedCoordinator, bounds: LinkSettings = QUICK, server_bounds: LinkSettings = QUICK
) -> AsyncIterator[tuple[LinkClient, LinkServer]]:
    async with (
        serve_link(socket, coordinator, coordinator, server_bounds) as server,
        LinkClient(socket, bounds) as client,
    ):
        await until(lambda: client.why_away is None)
        yield client, server


async def raw(socket: Path, greeting: Frame | None = None) -> Connection:
    """Connect as a gateway that sends what the test says."""
    reader, writer = await asyncio.open_unix_connection(socket)
    connection = Connection(reader, writer, FrameLimits())
    if greeting is not None:
        await connection.send(greeting)
    return connection


HELLO = Frame("hello", {"protocol": PROTOCOL})


async def test_every_call_and_its_answer_cross(socket: Path) -> None:
    coordinator = ScriptedCoordinator(assignments=[assignment()])
    coordinator.stored = [
        StoredTurn(array("i", [1, 2]), b"body", recorded(1)),
        StoredTurn(array("i"), b"", recorded(4)),
    ]
    report = EpisodeReport(None, {"tools": 2.0}, FailedPart.TOOL_SERVER, "it is gone")
    call = turn_call(6, body=b"\x00\xff" * 40, tokens=array("i", range(50_000)))
    async with linked(socket, coordinator) as (client, server):
        assert await client.turn(call) == recorded(6)
        assert coordinator.turns == [call]
        assert await client.history(EPISODE) == coordinator.stored
        assert await client.history(EPISODE, newest=True) == coordinator.stored[-1:]
        assert await client.lease("calc", "runner-0", 0.0, 4) == [assignment()]
        assert await client.lease("calc", "runner-0", 0.0) == []
        second = replace(EPISODE, attempt=2)
        assert await client.heartbeat("calc", "calc/runner-0", [EPISODE, second]) == (second,)
        executed = ToolCall(4, 1, "add", '{"a": 2}', "5", 0.25)
        await client.called("calc", "calc/runner-0", EPISODE, executed)
        assert coordinator.calls == [("calc/runner-0", EPISODE, executed)]
        await client.done("calc", "calc/runner-0", EPISODE, report)
        limited = EpisodeReport(0.5, limit=HarnessLimit.SECONDS, answer="5")
        await client.done("calc", "calc/runner-0", second, limited)
        assert coordinator.reports == [("calc/runner-0", EPISODE, report), ("calc/runner-0", second, limited)]
        coordinator.stored = []
        assert await client.history(EPISODE) == []
        assert (server.stats.connections, server.stats.calls, server.stats.malformed) == (1, 10, 0)


@pytest.mark.parametrize("kind", [AttemptEnded, TurnRefused, PeerGone, PeerTimeout])
async def test_an_error_is_raised_as_the_coordinator_raised_it(socket: Path, kind: type[Exception]) -> None:
    coordinator = ScriptedCoordinator(error=kind("the reason"))
    calls: list[Callable[[LinkClient], Coroutine[Any, Any, object]]] = [
        lambda client: client.turn(turn_call()),
        lambda client: client.history(EPISODE),
        lambda client: client.lease("calc", "runner-0", 0.0),
        lambda client: client.heartbeat("calc", "runner-0", []),
        lambda client: client.done("calc", "runner-0", EPISODE, EpisodeReport(1.0)),
    ]
    async with linked(socket, coordinator) as (client, server):
        for call in calls:
            with pytest.raises(kind, match="the reason") as caught:
                await call(client)
            assert type(caught.value) is kind
        assert server.stats.unforeseen == 0


@pytest.mark.parametrize("error", [KeyError("inner"), OSError("disk"), StaleTerm("old"), asyncio.CancelledError()])
async def test_an_unforeseen_error_is_logged_and_raises_peer_gone(
    socket: Path, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async with linked(socket, ScriptedCoordinator(error=error)) as (client, server):
        with pytest.raises(PeerGone, match=r"the coordinator (failed: .*(inner|disk|old)|ended the call)"):
            await client.turn(turn_call())
        logged = not isinstance(error, asyncio.CancelledError)
        assert server.stats.unforeseen == logged
        assert ("unforeseen" in caplog.text) is logged
        assert client.why_away is None


async def test_64_long_calls_run_concurrently_on_one_connection(socket: Path) -> None:
    coordinator = ScriptedCoordinator()
    coordinator.open.clear()
    async with linked(socket, coordinator) as (client, server):
        calls = [asyncio.create_task(client.turn(turn_call(index))) for index in range(64)]
        await until(lambda: coordinator.under_way == 64)
        assert not any(call.done() for call in calls)
        coordinator.open.set()
        assert [turn.node for turn in await asyncio.gather(*calls)] == list(range(64))
        assert (coordinator.most, server.stats.connections) == (64, 1)


async def test_a_coordinator_restart_ends_open_calls_and_admits_new_ones(
    socket: Path, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator = ScriptedCoordinator()
    coordinator.open.clear()
    async with LinkClient(socket, QUICK) as client:
        with pytest.raises(PeerGone, match=r"away|not answered"):
            await client.turn(turn_call())
        async with serve_link(socket, coordinator, coordinator, QUICK):
            await until(lambda: client.why_away is None)
            calls = [asyncio.create_task(client.turn(turn_call(index))) for index in range(3)]
            await until(lambda: coordinator.under_way == 3)
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(answer, PeerGone)
        assert client.stats.broken_calls == 3
        with pytest.raises(PeerGone):
            await client.history(EPISODE)
        coordinator.open.set()
        async with serve_link(socket, coordinator, coordinator, QUICK):
            await until(lambda: client.why_away is None)
            assert (await client.turn(turn_call(5))).node == 5
        assert client.stats.connections == 2
    with pytest.raises(PeerGone, match="closed"):
        await client.turn(turn_call())
    assert [one for one in caplog.records if one.name == "asyncio"] == []


async def test_the_turn_of_a_call_that_was_cancelled_is_finished(socket: Path) -> None:
    coordinator = ScriptedCoordinator()
    coordinator.open.clear()
    async with linked(socket, coordinator) as (client, server):
        call = asyncio.create_task(client.turn(turn_call()))
        await until(lambda: coordinator.under_way == 1)
        call.cancel()
        await until(lambda: server.stats.cancelled == 1)
        assert coordinator.ended == 0
        coordinator.open.set()
        await until(lambda: coordinator.finished == 1)
        assert (await client.turn(turn_call(2))).node == 2
        assert client.stats.late_answers == 0


async def test_a_lease_that_was_cancelled_takes_no_episode(socket: Path) -> None:
    coordinator = ScriptedCoordinator(assignments=[assignment()])
    coordinator.open.clear()
    async with linked(socket, coordinator) as (client, server):
        call = asyncio.create_task(client.lease("calc", "runner-0", 20.0))
        await until(lambda: coordinator.under_way == 1)
        call.cancel()
        await until(lambda: coordinator.ended == 1)
        coordinator.open.set()
        assert await client.lease("calc", "runner-1", 0.0) == [assignment()]
        assert server.stats.cancelled == 1


async def test_a_broken_connection_ends_its_leases_and_finishes_its_turns(socket: Path) -> None:
    coordinator = ScriptedCoordinator(assignments=[assignment()])
    coordinator.open.clear()
    async with serve_link(socket, coordinator, coordinator, QUICK):
        async with LinkClient(socket, QUICK) as client:
            await until(lambda: client.why_away is None)
            calls = [
                asyncio.create_task(client.lease("calc", "runner-0", 20.0)),
                asyncio.create_task(client.turn(turn_call())),
            ]
            await until(lambda: coordinator.under_way == 2)
        assert all(isinstance(one, PeerGone) for one in await asyncio.gather(*calls, return_exceptions=True))
        await until(lambda: coordinator.ended == 1)
        coordinator.open.set()
        await until(lambda: coordinator.finished == 1)
        assert coordinator.assignments == [assignment()]


async def test_a_call_without_an_answer_ends_in_time(socket: Path) -> None:
    coordinator = ScriptedCoordinator()
    coordinator.open.clear()
    async with linked(socket, coordinator, replace(QUICK, answer_seconds=0.05)) as (client, server):
        for call in (client.heartbeat("calc", "r", []), client.lease("calc", "r", 0.01), client.history(EPISODE)):
            with pytest.raises(PeerTimeout, match="no answer within"):
                await call
        await until(lambda: server.stats.cancelled == 3)
        coordinator.open.set()
        assert (await client.turn(turn_call(4))).node == 4


async def test_calls_beyond_the_bound_wait_here_and_are_refused_there(socket: Path) -> None:
    coordinator = ScriptedCoordinator()
    coordinator.open.clear()
    two, three = replace(QUICK, calls=2), replace(QUICK, calls=3)
    async with linked(socket, coordinator, three, two) as (client, server):
        calls = [asyncio.create_task(client.turn(turn_call(index))) for index in range(4)]
        await until(lambda: server.stats.refused == 2)
        with pytest.raises(PeerGone, match="under way"):
            await calls[2]
        coordinator.open.set()
        assert [turn.node for turn in await asyncio.gather(*calls[:2])] == [0, 1]
        assert coordinator.most == 2
    coordinator.open.clear()
    async with linked(socket, coordinator, two, two) as (client, server):
        calls = [asyncio.create_task(client.turn(turn_call(index))) for index in range(4)]
        await until(lambda: server.stats.calls == 2)
        coordinator.open.set()
        assert [turn.node for turn in await asyncio.gather(*calls)] == [0, 1, 2, 3]
        assert (server.stats.refused, coordinator.most) == (0, 2)


async def test_a_message_over_the_frame_limit_fails_but_keeps_the_connection(socket: Path) -> None:
    short = replace(QUICK, limits=FrameLimits(payload=1000))
    coordinator = ScriptedCoordinator()
    async with linked(socket, coordinator, short, short) as (client, server):
        with pytest.raises(TurnRefused, match="too long"):
            await client.turn(turn_call(body=bytes(1001)))
        assert coordinator.turns == []
        coordinator.stored = [StoredTurn((1,), bytes(900), recorded(node)) for node in range(20)]
        assert len(await client.history(EPISODE)) == 20
        coordinator.stored = [StoredTurn((1,), bytes(2000), recorded(0))]
        with pytest.raises(PeerGone, match="answer is too long"):
            await client.history(EPISODE)
        assert (await client.turn(turn_call(1))).node == 1
        assert server.stats.connections == 1


async def test_another_version_is_refused_with_both(socket: Path) -> None:
    coordinator = ScriptedCoordinator()
    async with serve_link(socket, coordinator, coordinator, QUICK) as server:
        connection = await raw(socket, Frame("hello", {"protocol": 99}))
        answer = await connection.receive()
        assert answer is not None
        assert answer.kind == "refused"
        assert "version 99" in answer.fields["text"]
        assert str(PROTOCOL) in answer.fields["text"]
        assert await connection.receive() is None
        assert server.stats.malformed == 1


async def test_a_coordinator_of_another_version_is_away_with_its_reason(socket: Path) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer, FrameLimits())
        await connection.send(Frame("refused", {"text": "another version"}))
        connection.close()

    async with await asyncio.start_unix_server(refuse, socket), LinkClient(socket, QUICK) as client:
        await until(lambda: "another version" in (client.why_away or ""))
        with pytest.raises(PeerGone, match="another version"):
            await client.turn(turn_call())
        assert client.stats.connections == 0


async def test_a_gateway_that_sends_no_greeting_is_not_waited_for(socket: Path) -> None:
    coordinator = ScriptedCoordinator()
    async with serve_link(socket, coordinator, coordinator, replace(QUICK, greeting_seconds=0.02)):
        connection = await raw(socket)
        assert await connection.receive() is None


async def test_a_folder_that_others_can_open_is_refused(socket: Path) -> None:
    open_folder = socket.parent / "open"
    open_folder.mkdir()
    open_folder.chmod(0o750)
    coordinator = ScriptedCoordinator()
    with pytest.raises(PermissionError, match="0700"):
        async with serve_link(open_folder / "link.sock", coordinator, coordinator):
            pass
    async with serve_link(socket.parent / "made" / "link.sock", coordinator, coordinator):
        assert (socket.parent / "made").stat().st_mode & 0o777 == 0o700


# --- whatever arrives ------------------------------------------------------------------------------------------------

BROKEN = st.one_of(
    st.binary(min_size=1, max_size=64),
    st.builds(lambda header: PREFIX.pack(b"RLL1", len(header), 0) + header, st.binary(max_size=40)),
    st.builds(
        lambda kind, id: Frame(kind, {"id": id}).encode(FrameLimits()),
        st.sampled_from(["turn", "lease", "heartbeat", "done", "history", "hello", "part", "other"]),
        st.sampled_from([0, 1, -1, "1", None]),
    ),
    st.builds(lambda id: Frame("cancel", {"id": id}).encode(FrameLimits()), st.sampled_from([7, "x"])),
    st.just(PREFIX.pack(b"RLL1", 2**32 - 1, 2**32 - 1)),
)


@given(st.booleans(), st.lists(BROKEN, min_size=1, max_size=3))
@settings(max_examples=examples(150), deadline=None)
def test_no_bytes_of_a_gateway_end_the_server_or_another_connection(greeted: bool, sent: list[bytes]) -> None:
    async def play() -> None:
        with tempfile.TemporaryDirectory(prefix="rljob-") as folder:
            socket, coordinator = Path(folder) / "link.sock", ScriptedCoordinator()
            async with linked(socket, coordinator) as (client, server):
                reader, writer = await asyncio.open_unix_connection(socket)
                hello = HELLO.encode(FrameLimits()) if greeted else b""
                writer.write(hello + b"".join(sent))
                writer.write_eof()
                async with asyncio.timeout(30):
                    await reader.read()  # the server closes the connection
                assert (await client.turn(turn_call(3))).node == 3
                assert (server.stats.connections, server.stats.unforeseen) == (2, 0)
                writer.close()

    asyncio.run(play())


@given(st.lists(BROKEN, min_size=1, max_size=3))
@settings(max_examples=examples(60), deadline=None)
def test_no_bytes_of_a_coordinator_end_the_gateway_and_each_call_ends(sent: list[bytes]) -> None:
    async def play() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = Connection(reader, writer, FrameLimits())
            await connection.receive()
            await connection.send(Frame("welcome", {"protocol": PROTOCOL}))
            await connection.receive()
            writer.write(b"".join(sent))
            writer.close()

        with tempfile.TemporaryDirectory(prefix="rljob-") as folder:
            socket = Path(folder) / "link.sock"
            async with await asyncio.start_unix_server(answer, socket), LinkClient(socket, QUICK) as client:
                for connections in (1, 2):
                    await until(lambda count=connections: client.stats.connections >= count)  # type: ignore[misc]
                    await until(lambda: client.why_away is None)
                    with pytest.raises(PeerGone):
                        await client.turn(turn_call())

    asyncio.run(play())


async def test_a_frame_that_is_none_closes_its_own_connection_only(socket: Path) -> None:
    coordinator = ScriptedCoordinator()
    coordinator.open.clear()
    async with linked(socket, coordinator) as (client, server):
        call = asyncio.create_task(client.turn(turn_call(2)))
        await until(lambda: coordinator.under_way == 1)
        connection = await raw(socket, HELLO)
        await connection.send(Frame("turn", {"id": 1}))
        assert (await connection.receive() or HELLO).kind == "welcome"
        assert await connection.receive() is None
        assert server.stats.malformed == 1
        coordinator.open.set()
        assert (await call).node == 2


async def test_a_number_that_is_under_way_is_not_used_twice(socket: Path) -> None:
    coordinator = ScriptedCoordinator()
    coordinator.open.clear()
    async with serve_link(socket, coordinator, coordinator, QUICK) as server:
        connection = await raw(socket, HELLO)
        for _ in range(2):
            await connection.send(
                Frame("history", {"id": 1, "episode": [str(attempt_of().key), 1, 0], "newest": False})
            )
        assert (await connection.receive() or HELLO).kind == "welcome"
        assert await connection.receive() is None
        assert (server.stats.calls, server.stats.malformed) == (1, 1)
