"""Asynchronous jobs under virtual time: no replica waits for another, nothing is lost or trained on twice, versions
stay apart, and each technique can be seen at the engines."""

import asyncio
import itertools
import random
import sqlite3
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljob_api import RLJob
from rljob_api.spec.training import Mode, Sampler
from rljob_api.status import FinishedOutcome, TargetPhase
from rljob_runtime.coordinator.asynchronous.experience_buffer import ExperienceBuffer
from rljob_runtime.coordinator.asynchronous.repack import RepackMonitor
from rljob_runtime.coordinator.reporting.policy_failures import PROBLEM
from rljob_runtime.coordinator.store import async_store
from rljob_runtime.coordinator.store.async_store import AsyncStore
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.scheduling.asynchronous.experience_buffer import STARVED, BufferLimits
from rljob_runtime.scheduling.fault_detection.failing_policies import MOST_FAILURES
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.events import Aborted, Generated, Loaded, Published, Submitted, Trained
from rljob_runtime.simulator.core.network import FaultKind
from rljob_runtime.simulator.peers.engines.engine_kind import steady
from tests.support.crashes import Crash, play_through
from tests.support.rows import slow
from tests.support.simulated_job import Stage, job, until


def continuous(rounds: int = 6, prompts: int = 4, responses: int = 2, **more: Any) -> RLJob:
    """An asynchronous job. `more`: sections of the spec."""
    machines = more.pop("machines", 3)
    made = job(rounds=rounds, prompts=prompts, responses=responses, machines=machines, mode=Mode.ASYNCHRONOUS)
    more.setdefault("data", {}).setdefault("maxResponseTokens", 300)
    spec = made.spec
    sections = {
        name: getattr(spec, name).model_validate({**getattr(spec, name).to_dict(), **fields})
        for name, fields in more.items()
    }
    return made.model_copy(update={"spec": spec.model_copy(update=sections)})


def stage_of(tmp_path: Path, machines: int = 3, **more: Any) -> Stage:
    return Stage(tmp_path / "state.db", job=continuous(machines=machines, **more), machines=machines)


def seen(stage: Stage, kind: type) -> list[Any]:
    found: list[Any] = []
    stage.watchers.append(lambda event: found.append(event) if isinstance(event, kind) else None)
    return found


def fates(stage: Stage) -> Counter[str]:
    with sqlite3.connect(stage.path) as db:
        return Counter(dict(db.execute("SELECT ifnull(fate, 'open'), COUNT(*) FROM groups GROUP BY 1").fetchall()))


def check_whole(stage: Stage, responses: int) -> None:
    ids = stage.trained_ids()
    assert len(ids) == len(set(ids)) == responses
    assert fates(stage)["trained"] == responses / stage.job.spec.algorithm.responses_per_prompt
    assert fates(stage)["open"] == 0


def test_a_job_runs_to_its_end(tmp_path):
    stage = stage_of(tmp_path)
    loads, published = seen(stage, Loaded), seen(stage, Published)
    finished = stage.play()
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    check_whole(stage, 6 * 4 * 2)
    assert stage.rounds == [1, 2, 3, 4, 5, 6]
    assert [event.version for event in published] == [1, 2, 3, 4, 5, 6, 7]
    assert len({event.version for event in loads}) > 2, "replicas take newer weights as they go"
    report = stage.closed[-1]
    assert report.staleness is not None
    assert report.max_staleness >= report.staleness
    assert report.trainer_wait_seconds is not None


def test_the_trainer_does_not_wait_for_a_long_response(tmp_path):
    """One response takes as long as four updates. They do not wait for it, and it is trained on all the same."""
    stage = stage_of(tmp_path, rounds=8)
    ends: dict[str, float] = {}
    stage.world.site = replace(stage.world.site, lengths=lambda key, version: 1000 if key.prompt.index == 0 else 10)
    updates = seen(stage, Trained)
    stage.watchers.append(
        lambda event: ends.setdefault(str(event.key), asyncio.get_running_loop().time())
        if isinstance(event, Generated)
        else None
    )
    stage.play()
    step = next(
        event.step for event in updates for group in event.groups if (group.prompt.epoch, group.prompt.index) == (0, 0)
    )
    assert step > 3
    assert stage.closed[step - 1].max_staleness > 2
    check_whole(stage, 8 * 4 * 2)


@pytest.mark.parametrize("bound", [1, *slow(0, 2)])
def test_a_bound_on_staleness_holds_and_throws_no_group_away(tmp_path, bound):
    stage = stage_of(tmp_path, experience={"maxStaleness": bound, "maxPrompts": 64})
    stage.play()
    assert max(report.max_staleness for report in stage.closed) <= bound
    assert fates(stage)["requeued"] == 0
    check_whole(stage, 6 * 4 * 2)


def test_the_trainer_has_only_copied_its_weights_when_it_goes_on(tmp_path):
    """Each hop of the broadcast takes as long as an update."""
    stage = stage_of(tmp_path, experience={"maxPrompts": 24})
    stage.world.network.hop_seconds = 2.0
    stage.play()
    assert max(report.broadcast_seconds for report in stage.closed) < 0.1
    check_whole(stage, 6 * 4 * 2)


def test_an_update_does_not_wait_for_the_broadcast_of_the_one_before(tmp_path):
    """A version takes ten times as long to the last relay as an update takes. Newer ones overtake it."""
    stage = stage_of(tmp_path, rounds=12, experience={"maxPrompts": 48})
    stage.world.network.hop_seconds = 4.0
    stage.world.costs.step = 0.5
    stage.world.site = replace(stage.world.site, lengths=lambda key, version: 10)
    stage.play()
    ready = [report for report in stage.closed if report.trainer_wait_seconds < 0.1]
    assert len(ready) > 4
    assert max(report.seconds for report in ready) < 2.0
    check_whole(stage, 12 * 4 * 2)


@pytest.mark.parametrize("call", slow(300, 200, 350))
def test_a_restarted_coordinator_keeps_the_in_flight_limit(tmp_path, call):
    """Each update that the trainer waits for lets one group more be open: from 8 on, and not again from 8. It dies in
    the third update at most; what was under way may then be ready before the trainer asks for it."""
    stage = stage_of(tmp_path, rounds=8, data={"maxResponseTokens": 1000})
    assert play_through(stage, [call]) == 2
    opened = [8, *(report.capacity_prompts for report in stage.closed)]
    waited = [report.trainer_wait_seconds > STARVED * report.seconds for report in stage.closed]
    assert [after - before for before, after in itertools.pairwise(opened)] == [int(one) for one in waited]
    assert waited.count(False) <= 1
    assert waited[3:] == [True] * 5


@pytest.mark.parametrize(("left", "given", "now"), [(13, None, 13), (40, None, 16), (2, None, 5), (13, 6, 6)])
def test_a_capacity_is_restored_within_the_limits_of_now(left, given, now):
    buffer = ExperienceBuffer(Sampler.FIFO, BufferLimits.of(4, given), 4, None, 0)
    buffer.restore_capacity(left)
    assert buffer.capacity == now


@pytest.mark.slow
def test_replicas_that_are_overtaken_by_newer_weights_take_those(tmp_path):
    """Updates come so fast that the relay has another version before a replica receives the one to take."""
    stage = stage_of(tmp_path, rounds=200)
    stage.world.network.hop_seconds = 0.01
    stage.world.costs.step = 0.02
    stage.world.site = replace(stage.world.site, latency=0.1, lengths=lambda key, version: 2)
    loads = seen(stage, Loaded)
    stage.play()
    check_whole(stage, 200 * 4 * 2)
    assert not [suspect for report in stage.control.reports for suspect in report.suspects]
    assert len({event.version for event in loads}) > 20


def test_a_full_buffer_slows_generation_and_loses_nothing(tmp_path):
    stage = stage_of(tmp_path, experience={"maxPrompts": 6})
    stage.world.costs.step = 30.0
    stage.world.site = replace(stage.world.site, lengths=lambda key, version: 10)
    opened: list[int] = []

    async def look(stage):
        while True:
            await asyncio.sleep(0.5)
            loop = stage.coordinator.loop if stage.coordinator else None
            if loop is not None and loop.generation is not None:
                opened.append(len(loop.generation.groups) + len(loop.generation.buffer))

    stage.play(look)
    assert max(opened) == 6
    assert max(report.buffer_full_seconds for report in stage.closed) > 20
    assert min(report.trainer_wait_seconds for report in stage.closed) < 1
    check_whole(stage, 6 * 4 * 2)


def test_groups_beyond_the_last_update_are_not_begun(tmp_path):
    stage = stage_of(tmp_path, rounds=2, experience={"maxPrompts": 64})
    stage.play()
    assert fates(stage) == {"trained": 8}


@pytest.mark.parametrize("sampler", slow("StalenessAware", "FIFO", "Priority", "Uniform"))
def test_every_sampler_trains_on_everything_in_the_end(tmp_path, sampler):
    stage = stage_of(tmp_path, experience={"sampler": sampler, "maxPrompts": 12})
    stage.play()
    check_whole(stage, 6 * 4 * 2)


def alone(tmp_path: Path, **more: Any) -> Stage:
    """One machine, one replica; the first prompt is as long as many others after another."""
    stage = stage_of(tmp_path, machines=1, rounds=8, **more)
    lengths = lambda key, version: 1000 if (key.prompt.epoch, key.prompt.index) == (0, 0) else 10  # noqa: E731
    stage.world.site = replace(stage.world.site, lengths=lengths, engine=steady(0.02))
    return stage


def test_a_replica_draws_again_while_its_weights_are_the_newest(tmp_path):
    """Twelve groups may be open, so eight in flight; four more are drawn when the first update takes its four. The long
    one is under way still."""
    stage = alone(tmp_path, experience={"maxPrompts": 12})
    submitted = seen(stage, Submitted)
    stage.play()
    assert len({event.key.prompt for event in submitted if event.version == 1}) > 8
    check_whole(stage, 8 * 4 * 2)


def test_a_replica_draws_nothing_with_old_weights(tmp_path):
    """Else it would never have nothing left, and never take newer ones."""
    stage = alone(tmp_path, experience={"maxPrompts": 12})
    events: list[Any] = []
    stage.watchers.append(
        lambda event: events.append(event) if isinstance(event, Submitted | Loaded | Trained) else None
    )
    stage.play()
    first = next(place for place, event in enumerate(events) if isinstance(event, Trained))
    after = next(place for place, event in enumerate(events[first:], first) if isinstance(event, Loaded))
    # What it drew before the update's weights came to its machine.
    assert sum(isinstance(event, Submitted) and event.attempt == 1 for event in events[first:after]) <= 2 * 12
    assert len({event.version for event in events if isinstance(event, Loaded)}) > 2
    check_whole(stage, 8 * 4 * 2)


@pytest.mark.slow
@pytest.mark.parametrize(("step", "opened"), [(0.01, range(14, 17)), (30.0, range(5, 8))])
def test_as_many_groups_are_open_as_the_trainer_needs(tmp_path, step, opened):
    """Four an update: up to sixteen where it waits, down to five where it does not."""
    stage = stage_of(tmp_path, rounds=16)
    stage.world.costs.step = step
    seen: list[int] = []

    async def look(stage):
        while True:
            await asyncio.sleep(0.5)
            loop = stage.coordinator.loop if stage.coordinator else None
            if loop is not None and loop.generation is not None:
                seen.append(loop.generation.buffer.capacity)

    stage.play(look)
    assert seen[0] == 8
    assert seen[-1] in opened
    check_whole(stage, 16 * 4 * 2)


# --- failures ---


def test_responses_of_a_dead_machine_continue_in_their_version(tmp_path):
    stage = stage_of(tmp_path)
    stage.world.site = replace(stage.world.site, engine=steady(0.05))
    submitted = seen(stage, Submitted)

    async def fault(stage):
        await until(lambda: sum(event.replica.startswith("rollout-0") for event in submitted) > 1)
        await asyncio.sleep(1.2)
        stage.world.kill("rollout-0")

    stage.play(fault)
    taken_over = [event for event in submitted if event.prefix]
    assert taken_over, "others went on from the tokens that had come"
    assert all(event.replica != "rollout-0/replica-0" or event.attempt > 1 for event in taken_over)
    check_whole(stage, 6 * 4 * 2)


def test_a_group_whose_weights_are_gone_is_drawn_again_and_counted(tmp_path, caplog):
    """Every machine dies after a newer version was published: no machine can generate with the old one."""
    stage = stage_of(tmp_path, machines=2)
    lengths = lambda key, version: 400 if key.prompt.index == 0 else 10  # noqa: E731
    stage.world.site = replace(stage.world.site, lengths=lengths)

    async def fault(stage):
        await until(lambda: len(stage.closed) == 2)
        for name in ("rollout-0", "rollout-1"):
            stage.world.kill(name)

    async def patience(stage):
        await asyncio.sleep(900)
        stage.coordinator.stop()

    assert stage.play(fault, patience) is not None, "the job ends"
    assert fates(stage)["requeued"] >= 1
    assert sum(report.requeued_prompts for report in stage.closed) == fates(stage)["requeued"]
    with sqlite3.connect(stage.path) as db:
        rows = "samples AS s JOIN groups USING (epoch, idx, draw) WHERE reason = 'VersionGone'"
        lost = db.execute(f"SELECT SUM(s.tokens) FROM {rows}").fetchone()[0]
    assert lost > 0
    assert sum(report.lost_version_tokens for report in stage.closed) == lost
    assert stage.control.last.totals.lost_version_tokens == lost
    assert "which costs" in caplog.text, "the log says what it costs"
    check_whole(stage, 6 * 4 * 2)


def test_rollouts_continue_while_the_trainer_restarts(tmp_path):
    stage = stage_of(tmp_path, rounds=8, experience={"maxPrompts": 40})
    stage.world.costs.start = 20.0
    ends: list[float] = []
    stage.watchers.append(
        lambda event: ends.append(asyncio.get_running_loop().time()) if isinstance(event, Generated) else None
    )
    died: list[float] = []

    async def fault(stage):
        await until(lambda: len(stage.closed) == 3)
        died.append(asyncio.get_running_loop().time())
        stage.world.kill("trainer")

    stage.play(fault)
    assert [moment for moment in ends if died[0] + 2 < moment < died[0] + 18]
    assert stage.rounds[:4] == [1, 2, 3, 3], "the third update is behind the checkpoint: it is made again"
    check_whole(stage, 8 * 4 * 2)
    versions = [report.weight_version for report in stage.control.reports if report.weight_version]
    assert versions == sorted(versions), "no version is used twice"


@pytest.mark.parametrize("moment", [*range(1, 80, 27), *slow(*(call for call in range(4, 80, 3) if call % 27 != 1))])
def test_killed_around_any_store_call(tmp_path, moment):
    stage = stage_of(tmp_path, rounds=3, machines=2)
    play_through(stage, [moment])
    check_whole(stage, 3 * 4 * 2)


@pytest.mark.parametrize("seed", [0, *slow(*range(1, 6))])
def test_killed_again_and_again(tmp_path, seed):
    rng = random.Random(seed)
    stage = Stage(tmp_path / "state.db", job=continuous(rounds=3, machines=2), seed=seed)
    play_through(stage, [rng.randrange(3, 40) for _ in range(6)])
    check_whole(stage, 3 * 4 * 2)


def test_killed_between_two_pieces_of_what_a_checkpoint_lets_go(tmp_path, monkeypatch):
    """What was left goes with a later checkpoint's, and nothing else is missed."""
    stage = stage_of(tmp_path, rounds=8, machines=2)
    forget, steps = AsyncStore.forget, []

    def killed_once(store, step):
        steps.append(step)
        if len(steps) == 2:
            raise Crash
        return forget(store, step)

    monkeypatch.setattr(async_store, "FORGOTTEN_CHUNKS", 1)
    monkeypatch.setattr(AsyncStore, "forget", killed_once)

    async def lives():
        with pytest.raises(Crash):
            await stage.coordinate()
        assert steps[0] == steps[1], "the second piece of one checkpoint"
        assert (await stage.coordinate()).outcome is FinishedOutcome.COMPLETE

    virtual_time.run(lives())
    check_whole(stage, 8 * 4 * 2)
    with sqlite3.connect(stage.path) as db:
        held = "SELECT DISTINCT step FROM groups JOIN experience_chunks USING (epoch, idx, draw) ORDER BY 1"
        assert [step for (step,) in db.execute(held)] == list(range(steps[-1] + 1, 9))


def test_a_coordinator_that_comes_back_goes_on_from_the_tokens_that_came(tmp_path):
    stage = stage_of(tmp_path, rounds=2)
    stage.world.site = replace(stage.world.site, engine=steady(0.1))
    submitted = seen(stage, Submitted)

    async def stop(stage):
        await until(lambda: bool(submitted))
        await asyncio.sleep(2.5)
        stage.coordinator.stop()

    async def lives():
        stopping = asyncio.ensure_future(stop(stage))
        assert await stage.coordinate() is None
        await stopping
        before = len(submitted)
        assert (await stage.coordinate()).outcome is FinishedOutcome.COMPLETE
        assert any(event.prefix for event in submitted[before:])

    virtual_time.run(lives())
    check_whole(stage, 2 * 4 * 2)


def test_a_failed_reward_is_no_zero_and_is_tried_again(tmp_path):
    stage = stage_of(tmp_path)
    stage.fails = {"0.1": 1}
    stage.play()
    assert sum(report.aborted_samples for report in stage.closed) == 1
    check_whole(stage, 6 * 4 * 2)


def test_rewards_that_keep_failing_end_the_job(tmp_path):
    stage = stage_of(tmp_path)
    stage.fails = {f"{epoch}.{index}": 99 for epoch, index in itertools.product(range(40), range(50))}
    finished = stage.play()
    assert (finished.outcome, finished.reason) == (FinishedOutcome.FAILED, "RewardsKeepFailing")


def test_equal_rewards_are_filtered_and_other_prompts_drawn(tmp_path):
    stage = stage_of(tmp_path, algorithm={"dynamicSampling": {"enabled": True}})
    stage.reward_levels = 2
    stage.play()
    assert fates(stage)["filtered"] == sum(report.filtered_groups for report in stage.closed) > 0
    check_whole(stage, 6 * 4 * 2)


# --- repack ---


def tailed(tmp_path: Path, **more: Any) -> Stage:
    """Four machines; every fifth response is twenty times as long as the others."""
    stage = stage_of(tmp_path, machines=4, rounds=8, prompts=8, data={"maxResponseTokens": 1000}, **more)
    lengths = lambda key, version: 800 if (key.prompt.index + key.sample) % 5 == 0 else 40  # noqa: E731
    stage.world.site = replace(stage.world.site, lengths=lengths, engine=steady(0.02))
    return stage


def test_the_last_long_responses_move_together(tmp_path, monkeypatch):
    stage = tailed(tmp_path, repack={"intervalSeconds": 0.5})
    submitted, aborted = seen(stage, Submitted), seen(stage, Aborted)
    reserved, launched = set(), AsyncStore.launched

    def recorded(store, leases):
        launched(store, leases)
        reserved.update((key, lease.attempt) for key, lease in leases)

    monkeypatch.setattr(AsyncStore, "launched", recorded)
    stage.play()
    repacks = sum(report.repacks for report in stage.closed)
    moved = sum(report.moved_responses for report in stage.closed)
    assert repacks > 3
    assert moved > 3
    assert sum(event.prefix > 0 for event in submitted) > moved / 2
    assert len(aborted) >= moved, "the source lets go of what the destination has begun"
    made = {(event.key, event.attempt) for event in submitted}
    assert made <= reserved, "a coordinator that starts again would give the attempt to another request"
    check_whole(stage, 8 * 8 * 2)


@pytest.mark.slow
def test_a_failing_repack_policy_is_given_up_and_the_job_completes(tmp_path, monkeypatch):
    asked = []

    def fails(self, replicas):
        asked.append(replicas)
        raise ZeroDivisionError

    monkeypatch.setattr(RepackMonitor, "plan", fails)
    stage = tailed(tmp_path, repack={"intervalSeconds": 0.5})
    stage.invariants.policies_fail = True
    stage.play()
    assert len(asked) == MOST_FAILURES
    assert sum(report.repacks for report in stage.closed) == 0
    assert [one.reason for one in stage.control.reports[-1].warnings] == [PROBLEM]
    check_whole(stage, 8 * 8 * 2)


def test_without_repack_nothing_moves(tmp_path):
    stage = tailed(tmp_path, repack={"enabled": False})
    submitted = seen(stage, Submitted)
    stage.play()
    assert not any(event.prefix for event in submitted)
    check_whole(stage, 8 * 8 * 2)


@pytest.mark.slow
def test_nothing_moves_between_engines_that_make_no_more_tokens_by_it(tmp_path):
    """Each response has its own share of a step."""
    stage = tailed(tmp_path, repack={"intervalSeconds": 0.5})
    latency = LatencyModel(((1.0, 0.02), (64.0, 64 * 0.02)), 0.0, 0.0, 0.0, 0.0)
    stage.world.site = replace(stage.world.site, engine=replace(steady(0.02), latency=latency))
    submitted = seen(stage, Submitted)
    stage.play()
    assert not any(event.prefix for event in submitted)
    check_whole(stage, 8 * 8 * 2)


@pytest.mark.parametrize("victim", [0, *slow(1, 2, 3)])
def test_a_machine_that_dies_in_the_middle_of_moves_costs_nothing(tmp_path, victim):
    stage = tailed(tmp_path, repack={"intervalSeconds": 0.5})
    submitted = seen(stage, Submitted)

    async def fault(stage):
        await until(lambda: any(event.prefix for event in submitted), tick=0.001)
        stage.world.kill(f"rollout-{victim}")

    stage.play(fault)
    check_whole(stage, 8 * 8 * 2)


# --- the operator ---


def test_a_machine_that_is_to_leave_ends_its_work_first(tmp_path):
    stage = stage_of(tmp_path, repack={"enabled": False})
    submitted = seen(stage, Submitted)

    async def shrink(stage):
        flight = stage.coordinator.loop.generation.groups
        await until(lambda: len(stage.closed) >= 2 and flight.load("rollout-2/replica-0") > 0, tick=0.01)
        stage.control.scale(2)

    async def begin(stage):
        await until(lambda: stage.coordinator is not None and stage.coordinator.loop.generation is not None)
        await shrink(stage)

    stage.play(begin)
    assert "rollout-2" in stage.control.last.drained
    assert all(event.attempt == 1 for event in submitted), "nothing was begun again elsewhere"
    check_whole(stage, 6 * 4 * 2)


def test_a_suspended_job_hands_everything_over_and_goes_on(tmp_path):
    stage = stage_of(tmp_path)

    async def suspend(stage):
        await until(lambda: len(stage.closed) == 2)
        stage.control.set_phase(TargetPhase.SUSPEND)
        await until(lambda: stage.control.last is not None and stage.control.last.stage == "Suspended")
        assert not stage.coordinator.loop.generation.groups.running_on("rollout-0/replica-0")
        await asyncio.sleep(5)
        stage.control.set_phase(TargetPhase.RUN)

    stage.play(suspend)
    check_whole(stage, 6 * 4 * 2)


def test_a_coordinator_that_is_cut_off_from_a_machine_loses_it_alone(tmp_path):
    stage = stage_of(tmp_path, rounds=8)

    async def cut(stage):
        await until(lambda: len(stage.closed) == 2)
        machine = stage.world.machine("rollout-1")
        machine.condition.begin(FaultKind.CUT)
        machine.refresh()
        await asyncio.sleep(8)
        machine.condition.end(FaultKind.CUT)
        machine.refresh()

    stage.play(cut)
    check_whole(stage, 8 * 4 * 2)
