"""Rollout machines loaned to training: complete runs of the real coordinator under virtual time, loans that go well
and everything that may happen to it. The simulation's invariants check every update: each group in exactly one part."""

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from rljob_api.status import FinishedOutcome, LoanReport, TargetPhase
from rljob_runtime.coordinator.core.settings import Settings, lending_rules
from rljob_runtime.coordinator.fleet.machine import machine_of
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.stream_training.loans import LoanManager
from rljob_runtime.protocols import RelayMember
from rljob_runtime.scheduling.lending.policy import LoanOutcome, LoanRules
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.events import (
    Aborted,
    Brought,
    Generated,
    LaidOut,
    MadeRoom,
    ProcessEnded,
    Published,
    Submitted,
    Summed,
    Trained,
)
from rljob_runtime.simulator.core.network import FaultKind
from rljob_runtime.simulator.peers.cluster import ClusterSpec, SimulatedCluster
from rljob_runtime.simulator.peers.gradient_worker import SimulatedWorker
from rljob_runtime.simulator.peers.host import Host
from rljob_runtime.simulator.peers.relay import Weights
from rljob_runtime.simulator.peers.trainer import GradientInboxes, TrainerCosts
from tests.support.paths import ROOT
from tests.support.simulated_job import Stage, job, until
from tests.support.stream_training import some
from tests.support.token_ledger import TokenLedger, delay_polls

DEAR = TrainerCosts(step=0.2, token=0.05, loaned_token=0.05, bring=0.1)
"""Training takes much longer than generation."""
RULES = LoanRules(0.2, 0.8, 0.05)
LOANED = LoanReport(state="Loaned")
TRAINING = (ROOT / "docs" / "concepts" / "training.md").read_text()


def loan_stage(
    path: Path,
    costs: TrainerCosts = DEAR,
    machines: int = 2,
    lendable: bool = True,
    stream: bool | str = True,
    shared: bool = False,
    **spec,
):
    """`shared`: workers compute on the accelerators of the replicas, of which each machine has two."""
    stage, events = Stage(path, job=job(prompts=6, stream=stream, machines=machines, **spec), machines=machines), []
    site = ClusterSpec(stage.replicas, lendable=lendable)
    if shared:
        site = ClusterSpec(2, lendable=True, shares_accelerators=True, layout_seconds=0.3)
    stage.world = SimulatedCluster(0, site, costs, stage.observe)
    stage.watchers.append(events.append)
    return stage, events


def not_loaned(reason):
    return LoanReport(state="NotLoaned", reason=reason)


def play(stage: Stage, *meanwhile, **changes):
    return stage.play(*meanwhile, **{"lending": RULES, "stream_tokens": 80, **changes})


def complete(stage: Stage) -> None:
    """Every round is done, each of its responses trained on once."""
    ids = stage.trained_ids()
    assert stage.rounds == sorted(set(stage.rounds))
    assert len(ids) == len(set(ids)) == len(stage.rounds) * 6 * 2


def parts(events: list) -> list[dict[str, int]]:
    """How many groups each worker computed, update by update."""
    return [
        {part.worker: sum(len(p.prompts) for p in e.parts if p.worker == part.worker) for part in e.parts}
        for e in events
        if isinstance(e, Trained)
    ]


def any_of(events: list, kind: type) -> bool:
    return any(isinstance(event, kind) for event in events)


def kill_when(condition, *names: str):
    async def kill(stage: Stage) -> None:
        await until(condition)
        for name in names:
            (stage.world.kill_process if "/" in name or name == "trainer" else stage.world.kill)(name)

    return kill


def test_half_of_the_machines_works_beside_the_trainer(tmp_path):
    alone, _ = loan_stage(tmp_path / "alone.db", lendable=False)
    assert play(alone).outcome is FinishedOutcome.COMPLETE
    stage, events = loan_stage(tmp_path / "state.db")
    assert play(stage).outcome is FinishedOutcome.COMPLETE
    complete(stage)
    assert set(stage.trained_ids()) == set(alone.trained_ids())
    loaned = [report for report in stage.closed if report.loaned_machines]
    assert loaned
    for report in loaned:
        assert (report.loan, report.loaned_machines) == (LOANED, 1)
        assert report.predicted_gain_seconds > 0
        assert 0 < report.loaned_groups < report.early_groups <= 6
    assert sum(report.loaned_groups for report in loaned) == sum(
        count for update in parts(events) for worker, count in update.items() if worker != "trainer"
    )
    assert sum(report.seconds for report in stage.closed) < sum(report.seconds for report in alone.closed) * 0.85
    assert {report.loaned_machines for report in alone.closed} == {0}


def test_a_loaned_machine_generates_nothing_until_the_next_round(tmp_path):
    stage, events = loan_stage(tmp_path / "state.db", rounds=3)
    assert play(stage).outcome is FinishedOutcome.COMPLETE
    first = next(place for place, event in enumerate(events) if isinstance(event, Summed))
    machine, done = events[first].machine, next(p for p, e in enumerate(events) if isinstance(e, Trained) and p > first)
    beside = [e for e in events[first:done] if isinstance(e, Submitted | Generated) and e.replica.startswith(machine)]
    assert not beside
    assert any(isinstance(e, Generated) and e.replica.startswith(machine) for e in events[done:])


@pytest.mark.parametrize("shared", [False, True])
def test_no_token_is_lost_when_a_loan_begins(tmp_path, shared, monkeypatch):
    delay_polls(monkeypatch)
    stage, _ = loan_stage(tmp_path / "state.db", shared=shared, rounds=2)
    ledger = TokenLedger()
    stage.watchers.append(ledger)
    play(stage)
    complete(stage)
    assert LOANED in [report.loan for report in stage.closed]
    assert ledger.moved > 0
    assert ledger.lost == {}
    db = sqlite3.connect(stage.path)
    assert db.execute("SELECT SUM(tokens) FROM trajectories").fetchone() == (ledger.total,)
    db.close()


def test_responses_of_a_loaned_machine_continue_from_received_tokens(tmp_path):
    stage, events = loan_stage(tmp_path / "state.db", rounds=2)
    assert play(stage).outcome is FinishedOutcome.COMPLETE
    aborted = {event.key: event for event in events if isinstance(event, Aborted)}
    assert aborted
    again = [e for e in events if isinstance(e, Submitted) and e.attempt == 2]
    assert {e.key for e in again} == set(aborted)
    assert all(e.prefix == aborted[e.key].tokens for e in again)
    assert not {e.replica for e in again} & {aborted[e.key].replica for e in again}
    generated = [event.key for event in events if isinstance(event, Generated)]
    assert len(generated) == len(set(generated)) == 24
    assert stage.closed[1].discarded_tokens == stage.closed[1].aborted_responses == 0


@pytest.mark.parametrize(
    ("costs", "verdict"),
    [
        (replace(DEAR, token=0.0), not_loaned("NoGain")),
        (replace(DEAR, loaned_token=50.0), LOANED),
    ],
    ids=["training is free", "workers are slower than was believed"],
)
def test_the_verdict_is_told(tmp_path, costs, verdict):
    stage, _ = loan_stage(tmp_path / "state.db", costs, rounds=3)
    assert play(stage).outcome is FinishedOutcome.COMPLETE
    complete(stage)
    assert stage.closed[1].loan == verdict
    # Once measured, a slow worker is not believed in any more.
    assert stage.closed[2].loan == not_loaned("NoGain")
    assert stage.closed[2].predicted_gain_seconds < 0


def test_a_policy_that_fails_ends_no_job(tmp_path, monkeypatch):
    def fails(self, *args):
        raise OverflowError

    monkeypatch.setattr(LoanManager, "decide", fails)
    stage, _ = loan_stage(tmp_path / "state.db", rounds=2)
    stage.invariants.policies_fail = True
    assert play(stage).outcome is FinishedOutcome.COMPLETE
    complete(stage)
    assert [one.loan for one in stage.closed] == [not_loaned("PolicyFailed")] * 2
    (warning,) = stage.control.reports[-1].warnings
    assert "loans of rollout machines failed: OverflowError" in warning.message


def test_a_round_without_room_for_migrations_loans_nothing(tmp_path):
    stage, _ = loan_stage(tmp_path / "state.db", rounds=2)
    engine = replace(stage.world.site.engine, kv_tokens=120)
    stage.world = SimulatedCluster(0, replace(stage.world.site, engine=engine), DEAR, stage.observe)
    assert play(stage, lending=LoanRules(0.2, 0.4)).outcome is FinishedOutcome.COMPLETE
    assert (stage.closed[1].loan, stage.closed[1].loaned_machines) == (not_loaned("KVCacheFull"), 0)


def test_sums_share_the_trainers_link():
    async def program():
        inboxes, costs = GradientInboxes(), TrainerCosts(bring=1.0)
        inboxes.open(3)
        workers = [SimulatedWorker(f"rollout-{n}", Host(Weights(whole=1)), lambda: inboxes, costs) for n in range(3)]
        for number, worker in enumerate(workers):
            await worker.compute(1, 1, 1, some(number))
        inbox = RelayMember("trainer", 0, "10.0.0.9", 1)
        await asyncio.gather(*(worker.deliver(1, 1, n, inbox) for n, worker in enumerate(workers, start=1)))
        return asyncio.get_running_loop().time(), sorted(inboxes.lying)

    assert virtual_time.run(program()) == (3.0, [1, 2, 3])


def test_without_workers_or_on_one_machine_nothing_is_loaned(tmp_path):
    stage, _ = loan_stage(tmp_path / "one.db", machines=1, rounds=1)
    assert play(stage).outcome is FinishedOutcome.COMPLETE
    assert stage.closed[0].loan == not_loaned("TooFewMachines")
    stage, _ = loan_stage(tmp_path / "none.db", lendable=False, rounds=2)
    play(stage)
    assert [report.loan for report in stage.closed] == [not_loaned("NoWorker")] * 2


def test_auto_loans_only_where_it_streams(tmp_path):
    costs = TrainerCosts(step=0.1, token=0.01, loaned_token=0.01)
    stage, events = loan_stage(tmp_path / "state.db", costs, stream="Auto", rounds=6)
    assert play(stage, lending=lending_rules(stage.job), first_responses=24).outcome is FinishedOutcome.COMPLETE
    complete(stage)
    by_plan = {plan: [one for one in stage.closed if one.plan == plan] for plan in ("plain", "plain, stream")}
    assert {one.loan for one in by_plan["plain"]} == {None}
    assert LOANED in {one.loan for one in by_plan["plain, stream"]}
    assert sum(one.loaned_groups for one in by_plan["plain, stream"]) > 0
    assert {e.step for e in events if isinstance(e, Summed)} <= {one.round for one in by_plan["plain, stream"]}


def test_engine_speed_during_loans_is_kept_apart(tmp_path):
    stage, _ = loan_stage(tmp_path / "state.db", rounds=3)
    play(stage)
    loaned = {one.round for one in stage.closed if one.loaned_machines}
    store = Store(tmp_path / "state.db", "uid-1")
    rounds = store.remembered(1).rounds
    updated = store.remembered(1).updated
    store.close()
    apart = {one.report.round: {stretch.lent for stretch in one.speed.stretches} for one in rounds}
    assert loaned
    assert {step: sorted(flags) for step, flags in apart.items() if True in flags} == {
        step: [False, True] for step in loaned
    }
    assert {one.report.round for one in updated} == {1, 2, 3} - loaned


CALC = {"name": "calc", "kind": "Agent", "command": ["play"]}
REFUSED = {
    "OneMachine": {"machines": 1},
    "NeedsReferenceModel": {"algorithm": {"klCoefficient": 0.01}},
    "SwitchedOff": {"streamTraining": {"minCompleted": 0, "maxCompleted": 0}},
}


@pytest.mark.parametrize("stream", [True, "Auto"])
@pytest.mark.parametrize(("reason", "spec"), REFUSED.items(), ids=REFUSED)
def test_why_machines_of_a_job_are_never_loaned(reason, spec, stream):
    assert lending_rules(job(stream=stream, **spec)) == reason


@pytest.mark.parametrize("stream", [True, "Auto"])
def test_machines_are_loaned_where_rounds_may_stream(stream):
    assert lending_rules(job(stream=stream)) == LoanRules(0.2, 0.5)
    assert lending_rules(job(stream=stream, rollout={"acceleratorsPerMachine": 1})) == LoanRules(0.2, 0.5)
    assert lending_rules(job(stream=stream, environments=[CALC])) == LoanRules(0.2, 0.5)
    assert lending_rules(job(stream=False)) is None
    assert lending_rules(job(stream="Auto", algorithm={"minibatches": 3})) is None, "Auto never streams then"


@pytest.mark.parametrize(
    ("trainer", "rollout", "believed"),
    [
        ({"replicas": 3}, {}, 3.0),
        ({"replicas": 2, "acceleratorsPerReplica": 8}, {"acceleratorsPerMachine": 4}, 4.0),
        ({"acceleratorsPerReplica": 2}, {"acceleratorsPerMachine": 8}, 0.25),
        ({"replicas": 2}, {"slotsPerMachine": 4}, 2.0),
    ],
    ids=["processors", "half a trainer each", "larger than the trainer", "ranks share processors"],
)
def test_an_unmeasured_machine_counts_by_its_accelerators(trainer, rollout, believed):
    assert Settings.of(job(trainer=trainer, rollout=rollout)).workers_per_trainer == believed


@pytest.mark.parametrize("reason", ["NeedsReferenceModel", "SwitchedOff"])
def test_the_round_reports_why_nothing_is_loaned(tmp_path, reason):
    stage, events = loan_stage(tmp_path / "state.db", rounds=2, **REFUSED[reason])
    assert stage.play(stream_tokens=80).outcome is FinishedOutcome.COMPLETE
    complete(stage)
    assert [(one.loan, one.loaned_machines) for one in stage.closed] == [(not_loaned(reason), 0)] * 2
    assert stage.control.reports[-1].last_round.loan == not_loaned(reason)
    assert not any_of(events, Summed)


def test_a_round_without_a_loan_check_reports_that(tmp_path):
    stage, _ = loan_stage(tmp_path / "state.db", rounds=1)
    play(stage, lending=LoanRules(0.04, 0.05))
    assert stage.closed[0].loan == not_loaned("OutsideWindow")


@pytest.mark.parametrize("text", [LoanReport.model_fields["reason"].description, TRAINING], ids=["api", "guide"])
def test_every_verdict_is_explained(text):
    assert not [verdict for verdict in LoanOutcome if verdict not in text]


# --- on accelerators ---


def test_all_replicas_of_a_loaned_machine_sleep_until_the_next_weights(tmp_path):
    """The simulated worker has no memory while a replica holds it, and a replica none while the worker does."""
    stage, events = loan_stage(tmp_path / "state.db", shared=True, rounds=4)
    assert play(stage).outcome is FinishedOutcome.COMPLETE
    complete(stage)
    loaned = [report for report in stage.closed if report.loaned_machines]
    assert loaned
    assert all(report.loaned_groups > 0 for report in loaned)
    rooms = [event.replica for event in events if isinstance(event, MadeRoom)]
    assert len(rooms) == 2 * len(loaned)
    assert {machine_of(name) for name in rooms} == {e.machine for e in events if isinstance(e, Summed)}
    # No process was restarted: nothing went wrong on the way back.
    assert not any_of(events, ProcessEnded)
    first = next(place for place, event in enumerate(events) if isinstance(event, MadeRoom))
    back = [e for e in events[first:] if isinstance(e, LaidOut) and e.replica == rooms[0]]
    if loaned[0].round < 4:
        assert back
        assert any(isinstance(e, Generated) and e.replica == rooms[0] for e in events[events.index(back[0]) :])


def test_where_training_is_cheap_no_replica_releases_accelerators(tmp_path):
    stage, events = loan_stage(tmp_path / "state.db", replace(DEAR, token=0.0), shared=True)
    play(stage)
    complete(stage)
    assert not any_of(events, MadeRoom)


def test_a_machine_that_is_called_back_generates_again_on_its_accelerators(tmp_path):
    stage, events = loan_stage(tmp_path / "state.db", replace(DEAR, token=0.2, loaned_token=0.2), shared=True, rounds=2)
    seen = []

    async def kill(stage):
        await until(lambda: any_of(events, MadeRoom))
        loaned = machine_of(next(e.replica for e in events if isinstance(e, MadeRoom)))
        other = ({"rollout-0", "rollout-1"} - {loaned}).pop()
        stage.world.hold_back(other)
        stage.world.kill(other)
        seen.append((loaned, len(events)))

    play(stage, kill)
    complete(stage)
    loaned, place = seen[0]
    later = [e for e in events[place:] if isinstance(e, LaidOut | Generated) and machine_of(e.replica) == loaned]
    assert isinstance(later[0], LaidOut)
    assert any_of(later, Generated)
    assert not any(isinstance(e, ProcessEnded) and machine_of(e.process) == loaned for e in events)
    assert parts(events)[1] == {"trainer": 6}


def test_a_newcomer_gets_weights_while_a_loan_continues(tmp_path):
    stage, events = loan_stage(
        tmp_path / "state.db", replace(DEAR, token=0.2, loaned_token=0.2), machines=4, shared=True, rounds=2
    )
    seen = []

    async def kill(stage):
        await until(lambda: sum(isinstance(e, MadeRoom) for e in events) == 4)
        loaned = {machine_of(e.replica) for e in events if isinstance(e, MadeRoom)}
        other = min({f"rollout-{n}" for n in range(4)} - loaned)
        stage.world.kill(other)
        seen.append((other, len(events)))

    play(stage, kill)
    complete(stage)
    other, place = seen[0]
    trained = next(p for p, e in enumerate(events) if isinstance(e, Trained) and p > place)
    laid = {machine_of(e.replica) for e in events[place:trained] if isinstance(e, LaidOut)}
    assert laid == {other}
    assert stage.closed[1].loaned_groups > 0


@pytest.mark.parametrize("moment", [MadeRoom, Summed, Brought])
def test_a_restarted_coordinator_ends_loans_before_it_switches_layouts(tmp_path, moment):
    stage, events = loan_stage(tmp_path / "state.db", shared=True, rounds=3)

    async def stop():
        await until(lambda: any_of(events, moment))
        stage.coordinator.stop()

    async def lives():
        stopping = asyncio.create_task(stop())
        first = await stage.coordinate(lending=RULES, stream_tokens=80)
        stopping.cancel()
        return first or await stage.coordinate(lending=RULES, stream_tokens=80)

    assert virtual_time.run(lives()).outcome is FinishedOutcome.COMPLETE
    complete(stage)
    assert any_of(events, moment)
    assert not any_of(events, ProcessEnded)


@pytest.mark.parametrize("part", ["worker", "replica-1", "trainer"])
def test_any_death_on_a_loaned_machine_leaves_the_round_exact(tmp_path, part):
    stage, events = loan_stage(tmp_path / "state.db", shared=True, rounds=3, every_rounds=1)

    async def kill(stage):
        await until(lambda: any_of(events, Summed))
        loaned = next(e.machine for e in events if isinstance(e, Summed))
        stage.world.kill_process(part if part == "trainer" else f"{loaned}/{part}")

    play(stage, kill)
    complete(stage)


# --- what may happen to a loan ---


def test_a_worker_that_dies_with_its_sums_leaves_the_round_exact(tmp_path):
    stage, events = loan_stage(tmp_path / "state.db", rounds=2)
    play(stage, kill_when(lambda: any_of(events, Summed), "rollout-0/worker", "rollout-1/worker"))
    complete(stage)
    assert any_of(events, Summed)
    assert parts(events)[1] == {"trainer": 6}
    assert (stage.closed[1].loaned_machines, stage.closed[1].loaned_groups) == (1, 0)


def test_a_worker_that_stands_still_is_not_waited_for_long(tmp_path):
    stage, events = loan_stage(tmp_path / "state.db", rounds=2)

    async def freeze(stage):
        await until(lambda: any_of(events, Summed))
        name = f"{next(e.machine for e in events if isinstance(e, Summed))}/worker"
        stage.world.condition(name).begin(FaultKind.FROZEN)
        stage.world.process(name).refresh()

    play(stage, freeze)
    complete(stage)
    assert parts(events)[1] == {"trainer": 6}
    alone = stage.closed[0].seconds
    assert stage.closed[1].seconds < 4 * alone


def test_a_loaned_machine_that_dies_leaves_the_round_exact(tmp_path):
    stage, events = loan_stage(tmp_path / "state.db", rounds=3)

    async def kill(stage):
        await until(lambda: any_of(events, Summed))
        stage.world.kill(next(e.machine for e in events if isinstance(e, Summed)))

    play(stage, kill)
    complete(stage)
    assert parts(events)[1] == {"trainer": 6}


def test_the_last_machine_generates_again_though_it_was_loaned(tmp_path):
    stage, events = loan_stage(tmp_path / "state.db", replace(DEAR, token=0.2, loaned_token=0.2), rounds=2)
    seen = []

    async def kill(stage):
        await until(lambda: any_of(events, Aborted))
        loaned = machine_of(next(e.replica for e in events if isinstance(e, Aborted)))
        other = ({"rollout-0", "rollout-1"} - {loaned}).pop()
        stage.world.hold_back(other)
        stage.world.kill(other)
        seen.append((loaned, len(events)))

    play(stage, kill)
    complete(stage)
    loaned, place = seen[0]
    assert any(isinstance(e, Generated) and machine_of(e.replica) == loaned for e in events[place:])
    assert parts(events)[1] == {"trainer": 6}


def test_a_trainer_that_is_lost_takes_all_sums_with_it(tmp_path):
    stage, events = loan_stage(tmp_path / "state.db", rounds=3, every_rounds=1)
    play(stage, kill_when(lambda: any_of(events, Brought), "trainer"))
    complete(stage)
    assert any_of(events, Brought)
    assert parts(events)[1] == {"trainer": 6}
    assert stage.closed[1].loaned_groups == 0


def test_a_trainer_replaced_within_a_round_accepts_its_sums(tmp_path):
    """It is a new one, which has published nothing; all relays hold the round's weights already."""
    stage, events = loan_stage(tmp_path / "state.db", rounds=2, every_rounds=1)

    async def replace_it(stage):
        await until(lambda: any(isinstance(e, Trained) for e in events) and isinstance(events[-1], Submitted))
        stage.control.replace("trainer-0")

    assert play(stage, replace_it).outcome is FinishedOutcome.COMPLETE
    complete(stage)
    assert (stage.closed[1].loan, stage.closed[1].loaned_machines) == (LOANED, 1)
    assert parts(events)[1].get("trainer", 0) < 6
    assert stage.closed[1].loaned_groups > 0
    published = [e.version for e in events if isinstance(e, Published)]
    assert len(published) > len(set(published)), "the new trainer holds what the old one had published"


@pytest.mark.parametrize("moment", [Summed, Brought], ids=["while it sums", "while its sums are added"])
def test_a_coordinator_that_comes_back_takes_no_sums_of_its_former_term(tmp_path, moment):
    stage, events = loan_stage(tmp_path / "state.db", rounds=3)

    async def stop():
        await until(lambda: any_of(events, moment))
        stage.coordinator.stop()

    async def lives():
        stopping = asyncio.create_task(stop())
        first = await stage.coordinate(lending=RULES, stream_tokens=80)
        stopping.cancel()
        return first or await stage.coordinate(lending=RULES, stream_tokens=80)

    assert virtual_time.run(lives()).outcome is FinishedOutcome.COMPLETE
    assert any_of(events, moment)
    complete(stage)


def test_a_found_machine_drops_the_loans_of_a_former_coordinator(tmp_path, monkeypatch):
    """A killed one has reported their end to no machine."""
    forgets: list[tuple[str, int]] = []
    release = SimulatedWorker.release

    async def note(worker, term):
        await release(worker, term)
        forgets.append((worker.name, term))

    monkeypatch.setattr(SimulatedWorker, "release", note)
    stage, _ = loan_stage(tmp_path / "state.db", rounds=1)
    play(stage, lending=None)
    assert sorted(forgets) == [("rollout-0", stage.term), ("rollout-1", stage.term)]


def test_a_suspension_ends_the_loan_and_the_round_goes_on_afterwards(tmp_path):
    stage, events = loan_stage(tmp_path / "state.db", rounds=3)

    async def suspend(stage):
        await until(lambda: any_of(events, Summed))
        stage.control.set_phase(TargetPhase.SUSPEND)
        await until(lambda: stage.control.reports[-1].stage == "Suspended")
        stage.control.set_phase(TargetPhase.RUN)

    assert play(stage, suspend).outcome is FinishedOutcome.COMPLETE
    assert any_of(events, Summed)
    complete(stage)


def test_a_new_target_meanwhile_holds_from_the_next_round(tmp_path):
    stage, events = loan_stage(tmp_path / "state.db", machines=4, rounds=4)

    async def shrink(stage):
        await until(lambda: any_of(events, Summed))
        stage.control.scale(2)

    assert play(stage, shrink).outcome is FinishedOutcome.COMPLETE
    complete(stage)
    assert stage.closed[1].loaned_machines == 2
    last = stage.closed[-1].round
    assert {e.machine for e in events if isinstance(e, Summed) and e.step == last} <= {"rollout-0", "rollout-1"}
