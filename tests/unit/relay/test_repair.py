"""A relay dies, or hangs, at any moment of a broadcast: the chain closes over it, and no relay is sent what it has."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_bench.lib import netns
from rljob_bench.lib.netns import Star
from rljob_runtime.protocols import Chain
from rljob_runtime.relay.config import RelayConfig
from rljob_runtime.relay.fencing import FencingToken
from rljob_runtime.relay.network.tcp import TCP
from rljob_runtime.relay.network.transport import Connection, Listener
from rljob_runtime.relay.publisher import Publisher
from rljob_runtime.relay.relay import Relay
from rljob_runtime.relay.segment import SHARED_MEMORY, Segment
from rljob_runtime.relay.settings import RelaySettings
from rljob_runtime.relay.subprocess import RelayCommand, RelayProcess
from tests.support.examples import examples
from tests.support.relay import KEY, SETTINGS, Predecessor, assert_whole, join_all, sealed, whole
from tests.support.waiting import until

CHUNKS = 10


@contextmanager
def some_relays(count: int) -> Iterator[list[Relay]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="test-relay-", dir=SHARED_MEMORY)))
        names = [f"rollout-{number}" for number in range(count)]
        configs = [RelayConfig(name, 0, folder / name, KEY, SETTINGS, "127.0.0.1") for name in names]
        yield [stack.enter_context(Relay(config)) for config in configs]


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(length=st.integers(2, 4), place=st.integers(0, 3), moment=st.integers(0, CHUNKS), settled=st.booleans())
def test_after_any_death_the_rest_receive_each_chunk_once(length, place, moment, settled):
    """`moment`: chunks that the trainer has sent by then; `settled`: whether all of them have arrived everywhere."""
    asyncio.run(_die(length, place % length, moment, settled))


async def _die(length: int, place: int, moment: int, settled: bool) -> None:
    manifest, data = sealed(1)
    assert manifest.chunks == CHUNKS
    with some_relays(length) as relays:
        await join_all(relays)
        trainer = Predecessor(relays[0])
        trainer.offer(manifest)
        for index in range(moment):
            trainer.chunk(manifest, index, data)
        if settled:
            await until(lambda: all(relay.counters.chunks_received == moment for relay in relays))
        dead = relays.pop(place)
        dead.close()
        await join_all(relays, revision=1)
        first = moment
        if place == 0:
            trainer.close()
            trainer = Predecessor(relays[0], token=FencingToken(1, 1, 1))
            answer = trainer.offer(manifest)
            lacks = answer["ranges"] if answer["type"] == "wanted" else [[CHUNKS, CHUNKS]]
            ((first, end),) = lacks
            assert end == CHUNKS
            assert first == moment if settled else first <= moment
        for index in range(first, CHUNKS):
            trainer.chunk(manifest, index, data)
        await until(lambda: all(whole(relay) == 1 and relay.counters.commits == 1 for relay in relays))
        for relay in relays:
            assert_whole(relay._store._writer.folder, 1)
            assert relay.counters.chunks_received == CHUNKS, "each chunk came once"
            assert relay.counters.checksum_failures == 0
        trainer.close()


async def test_a_holder_of_the_complete_version_becomes_the_master(relays):
    master, second, newcomer = [relays(f"rollout-{i}") for i in range(3)]
    await join_all([master, second])
    manifest, data = sealed(1)
    trainer = Predecessor(master)
    trainer.offer(manifest)
    for index in range(CHUNKS):
        trainer.chunk(manifest, index, data)
    await until(lambda: whole(second) == 1)
    trainer.close()
    master.close()
    await join_all([second, newcomer], revision=1)
    await until(lambda: whole(newcomer) == 1)
    assert_whole(newcomer._store._writer.folder, 1)
    assert second.counters.chunks_received == CHUNKS


async def test_without_a_complete_copy_the_trainer_feeds_a_new_master(memory, relays):
    chain = [relays(f"rollout-{i}") for i in range(3)]
    patient = RelaySettings(1024, heartbeat_seconds=2.0)
    with Publisher(memory / "trainer", KEY, patient, torch.float32) as publisher:
        publisher.publish(1, {"w": torch.arange(500_000, dtype=torch.float32)})
        publisher.settle()
        chunks = publisher.manifest.chunks
        publisher.ship(1, await join_all(chain))
        await until(lambda: chain[1].counters.chunks_received > chunks // 10)
        chain.pop(0).close()
        publisher.ship(1, await join_all(chain, revision=1))
        await until(lambda: all(whole(relay) == 1 and relay.counters.commits for relay in chain))
        assert [relay.counters.chunks_received for relay in chain] == [chunks, chunks]
        sent = Segment.open(memory / "trainer").current()
        for relay in chain:
            assert Segment.open(relay._store._writer.folder).current().buffer == sent.buffer


async def test_a_broken_socket_is_noticed_immediately(relays):
    """Though nothing is sent, and the next heartbeat is far."""
    rare = RelaySettings(1024, heartbeat_seconds=20.0, rebuild_timeout_seconds=60.0)
    first, second = [relays(f"rollout-{i}", settings=rare) for i in range(2)]
    await join_all([first, second])
    await until(lambda: first._sender.phase == "Connected")
    second.close()
    await until(lambda: first._sender.phase != "Connected", rare.heartbeat_seconds / 2)


async def test_a_version_that_is_committed_is_served_by_who_lost_everybody(relays):
    """v is served until v + 1 is whole, whatever dies in between."""
    first, second = [relays(f"rollout-{i}") for i in range(2)]
    await join_all([first, second])
    trainer = Predecessor(first)
    for version, sent in ((1, CHUNKS), (2, 6)):
        manifest, data = sealed(version)
        trainer.offer(manifest)
        for index in range(sent):
            trainer.chunk(manifest, index, data)
        # Not before: a newer version takes the place of one that is on its way.
        await until(lambda: whole(second) == 1)
    await until(lambda: whole(second) == 1 and second.counters.chunks_received == CHUNKS + 6)
    first.close()
    trainer.close()
    assert_whole(second._store._writer.folder, 1)
    assert (await second.status(1)).receiving == 2
    again = Predecessor(second, token=FencingToken(1, 1, 1))
    assert again.offer(manifest)["ranges"] == [[6, CHUNKS]]
    again.close()


# --- processes that hang, machines without power ---------------------------------------------------------------------


@pytest.fixture
def key_file(memory) -> Path:
    path = memory / "relay-key"
    path.write_bytes(KEY + b"\n")
    return path


def chained(relays: list[RelayProcess], revision: int) -> Chain:
    chain = Chain(1, revision, tuple(relay.member for relay in relays))
    for relay in relays:
        relay.join(chain)
    return chain


async def test_the_chain_closes_over_a_relay_that_hangs(memory, key_file):
    """It holds its connections and answers nothing. As it goes on, it is of an older chain."""
    manifest, data = sealed(1, nbytes=10 * 100_000, chunk_bytes=100_000)
    patient = ("--heartbeat-seconds", "20.0")
    with ExitStack() as stack:
        first, second, third = relays = [
            stack.enter_context(
                RelayProcess(RelayCommand(f"rollout-{i}", memory / f"rollout-{i}-0", key_file, options=patient))
            )
            for i in range(3)
        ]
        chained(relays, 0)
        trainer = Predecessor(first)
        trainer.offer(manifest)
        for index in range(4):
            trainer.chunk(manifest, index, data)
        await until(lambda: third.status().chunks_received == 4)
        second.process.send_signal(signal.SIGSTOP)
        for index in range(4, CHUNKS - 1):
            trainer.chunk(manifest, index, data)
        began = time.monotonic()
        chained([first, third], 1)
        # Only now: all that was sent before may lie in the sleeper's own socket, and be whole as it wakes.
        trainer.chunk(manifest, CHUNKS - 1, data)
        await until(lambda: third.segment.version() == 1)
        assert time.monotonic() - began < 15, "no heartbeat is waited for"
        assert third.status().bytes_received_total == manifest.total_bytes
        second.process.send_signal(signal.SIGCONT)
        await until(lambda: second.status().link == "Refused")
        assert third.status().predecessor == "rollout-0"
        assert second.segment.version() is None
        trainer.close()


class Unanswered:
    """A transport whose machines are without power. It keeps how long each of them was given."""

    def __init__(self) -> None:
        self.given: list[tuple[float, float]] = []

    def connect(self, host: str, port: int, patience: float, silence: float) -> Connection:
        self.given.append((patience, silence))
        raise OSError("no answer")

    def listen(self, host: str, port: int, silence: float) -> Listener:
        return TCP.listen(host, port, silence)

    def reaches(self, host: str, port: int, seconds: float) -> bool:
        return False


async def test_a_machine_without_power_is_given_the_time_of_one_answer(memory, relays):
    """A busy one that has answered before is given longer, without holding up a chain that closes over it."""
    settings, transport = RelaySettings(heartbeat_seconds=0.7), Unanswered()
    config = RelayConfig("rollout-0", 0, memory / "rollout-0-0", KEY, settings, "127.0.0.1", transport=transport)
    with Relay(config) as first:
        await join_all([first, relays("rollout-1")])
        await until(lambda: bool(transport.given))
    assert set(transport.given) == {(0.7, 2.8)}


async def test_a_link_that_waits_for_a_machine_without_power_lets_go_of_it(memory, key_file):
    """It was trying to connect again when the chain closed: nothing is cut, for there is nothing to cut yet."""
    reason = netns.unavailable()
    if reason is not None:
        pytest.skip(reason)
    with ExitStack() as stack:
        star = stack.enter_context(Star(3, rate=None))
        first, second, third = [
            stack.enter_context(
                RelayProcess(
                    RelayCommand(
                        f"rollout-{i}", memory / f"rollout-{i}-0", key_file, star.address(i), prefix=star.command(i)
                    )
                )
            )
            for i in range(3)
        ]
        chained([first, second], 0)
        await until(lambda: first.status().link == "Connected")
        star.unplug(1)
        await until(lambda: first.status().connections_lost_total > 1)
        await asyncio.sleep(0.15)  # The next try has begun.
        began = time.monotonic()
        chained([first, third], 1)
        await until(lambda: first.status().link == "Connected")
        assert time.monotonic() - began < RelaySettings().answer_seconds + 10, "TCP itself would try for minutes"
