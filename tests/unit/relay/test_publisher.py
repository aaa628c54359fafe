"""The trainer's side: what is copied, what is refused, and what a shipment survives."""

from __future__ import annotations

import pytest
import torch

from rljob_runtime.protocols import Chain, Refused, StaleTerm
from rljob_runtime.relay.manifest import layout
from rljob_runtime.relay.publisher import Publisher
from rljob_runtime.relay.relay import read_key
from rljob_runtime.relay.segment import Segment
from rljob_runtime.relay.settings import RelaySettings
from rljob_runtime.relay.slot import SegmentFull
from rljob_runtime.relay.tensors import describe, gather, views
from tests.support.relay import KEY, chain_of, join_all, whole
from tests.support.waiting import until


def test_floats_are_rounded_the_rest_stays_and_gaps_are_zero():
    tensors = {"a": torch.randn(3), "b": torch.arange(5), "c": torch.zeros(0, 4), "d": torch.tensor([True, False])}
    plan = layout(1, describe(tensors.items(), torch.bfloat16), 64)
    assert [entry.dtype for entry in plan.tensors] == ["bfloat16", "int64", "bfloat16", "bool"]
    buffer = memoryview(bytearray(b"\xff" * plan.total_bytes))
    gather(tensors.items(), plan, buffer)
    received = dict(views(plan, buffer))
    assert torch.equal(received["a"], tensors["a"].bfloat16())
    assert torch.equal(received["b"], tensors["b"])
    assert received["c"].shape == (0, 4)
    assert torch.equal(received["d"], tensors["d"])
    covered = {i for entry in plan.tensors for i in range(entry.offset, entry.offset + entry.nbytes)}
    assert not any(buffer[i] for i in range(plan.total_bytes) if i not in covered)


def test_tensors_that_do_not_fit_the_layout_are_named():
    plan = layout(1, [("a", "bfloat16", (3,)), ("b", "bfloat16", (2,))], 64)
    buffer = memoryview(bytearray(plan.total_bytes))
    with pytest.raises(ValueError, match=r"tensor b \[4\]: the layout has b \[2\] in its place"):
        gather({"a": torch.randn(3), "b": torch.randn(4)}.items(), plan, buffer)
    with pytest.raises(ValueError, match="longer"):
        gather({"a": torch.randn(3)}.items(), plan, buffer)


def test_training_may_change_the_tensors_as_soon_as_publish_returns(publisher, memory):
    weight = torch.ones(1000)
    publisher.publish(1, {"w": weight})
    weight.zero_()
    publisher.settle()
    manifest, buffer = Segment.open(memory / "trainer").current()
    assert torch.equal(dict(views(manifest, buffer))["w"], torch.ones(1000).bfloat16())


def test_versions_only_rise_and_one_published_is_not_copied_again(publisher):
    assert publisher.publish(3, {"w": torch.ones(10)}).stall_seconds > 0
    again = publisher.publish(3, {"w": torch.zeros(10)})
    assert (again.version, again.stall_seconds) == (3, 0.0)
    with pytest.raises(Refused, match="version 2 is below 3"):
        publisher.publish(2, {"w": torch.ones(10)})


def test_versions_published_faster_than_they_are_sealed_do_not_mix(publisher, memory):
    for version in range(1, 30):
        publisher.publish(version, {"w": torch.full((50_000,), float(version))})
    publisher.settle()
    manifest, buffer = Segment.open(memory / "trainer").current()
    assert manifest.version == 29
    assert torch.equal(dict(views(manifest, buffer))["w"], torch.full((50_000,), 29.0).bfloat16())


def test_too_little_shared_memory_leaves_the_version_before(publisher, memory, monkeypatch):
    publisher.publish(1, {"w": torch.ones(10)})
    publisher.settle()
    with monkeypatch.context() as patch:
        patch.setattr("rljob_runtime.relay.slot._available", lambda folder: 100)
        with pytest.raises(SegmentFull, match="more bytes of shared memory and 100 are free"):
            publisher.publish(2, {"w": torch.ones(100_000)})
    assert publisher.manifest.version == 1
    publisher.publish(2, {"w": torch.ones(100_000)})
    publisher.settle()
    assert publisher.manifest.version == 2


def test_a_background_failure_is_raised_once_and_may_be_tried_again(publisher, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("rljob_runtime.relay.publisher.checksum", lambda data: 1 / 0)
        publisher.publish(1, {"w": torch.ones(10)})
        with pytest.raises(ZeroDivisionError):
            publisher.settle()
    publisher.publish(1, {"w": torch.ones(10)})
    publisher.settle()
    assert publisher.manifest.version == 1


async def test_a_publication_waits_for_no_master_and_reaches_the_one_named_later(relays, publisher):
    publisher.publish(1, {"w": torch.ones(10_000)})
    assert publisher.link[0] == "Alone"
    assert not publisher.wait_delivered(1, 0.05)
    relay = relays("rollout-0")
    publisher.ship(1, await join_all([relay]))
    assert publisher.wait_delivered(1, 20)
    assert whole(relay) == 1


async def test_a_broken_shipment_goes_on_with_what_is_missing(memory, relays):
    settings = RelaySettings(chunk_bytes=4096, heartbeat_seconds=0.1, rebuild_timeout_seconds=10)
    relay = relays("rollout-0", settings=settings)
    with Publisher(memory / "t", KEY, settings, torch.bfloat16) as publisher:
        publisher.ship(1, await join_all([relay]))
        for version in range(1, 6):
            before = relay.counters.chunks_received
            publisher.publish(version, {"w": torch.randn(500_000)})
            await until(lambda before=before: relay.counters.chunks_received > before + 20)
            relay._receiver.cut()
            await until(lambda version=version: whole(relay) == version)
        received, sent = Segment.open(memory / "rollout-0-0").current(), Segment.open(memory / "t").current()
        assert received.manifest == sent.manifest
        assert received.buffer == sent.buffer
        assert publisher.counters.connections_lost > 0
        assert relay.counters.chunks_received < 5 * sent.manifest.chunks + publisher.counters.connections_lost + 1


async def test_an_older_coordinator_or_chain_may_not_order_a_shipment(relays, publisher):
    relay = relays("rollout-0")
    publisher.ship(2, await join_all([relay], epoch=3, term=2))
    with pytest.raises(StaleTerm, match="term 1 is lower than 2"):
        publisher.ship(1, chain_of([relay], epoch=9))
    with pytest.raises(Refused, match="older"):
        publisher.ship(2, chain_of([relay], epoch=2))
    with pytest.raises(Refused, match="no members"):
        publisher.ship(2, Chain(4, 0, ()))


def test_the_key_is_read_without_its_line_end_and_never_shown(tmp_path):
    (tmp_path / "key").write_text("0123456789abcdef\n")
    assert read_key(tmp_path / "key") == b"0123456789abcdef"
    (tmp_path / "key").write_text("short-secret")
    with pytest.raises(ValueError, match="12 bytes") as error:
        read_key(tmp_path / "key")
    assert "short-secret" not in str(error.value)


def test_settings_follow_the_spec():
    class Spec:
        chunk_bytes, heartbeat_seconds, rebuild_timeout_seconds = 1 << 20, 0.25, 3.0

    settings = RelaySettings.of(Spec())
    assert settings == RelaySettings(1 << 20, 0.25, 3.0)
    assert settings.silence_seconds >= 4 * settings.heartbeat_seconds
