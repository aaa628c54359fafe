"""Gradient workers of lent machines: whatever they sum in whatever split, the normalised gradient (before clip and
optimizer) and the weights are those of a step that the trainer computes alone."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
import yaml
from rank_process import KEY, RELAY, ProcessRank
from test_training_early import changed, watched
from test_training_exactness import TOLERANCE, largest_error, naive_gradient
from test_training_ranks import settings_of, stored
from torch import Tensor
from training_toys import FakePublisher, LoneRank, make_groups

from rljob_api import load
from rljob_api.status import Member, Role
from rljob_runtime.coordinator.actors import Places, WorkerPeer, make_worker
from rljob_runtime.coordinator.protocols import Chain, Handover, Refused, RelayMember, StaleTerm, WrongVersion
from rljob_runtime.relay.manifest import checksum, layout
from rljob_runtime.relay.segment import SegmentWriter
from rljob_runtime.relay.slot import Slot
from rljob_runtime.relay.sums import Courier, Desks
from rljob_runtime.relay.tensors import describe, gather
from rljob_runtime.relay.wire import Channel, WireError
from rljob_runtime.scheduling.trajectory import Group
from rljob_runtime.training.config import Aggregation, TrainingConfig
from rljob_runtime.training.contribution import normalise
from rljob_runtime.training.group import TrainerGroup
from rljob_runtime.training.lent import LentSettings, LentWorker
from rows import slow

ROOT = Path(__file__).resolve().parents[2]
VERSION = 4
CHAIN = Chain(1, 0, ())


@pytest.fixture
def memory() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="test-sums-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    yield folder
    shutil.rmtree(folder)


class Site:
    """A trainer with a desk, the weights that it published in a machine's segment, and workers that read them."""

    def __init__(self, memory: Path, model: Path, volume: Path, **config: object) -> None:
        self.memory = memory
        self.model = model
        self.settings = settings_of(model, volume, gradient_clip=None, **config)
        self.config = self.settings.training
        self.publisher = FakePublisher()
        self.desks = Desks(memory / "desk", KEY, RELAY, "127.0.0.1")
        self.trainer = LoneRank(self.settings, lambda: self.publisher, make_desks=lambda: self.desks)
        self.trainer.start(1)
        self.segment = SegmentWriter.open(memory / "rollout")
        self.publish(VERSION, 0)
        self.gradients = watched(self.trainer._started.learner)

    def publish(self, version: int, step: int) -> None:
        """As the relay chain would bring it."""
        self.trainer.publish(1, version, step, CHAIN)
        self.hold(version, self.publisher.weights)

    def hold(self, version: int, weights: Mapping[str, Tensor]) -> None:
        dtype = getattr(torch, self.config.dtype)
        draft = self.segment.begin(layout(version, describe(weights.items(), dtype), RELAY.chunk_bytes))
        gather(weights.items(), draft.manifest, draft.buffer())
        draft.seal([checksum(draft.chunk(index)) for index in range(draft.manifest.chunks)])
        self.segment.commit(draft)

    def worker(self, name: str) -> LentWorker:
        settings = LentSettings(self.config, self.model, self.memory / "rollout")

        def courier() -> Courier:
            return Courier(self.memory / f"{name}-sums", KEY, RELAY, self.config.compute_dtype, 20.0)

        return LentWorker(name, settings, courier)

    def open(self, count: int = 1, term: int = 1) -> tuple[RelayMember, ...]:
        return self.trainer.open_desks(term, count)

    def hand_over(self, worker: LentWorker) -> Handover:
        """As the only one."""
        return worker.hand_over(1, 1, 1, *self.open())

    def close(self) -> None:
        self.trainer.close()
        self.segment.close()


@pytest.fixture
def site(memory: Path, model_folder: Path, tmp_path: Path) -> Iterator[Site]:
    made = Site(memory, model_folder, tmp_path)
    yield made
    made.close()


@pytest.mark.usefixtures("norms_in_full_precision")
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("aggregation", list(Aggregation), ids=str)
@pytest.mark.parametrize(
    "shares",
    [(1, (5,)), (3, (1, 2)), (0, (2, 1)), (0, (6,))],
    ids=["one worker has most", "two workers", "the update has a part", "the trainer has nothing"],
)
def test_the_update_is_that_of_the_trainer_alone(memory, model_folder, tmp_path, dtype, aggregation, shares) -> None:
    config = {"dtype": dtype, "aggregation": aggregation, "max_tokens_per_microbatch": 40}
    site = Site(memory, model_folder, tmp_path, **config)
    groups = make_groups(seed=5, count=6)
    wanted, _ = naive_gradient(model_folder, groups, site.config)
    early, lent = shares
    if early:
        site.trainer.contribute(1, 1, groups[:early])
    held, desks = early, site.open(len(lent))
    for number, count in enumerate(lent, start=1):
        worker, part = site.worker(f"rollout-{number}"), groups[held : held + count]
        for place in range(0, count, 2):
            worker.compute(1, 1, VERSION, part[place : place + 2])
        held += count
        handover = worker.hand_over(1, 1, number, desks[number - 1])
        assert site.trainer.accept(1, handover, part).groups == held
        # A repetition adds nothing.
        assert site.trainer.accept(1, handover, part).groups == held
        assert handover.nbytes <= site.desks.bytes_received
    report = site.trainer.train(1, 1, groups)
    assert report.early_groups == held
    assert largest_error(site.gradients[0], wanted) <= TOLERANCE[dtype]

    alone = LoneRank(settings_of(model_folder, tmp_path / "alone", gradient_clip=None, **config), FakePublisher)
    alone.start(1)
    expected = alone.train(1, 1, groups)
    for trainer in (alone, site.trainer):
        trainer.checkpoint(1, 1, "{}")
    assert largest_error(stored(site.settings, 1), stored(alone.settings, 1)) <= TOLERANCE[dtype] * 10
    figures = dataclasses.asdict(expected) | {"seconds": report.seconds, "early_groups": held}
    assert dataclasses.asdict(report) == pytest.approx(figures, rel=TOLERANCE[dtype] * 10)
    site.close()


@pytest.mark.usefixtures("norms_in_full_precision")
@pytest.mark.parametrize("moment", ["before its sums are sent", "while they are sent", "before they are accepted"])
def test_a_worker_that_dies_half_way_leaves_the_update_exact(site: Site, moment) -> None:
    groups = make_groups(seed=8, count=5)
    wanted, _ = naive_gradient(site.model, groups, site.config)
    doomed, other, desks = site.worker("rollout-0"), site.worker("rollout-1"), site.open(2)
    doomed.compute(1, 1, VERSION, groups[:2])
    other.compute(1, 1, VERSION, groups[2:3])
    if moment == "while they are sent":
        sent: list[int] = []
        send_chunk = Channel.send_chunk

        def breaks(self: Channel, slot: Slot, index: int) -> int:
            if len(sent) == 2:
                raise WireError("the machine is gone")
            sent.append(index)
            return send_chunk(self, slot, index)

        doomed._courier._seconds = 3.0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Channel, "send_chunk", breaks)
            with pytest.raises(Refused, match="contribution 1 did not reach"):
                doomed.hand_over(1, 1, 1, desks[0])
        assert len(sent) == 2
    elif moment == "before they are accepted":
        doomed.hand_over(1, 1, 1, desks[0])
    handover = other.hand_over(1, 1, 2, desks[1])
    assert site.trainer.accept(1, handover, groups[2:3]).groups == 1
    if moment == "while they are sent":
        late = dataclasses.replace(handover, number=1, groups=tuple(group.prompt for group in groups[:2]))
        with pytest.raises(Refused, match="contribution 1 is expected; its desk holds none"):
            site.trainer.accept(1, late, groups[:2])
    assert site.trainer.train(1, 1, groups).early_groups == 1
    assert largest_error(site.gradients[0], wanted) <= 1e-10


def test_what_does_not_belong_here_is_refused_and_changes_nothing(site: Site) -> None:
    groups, worker = make_groups(seed=9, count=4), site.worker("rollout-0")
    site.trainer.contribute(1, 1, groups[:1])
    worker.compute(1, 1, VERSION, groups[1:3])
    handover = site.hand_over(worker)

    def refused(match: str, term: int = 1, of: list[Group] = groups[1:3], **changes: object) -> None:
        with pytest.raises(Refused, match=match):
            site.trainer.accept(term, dataclasses.replace(handover, **changes), of)

    refused("a contribution to step 3: step 0 is done, so 1 is next", step=3)
    refused(r"computed with version 3 for step 1: version 4 of step 0 was published", version=3)
    refused("contribution 7 is expected; its desk holds none", number=7)
    refused("contributes 1 groups of step 1; 2 of step 1 are expected", groups=handover.groups[:1])
    refused("has summed", figures=(*handover.figures[:-2], handover.figures[-2] / 2, handover.figures[-1]))
    refused("has summed", figures=(*handover.figures[:-1], handover.figures[-1] / 2))
    refused(
        "was contributed twice",
        of=groups[:3],
        groups=tuple(g.prompt for g in groups[:3]),
        **with_counts(handover, groups[:3]),
    )
    with pytest.raises(Refused, match="a contribution of term 1: term 2 is in office"):
        site.trainer.accept(2, handover, groups[1:3])
    with pytest.raises(StaleTerm):
        site.trainer.accept(1, handover, groups[1:3])
    report = site.trainer.train(2, 1, groups)
    assert report.early_groups == 1
    assert site.trainer.accept(2, handover, groups[1:3]).groups == 0


def with_counts(handover: Handover, groups: list[Group]) -> dict[str, object]:
    """Figures whose counts of tokens and responses are those of these groups."""
    lengths = [len(scored.response.token_ids) for group in groups for scored in group.responses]
    return {"figures": (*handover.figures[:-2], float(sum(lengths)), float(len(lengths)))}


def test_a_sum_that_is_not_finite_is_not_added(site: Site) -> None:
    groups, worker = make_groups(seed=9, count=3), site.worker("rollout-0")
    worker.compute(1, 1, VERSION, groups[:2])
    next(iter(worker._sums.total.gradients.values())).view(-1)[0] = float("nan")
    with pytest.raises(Refused, match="is not finite"):
        site.trainer.accept(1, site.hand_over(worker), groups[:2])
    assert site.trainer.train(1, 1, groups).early_groups == 0


def test_a_trainer_that_was_restarted_has_no_sums_of_before(site: Site, tmp_path: Path) -> None:
    groups, worker = make_groups(seed=9, count=3), site.worker("rollout-0")
    worker.compute(1, 1, VERSION, groups[:2])
    handover = site.hand_over(worker)
    site.trainer.accept(1, handover, groups[:2])
    fresh = LoneRank(site.settings, FakePublisher, make_desks=lambda: site.desks)
    fresh.start(1)
    with pytest.raises(Refused, match="version 4 for step 1: none was published"):
        fresh.accept(1, handover, groups[:2])
    assert fresh.train(1, 1, groups).early_groups == 0


@pytest.mark.engine
@pytest.mark.parametrize("aggregation", [Aggregation.TOKEN_MEAN, *slow(Aggregation.SEQUENCE_MEAN)], ids=str)
async def test_two_ranks_keep_their_shards_of_what_a_worker_brings(memory, model_folder, tmp_path, aggregation) -> None:
    config = {"aggregation": aggregation, "max_tokens_per_microbatch": 60}
    alone, two = (
        Site(memory, model_folder, tmp_path / "one", **config),
        settings_of(model_folder, tmp_path, gradient_clip=None, **config),
    )
    groups, worker = make_groups(1, 5), alone.worker("rollout-0")
    wanted = alone.trainer.train(1, 1, groups)
    alone.trainer.checkpoint(1, 1, "{}")
    ranks = [ProcessRank(two, number, 2, desk=memory / "two-desk") for number in range(2)]
    try:
        group = TrainerGroup(ranks)
        await group.start(1)
        await group.publish(1, VERSION, 0, CHAIN)
        await group.contribute(1, 1, groups[:1])
        worker.compute(1, 1, VERSION, groups[1:4])
        handover = await asyncio.to_thread(worker.hand_over, 1, 1, 1, *await group.open_desks(1, 1))
        assert (await group.accept(1, handover, groups[1:4])).groups == 4
        with pytest.raises(Refused, match="contribution 2 is expected; its desk holds none"):
            await group.accept(1, dataclasses.replace(handover, number=2), groups[1:4])
        found = await group.train(1, 1, groups)
        await group.checkpoint(1, 1, "{}")
    finally:
        for rank in ranks:
            rank.end()
        alone.close()
    assert found.early_groups == 4
    assert found.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-6)
    # The moments show a wrong scale, which AdamW hides in the weights.
    assert largest_error(stored(two, 1), stored(alone.settings, 1)) < 1e-5


# --- sums that cannot be brought ---


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_a_delivery_ends_as_soon_as_the_desk_is_lost_or_refuses(site: Site) -> None:
    worker, seconds, began = site.worker("rollout-0"), 20.0, time.monotonic()
    worker.compute(1, 1, VERSION, make_groups(seed=8, count=2))
    impatient = dataclasses.replace(RELAY, rebuild_timeout_seconds=0.1)
    worker._courier = Courier(site.memory / "sums", KEY, impatient, torch.float32, seconds)
    with pytest.raises(Refused, match=r"did not reach 127.0.0.1:\d+: Lost desk"):
        worker.hand_over(1, 1, 1, RelayMember("desk-1-1", 0, "127.0.0.1", closed_port()))
    worker._courier = Courier(site.memory / "sums", b"another key of another job", RELAY, torch.float32, seconds)
    with pytest.raises(Refused, match=r"Refused .*key"):
        site.hand_over(worker)
    assert time.monotonic() - began < seconds


def test_a_desk_takes_nothing_of_another_step(site: Site) -> None:
    (desk,) = site.open()
    worker = site.worker("rollout-0")
    worker.compute(1, 1, VERSION, make_groups(seed=8, count=2))
    impatient = dataclasses.replace(RELAY, rebuild_timeout_seconds=0.1)
    worker._courier = Courier(site.memory / "sums", KEY, impatient, torch.float32, seconds=40.0)
    with pytest.raises(Refused, match="not desk-0-1"):
        worker.hand_over(1, 1, 1, dataclasses.replace(desk, machine="desk-0-1"))
    with pytest.raises(Refused, match="its desk holds none"):
        site.desks.read(1)


async def test_a_worker_that_is_let_go_of_delivers_nothing_more(site: Site) -> None:
    worker = site.worker("rollout-0")
    patient = dataclasses.replace(RELAY, rebuild_timeout_seconds=100.0)
    worker._courier = Courier(site.memory / "sums", KEY, patient, torch.float32, seconds=20.0)
    peer = WorkerPeer(worker)
    await peer.compute(1, 1, VERSION, make_groups(seed=8, count=2))
    nobody = RelayMember("desk-1-1", 0, "127.0.0.1", closed_port())
    delivery = asyncio.create_task(peer.hand_over(1, 1, 1, nobody))
    while worker._courier._publisher is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    stale = asyncio.create_task(peer.release(0))
    await asyncio.wait([delivery], timeout=0.1)
    assert not delivery.done(), "a coordinator out of office ended it"
    async with asyncio.timeout(10.0):
        await peer.release(1)
    with pytest.raises(StaleTerm):
        await stale
    with pytest.raises(Refused, match="not wanted any more"):
        await delivery
    # The next loan's are.
    await peer.compute(1, 1, VERSION, make_groups(seed=8, count=2))
    assert (await peer.hand_over(1, 1, 1, *site.open())).groups
    await peer.close()


# --- the worker alone ---


def test_a_worker_computes_with_the_version_it_is_told(site: Site) -> None:
    groups, worker = make_groups(seed=3, count=2), site.worker("rollout-0")
    with pytest.raises(WrongVersion, match="weight version 5 is wanted, the relay holds 4"):
        worker.compute(1, 1, 5, groups)
    worker.compute(1, 1, VERSION, groups)
    before = {name: tensor.clone() for name, tensor in worker._sums.total.gradients.items()}
    site.hold(5, {name: 2 * tensor for name, tensor in site.publisher.weights.items()})
    assert worker.compute(1, 1, 5, groups).groups == 2
    after = worker._sums.total.gradients
    assert any(largest_error({"": after[name]}, {"": before[name]}) > 1e-3 for name in before)


def test_sums_are_of_one_step_version_and_term(site: Site) -> None:
    groups, worker = make_groups(seed=3, count=3), site.worker("rollout-0")
    assert worker.compute(1, 1, VERSION, groups[:2]).groups == 2
    again = worker.compute(1, 1, VERSION, groups[1:])
    assert again.groups == 3
    assert again.tokens == sum(len(scored.response.token_ids) for scored in groups[2].responses)
    assert worker.compute(1, 2, VERSION, groups[:1]).groups == 1
    with pytest.raises(Refused, match="holds no sums of step 1, term 1"):
        worker.hand_over(1, 1, 1, RelayMember("desk", 0, "127.0.0.1", 1))
    assert worker.compute(2, 2, VERSION, groups[1:2]).groups == 1
    with pytest.raises(StaleTerm, match="term 1 is over"):
        worker.compute(1, 2, VERSION, groups)
    with pytest.raises(Refused, match="other contents"):
        worker.compute(2, 2, VERSION, [changed(groups[1])])
    with pytest.raises(Refused, match="comes twice"):
        worker.compute(2, 2, VERSION, [groups[2], groups[2]])
    worker.release(2)
    with pytest.raises(Refused, match="holds no sums of step 2"):
        worker.hand_over(2, 2, 1, RelayMember("desk", 0, "127.0.0.1", 1))


async def test_the_worker_of_a_job_goes_the_whole_way(
    site: Site, memory: Path, model_folder: Path, tmp_path: Path
) -> None:
    """As its actor makes it, from the job and the model's files alone."""
    job = load(yaml.safe_load((ROOT / "examples" / "addition-rollpacker.yaml").read_text(encoding="utf-8")))
    (tmp_path / "key").write_bytes(KEY)
    member = Member(machine="rollout", incarnation=1, ip="127.0.0.1", role=Role.ROLLOUT)
    places, threads = Places(memory, tmp_path, tmp_path, tmp_path, tmp_path / "key"), torch.get_num_threads()
    files = {"config.json": (model_folder / "config.json").read_bytes()}
    worker, groups = make_worker(job, member, places, files), make_groups(3, 2)
    torch.set_num_threads(threads)
    await worker.ready()
    with pytest.raises(WrongVersion, match="the relay holds 4"):
        await worker.compute(1, 1, 5, groups)
    site.hold(5, {name: tensor.float() for name, tensor in site.publisher.weights.items()})
    assert (await worker.compute(1, 1, 5, groups)).groups == 2
    handover = await worker.hand_over(1, 1, 1, *site.desks.open(1, 1))
    sums = site.desks.read(1)
    assert {tensor.dtype for tensor in sums.values()} == {torch.float32}
    assert handover.nbytes >= sum(tensor.nbytes for tensor in sums.values())
    await worker.release(1)
    await worker.close()


@pytest.mark.parametrize(("device", "freed"), [("cpu", 0), ("cuda", 1)])
def test_an_accelerators_memory_is_free_when_the_loan_is_over(site: Site, monkeypatch, device, freed) -> None:
    """Torch keeps what it took, and the engines that wake need it."""
    calls: list[bool] = []
    settings = LentSettings(site.config, site.model, site.memory / "rollout", device)
    worker = LentWorker("rollout-0", settings, lambda: None)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: calls.append(True), raising=False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append(worker._computer is None))
    worker._computer = object()
    worker.release(1)
    assert calls == [True, True] * freed


def test_a_worker_needs_no_reference_model(model_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no reference model"):
        LentSettings(TrainingConfig(kl_coefficient=0.1), model_folder, tmp_path)


def test_a_missing_renormalisation_is_seen(site: Site, monkeypatch) -> None:
    """The total divided by the count of the trainer's own part only."""
    groups, worker = make_groups(seed=5, count=4), site.worker("rollout-0")
    wanted, _ = naive_gradient(site.model, groups, site.config)
    site.trainer.contribute(1, 1, groups[:2])
    own = site.trainer._started.learner._early.total.sums
    worker.compute(1, 1, VERSION, groups[2:])
    site.trainer.accept(1, site.hand_over(worker), groups[2:])
    monkeypatch.setattr(
        "rljob_runtime.training.learner.normalise",
        lambda total, aggregation: normalise(dataclasses.replace(total, sums=own), aggregation),
    )
    site.trainer.train(1, 1, groups)
    assert largest_error(site.gradients[0], wanted) > 0.1
