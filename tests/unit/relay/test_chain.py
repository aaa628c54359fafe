"""The chain: whatever is published arrives whole and bit for bit, and nothing else ever does."""

from __future__ import annotations

import asyncio

import pytest
import torch

from rljob_runtime.protocols import Refused, StaleTerm
from rljob_runtime.relay.fencing import FencingToken
from rljob_runtime.relay.network import wire
from rljob_runtime.relay.network.wire import RefusedByPeer, WireError
from rljob_runtime.relay.publisher import Publisher
from rljob_runtime.relay.relay import Relay
from rljob_runtime.relay.segment import Segment
from rljob_runtime.relay.settings import RelaySettings
from rljob_runtime.relay.tensors import views
from tests.support.relay import (
    KEY,
    SETTINGS,
    Predecessor,
    assert_whole,
    chain_of,
    content,
    join_all,
    sealed,
    whole,
)
from tests.support.waiting import until


def weights(version: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(version)
    return {
        "model.embed_tokens.weight": torch.randn(300, 16, generator=generator),
        "model.norm.weight": torch.randn(16, generator=generator),
        "odd": torch.randn(7, 3, generator=generator).t(),
        "steps": torch.tensor(version),
    }


def assert_holds(relay: Relay, version: int) -> None:
    manifest, buffer = Segment.open(relay._store._writer.folder).current()
    assert manifest.version == version
    received = dict(views(manifest, buffer))
    for name, tensor in weights(version).items():
        expected = tensor.bfloat16() if tensor.is_floating_point() else tensor
        assert torch.equal(received[name], expected), name


@pytest.mark.parametrize("length", [1, 2, 3, 5])
async def test_every_relay_of_a_chain_holds_what_was_published_bit_for_bit(relays, publisher, length):
    chain = [relays(f"rollout-{i}") for i in range(length)]
    publisher.ship(1, await join_all(chain))
    for version in (1, 2, 5):
        report = publisher.publish(version, weights(version))
        assert report.version == version
        assert report.nbytes > 300 * 16 * 2
        await until(lambda version=version: all(whole(relay) == version for relay in chain))
        for relay in chain:
            assert_holds(relay, version)
    # Who sends counts what it has sent after it has arrived; the answer that all of it did comes last.
    assert publisher.wait_delivered(5, 30)
    await until(lambda: all(relay._sender.delivered == 5 for relay in chain[:-1]))
    total = 3 * report.nbytes
    assert publisher.counters.bytes_sent == total
    for relay, follower in zip(chain, [*chain[1:], None], strict=True):
        status = await relay.status(1)
        assert (status.whole, status.receiving, status.commits_total) == (5, None, 3)
        assert status.bytes_received_total == total
        assert status.bytes_sent_total == (total if follower else 0)
        assert (status.checksum_failures_total, status.chunks_resent_total) == (0, 0)
        assert status.successor == (follower.machine if follower else None)


async def test_a_relay_passes_a_chunk_on_before_it_has_the_next(relays):
    first, second = chain = [relays("rollout-0"), relays("rollout-1")]
    await join_all(chain)
    manifest, data = sealed(1)
    trainer = Predecessor(first)
    assert trainer.offer(manifest)["ranges"] == [[0, 10]]
    for index in range(manifest.chunks):
        trainer.chunk(manifest, index, data)
        await until(lambda index=index: second.counters.chunks_received == index + 1)
    assert trainer.hear()["type"] == "whole"
    await until(lambda: whole(second) == 1)
    assert_whole(second._store._writer.folder, 1)
    trainer.close()


async def test_the_old_version_is_served_until_the_new_one_is_whole(relays):
    relay = relays("rollout-0")
    await join_all([relay])
    trainer = Predecessor(relay)
    for version in (1, 2):
        manifest, data = sealed(version)
        trainer.offer(manifest)
        for index in range(manifest.chunks):
            assert whole(relay) == (version - 1 or None)
            trainer.chunk(manifest, index, data)
        trainer.hear()
        assert whole(relay) == version
    trainer.close()


@pytest.mark.parametrize("bad", [0, 4, 9])
async def test_a_damaged_chunk_is_never_committed_and_is_asked_for_again(relays, bad):
    relay, follower = chain = [relays("rollout-0"), relays("rollout-1")]
    await join_all(chain)
    manifest, data = sealed(1)
    start, _ = manifest.chunk_range(bad)
    damaged = data[:start] + bytes([data[start] ^ 1]) + data[start + 1 :]
    trainer = Predecessor(relay)
    trainer.offer(manifest)
    for index in range(manifest.chunks):
        trainer.chunk(manifest, index, damaged)
    assert trainer.hear() == {"type": "wanted", "version": 1, "ranges": [[bad, bad + 1]]}
    assert whole(relay) is None
    assert (await relay.status(1)).checksum_failures_total == 1
    trainer.chunk(manifest, bad, data)
    assert trainer.hear()["type"] == "whole"
    await until(lambda: whole(follower) == 1)
    assert_whole(relay._store._writer.folder, 1)
    assert_whole(follower._store._writer.folder, 1)
    assert (await follower.status(1)).checksum_failures_total == 0, "damage is not passed on"
    trainer.close()


async def test_a_chunk_that_stays_damaged_ends_the_connection_not_the_relay(relays):
    relay = relays("rollout-0")
    await join_all([relay])
    manifest, data = sealed(1, nbytes=1024)
    trainer = Predecessor(relay)
    trainer.offer(manifest)

    def insist() -> None:
        for _ in range(20):
            trainer.chunk(manifest, 0, bytes(1024))
            trainer.hear()

    with pytest.raises(RefusedByPeer) as refused:
        insist()
    assert refused.value.code == wire.CORRUPT
    assert whole(relay) is None
    again = Predecessor(relay)
    again.offer(manifest)
    again.chunk(manifest, 0, data)
    assert again.hear()["type"] == "whole"
    again.close()


async def test_a_newer_version_takes_the_place_of_an_unfinished_one(relays):
    chain = [relays(f"rollout-{i}") for i in range(3)]
    await join_all(chain)
    trainer = Predecessor(chain[0])
    manifest, data = sealed(1)
    trainer.offer(manifest)
    for index in range(5):
        trainer.chunk(manifest, index, data)
    await until(lambda: chain[2].counters.chunks_received == 5)
    newer, data = sealed(2)
    assert trainer.offer(newer)["ranges"] == [[0, 10]]
    for index in range(newer.chunks):
        trainer.chunk(newer, index, data)
    await until(lambda: all(whole(relay) == 2 and relay.counters.commits for relay in chain))
    for relay in chain:
        assert_whole(relay._store._writer.folder, 2)
        assert relay.counters.commits == 1
        assert relay.counters.checksum_failures == 0
    trainer.close()


async def test_an_interrupted_broadcast_goes_on_from_the_first_missing_chunk(relays):
    relay = relays("rollout-0")
    await join_all([relay])
    manifest, data = sealed(1)
    trainer = Predecessor(relay)
    trainer.offer(manifest)
    for index in range(6):
        trainer.chunk(manifest, index, data)
    trainer.settle()
    trainer.close()
    back = Predecessor(relay)
    assert back.offer(manifest)["ranges"] == [[6, 10]]
    for index in range(6, 10):
        back.chunk(manifest, index, data)
    assert back.hear()["type"] == "whole"
    assert_whole(relay._store._writer.folder, 1)
    assert relay.counters.bytes_received == manifest.total_bytes
    back.close()


async def test_a_successor_that_restarts_in_mid_broadcast_is_fed_again(relays):
    first, second, third = [relays(f"rollout-{i}") for i in range(3)]
    await join_all([first, second, third])
    manifest, data = sealed(1)
    trainer = Predecessor(first)
    trainer.offer(manifest)
    for index in range(4):
        trainer.chunk(manifest, index, data)
    await until(lambda: third.counters.chunks_received == 4)
    second.close()
    heir = relays("rollout-1", incarnation=1)
    await join_all([first, heir, third], epoch=2)
    await until(lambda: heir.counters.chunks_received == 4)
    for index in range(4, manifest.chunks):
        trainer.chunk(manifest, index, data)
    await until(lambda: all(whole(relay) == 1 for relay in (first, heir, third)))
    for relay in (first, heir, third):
        assert_whole(relay._store._writer.folder, 1)
    assert third.counters.chunks_received == manifest.chunks, "the third lacked chunks 4 to 9 only"
    assert heir.counters.chunks_received == manifest.chunks
    await until(lambda: first._sender.delivered == 1)
    assert first.counters.chunks_sent == 14
    trainer.close()


async def test_a_late_joiner_is_fed_the_newest_version(relays, publisher):
    first, late = relays("rollout-0"), relays("rollout-1")
    publisher.ship(1, await join_all([first]))
    publisher.publish(3, weights(3))
    await until(lambda: whole(first) == 3)
    await join_all([first, late], revision=1)
    await until(lambda: whole(late) == 3)
    assert_holds(late, 3)


async def test_a_newcomer_gets_the_complete_version_when_a_broadcast_is_stuck(relays):
    settings = RelaySettings(1024, heartbeat_seconds=2.0, rebuild_timeout_seconds=0.5)
    first, late = relays("rollout-0", settings=settings), relays("rollout-1", settings=settings)
    await join_all([first])
    trainer = Predecessor(first)
    manifest, data = sealed(1)
    trainer.offer(manifest)
    for index in range(manifest.chunks):
        trainer.chunk(manifest, index, data)
    trainer.hear()
    newer, data = sealed(2)
    trainer.offer(newer)
    trainer.chunk(newer, 0, data)
    trainer.settle()
    await join_all([first, late], revision=1)
    await until(lambda: whole(late) == 1)
    trainer.close()
    trainer = Predecessor(first, token=FencingToken(1, 1, 1))
    assert trainer.offer(newer)["ranges"] == [[1, 10]]
    for index in range(1, newer.chunks):
        trainer.chunk(newer, index, data)
    await until(lambda: whole(late) == 2)
    trainer.close()


async def test_a_new_master_is_given_the_version_again(relays, publisher):
    first, second = relays("rollout-0"), relays("rollout-1")
    publisher.ship(1, await join_all([first]))
    publisher.publish(1, weights(1))
    await until(lambda: whole(first) == 1)
    first.close()
    publisher.ship(1, await join_all([second], epoch=2))
    assert publisher.publish(1, weights(1)).stall_seconds == 0.0
    await until(lambda: whole(second) == 1)
    assert_holds(second, 1)


async def test_a_relay_that_comes_back_serves_what_its_machine_held(memory, relays):
    relay = relays("rollout-0")
    await join_all([relay])
    trainer = Predecessor(relay)
    manifest, data = sealed(4)
    trainer.offer(manifest)
    for index in range(manifest.chunks):
        trainer.chunk(manifest, index, data)
    trainer.hear()
    relay._store._writer.folder.rename(memory / "kept")  # As if it had died: `close` finds nothing to remove.
    relay.close()
    (memory / "kept").rename(memory / "rollout-0-0")
    heir = relays("rollout-0")
    assert (await heir.status(0)).whole == 4
    assert Predecessor(heir).offer(manifest)["type"] == "whole"


async def test_a_version_number_with_other_content_is_refused(relays):
    relay = relays("rollout-0")
    await join_all([relay])
    trainer = Predecessor(relay)
    manifest, data = sealed(1)
    other, _ = sealed(1, salt=1)
    trainer.offer(manifest)
    trainer.chunk(manifest, 0, data)
    with pytest.raises(RefusedByPeer, match="each version needs a new number") as refused:
        trainer.offer(other)
    assert refused.value.code == wire.VERSION_REUSED
    trainer = Predecessor(relay)
    trainer.offer(manifest)
    for index in range(1, manifest.chunks):
        trainer.chunk(manifest, index, data)
    assert trainer.hear()["type"] == "whole"
    with pytest.raises(RefusedByPeer, match="each version needs a new number"):
        trainer.offer(other)
    assert_whole(relay._store._writer.folder, 1)


async def test_a_version_refused_does_not_hold_up_the_next(memory, relays, publisher):
    relay = relays("rollout-0")
    publisher.publish(1, weights(1))
    publisher.ship(1, await join_all([relay]))
    await until(lambda: whole(relay) == 1)
    with Publisher(memory / "other", KEY, SETTINGS, torch.bfloat16) as other:
        other.publish(1, weights(2))
        other.ship(1, await join_all([relay], epoch=2))
        await until(lambda: other.link[0] == "Refused")
        assert "each version needs a new number" in other.link[1]
        other.publish(2, weights(2))
        await until(lambda: whole(relay) == 2)
    assert_holds(relay, 2)


async def test_an_older_version_is_not_wanted(relays):
    relay = relays("rollout-0")
    await join_all([relay])
    trainer = Predecessor(relay)
    manifest, data = sealed(5)
    trainer.offer(manifest)
    for index in range(manifest.chunks):
        trainer.chunk(manifest, index, data)
    trainer.hear()
    assert trainer.offer(sealed(4)[0])["type"] == "unwanted"
    assert trainer.offer(manifest)["type"] == "whole"
    assert whole(relay) == 5
    trainer.close()


BAD_FRAMES = {
    "not a manifest": lambda t, m, d: t.channel.send({"type": "offer"}, b"{}"),
    "unsealed manifest": lambda t, m, d: t.channel.send({"type": "offer"}, m.seal([]).to_json()),
    "unknown type": lambda t, m, d: t.channel.send({"type": "format-disk"}),
    "no magic": lambda t, m, d: t.channel.connection.send(b"GET / HTTP/1.1\r\n\r\n"),
    "chunk of another version": lambda t, m, d: t.channel.send({"type": "chunk", "version": 9, "index": 0}, d[:1024]),
    "chunk outside": lambda t, m, d: t.channel.send({"type": "chunk", "version": 1, "index": 10}, d[:1024]),
    "chunk of another size": lambda t, m, d: t.channel.send({"type": "chunk", "version": 1, "index": 1}, d[:100]),
    "chunk twice": lambda t, m, d: t.chunk(m, 0, d),
    "index is text": lambda t, m, d: t.channel.send({"type": "chunk", "version": 1, "index": "1"}, d[:1024]),
}


@pytest.mark.parametrize("case", BAD_FRAMES)
async def test_a_frame_that_makes_no_sense_ends_the_connection_and_nothing_else(relays, case):
    relay = relays("rollout-0")
    await join_all([relay])
    trainer = Predecessor(relay)
    manifest, data = sealed(1)
    trainer.offer(manifest)
    trainer.chunk(manifest, 0, data)
    trainer.settle()
    BAD_FRAMES[case](trainer, manifest, data)
    with pytest.raises(WireError):
        trainer.settle()
    again = Predecessor(relay)
    assert again.offer(manifest)["ranges"] == [[1, 10]], "what was verified stays"
    for index in range(1, manifest.chunks):
        again.chunk(manifest, index, data)
    assert again.hear()["type"] == "whole"
    again.close()


async def test_shared_memory_that_is_too_small_is_said_and_tried_again(relays, publisher, monkeypatch):
    relay = relays("rollout-0")
    small = monkeypatch.context()
    with small as patch:
        patch.setattr("rljob_runtime.relay.slot._available", lambda folder: 100 if "rollout" in str(folder) else 10**9)
        publisher.ship(1, await join_all([relay]))
        publisher.publish(1, weights(1))
        await until(lambda: "more bytes of shared memory and 100 are free" in publisher.link[1])
        assert whole(relay) is None
    await until(lambda: whole(relay) == 1)


# --- whose commands are followed --------------------------------------------------------------------------------------


async def test_a_wrong_key_is_refused_on_both_sides(relays, publisher):
    relay = relays("rollout-0")
    chain = await join_all([relay])
    with pytest.raises(RefusedByPeer) as refused:
        Predecessor(relay, key=b"a-key-of-some-other-job")
    assert refused.value.code == wire.NOT_AUTHENTIC
    await until(lambda: relay.counters.connections_refused == 1)
    stranger = relays("rollout-1", key=b"a-key-of-some-other-job")
    publisher.publish(1, weights(1))
    publisher.ship(1, chain_of([stranger], epoch=2))
    await until(lambda: publisher.link[0] == "Refused")
    assert whole(stranger) is None
    assert publisher.counters.bytes_sent == 0
    publisher.ship(1, await join_all([relay], epoch=3))
    await until(lambda: whole(relay) == 1)
    assert chain.epoch == 1


@pytest.mark.parametrize(
    "token", [FencingToken(2, 5, 2), FencingToken(2, 4, 9), FencingToken(1, 5, 3), FencingToken(1, 9, 0)]
)
async def test_a_predecessor_of_an_older_chain_or_coordinator_is_refused(relays, token):
    relay = relays("rollout-0")
    await join_all([relay], epoch=5, revision=3, term=2)
    with pytest.raises(RefusedByPeer) as refused:
        Predecessor(relay, token=token)
    assert refused.value.code == wire.STALE
    Predecessor(relay, token=FencingToken(2, 5, 3)).close()


async def test_higher_numbers_are_adopted_and_fence_the_older_ones(relays):
    relay = relays("rollout-0")
    await join_all([relay], epoch=1)
    old = Predecessor(relay)
    new = Predecessor(relay, name="rollout-7", token=FencingToken(1, 2, 0))
    with pytest.raises(WireError):
        old.offer(sealed(1)[0])
    with pytest.raises(RefusedByPeer):
        Predecessor(relay)
    assert (await relay.status(1)).epoch == 2
    with pytest.raises(Refused, match="older"):
        await relay.join(1, chain_of([relay], epoch=1, revision=9))
    new.close()


async def test_only_the_predecessor_is_let_in(relays):
    first, second = chain = [relays("rollout-0"), relays("rollout-1")]
    await join_all(chain)
    with pytest.raises(RefusedByPeer) as refused:
        Predecessor(second, name="trainer")
    assert refused.value.code == wire.NOT_PREDECESSOR
    with pytest.raises(RefusedByPeer):
        Predecessor(first, name="rollout-1")


async def test_a_new_chain_ends_the_connection_of_a_former_predecessor(relays):
    first, second = relays("rollout-0"), relays("rollout-1")
    await second.join(1, chain_of([first, second]))
    old = Predecessor(second, name="rollout-0")
    await second.join(1, chain_of([first, second], revision=1))
    old.settle()
    await second.join(1, chain_of([second, first], revision=2))
    with pytest.raises(WireError):
        old.settle()


async def test_commands_of_a_replaced_coordinator_are_refused(relays):
    relay = relays("rollout-0")
    await relay.status(7)
    with pytest.raises(StaleTerm, match=r"term 6 is over: relay .* follows term 7"):
        await relay.status(6)
    with pytest.raises(StaleTerm):
        await relay.join(6, chain_of([relay]))
    assert (await relay.status(7)).epoch == 0


async def test_a_chain_that_cannot_be_adopted_is_refused(relays):
    first, second = relays("rollout-0"), relays("rollout-1")
    await join_all([first, second], epoch=2, revision=1)
    with pytest.raises(Refused, match="older"):
        await first.join(1, chain_of([first], epoch=2, revision=0))
    with pytest.raises(Refused, match="other members"):
        await first.join(1, chain_of([first], epoch=2, revision=1))
    with pytest.raises(Refused, match="not a member"):
        await first.join(1, chain_of([second], epoch=3))
    with pytest.raises(Refused, match="twice"):
        await first.join(1, chain_of([first, first], epoch=3))
    with pytest.raises(Refused, match="incarnation 4, this is 0"):
        await first.join(1, chain_of([relays("rollout-0", incarnation=4)], epoch=3))
    assert (await first.status(1)).epoch == 2
    await first.join(1, chain_of([first, second], epoch=2, revision=1))


async def test_a_successor_that_never_answers_is_lost_and_tried_again_when_told(relays, publisher):
    settings = RelaySettings(1024, heartbeat_seconds=0.05, rebuild_timeout_seconds=2.0)
    first, second = relays("rollout-0", settings=settings), relays("rollout-1")
    chain = chain_of([first, second])
    second.close()
    await first.join(1, chain)
    await until(lambda: first._sender.phase == "Lost")
    status = await first.status(1)
    assert (status.link, status.successor) == ("Lost", "rollout-1")
    assert "rollout-1" in status.link_detail
    assert first.counters.connections_lost > 1
    heir = relays("rollout-1", incarnation=1)
    publisher.ship(1, await join_all([first, heir], epoch=2))
    publisher.publish(1, weights(1))
    await until(lambda: whole(heir) == 1)


async def test_an_idle_chain_stays_connected(relays):
    settings = RelaySettings(1024, heartbeat_seconds=0.1)
    first, second = relays("rollout-0", settings=settings), relays("rollout-1", settings=settings)
    await join_all([first, second])
    await until(lambda: first._sender.phase == "Connected")
    await asyncio.sleep(settings.silence_seconds + 0.5)
    status = await second.status(1)
    assert status.predecessor == "rollout-0"
    assert first.counters.connections_lost == 0


async def test_readers_of_a_relay_in_full_work_see_whole_versions_only(relays, publisher):
    chain = [relays("rollout-0"), relays("rollout-1")]
    publisher.ship(1, await join_all(chain))
    seen = set()
    for version in range(1, 40):
        publisher.publish(version, weights(version))
        if version % 8 == 0:  # On a busy machine each of them might be superseded before it is whole.
            await until(lambda version=version: all(whole(relay) == version for relay in chain))
        for relay in chain:
            held = whole(relay)
            if held is not None:
                seen.add(held)
                assert_holds_some_whole(relay)
        await asyncio.sleep(0.005)
    await until(lambda: all(whole(relay) == 39 for relay in chain))
    assert len(seen) > 3


def assert_holds_some_whole(relay: Relay) -> None:
    manifest, buffer = Segment.open(relay._store._writer.folder).current()
    received = dict(views(manifest, buffer))
    expected = weights(manifest.version)
    assert all(torch.equal(received[name], tensor.to(received[name].dtype)) for name, tensor in expected.items())


def test_known_content_differs_between_versions():
    assert content(sealed(1)[0]) != content(sealed(2)[0])
