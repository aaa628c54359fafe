"""Layout switches inside a round: complete runs of the real coordinator under virtual time, with forced switches."""

import asyncio
import sqlite3
from dataclasses import replace
from itertools import pairwise

import pytest

from rljob_api.status import FinishedOutcome
from rljob_runtime.coordinator.fleet.machine import machine_of
from rljob_runtime.coordinator.generation.observed_engines import sized_engines
from rljob_runtime.coordinator.on_policy.switcher import Switcher
from rljob_runtime.perf_model.observed_speed import Speed, SpeedSample
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision, SwitchOutcome, SwitchRules
from rljob_runtime.scheduling.adaptive_tp.switch_costs import PRIORS, Part
from rljob_runtime.scheduling.layouts.adaptive_switches import AdaptiveSwitches, snapshot_of
from rljob_runtime.scheduling.layouts.fleet_layout import RoundLayout
from rljob_runtime.scheduling.layouts.layout_switch import SwitchLook
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.events import Aborted, Generated, LaidOut, MadeRoom, Submitted, Trained
from rljob_runtime.simulator.drawn_scenario import draw_scenario, plan_of
from rljob_runtime.simulator.faults.plan import FaultPlan
from rljob_runtime.simulator.run import simulate
from tests.support.forced_switches import Script
from tests.support.rows import slow
from tests.support.simulated_job import Stage, job, until
from tests.support.token_ledger import TokenLedger, delay_polls


class Recorder(TokenLedger):
    """All events, and the tokens of each attempt."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.events: list = []
        stage.watchers.append(self)

    def __call__(self, event) -> None:
        super().__call__(event)
        self.events.append(event)

    def of(self, kind) -> list:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def stage(tmp_path):
    """Two machines of four accelerators."""
    return Stage(tmp_path / "state.db", job=of(), replicas=4, sizes=(1, 2, 4))


def of(rounds=2, **more):
    sizes = {"slotsPerMachine": 4, "allowedTensorParallelSizes": [1, 2, 4], "engine": "Reference", "machines": 2}
    return job(rounds=rounds, prompts=6, responses=4, rollout=sizes, **more)


def stored(stage) -> tuple[int, list[tuple[int, str, int]], list[int]]:
    """Tokens of all responses, the changes of layouts, and the sizes at the start of rounds."""
    db = sqlite3.connect(stage.path)
    tokens = db.execute("SELECT SUM(tokens) FROM trajectories").fetchone()[0]
    changes = db.execute("SELECT step, machine, tensor_parallel FROM layouts ORDER BY step, number").fetchall()
    starts = [size for (size,) in db.execute("SELECT tensor_parallel FROM rounds ORDER BY step")]
    db.close()
    return tokens, changes, starts


def complete(stage) -> None:
    ids = stage.trained_ids()
    assert len(ids) == len(set(ids)) == len(stage.closed) * 6 * 4


def test_a_machine_switches_up_and_back_and_no_token_is_lost(stage, monkeypatch):
    delay_polls(monkeypatch)
    stage.switch_policy = policy = Script("rollout-0", 4, 1, 2)
    recorder = Recorder(stage)
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    complete(stage)
    assert policy.left == []
    assert [(one.tensor_parallel, one.sizes, one.switches) for one in policy.seen] == [
        (1, (2, 4), 0),
        (4, (1, 2), 1),
        (1, (2, 4), 2),
    ]
    laid = [(event.replica, event.tensor_parallel) for event in recorder.of(LaidOut)]
    assert ("rollout-0/replica-0", 4) in laid
    assert all(size == 1 for name, size in laid if machine_of(name) == "rollout-1")
    assert recorder.lost == {}
    tokens, changes, starts = stored(stage)
    assert tokens == recorder.total, "tokens made = tokens stored; nothing was aborted for good"
    assert changes == [(1, "rollout-0", 4), (1, "rollout-0", 1), (1, "rollout-0", 2)]
    assert starts == [1, 1]
    assert [report.tensor_parallel_size for report in stage.closed] == [1, 1], "the size at the start of the round"
    at_boundaries = [report.layout_seconds for report in stage.closed]
    assert at_boundaries == [0.0, pytest.approx(0.5, abs=0.1)], "back to the start at the boundary"


def test_each_of_two_switching_machines_waits_for_all_its_responses(stage, monkeypatch):
    """All that each one generates waits for it. The others are not torn away from what they generate."""
    delay_polls(monkeypatch)
    waited = {}
    start = Switcher.start

    def starts(self, switch, machine, responses, seconds):
        waited[switch.machine] = len(responses)
        start(self, switch, machine, responses, seconds)

    monkeypatch.setattr(Switcher, "start", starts)
    stage.job, stage.switch_policy = of(rounds=1), Script(None, 4, 4)
    recorder = Recorder(stage)
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    complete(stage)
    assert waited == {"rollout-0": 12, "rollout-1": 12}
    assert recorder.lost == {}


def test_a_machine_whose_responses_have_ended_does_not_switch(stage):
    class Late(Script):
        def decide(self, look):
            return {one.name: SwitchDecision(SwitchOutcome.SWITCHED, 4) for one in look.machines if not one.responses}

    stage.switch_policy = Late(None)
    recorder = Recorder(stage)
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    complete(stage)
    assert [event for event in recorder.of(LaidOut) if event.tensor_parallel == 4] == []


def test_what_waits_for_a_switch_does_not_count_on_other_machines(stage):
    class Watching(Script):
        def __init__(self, *args):
            super().__init__(*args)
            self.waiting, self.raced = set(), []

        def decide(self, look):
            self.waiting |= {one.waiting for one in look.machines if one.name != self.machine}
            for one in look.machines:
                other = sum(len(engine.running) for engine in snapshot_of(one, look).elsewhere)
                self.raced.append((len(one.responses) + other, sum(group.missing for group in look.round_.groups)))
            return super().decide(look)

    stage.job, stage.switch_policy = of(rounds=1), Watching("rollout-0", 4)
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    assert stage.switch_policy.waiting == {0}
    assert len(stage.switch_policy.raced) > 10
    assert all(raced == missing for raced, missing in stage.switch_policy.raced), "also while one switches"


@pytest.mark.parametrize("evaluation", [[], [{"name": "unseen", "everyRounds": 1, "maxPrompts": 60}]])
def test_what_the_round_has_in_the_queues_of_engines_is_known(tmp_path, evaluation):
    """Engines serve one request each, so that most of a launch waits. Requests of an evaluation are left out."""

    class Watching(Script):
        def __init__(self):
            super().__init__(None)
            self.told = []

        def decide(self, look):
            for one in look.machines:
                held = [len(responses) for responses in one.engines.values()]
                self.told.append((sum(max(0, each - 1) for each in held), one.queued))
            return {}

    stage = Stage(tmp_path / "state.db", job=of(evaluation=evaluation), replicas=4, sizes=(1, 2, 4))
    site, stage.switch_policy = stage.world.site, Watching()
    stage.world.site = replace(site, engine=replace(site.engine, max_sequences=1))
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    busy = [(waits, told) for waits, told in stage.switch_policy.told if waits > 1]
    assert len(busy) > 20
    assert sum(told == 0 for _, told in busy) < 0.2 * len(busy), "only before the first poll"
    if evaluation:
        assert {told for waits, told in stage.switch_policy.told if waits == 0} == {0}


def test_a_round_in_which_all_machines_switch_reports_its_first_size(stage):
    stage.switch_policy = Script(None, 4, 4)
    recorder = Recorder(stage)
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    complete(stage)
    assert recorder.lost == {}
    assert recorder.moved > 0
    _, changes, _ = stored(stage)
    assert sorted(changes) == [(1, "rollout-0", 4), (1, "rollout-1", 4)]
    assert [report.tensor_parallel_size for report in stage.closed] == [1, 1]
    speeds = sqlite3.connect(stage.path).execute("SELECT tensor_parallel FROM speeds WHERE step = 1").fetchall()
    assert sorted(speeds) == [(1,), (4,)]


def test_a_restarted_coordinator_knows_the_speed_of_every_size(stage):
    stage.job = of(rounds=1)
    stage.switch_policy = Script(None, 4, 4)

    async def lives():
        await stage.coordinate()
        return await stage.coordinate()

    assert virtual_time.run(lives()).outcome is FinishedOutcome.COMPLETE
    speeds = stage.coordinator.loop._watch.all_speeds()
    assert speeds[4][0].stretches


def test_a_restarted_coordinator_knows_what_switches_cost(stage):
    stage.job = of(rounds=1)
    stage.switch_policy = Script(None, 4, 4)
    measured = []

    async def lives():
        await stage.coordinate()
        measured.append(stage.coordinator.loop._switch_costs)
        return await stage.coordinate()

    assert virtual_time.run(lives()).outcome is FinishedOutcome.COMPLETE
    restored = stage.coordinator.loop._switch_costs
    assert restored is not measured[0]
    assert restored.to_json() == measured[0].to_json()
    assert restored.unit(1, 4, Part.BUILD) != PRIORS[Part.BUILD]


def test_others_generate_during_a_switch(stage):
    stage.switch_policy = Script("rollout-0", 4)
    recorder = Recorder(stage)
    stage.play()
    began = next(place for place, one in enumerate(recorder.events) if isinstance(one, MadeRoom))
    wide = [isinstance(one, LaidOut) and one.tensor_parallel > 1 for one in recorder.events]
    ended = wide.index(True)
    between = recorder.events[began:ended]
    assert any(isinstance(one, Generated) and machine_of(one.replica) == "rollout-1" for one in between)
    assert not any(isinstance(one, Submitted) and machine_of(one.replica) == "rollout-0" for one in between)
    moved = {one.key for one in recorder.events[:ended] if isinstance(one, Aborted)}
    again = {one.key: one.replica for one in recorder.events[ended:] if isinstance(one, Submitted) and one.attempt == 2}
    assert moved
    assert {machine_of(again[key]) for key in moved} == {"rollout-0"}, "they stay on their machine"


def test_responses_of_a_machine_that_dies_in_its_switch_go_elsewhere(stage):
    stage.switch_policy = Script("rollout-0", 4)
    recorder = Recorder(stage)

    async def kill(stage):
        await until(lambda: any(isinstance(one, MadeRoom) for one in recorder.events), tick=0.01)
        stage.world.kill("rollout-0")

    assert stage.play(kill).outcome is FinishedOutcome.COMPLETE
    complete(stage)
    assert recorder.lost == {}
    _, changes, _ = stored(stage)
    last = RoundLayout(1).changed(change[1:] for change in changes)
    assert last.machines == {}, "new processes start in the first layout"


def test_a_refused_size_leaves_the_machine_and_its_responses_in_place(stage, monkeypatch):
    stage.switch_policy = policy = Script("rollout-0", 4, 4, 2)
    stage.world.site = replace(stage.world.site, wider=stage.world.site.wider[:1])
    recorder = Recorder(stage)
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    complete(stage)
    assert recorder.lost == {}
    assert [one.sizes for one in policy.seen] == [(2, 4), (2,), (2,)], "it is not asked again"
    _, changes, _ = stored(stage)
    assert changes[-1] == (1, "rollout-0", 2)


class Knowing(AdaptiveSwitches):
    """The real policy, with the speed of size 4 as earlier rounds show it."""

    def decide(self, look: SwitchLook) -> dict[str, SwitchDecision]:
        wide = Speed(1, 1 << 40, 64, (SpeedSample(100, 4, 0.0, 0.5), SpeedSample(100, 1, 0.0, 0.5)))
        return super().decide(replace(look, engines=look.engines | sized_engines({4: (wide,)})))


def test_a_machine_switches_when_its_engines_predict_a_gain(stage):
    stage.job = of(rounds=1, data={"maxResponseTokens": 200})
    stage.switch_policy = Knowing(SwitchRules(frozenset({1, 4})))
    recorder = Recorder(stage)
    told = []
    stage.observers.append(lambda report, _: told.append(stage.coordinator.loop._switch_costs))
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    complete(stage)
    assert recorder.lost == {}
    _, changes, _ = stored(stage)
    assert {size for _, _, size in changes} == {4}
    assert told[0].unit(1, 4, Part.BUILD) != PRIORS[Part.BUILD], "the engines were new"
    assert told[0].unit(1, 4, Part.WAKE) == PRIORS[Part.WAKE]


async def late(work, name):
    result = work()
    await asyncio.sleep(0.3)
    return result


@pytest.mark.parametrize("always_busy", [False, True])
def test_a_switch_decided_for_a_machine_that_has_changed_is_not_made(stage, monkeypatch, always_busy):
    """Another machine of that name may have responses by then."""
    begin = Switcher.begin
    if always_busy:
        monkeypatch.setattr(Switcher, "begin", lambda self, name, decision, busy: begin(self, name, decision, True))
    stage.switch_policy = policy = Script("rollout-0", 4, 4)
    stage.apart = late
    recorder = Recorder(stage)
    told = []

    async def kill(stage):
        await until(lambda: policy.seen, tick=0.01)
        stage.world.kill("rollout-0")
        generation = stage.coordinator.loop.generation
        await until(lambda: generation.switcher.decision is not None, tick=0.01)
        told.append((generation.switcher.decision.outcome, list(generation.switcher.switches)))

    assert stage.play(kill).outcome is FinishedOutcome.COMPLETE
    complete(stage)
    assert recorder.lost == {}
    assert told == [(SwitchOutcome.CHANGED, [])]


def test_the_round_goes_on_while_a_look_is_decided(stage):
    stage.job = of(rounds=1)
    stage.switch_policy = policy = Script("rollout-0", 4)
    asked = []

    async def slow(work, name):
        if name == "look":
            asked.append(asyncio.get_running_loop().time())
            await asyncio.sleep(0.3)
        return work()

    stage.apart = slow
    recorder = Recorder(stage)
    ends = []
    stage.watchers.append(
        lambda event: ends.append(asyncio.get_running_loop().time()) if isinstance(event, Generated) else None
    )
    stage.play()
    assert policy.left == []
    assert any(asked[0] < end < asked[0] + 0.3 for end in ends)
    assert all(later - before >= 0.3 for before, later in pairwise(asked)), "one look at a time"
    assert recorder.lost == {}


def _restart(stage, recorder: Recorder, target: int) -> list[LaidOut]:
    """End the coordinator after a machine's switch to size 4, and change the target, which was 1.

    Returns the layouts that its successor gives to machines before the update."""
    stage.switch_policy = policy = Script("rollout-0", 4)
    laid: list[int] = []

    async def lives():
        task = asyncio.create_task(stage.coordinate())
        await until(lambda: not policy.left, tick=0.01)
        await until(lambda: any(isinstance(one, LaidOut) and one.tensor_parallel == 4 for one in recorder.events))
        await until(lambda: any(isinstance(one, Submitted) and one.attempt > 1 for one in recorder.events))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        laid.append(len(recorder.of(LaidOut)))
        stage.control.set_tensor_parallel(target, target)
        return await stage.coordinate()

    assert virtual_time.run(lives()).outcome is FinishedOutcome.COMPLETE
    complete(stage)
    trained = next(place for place, one in enumerate(recorder.events) if isinstance(one, Trained))
    return [one for one in recorder.events[:trained] if isinstance(one, LaidOut)][laid[0] :]


def test_a_restarted_coordinator_goes_on_in_the_layout_of_the_round(stage):
    assert _restart(stage, Recorder(stage), target=1) == [], "no engine changes before the round has ended"
    assert stage.closed[0].tensor_parallel_size == 1


def test_a_target_of_another_size_reaches_an_open_round(stage):
    later = _restart(stage, Recorder(stage), target=2)
    assert {machine_of(one.replica) for one in later} == {"rollout-0", "rollout-1"}
    assert {one.tensor_parallel for one in later} == {2}
    assert stage.closed[0].tensor_parallel_size == 2


@pytest.mark.parametrize("seed", [2, *slow(1, *range(3, 12))])
def test_forced_switches_under_faults_break_no_invariant(seed):
    scenario = replace(draw_scenario(seed), episodes=None)
    replicas = 4 if scenario.site.replicas % 4 == 0 else 2
    engine = scenario.site.engine
    wider = tuple((size, replace(engine, kv_tokens=2 * size * engine.kv_tokens)) for size in (2, 4) if size <= replicas)
    site = replace(scenario.site, replicas=replicas, wider=wider, layout_seconds=0.3)
    forced = replace(scenario, site=site, switches=True)
    for plan in (FaultPlan(), plan_of(forced)):
        result = simulate(forced, plan)
        assert result.passed, f"{result.violation} under {plan}"
