"""The worker of a loaned machine, and the stream over several: what counts as its speed, who is told of a loan's end,
and sums that do not come."""

import asyncio
import random
from dataclasses import replace

import pytest

from rljob_api.status import Member, Role
from rljob_runtime.coordinator.fleet.machine import SLEEPING, MachineLeft, RolloutMachine
from rljob_runtime.coordinator.stream_training.loaned_worker import LoanedWorker, tokens_of
from rljob_runtime.coordinator.stream_training.stream import Streaming
from rljob_runtime.protocols import (
    ComputeReport,
    ContributionReceipt,
    MachinePeers,
    PeerGone,
    PeerTimeout,
    Refused,
    RelayMember,
)
from rljob_runtime.protocols.remote import CallTimeouts, RemoteWorker
from rljob_runtime.scheduling.lending.contributions import FAILED_FACTOR
from rljob_runtime.scheduling.lending.gain import LoanMeasurements
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.network import Process, SimulatedWire
from rljob_runtime.simulator.peers.gradient_worker import SimulatedWorker
from rljob_runtime.simulator.peers.host import Host
from rljob_runtime.simulator.peers.relay import Weights
from rljob_runtime.simulator.peers.trainer import TrainerCosts
from tests.support.stream_training import ScriptedTrainer, some

USUAL = 0.5
"""Seconds a token of a worker that was measured before."""


class Worker:
    """Does what it is told one after the other: `seconds` a token, and `bring` to hand over. `fails`: what its next
    computation ends with."""

    def __init__(self, name: str = "rollout-0", seconds: float = USUAL, bring: float = 1.0) -> None:
        self.name = name
        self.seconds = seconds
        self.bring = bring
        self.fails: Exception | None = None
        self.released = 0
        self._groups = ()
        self._busy = asyncio.Lock()

    async def compute(self, term, step, version, groups):
        async with self._busy:
            if self.fails is not None:
                raise self.fails
            took = tokens_of(groups) * self.seconds
            await asyncio.sleep(took)
            self._groups += tuple(groups)
            return ComputeReport(step, len(self._groups), tokens_of(groups), took)

    async def deliver(self, term, step, number, inbox):
        async with self._busy:
            await asyncio.sleep(self.bring)
            groups = tuple(group.prompt for group in self._groups)
            return ContributionReceipt(step, self.name, term, 1, number, groups, tokens_of(self._groups), 1)

    async def release(self, term):
        async with self._busy:
            self.released += 1
            self._groups = ()


class Owner:
    def __init__(self) -> None:
        self.lost = []
        self.tasks = []
        self.loaned = []
        self.back = []

    def start_loan(self, machine):
        self.loaned.append(machine.name)

    def end_loan(self, machine, reload):
        self.back.append(reload)

    def mark_machine_lost(self, machine, reason, detail):
        self.lost.append((machine.name, reason))
        machine.left.set()

    def run_in_background(self, work):
        self.tasks.append(asyncio.ensure_future(work))


def machine_of(worker: Worker) -> RolloutMachine:
    member = Member(machine=worker.name, incarnation=1, ip="10.0.0.1", role=Role.ROLLOUT)
    return RolloutMachine(MachinePeers(member, None, (), worker=worker), 1, (), "10.0.0.1", 1, 1)


class Loan:
    """One machine's, of a worker that was measured before."""

    def __init__(self, worker: Worker | None = None) -> None:
        self.worker = worker or Worker()
        self.owner = Owner()
        self.machine = machine_of(self.worker)
        self.measured = LoanMeasurements()
        self.measured.training.record(1, USUAL)
        self.measured.loaned.record(1, USUAL)
        self.loaned = LoanedWorker(self.machine, self.owner, 1, 1, 1, self.measured)

    async def begin(self, *groups: int) -> asyncio.Task:
        task = self.loaned.task = asyncio.create_task(self.loaned.compute(tuple(some(*groups))))
        await asyncio.sleep(0.1)
        return task


class SlowReplica:
    """Takes its time to make room. `asked`: for which layouts."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.asked = []

    async def release_accelerators(self, term, tensor_parallel):
        await asyncio.sleep(self.seconds)
        self.asked.append(tensor_parallel)


def with_replicas(loan, *seconds: float) -> list[SlowReplica]:
    replicas = [SlowReplica(each) for each in seconds]
    loan.machine.peers = replace(loan.machine.peers, replicas=tuple(replicas), shares_accelerators=True)
    return replicas


# --- what counts as its speed ---


def test_to_make_room_and_to_come_back_is_part_of_its_first_computation():
    async def program(loan):
        replicas = with_replicas(loan, 1.0, 3.0)
        before = loan.measured.loaned.seconds
        await loan.loaned.compute(tuple(some(1)))
        await loan.loaned.compute(tuple(some(2)))
        tokens = tokens_of(some(1, 2))
        assert before == USUAL
        assert [replica.asked for replica in replicas] == [[SLEEPING], [SLEEPING]]
        await loan.loaned.close()
        return loan.measured.loaned.seconds * (1 + tokens) - USUAL * (1 + tokens)

    assert virtual_time.run(_with_loan(program)) == pytest.approx(2 * 3.0)


def test_an_owner_is_told_whether_the_machine_is_to_generate_again():
    async def program(loan):
        with_replicas(loan, 0.0)
        await loan.loaned.compute(tuple(some(1)))
        loan.loaned.take_groups()
        await loan.loaned.close()
        other = Loan()
        await other.loaned.close()
        return loan.owner.back, other.owner.back

    assert virtual_time.run(_with_loan(program)) == ([True], [False])


def test_a_replica_that_keeps_its_accelerators_counts_as_slow():
    async def program(loan):
        (replica,) = with_replicas(loan, 1.0)

        async def refuse(term, tensor_parallel):
            await asyncio.sleep(1.0)
            raise Refused("busy")

        replica.release_accelerators = refuse
        with pytest.raises(Refused):
            await loan.loaned.compute(tuple(some(1)))
        await loan.loaned.close()
        assert not loan.worker._groups
        return loan.measured.loaned.seconds

    assert virtual_time.run(_with_loan(program)) > USUAL


def test_a_machine_that_is_called_back_was_not_slow():
    async def program(loan):
        task = await loan.begin(1, 2)
        task.cancel()
        assert len(loan.loaned.take_groups()) == 2
        await loan.loaned.close()
        return loan.measured.loaned.seconds

    assert virtual_time.run(_with_loan(program)) == USUAL


def test_a_machine_that_left_was_not_slow():
    async def program(loan):
        task = await loan.begin(1, 2)
        loan.machine.left.set()
        with pytest.raises(MachineLeft):
            await task
        assert loan.owner.lost == []
        await loan.loaned.close()
        return loan.measured.loaned.seconds

    assert virtual_time.run(_with_loan(program)) == USUAL


@pytest.mark.parametrize("error", [PeerGone("dead"), PeerTimeout("no answer"), Refused("no")], ids=lambda e: str(e))
def test_one_that_fails_is_not_believed_to_be_quick(error):
    async def program(loan):
        loan.worker.fails = error
        with pytest.raises(type(error)):
            await (await loan.begin(1, 2))
        # It is not counted again when no worker is awaited any longer.
        loan.loaned.record_slow()
        assert bool(loan.owner.lost) is not isinstance(error, Refused)
        await loan.loaned.close()
        return loan.measured.loaned.seconds

    # One token as usual, two that take so many times longer.
    assert virtual_time.run(_with_loan(program)) == pytest.approx(USUAL * (1 + 2 * FAILED_FACTOR) / 3)


async def _with_loan(program):
    return await program(Loan())


# --- who is told ---


@pytest.mark.parametrize("computing", [True, False], ids=["in the middle of a call", "idle"])
def test_the_end_of_a_loan_is_sent_and_not_awaited(computing):
    async def program(loan):
        task = await loan.begin(1, 2)
        if not computing:
            await task
        assert loan.worker.released == 1
        began = asyncio.get_running_loop().time()
        await loan.loaned.close()
        assert asyncio.get_running_loop().time() == pytest.approx(began)
        await asyncio.gather(*loan.owner.tasks)
        return loan.worker.released, len(loan.owner.tasks)

    assert virtual_time.run(_with_loan(program)) == (2, 1)


def test_one_that_was_given_nothing_has_nothing_to_forget():
    async def program(loan):
        await loan.loaned.close()
        return loan.owner.tasks

    assert virtual_time.run(_with_loan(program)) == []


def test_a_release_waits_for_the_call_in_hand():
    """Longer than for a command that is answered immediately: a worker that computes is healthy."""

    async def program():
        worker = SimulatedWorker("rollout-0", Host(Weights(whole=1)), costs=TrainerCosts(loaned_token=1.0))
        wire = SimulatedWire(Process("worker", worker), random.Random(1), latency=0.001)
        hosted = RemoteWorker("rollout-0", wire, CallTimeouts(command=3.0, gradients=30.0))
        computing = asyncio.create_task(hosted.compute(1, 1, 1, some(1, tokens=9)))
        await asyncio.sleep(0.1)
        await hosted.release(1)
        return (await computing).tokens

    assert virtual_time.run(program()) == 9


# --- several ---


class InboxTrainer(ScriptedTrainer):
    """A trainer client with inboxes."""

    def __init__(self, *outcomes) -> None:
        super().__init__(*outcomes)
        self.accepted = []
        self.inboxes = 0

    async def open_gradient_inboxes(self, term, count):
        self.inboxes = count
        return tuple(RelayMember(f"inbox-{number}", 0, "10.0.0.9", number) for number in range(1, count + 1))

    async def accept(self, term, receipt, groups):
        assert receipt.number <= self.inboxes
        assert set(receipt.groups) == {group.prompt for group in groups}
        await asyncio.sleep(0.1)
        self.accepted.append(receipt.worker)


def stream_over(workers, trainer, most=1000):
    owner, measured = Owner(), LoanMeasurements()
    measured.training.record(1, 1.0)
    stream = Streaming(trainer, 1, 1, 1, most, measured)
    machines = [machine_of(worker) for worker in workers]
    stream.start_loans(machines, owner)
    return stream, machines, owner, measured


def test_an_idle_workers_loss_returns_its_groups_to_the_others():
    async def program():
        workers = [Worker("rollout-0", seconds=0.01), Worker("rollout-1", seconds=0.01)]
        stream, machines, _, measured = stream_over(workers, trainer := InboxTrainer(1.0, 1.0))
        stream.offer(some(1, 2, 3))
        await asyncio.sleep(0.5)
        assert stream.computed_tokens == 2
        idle = stream._workers[0]
        taken = idle.summed
        assert len(taken) == 1
        assert idle.task.done()
        machines[0].left.set()
        await asyncio.sleep(0.5)
        assert stream.loaned == {"rollout-1"}
        # It is summed by the other one now.
        assert {group.prompt for group in taken} <= {group.prompt for group in stream._workers[1].summed}
        assert stream.computed_tokens == 3, "and the trainer has had the time for its own"
        streamed = await stream.finish()
        await stream.close()
        return streamed.loaned_groups, trainer.accepted, measured.loaned.seconds

    groups, accepted, seconds = virtual_time.run(program())
    assert (groups, accepted) == (2, ["rollout-1"])
    assert seconds == pytest.approx(0.01)


def test_the_trainers_speed_during_loans_is_kept_apart():
    """Where they share processors it is slower beside them, which is no reason for the next loan."""

    async def program():
        owner, measured = Owner(), LoanMeasurements()
        stream = Streaming(InboxTrainer(1.0, 4.0, 3.0, 1.0), 1, 1, 1, 1, measured)
        seen = []
        stream.offer(some(1))
        await asyncio.sleep(2.0)
        seen.append((measured.training.seconds, measured.with_loan.seconds))
        stream.start_loans([machine_of(Worker(seconds=100.0))], owner)
        stream.offer(some(2, 3, 4))
        # Group 2 is the trainer's, 3 the worker's, and 4 is begun beside it and ends after it.
        await asyncio.sleep(5.0)
        stream.end_loans()
        await asyncio.sleep(2.5)
        seen.append((measured.training.seconds, measured.with_loan.seconds))
        await asyncio.sleep(2.0)
        seen.append((measured.training.seconds, measured.with_loan.seconds))
        await stream.close()
        return seen

    assert virtual_time.run(program()) == [(1.0, None), (1.0, 3.5), (1.0, 3.5)]


def test_sums_are_collected_from_all_machines_at_the_same_time():
    async def program():
        loop = asyncio.get_running_loop()
        stream, _, _, measured = stream_over(
            [Worker(f"rollout-{n}", 0.01, bring=2.0) for n in range(3)], InboxTrainer(0.01)
        )
        stream.offer(some(1, 2, 3, 4))
        await asyncio.sleep(1.0)
        began = loop.time()
        streamed = await stream.finish()
        await stream.close()
        return streamed.loaned_groups, loop.time() - began, measured.transfer.seconds

    groups, seconds, each = virtual_time.run(program())
    assert groups == 3
    assert seconds == pytest.approx(2.3, abs=0.05)
    assert each == pytest.approx(seconds / 3)


def test_missing_sums_are_awaited_no_longer_than_the_trainer_needs():
    async def program():
        loop = asyncio.get_running_loop()
        workers = [Worker("rollout-0", 0.01, bring=1000.0), Worker("rollout-1", 0.01, bring=1.0)]
        stream, _, owner, measured = stream_over(workers, trainer := InboxTrainer(0.01))
        stream.offer(some(1, 2, 3))
        await asyncio.sleep(1.0)
        began = loop.time()
        streamed = await stream.finish()
        await stream.close()
        took = loop.time() - began
        # The bit, and twice a second for each of two tokens.
        assert took == pytest.approx(1.0 + 2 * 2 * measured.training.seconds)
        # How long it took is known to the next decision.
        assert measured.transfer.seconds == pytest.approx(took / 2)
        assert len(owner.tasks) == 2, "both are told that the loan is over"
        for task in owner.tasks:
            task.cancel()
        return streamed.loaned_groups, trainer.accepted, owner.lost

    assert virtual_time.run(program()) == (1, ["rollout-1"], [])


def test_sums_that_cannot_be_brought_make_the_next_loan_dearer():
    """Also when that is clear immediately, as where memory is too small for them."""

    class Full(Worker):
        async def deliver(self, term, step, number, inbox):
            raise Refused("the sums cannot be sent: no memory")

    async def program():
        stream, _, _, measured = stream_over([Full(seconds=0.01)], InboxTrainer(0.01))
        stream.offer(some(1, 2))
        await asyncio.sleep(1.0)
        await stream.finish()
        await stream.close()
        return measured.transfer.seconds, 2 * measured.training.seconds

    each, alone = virtual_time.run(program())
    assert each > alone


@pytest.mark.parametrize(("others", "each"), [(0, None), (1, pytest.approx(2.1, abs=0.05))])
def test_a_worker_that_dies_tells_nothing_of_how_sums_are_brought(others, each):
    class Dead(Worker):
        async def deliver(self, term, step, number, inbox):
            raise PeerGone("dead")

    async def program():
        workers = [Dead("rollout-0", 0.01), *(Worker(f"rollout-{n + 1}", 0.01, bring=2.0) for n in range(others))]
        stream, _, _, measured = stream_over(workers, InboxTrainer(0.01))
        stream.offer(some(1, 2, 3))
        await asyncio.sleep(1.0)
        await stream.finish()
        await stream.close()
        return measured.transfer.seconds

    assert virtual_time.run(program()) == each


def test_nothing_is_begun_once_a_stream_is_closed():
    """The loaned machine leaves just as the trainer's call times out: no worker has its groups."""

    async def program():
        class Leaving(InboxTrainer):
            async def contribute(self, term, step, groups):
                try:
                    return await super().contribute(term, step, groups)
                finally:
                    machines[0].left.set()

        stream, machines, _, _ = stream_over([Worker(seconds=100.0)], trainer := Leaving(100.0, 100.0))
        stream.offer(some(1, 2))
        await asyncio.sleep(0.5)
        await stream.close()
        await asyncio.sleep(0.5)
        return len(trainer.calls), trainer.running

    assert virtual_time.run(program()) == (1, 0)


def test_a_loaned_machine_gets_no_more_than_a_call_should_take():
    calls = []

    class Counting(Worker):
        async def compute(self, term, step, version, groups):
            calls.append(tokens_of(groups))
            return await super().compute(term, step, version, groups)

    async def program():
        stream, _, _, measured = stream_over([Counting()], InboxTrainer(*[1.0] * 9), most=6)
        measured.loaned.record(1, 5.0)
        stream.offer(some(*range(12)))
        await stream.finish()
        await stream.close()

    virtual_time.run(program())
    assert max(calls) == 2


def test_no_machine_is_loaned_whose_sums_the_trainer_refuses():
    async def program(trainer):
        stream = Streaming(trainer, 1, 1, 1, 9, LoanMeasurements())
        before = stream.accepts_contributions
        stream.offer(some(1))
        await asyncio.sleep(0.1)
        return before, stream.accepts_contributions

    unpublished = ScriptedTrainer()
    unpublished.published_version = None
    assert virtual_time.run(program(unpublished)) == (False, False)
    assert virtual_time.run(program(ScriptedTrainer(Refused("no")))) == (True, False)
    assert virtual_time.run(program(ScriptedTrainer(0.01))) == (True, True)


def test_a_repetition_tells_nothing_of_a_workers_speed():
    """What a worker had summed already is no measure of its speed."""

    class Again(Worker):
        async def compute(self, term, step, version, groups):
            return replace(await super().compute(term, step, version, groups), tokens=0)

    async def program():
        loan = Loan(Again())
        await (await loan.begin(1))
        await loan.loaned.close()
        return loan.measured.loaned.seconds

    assert virtual_time.run(program()) == USUAL
