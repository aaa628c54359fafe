"""A whole loan on real processes: published weights in the segments of two machines, a rank for each accelerator, sums
over sockets to the trainer's inboxes, under the coordinator's own stream. Each group is summed once, by any worker."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rljob_api.status import Member, Role
from rljob_runtime.coordinator.fleet.machine import RolloutMachine
from rljob_runtime.coordinator.reporting.timeline import Timeline
from rljob_runtime.coordinator.stream_training.stream import Streaming
from rljob_runtime.protocols import ComputeReport, MachinePeers, Refused
from rljob_runtime.protocols.trajectory import Group
from rljob_runtime.ray_backend.actors import WorkerPeer
from rljob_runtime.rollout.engines.rank_processes import ForkServer
from rljob_runtime.scheduling.lending.gain import LoanMeasurements
from rljob_runtime.training.algorithm.sums import LossSums
from rljob_runtime.training.loans.worker import BlockingGradientWorker
from tests.support.rows import slow
from tests.support.training.loan_site import VERSION, Site, gone, kill, pids_of
from tests.support.training.naive_gradient import TOLERANCE, largest_error, naive_gradient
from tests.support.training.rank_groups import settings_of, stored
from tests.support.training.toys import FakePublisher, LoneRank, make_groups, watched
from tests.support.waiting import until

PATIENCE = 300.0
RANKS = 2
BFLOAT16_BOUND = 0.01
"""Of |difference| / |gradient| of a tensor, in the 2-norm, in bfloat16. Measured: docs/concepts/training.md.
Sums of a row pass through bfloat16, in the trainer (of each weight) and in a unit (of each weight and rank)."""


class Counted(WorkerPeer):
    """A unit in its thread. `begun`: computations that it was asked for; `reports`: of those that it did."""

    def __init__(self, unit: BlockingGradientWorker) -> None:
        super().__init__(unit)
        self.unit = unit
        self.name = unit.name
        self.begun = 0
        self.reports: list[ComputeReport] = []

    async def compute(self, *arguments: Any) -> ComputeReport:
        self.begun += 1
        report: ComputeReport = await self._rank.call("compute", *arguments)
        self.reports.append(report)
        return report

    @property
    def shares(self) -> list[int]:
        """Loss tokens that each of its accelerators has summed."""
        return [sum(report.shares[rank] for report in self.reports) for rank in range(RANKS)]


class Trainer:
    """The trainer of this process, as the coordinator calls it. It begins when it is let."""

    published = VERSION

    def __init__(self, rank: LoneRank) -> None:
        self.rank = rank
        self.may = asyncio.Event()
        self.timeline = Timeline()

    async def call(self, method: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        await self.may.wait()
        return await method(self)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: asyncio.to_thread(getattr(self.rank, name), *arguments)


class Owner:
    """The fleet. `back`: machines whose loan is over, and whether they generate again in this round."""

    def __init__(self) -> None:
        self.back: list[tuple[str, bool]] = []
        self.lost: list[str] = []
        self.tasks: list[asyncio.Future[None]] = []

    def start_loan(self, machine: RolloutMachine) -> None:
        """It is on loan."""

    def end_loan(self, machine: RolloutMachine, reload: bool) -> None:
        self.back.append((machine.name, reload))

    def mark_machine_lost(self, machine: RolloutMachine, reason: str, detail: object) -> None:
        self.lost.append(machine.name)

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))


class Loan:
    """Two machines of two accelerators on loan to a trainer of one rank."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.workers = [Counted(site.worker(f"rollout-{number}", RANKS)) for number in range(2)]
        self.trainer = Trainer(site.trainer)
        self.owner = Owner()
        measured = LoanMeasurements()
        measured.training.record(1, 1000.0)  # a group a call, and no worker is given up for being slow
        self.stream = Streaming(self.trainer, 1, 1, VERSION, 1 << 16, measured)
        self.stream.start_loans([machine_of(worker) for worker in self.workers], self.owner)

    async def summed(self, count: int) -> None:
        """Wait until the machines have summed so many groups, some of them each."""
        await until(lambda: sum(len(worker.reports) for worker in self.workers) >= count, PATIENCE)
        assert all(worker.reports for worker in self.workers)

    async def end(self) -> None:
        await self.stream.close()
        await asyncio.gather(*self.owner.tasks)


def machine_of(worker: Counted) -> RolloutMachine:
    member = Member(machine=worker.name, incarnation=1, ip="127.0.0.1", role=Role.ROLLOUT)
    return RolloutMachine(MachinePeers(member, None, (), worker=worker), 1, (), "127.0.0.1", 1, 1)


@pytest.fixture
def memory() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="test-loan-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def make_site(
    memory: Path, model_folder: Path, tmp_path: Path, unit_fork_server: ForkServer
) -> Iterator[Callable[..., Site]]:
    made: list[Site] = []

    def make(dtype: str) -> Site:
        made.append(Site(memory, model_folder, tmp_path, unit_fork_server, dtype=dtype, max_tokens_per_microbatch=40))
        return made[-1]

    yield make
    for site in made:
        site.close()


def tokens(groups: list[Group]) -> int:
    return sum(len(scored.response.token_ids) for group in groups for scored in group.responses)


def apart(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """The largest |difference| / |wanted| of a tensor, in the 2-norm."""
    return max(float((found[name] - wanted[name]).norm() / wanted[name].norm()) for name in wanted)


@pytest.mark.usefixtures("norms_in_full_precision")
@pytest.mark.parametrize("dtype", ["float32", *slow("bfloat16")])
async def test_a_whole_loan(make_site: Callable[[str], Site], tmp_path: Path, dtype: str) -> None:
    site = make_site(dtype)
    groups, loan = make_groups(seed=5, count=10), Loan(site)
    loan.stream.offer(groups[:7])
    await loan.summed(6)
    pids = [pid for worker in loan.workers for pid in pids_of(worker.unit)]
    loan.trainer.may.set()
    loan.stream.offer(groups[7:9])
    streamed = await loan.stream.finish()
    report = await asyncio.to_thread(site.trainer.train, 1, 1, groups)
    await loan.end()

    # Every accelerator of both machines had a part, and what they summed is what is counted as theirs.
    for worker in loan.workers:
        assert min(worker.shares) > 0
        assert sum(worker.shares) == sum(each.tokens for each in worker.reports)
    assert streamed.loaned_machines == 2
    assert streamed.loaned_groups == sum(worker.reports[-1].groups for worker in loan.workers) >= 6
    assert report.early_groups == 9
    assert report.tokens == tokens(groups)
    assert loan.owner.lost == []
    assert gone(pids)

    alone = LoneRank(settings_of(site.model, tmp_path / "alone", max_grad_norm=None, **vars_of(site)), FakePublisher)
    alone.start(1)
    gradients = watched(alone._started.learner)
    alone.train(1, 1, groups)
    for trainer in (alone, site.trainer):
        trainer.checkpoint(1, 1, "{}")
    found, wanted = site.gradients[0], gradients[0]
    moments = stored(site.settings, 1), stored(alone.settings, 1)
    if dtype == "float32":
        assert largest_error(found, naive_gradient(site.model, groups, site.config)[0]) <= TOLERANCE[dtype]
        assert largest_error(*moments) <= TOLERANCE[dtype] * 10
    else:
        assert apart(found, wanted) <= BFLOAT16_BOUND
        assert apart(*moments) <= 2 * BFLOAT16_BOUND  # the second moment is a square
    alone.close()


def vars_of(site: Site) -> dict[str, Any]:
    return {"dtype": site.config.dtype, "max_tokens_per_microbatch": site.config.max_tokens_per_microbatch}


@pytest.mark.usefixtures("norms_in_full_precision")
async def test_an_accelerator_that_dies_in_the_middle_costs_its_machines_share(
    make_site: Callable[[str], Site],
) -> None:
    """While the other one waits for it in a collective. The loan is given back, the machine generates again, its groups
    are others', and each is trained on once."""
    site = make_site("float32")
    groups, loan = make_groups(seed=6, count=10), Loan(site)
    wanted, _ = naive_gradient(site.model, groups, site.config)
    loan.stream.offer(groups[:7])
    await loan.summed(6)
    doomed, other = loan.workers
    pids, begun = pids_of(doomed.unit), doomed.begun
    os.kill(pids[1], signal.SIGSTOP)
    loan.stream.offer(groups[7:])
    await until(lambda: doomed.begun > begun, PATIENCE)
    await asyncio.sleep(0.2)
    since = time.monotonic()
    kill(doomed.unit, 1)
    await until(lambda: bool(loan.owner.back), PATIENCE)
    assert time.monotonic() - since < 100.0, "a collective waits for ten minutes"
    assert loan.owner.back == [("rollout-0", True)]
    assert loan.owner.lost == [], "its engines and its relay are well"
    assert loan.stream.loaned == {"rollout-1"}
    assert gone(pids), "the rank that waited for the dead one too"

    loan.trainer.may.set()
    streamed = await loan.stream.finish()
    report = await asyncio.to_thread(site.trainer.train, 1, 1, groups)
    await loan.end()
    assert streamed.loaned_groups == other.reports[-1].groups > 0
    assert report.early_groups == 10
    assert report.tokens == tokens(groups)
    assert largest_error(site.gradients[0], wanted) <= TOLERANCE["float32"]
    # It can be loaned again.
    again = await doomed.compute(1, 2, VERSION, groups[:2])
    assert min(again.shares) > 0


async def test_a_unit_with_more_accelerators_than_rows(make_site: Callable[[str], Site]) -> None:
    """One response: the others have nothing to compute, but take part."""
    site = make_site("float32")
    unit, (group,) = site.worker("rollout-0", ranks=3), make_groups(seed=3, count=1, responses=1)
    report = await asyncio.to_thread(unit.compute, 1, 1, VERSION, [group])
    assert sorted(report.shares) == [0, 0, tokens([group])]
    with pytest.raises(Refused, match="no groups to train on"):
        unit.compute(1, 1, VERSION, [])
    assert unit.compute(1, 1, VERSION, [group]).tokens == 0, "nothing is summed twice"
    sums = LossSums.of(site.deliver(unit).sums).to_dict()
    assert torch.isfinite(torch.tensor([value for name, value in sums.items() if name != "metrics"])).all()
