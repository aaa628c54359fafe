"""Relays as processes of their own: killed, told to end, and behind links that lose packets."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import torch

from rljob_bench.lib import netns
from rljob_bench.lib.netns import Line
from rljob_runtime.protocols import Chain
from rljob_runtime.relay.fencing import FencingToken
from rljob_runtime.relay.publisher import Publisher
from rljob_runtime.relay.segment import Segment, SegmentWriter
from rljob_runtime.relay.settings import RelaySettings
from rljob_runtime.relay.subprocess import RelayCommand, RelayProcess
from tests.support.relay import KEY, Predecessor, assert_whole, sealed
from tests.support.rows import slow
from tests.support.waiting import until

Make = Callable[..., RelayProcess]

PATIENT = ("--heartbeat-seconds", "2.0")
"""With a predecessor played by hand, which sends no heartbeats."""


@pytest.fixture
def processes(memory) -> Iterator[Make]:
    """Makes relay processes; all end with the test."""
    key_file = memory / "relay-key"
    key_file.write_bytes(KEY + b"\n")
    with ExitStack() as stack:

        def make(machine: str, incarnation: int = 0, **options) -> RelayProcess:
            folder = memory / f"{machine}-{incarnation}"
            return stack.enter_context(
                RelayProcess(RelayCommand(machine, folder, key_file, incarnation=incarnation, **options))
            )

        yield make


def join_all(relays: list[RelayProcess], epoch: int = 1, revision: int = 0) -> Chain:
    chain = Chain(epoch, revision, tuple(relay.member for relay in relays))
    for relay in relays:
        relay.join(chain)
    return chain


def assert_same(relay: RelayProcess, trainer: Segment, version: int) -> None:
    received, sent = relay.segment.current(), trainer.current()
    assert received.manifest.version == version
    assert received.manifest == sent.manifest
    assert received.buffer == sent.buffer


async def test_a_chain_of_processes_is_bit_equal_and_ends_cleanly(memory, processes):
    relays = [processes(f"rollout-{i}") for i in range(4)]
    settings = RelaySettings(chunk_bytes=1 << 18)
    with Publisher(memory / "trainer", KEY, settings, torch.bfloat16) as publisher:
        publisher.ship(1, join_all(relays))
        for version in (1, 2):
            publisher.publish(version, {"w": torch.randn(2_000_000)})
            await until(lambda version=version: all(r.segment.version() == version for r in relays))
            for relay in relays:
                assert_same(relay, Segment.open(memory / "trainer"), version)
    held = relays[0].segment.current()
    for relay in relays:
        assert relay.close() == 0
        assert not relay.segment.folder.exists()
    assert held.manifest.version == 2, "what a replica has mapped outlives the relay"
    assert len(bytes(held.buffer)) == held.manifest.total_bytes
    assert not (memory / "trainer").exists()


@pytest.mark.parametrize("sent", [*slow(0), 5])
async def test_after_a_relay_killed_in_mid_broadcast_the_rest_get_what_they_lack(processes, sent):
    first, second, third = relays = [processes(f"rollout-{i}", options=PATIENT) for i in range(3)]
    join_all(relays)
    manifest, data = sealed(1)
    trainer = Predecessor(first)
    trainer.offer(manifest)
    for index in range(sent):
        trainer.chunk(manifest, index, data)
    await until(lambda: third.status().chunks_received == sent)
    second.kill()
    heir = processes("rollout-1", incarnation=1, options=PATIENT)
    join_all([first, heir, third], epoch=2)
    trainer.close()
    trainer = Predecessor(first, token=FencingToken(1, 2, 0))
    assert trainer.offer(manifest)["ranges"] == [[sent, manifest.chunks]]
    for index in range(sent, manifest.chunks):
        trainer.chunk(manifest, index, data)
    await until(lambda: all(relay.segment.version() == 1 for relay in (first, heir, third)))
    for relay in (first, heir, third):
        assert_whole(relay.segment.folder, 1)
    assert third.status().bytes_received_total == manifest.total_bytes
    trainer.close()


async def test_a_killed_relay_leaves_its_version_to_the_process_after_it(memory, processes):
    relay = processes("rollout-0", options=PATIENT)
    join_all([relay])
    trainer = Predecessor(relay)
    for version in (1, 2):
        manifest, data = sealed(version)
        trainer.offer(manifest)
        for index in range(manifest.chunks if version == 1 else 4):
            trainer.chunk(manifest, index, data)
        if version == 1:
            trainer.hear()
    trainer.settle()
    relay.kill()
    assert_whole(memory / "rollout-0-0", 1)
    SegmentWriter.open(memory / "rollout-0-0")
    assert_whole(memory / "rollout-0-0", 1)


# --- over links that lose packets ------------------------------------------------------------------------------------

NO_LINKS = netns.unavailable() or (None if shutil.which("iptables") else "iptables is not installed")
needs_links = pytest.mark.skipif(NO_LINKS is not None, reason=str(NO_LINKS))


def dropped(line: Line, node: int) -> int:
    """Packets that the rules of `node` have dropped."""
    listing = line.command(node, "iptables", "-L", "INPUT", "-v", "-x", "-n")
    text = subprocess.run(listing, check=True, capture_output=True, text=True).stdout
    return sum(int(count) for count in re.findall(r"^\s*(\d+)\s+\d+\s+DROP", text, re.MULTILINE))


def chain_on(line: Line, processes: Make) -> list[RelayProcess]:
    return [
        processes(f"rollout-{node}", host=line.address(node), prefix=line.command(node)) for node in range(line.nodes)
    ]


@needs_links
@pytest.mark.parametrize("loss", [0.01, *slow(0.05)])
async def test_a_broadcast_over_links_that_lose_packets_is_whole_and_bit_equal(memory, processes, loss):
    with Line(3, rate=None) as line:
        for node in range(line.nodes):
            rule = ("-m", "statistic", "--mode", "random", "--probability", str(loss), "-j", "DROP")
            line.run(node, "iptables", "-A", "INPUT", "!", "-i", "lo", *rule)
        line.packets_of_one_segment()
        relays = chain_on(line, processes)
        with line.inside(0):
            publisher = Publisher(memory / "trainer", KEY, RelaySettings(chunk_bytes=1 << 17), torch.float32)
        with publisher:
            publisher.ship(1, join_all(relays))
            for version in (1, 2):
                publisher.publish(version, {"w": torch.randn(1 << 20)})
                await until(lambda v=version: all(r.segment.version() == v for r in relays), 120)
                for relay in relays:
                    assert_same(relay, Segment.open(memory / "trainer"), version)
        assert dropped(line, 1) > 0, "the rule has lost packets"
        assert dropped(line, 2) > 0, "the rule has lost packets"


@needs_links
async def test_a_broadcast_goes_on_where_it_was_when_a_link_comes_back(memory, processes):
    with Line(3, rate=50_000_000) as line:
        relays = chain_on(line, processes)
        last = relays[-1]
        with line.inside(0):
            publisher = Publisher(memory / "trainer", KEY, RelaySettings(chunk_bytes=1 << 17), torch.float32)
        with publisher:
            publisher.ship(1, join_all(relays))
            publisher.publish(1, {"w": torch.randn(4 << 20)})
            await until(lambda: last.status().chunks_received > 5)
            line.run(2, "iptables", "-A", "INPUT", "!", "-i", "lo", "-j", "DROP")
            await until(lambda: relays[1].status().connections_lost_total > 0)
            assert last.segment.version() is None
            line.run(2, "iptables", "-F", "INPUT")
            await until(lambda: last.segment.version() == 1)
            assert_same(last, Segment.open(memory / "trainer"), 1)
            assert last.status().bytes_received_total == publisher.manifest.total_bytes
        assert dropped(line, 2) == 0


# --- the second witness ----------------------------------------------------------------------------------------------

NO_NAMESPACES = netns.unavailable()


@pytest.mark.skipif(NO_NAMESPACES is not None, reason=str(NO_NAMESPACES))
def test_a_process_that_ended_or_hangs_is_no_machine_that_is_gone(processes):
    with Line(2, rate=None) as line:
        first, second = relays = chain_on(line, processes)
        join_all(relays)
        assert first.probe(second.member)
        second.process.send_signal(signal.SIGSTOP)
        assert first.probe(second.member)
        second.kill()
        assert first.probe(second.member)
        line.unplug(1)
        began = time.monotonic()
        assert not first.probe(second.member)
        assert time.monotonic() - began < RelaySettings().answer_seconds + 10, "TCP itself would try for minutes"
