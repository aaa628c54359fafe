"""Gradient units of loaned machines: whatever they sum in whatever split, the normalised gradient (before clip and
optimizer) and the weights are those of a step that the trainer computes alone."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from torch import Tensor

from rljob_api import load
from rljob_api.spec.algorithm import LossAggregation
from rljob_api.status import Member, Role
from rljob_runtime.protocols import ContributionReceipt, Refused, RelayMember, StaleTerm, WrongVersion
from rljob_runtime.protocols.trajectory import Group
from rljob_runtime.ray_backend.actors import ActorPlacement, WorkerPeer, make_worker
from rljob_runtime.relay.gradient_transfer import GradientSender, GradientSenderSettings
from rljob_runtime.rollout.engines.rank_processes import ForkServer
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.loans.worker import PEER, BlockingGradientWorker
from rljob_runtime.training.loans.worker_rank import GradientWorkerSettings
from rljob_runtime.training.ranks.group import TrainerGroup
from rljob_runtime.training.step.contribution import normalise
from tests.support.open_files import open_files
from tests.support.paths import ROOT
from tests.support.rows import slow
from tests.support.training import precise_rank
from tests.support.training.loan_site import CHAIN, VERSION, Site, gone, kill, pids_of
from tests.support.training.naive_gradient import TOLERANCE, largest_error, naive_gradient
from tests.support.training.rank_groups import settings_of, stored
from tests.support.training.rank_process import KEY, RELAY, ProcessRank
from tests.support.training.toys import FakePublisher, LoneRank, changed, figures, make_groups

PATIENCE = 100.0
"""For what ends immediately, on a busy machine."""


@pytest.fixture
def memory() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="test-sums-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    yield folder
    shutil.rmtree(folder)


def local_addresses(pid: int) -> set[str]:
    """Of the sockets of a process, as the kernel writes them."""
    own = open_files(pid)
    lines = [
        line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()
    ]
    return {line[1].partition(":")[0] for line in lines if f"socket:[{line[9]}]" in own}


@pytest.fixture
def site(memory: Path, model_folder: Path, tmp_path: Path, unit_fork_server: ForkServer) -> Iterator[Site]:
    made = Site(memory, model_folder, tmp_path, unit_fork_server)
    yield made
    made.close()


@pytest.mark.usefixtures("norms_in_full_precision")
@pytest.mark.parametrize("dtype", ["float64", *slow("float32")])
@pytest.mark.parametrize("aggregation", [LossAggregation.TOKEN_MEAN, *slow(LossAggregation.SEQUENCE_MEAN)], ids=str)
@pytest.mark.parametrize(
    "shares",
    [*slow((1, (5,))), (3, (1, 2)), *slow((0, (2, 1))), (0, (6,))],
    ids=["one worker has most", "two workers", "the update has a part", "the trainer has nothing"],
)
def test_the_update_is_that_of_the_trainer_alone(
    memory, model_folder, tmp_path, unit_fork_server, dtype, aggregation, shares
) -> None:
    config = {"dtype": dtype, "aggregation": aggregation, "max_tokens_per_microbatch": 40}
    site = Site(memory, model_folder, tmp_path, unit_fork_server, **config)
    groups = make_groups(seed=5, count=6)
    wanted, _ = naive_gradient(model_folder, groups, site.config)
    early, loaned = shares
    if early:
        site.trainer.contribute(1, 1, groups[:early])
    held, inboxes = early, site.open(len(loaned))
    for number, count in enumerate(loaned, start=1):
        worker, part = site.worker(f"rollout-{number}"), groups[held : held + count]
        reports = [worker.compute(1, 1, VERSION, part[place : place + 2]) for place in range(0, count, 2)]
        # All accelerators of the machine have a part of it, and nothing is summed twice.
        each = [sum(report.shares[rank] for report in reports) for rank in range(2)]
        assert min(each) > 0
        assert sum(each) == sum(len(scored.response.token_ids) for group in part for scored in group.responses)
        held += count
        receipt = worker.deliver(1, 1, number, inboxes[number - 1])
        assert site.trainer.accept(1, receipt, part).groups == held
        # A repetition adds nothing.
        assert site.trainer.accept(1, receipt, part).groups == held
        assert receipt.nbytes <= site.inboxes.bytes_received
    report = site.trainer.train(1, 1, groups)
    assert report.early_groups == held
    assert largest_error(site.gradients[0], wanted) <= TOLERANCE[dtype]

    alone = LoneRank(settings_of(model_folder, tmp_path / "alone", max_grad_norm=None, **config), FakePublisher)
    alone.start(1)
    expected = alone.train(1, 1, groups)
    for trainer in (alone, site.trainer):
        trainer.checkpoint(1, 1, "{}")
    assert largest_error(stored(site.settings, 1), stored(alone.settings, 1)) <= TOLERANCE[dtype] * 10
    sums = figures(expected) | {"seconds": report.seconds, "early_groups": held}
    assert figures(report) == pytest.approx(sums, rel=TOLERANCE[dtype] * 10)
    site.close()


class Narrow:
    """A way to an inbox that lets so many bytes through, and then nothing."""

    def __init__(self, inbox: RelayMember, most: int) -> None:
        self.full = threading.Event()
        self._most = most
        self._inbox = inbox
        self._sockets = [socket.create_server(("127.0.0.1", 0))]
        self.port = self._sockets[0].getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        theirs, _ = self._sockets[0].accept()
        ours = socket.create_connection((self._inbox.host, self._inbox.port))
        self._sockets += [theirs, ours]
        threading.Thread(target=self._pump, args=(ours, theirs, 1 << 30), daemon=True).start()
        self._pump(theirs, ours, self._most)
        self.full.set()

    @staticmethod
    def _pump(source: socket.socket, target: socket.socket, most: int) -> None:
        while most > 0:
            try:
                data = source.recv(min(most, 4096))
            except OSError:
                return
            if not data:
                return
            target.sendall(data)
            most -= len(data)

    def close(self) -> None:
        for one in self._sockets:
            one.close()


def test_a_loaned_machine_computes_the_loss_and_advantage_of_the_job(
    memory, model_folder, tmp_path, unit_fork_server
) -> None:
    own = "tests.support.training.own_functions"
    config = {"loss_function": f"{own}:counted", "advantage_function": f"{own}:longer_is_better"}
    site = Site(memory, model_folder, tmp_path, unit_fork_server, dtype="float32", **config)
    groups, worker = make_groups(seed=5, count=4), site.worker("rollout-1")
    inboxes = site.open(1)
    worker.compute(1, 1, VERSION, groups[:3])
    assert site.trainer.accept(1, worker.deliver(1, 1, 1, inboxes[0]), groups[:3]).groups == 3
    report = site.trainer.train(1, 1, groups)
    alone = LoneRank(
        settings_of(model_folder, tmp_path / "alone", max_grad_norm=None, dtype="float32", **config), FakePublisher
    )
    alone.start(1)
    wanted = {**figures(alone.train(1, 1, groups)), "seconds": report.seconds, "early_groups": 3}
    assert report.metrics.keys() == {"surprise", "long"}
    assert figures(report) == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    site.close()


@pytest.mark.usefixtures("norms_in_full_precision")
@pytest.mark.parametrize("moment", ["before its sums are sent", "while they are sent", "before they are accepted"])
def test_a_worker_that_dies_half_way_leaves_the_update_exact(site: Site, moment) -> None:
    groups = make_groups(seed=8, count=5)
    wanted, _ = naive_gradient(site.model, groups, site.config)
    doomed, other, inboxes = site.worker("rollout-0"), site.worker("rollout-1"), site.open(2)
    doomed.compute(1, 1, VERSION, groups[:2])
    other.compute(1, 1, VERSION, groups[2:3])
    pids = pids_of(doomed)
    if moment == "before its sums are sent":
        kill(doomed, 1)
        with pytest.raises(Refused, match=r"rollout-0 has lost its sums: rank 1 of 2 \(process \d+\) has ended"):
            doomed.deliver(1, 1, 1, inboxes[0])
    elif moment == "while they are sent":
        way = Narrow(inboxes[0], 9000)
        killer = threading.Thread(target=lambda: way.full.wait(PATIENCE) and kill(doomed, 0))
        killer.start()
        with pytest.raises(Refused, match="rollout-0 has lost its sums: rank 0 of 2"):
            doomed.deliver(1, 1, 1, dataclasses.replace(inboxes[0], port=way.port))
        killer.join()
        way.close()
        assert not (site.memory / "rollout-0-sums").exists(), "memory as large as a gradient is left behind"
    else:
        doomed.deliver(1, 1, 1, inboxes[0])
        kill(doomed, 0)
        doomed.release(1)
    assert gone(pids)
    receipt = other.deliver(1, 1, 2, inboxes[1])
    assert site.trainer.accept(1, receipt, groups[2:3]).groups == 1
    if moment == "while they are sent":
        late = dataclasses.replace(receipt, number=1, groups=tuple(group.prompt for group in groups[:2]))
        with pytest.raises(Refused, match="contribution 1 is expected; its inbox holds none"):
            site.trainer.accept(1, late, groups[:2])
    assert site.trainer.train(1, 1, groups).early_groups == 1
    assert largest_error(site.gradients[0], wanted) <= 1e-10


def test_what_does_not_belong_here_is_refused_and_changes_nothing(site: Site) -> None:
    groups, worker = make_groups(seed=9, count=4), site.worker("rollout-0")
    site.trainer.contribute(1, 1, groups[:1])
    worker.compute(1, 1, VERSION, groups[1:3])
    receipt = site.deliver(worker)

    def refused(match: str, term: int = 1, of: list[Group] = groups[1:3], **changes: object) -> None:
        with pytest.raises(Refused, match=match):
            site.trainer.accept(term, dataclasses.replace(receipt, **changes), of)

    refused("a contribution to step 3: step 0 is done, so 1 is next", step=3)
    refused(r"computed with version 3 for step 1: version 4 of step 0 was published", version=3)
    refused("contribution 7 is expected; its inbox holds none", number=7)
    refused("contributes 1 groups of step 1; 2 of step 1 are expected", groups=receipt.groups[:1])
    for count in ("tokens", "sequences"):
        refused("has summed", sums={**receipt.sums, count: receipt.sums[count] // 2})
    refused(
        "was contributed twice",
        of=groups[:3],
        groups=tuple(g.prompt for g in groups[:3]),
        **with_counts(receipt, groups[:3]),
    )
    with pytest.raises(Refused, match="a contribution of term 1: the current term is 2"):
        site.trainer.accept(2, receipt, groups[1:3])
    with pytest.raises(StaleTerm):
        site.trainer.accept(1, receipt, groups[1:3])
    report = site.trainer.train(2, 1, groups)
    assert report.early_groups == 1
    assert site.trainer.accept(2, receipt, groups[1:3]).groups == 0


def with_counts(receipt: ContributionReceipt, groups: list[Group]) -> dict[str, object]:
    """Figures whose counts of tokens and responses are those of these groups."""
    lengths = [len(scored.response.token_ids) for group in groups for scored in group.responses]
    return {"sums": {**receipt.sums, "tokens": sum(lengths), "sequences": len(lengths)}}


def test_a_sum_that_is_not_finite_is_not_added(site: Site) -> None:
    groups, worker = make_groups(seed=9, count=3), site.worker("rollout-0")
    worker.compute(1, 1, VERSION, groups[:2])
    receipt = site.deliver(worker)
    sums = {name: tensor.clone() for name, tensor in site.inboxes.read(1).items()}
    next(iter(sums.values())).view(-1)[0] = float("nan")
    (inbox,) = site.open()
    GradientSender(GradientSenderSettings(site.memory / "sums", KEY, RELAY, "float64", 20.0)).deliver(1, 1, sums, inbox)
    with pytest.raises(Refused, match="is not finite"):
        site.trainer.accept(1, receipt, groups[:2])
    assert site.trainer.train(1, 1, groups).early_groups == 0


def test_a_trainer_that_was_restarted_has_no_sums_of_before(site: Site, tmp_path: Path) -> None:
    groups, worker = make_groups(seed=9, count=3), site.worker("rollout-0")
    worker.compute(1, 1, VERSION, groups[:2])
    receipt = site.deliver(worker)
    site.trainer.accept(1, receipt, groups[:2])
    fresh = LoneRank(site.settings, FakePublisher, make_inboxes=lambda: site.inboxes)
    fresh.start(1)
    with pytest.raises(Refused, match="version 4 for step 1: none was published"):
        fresh.accept(1, receipt, groups[:2])
    assert fresh.train(1, 1, groups).early_groups == 0


@pytest.mark.engine
@pytest.mark.parametrize("aggregation", [LossAggregation.TOKEN_MEAN, *slow(LossAggregation.SEQUENCE_MEAN)], ids=str)
async def test_two_ranks_keep_their_shards_of_what_a_worker_brings(memory, model_folder, tmp_path, aggregation) -> None:
    config = {"aggregation": aggregation, "max_tokens_per_microbatch": 60}
    fork_server = ForkServer(PEER)  # norms as the trainer's processes compute them
    alone, two = (
        Site(memory, model_folder, tmp_path / "one", fork_server, **config),
        settings_of(model_folder, tmp_path, max_grad_norm=None, **config),
    )
    groups, worker = make_groups(1, 5), alone.worker("rollout-0")
    wanted = alone.trainer.train(1, 1, groups)
    alone.trainer.checkpoint(1, 1, "{}")
    ranks = [ProcessRank(two, number, 2, inbox=memory / "two-inbox") for number in range(2)]
    try:
        group = TrainerGroup(ranks)
        await group.start(1)
        await group.publish(1, VERSION, 0, CHAIN)
        await group.contribute(1, 1, groups[:1])
        worker.compute(1, 1, VERSION, groups[1:4])
        receipt = await asyncio.to_thread(worker.deliver, 1, 1, 1, *await group.open_gradient_inboxes(1, 1))
        assert (await group.accept(1, receipt, groups[1:4])).groups == 4
        with pytest.raises(Refused, match="contribution 2 is expected; its inbox holds none"):
            await group.accept(1, dataclasses.replace(receipt, number=2), groups[1:4])
        found = await group.train(1, 1, groups)
        await group.checkpoint(1, 1, "{}")
    finally:
        for rank in ranks:
            rank.end()
        alone.close()
        fork_server.close()
    assert found.early_groups == 4
    assert found.grad_norm == pytest.approx(wanted.grad_norm, rel=1e-6)
    # The moments show a wrong scale, which AdamW hides in the weights.
    assert largest_error(stored(two, 1), stored(alone.settings, 1)) < 1e-5


# --- sums that cannot be brought ---


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_a_delivery_ends_when_the_inbox_is_lost_or_refuses(site: Site) -> None:
    groups, began = make_groups(seed=8, count=2), time.monotonic()
    impatient = dataclasses.replace(RELAY, rebuild_timeout_seconds=0.1)
    worker = site.worker("rollout-0", relay=impatient, seconds=1000.0)
    worker.compute(1, 1, VERSION, groups)
    with pytest.raises(Refused, match=r"did not reach 127.0.0.1:\d+: Lost inbox"):
        worker.deliver(1, 1, 1, RelayMember("inbox-1-1", 0, "127.0.0.1", closed_port()))
    stranger = site.worker("rollout-1", key=b"another key of another job", seconds=1000.0)
    stranger.compute(1, 1, VERSION, groups)
    with pytest.raises(Refused, match=r"Refused .*key"):
        site.deliver(stranger)
    assert time.monotonic() - began < 900.0


def test_an_inbox_takes_nothing_of_another_step(site: Site) -> None:
    (inbox,) = site.open()
    impatient = dataclasses.replace(RELAY, rebuild_timeout_seconds=0.1)
    worker = site.worker("rollout-0", relay=impatient, seconds=40.0)
    worker.compute(1, 1, VERSION, make_groups(seed=8, count=2))
    with pytest.raises(Refused, match="not inbox-0-1"):
        worker.deliver(1, 1, 1, dataclasses.replace(inbox, machine="inbox-0-1"))
    with pytest.raises(Refused, match="its inbox holds none"):
        site.inboxes.read(1)


async def test_a_worker_that_is_let_go_of_delivers_nothing_more(site: Site) -> None:
    patient = dataclasses.replace(RELAY, rebuild_timeout_seconds=100.0)
    worker = site.worker("rollout-0", relay=patient)
    peer = WorkerPeer(worker)
    await peer.compute(1, 1, VERSION, make_groups(seed=8, count=2))
    absent = RelayMember("inbox-1-1", 0, "127.0.0.1", closed_port())
    delivery = asyncio.create_task(peer.deliver(1, 1, 1, absent))
    while not (site.memory / "rollout-0-sums" / "current").is_symlink():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    stale = asyncio.create_task(peer.release(0))
    await asyncio.wait([delivery], timeout=0.1)
    assert not delivery.done(), "an earlier coordinator ended it"
    async with asyncio.timeout(PATIENCE):
        await peer.release(1)
    with pytest.raises(StaleTerm):
        await stale
    with pytest.raises(Refused, match="its loan has ended"):
        await delivery
    assert not (site.memory / "rollout-0-sums").exists()
    # The next loan's are.
    await peer.compute(1, 1, VERSION, make_groups(seed=8, count=2))
    assert (await peer.deliver(1, 1, 1, *site.open())).groups
    await peer.release(1)


async def test_a_release_does_not_wait_for_a_computation(site: Site) -> None:
    """The engines do: a rank that hangs is ended too."""
    worker, groups = site.worker("rollout-0"), make_groups(seed=8, count=4)
    peer = WorkerPeer(worker)
    await peer.compute(1, 1, VERSION, groups[:2])
    pids = pids_of(worker)
    os.kill(pids[1], signal.SIGSTOP)
    computing = asyncio.create_task(peer.compute(1, 1, VERSION, groups[2:]))
    await asyncio.wait([computing], timeout=0.3)
    assert not computing.done()
    async with asyncio.timeout(PATIENCE):
        await peer.release(1)
    assert gone(pids)
    with pytest.raises(Refused, match="its loan has ended"):
        await computing


# --- the worker alone ---


def test_a_worker_computes_with_the_version_it_is_told(site: Site) -> None:
    groups, worker = make_groups(seed=3, count=2), site.worker("rollout-0")
    with pytest.raises(WrongVersion, match="weight version 5 is requested, the relay holds 4"):
        worker.compute(1, 1, 5, groups)
    worker.compute(1, 1, VERSION, groups)
    before = brought(site, worker)
    site.hold(5, {name: 2 * tensor for name, tensor in site.publisher.weights.items()})
    assert worker.compute(1, 1, 5, groups).groups == 2
    after = brought(site, worker)
    assert any(largest_error({"": after[name]}, {"": before[name]}) > 1e-3 for name in before)


def brought(site: Site, worker: BlockingGradientWorker) -> dict[str, Tensor]:
    """Its sums, as they lie at an inbox."""
    site.deliver(worker)
    return {name: tensor.clone() for name, tensor in site.inboxes.read(1).items()}


def test_sums_are_of_one_step_version_and_term(site: Site) -> None:
    groups, worker = make_groups(seed=3, count=3), site.worker("rollout-0")
    assert worker.compute(1, 1, VERSION, groups[:2]).groups == 2
    again = worker.compute(1, 1, VERSION, groups[1:])
    assert again.groups == 3
    assert again.tokens == sum(len(scored.response.token_ids) for scored in groups[2].responses)
    assert worker.compute(1, 2, VERSION, groups[:1]).groups == 1
    with pytest.raises(Refused, match="holds no sums of step 1, term 1"):
        worker.deliver(1, 1, 1, RelayMember("inbox", 0, "127.0.0.1", 1))
    assert worker.compute(2, 2, VERSION, groups[1:2]).groups == 1
    with pytest.raises(StaleTerm, match="term 1 is over"):
        worker.compute(1, 2, VERSION, groups)
    with pytest.raises(Refused, match="other contents"):
        worker.compute(2, 2, VERSION, [changed(groups[1])])
    with pytest.raises(Refused, match="occurs twice"):
        worker.compute(2, 2, VERSION, [groups[2], groups[2]])
    worker.release(2)
    with pytest.raises(Refused, match="holds no sums of step 2"):
        worker.deliver(2, 2, 1, RelayMember("inbox", 0, "127.0.0.1", 1))


async def test_the_worker_of_a_job_goes_the_whole_way(
    site: Site, memory: Path, model_folder: Path, tmp_path: Path
) -> None:
    """As its actor makes it, from the job and the model's files alone."""
    manifest = yaml.safe_load((ROOT / "examples" / "addition-rollpacker.yaml").read_text(encoding="utf-8"))
    manifest["spec"]["rollout"]["slotsPerMachine"] = 2
    job = load(manifest)
    (tmp_path / "key").write_bytes(KEY)
    member = Member(machine="rollout", incarnation=1, ip="127.0.0.1", role=Role.ROLLOUT)
    placement, threads = ActorPlacement(memory, tmp_path, tmp_path, tmp_path, tmp_path / "key"), torch.get_num_threads()
    files = {"config.json": (model_folder / "config.json").read_bytes()}
    worker, groups = make_worker(job, member, placement, files), make_groups(3, 2)
    torch.set_num_threads(threads)
    await worker.ready()
    with pytest.raises(WrongVersion, match="the relay holds 4"):
        await worker.compute(1, 1, 5, groups)
    site.hold(5, {name: tensor.float() for name, tensor in site.publisher.weights.items()})
    report = await worker.compute(1, 1, 5, groups)
    assert report.groups == 2
    assert len(report.shares) == 2
    assert min(report.shares) > 0
    receipt = await worker.deliver(1, 1, 1, *site.inboxes.open(1, 1))
    sums = site.inboxes.read(1)
    assert {tensor.dtype for tensor in sums.values()} == {torch.float32}
    assert receipt.nbytes >= sum(tensor.nbytes for tensor in sums.values())
    await worker.release(1)
    await worker.close()


def test_nothing_of_a_unit_is_left_when_the_loan_is_over(site: Site) -> None:
    """A process that has ended holds nothing of an accelerator, and the engines that wake need all of it."""
    worker = site.worker("rollout-0")
    worker.compute(1, 1, VERSION, make_groups(seed=3, count=1))
    pids, meeting = pids_of(worker), Path(worker._ranks._folder.name)
    worker.release(1)
    assert gone(pids)
    assert not meeting.exists()
    assert not list(site.memory.glob("rollout-0*"))


@pytest.mark.slow
def test_a_unit_restarts_when_its_fork_server_has_ended(site: Site) -> None:
    fork_server = ForkServer(precise_rank.PEER)
    site.fork_server = fork_server
    worker, groups = site.worker("rollout-0"), make_groups(seed=3, count=2)
    worker.compute(1, 1, VERSION, groups[:1])
    pids = pids_of(worker)
    fork_server._process.kill()
    for way in worker._ranks.processes.connections:
        assert way.poll(PATIENCE), "they end with it"
    with pytest.raises(Refused, match="rollout-0 has lost its sums: rank"):
        worker.compute(1, 1, VERSION, groups[1:])
    assert gone(pids)
    assert worker.compute(1, 1, VERSION, groups).groups == 2
    worker.close()


def test_no_other_user_can_reach_a_units_ranks(site: Site) -> None:
    worker = site.worker("rollout-0")
    worker.compute(1, 1, VERSION, make_groups(seed=3, count=1))
    addresses = {address for pid in pids_of(worker) for address in local_addresses(pid)}
    assert addresses, "the ranks have met"
    assert addresses <= {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}


def test_weights_that_are_not_the_models_are_refused(site: Site) -> None:
    groups, worker = make_groups(seed=3, count=1), site.worker("rollout-0")
    name, *_ = names = list(site.publisher.weights)
    short = {name: site.publisher.weights[name][:-1]} | {n: site.publisher.weights[n] for n in names[1:]}
    site.hold(5, short)
    with pytest.raises(Refused, match=rf"version 5 has {name} \[36, 16\]; \[37, 16\] is right"):
        worker.compute(1, 1, 5, groups)
    site.hold(6, {n: site.publisher.weights[n] for n in names[1:]})
    with pytest.raises(Refused, match=f"version 6 and the model differ in {name}"):
        worker.compute(1, 1, 6, groups)
    highest = max(token for scored in groups[0].responses for token in scored.response.token_ids)
    with pytest.raises(Refused, match=r"token \d+ is outside the model's vocabulary of"):
        worker._plan(1, groups, highest)


def test_a_unit_adopts_an_accelerator_for_each_rank(site: Site) -> None:
    worker = site.worker("rollout-0", ranks=3)
    with pytest.raises(Refused, match="the engine slots have 2 accelerators; 3 would be right"):
        worker.adopt(["0", "1"])


def test_a_unit_needs_no_reference_model(model_folder: Path, tmp_path: Path) -> None:
    sender = GradientSenderSettings(tmp_path, KEY, RELAY, "float32", 1.0)
    with pytest.raises(ValueError, match="no reference model"):
        GradientWorkerSettings(TrainingConfig(kl_coefficient=0.1), 1, model_folder, tmp_path, sender)


def test_a_missing_renormalisation_is_seen(site: Site, monkeypatch) -> None:
    """The total divided by the count of the trainer's own part only."""
    groups, worker = make_groups(seed=5, count=4), site.worker("rollout-0")
    wanted, _ = naive_gradient(site.model, groups, site.config)
    site.trainer.contribute(1, 1, groups[:2])
    own = site.trainer._started.learner._early.total.sums
    worker.compute(1, 1, VERSION, groups[2:])
    site.trainer.accept(1, site.deliver(worker), groups[2:])
    monkeypatch.setattr(
        "rljob_runtime.training.step.learner.normalise",
        lambda total, aggregation: normalise(dataclasses.replace(total, sums=own), aggregation),
    )
    site.trainer.train(1, 1, groups)
    assert largest_error(site.gradients[0], wanted) > 0.1
