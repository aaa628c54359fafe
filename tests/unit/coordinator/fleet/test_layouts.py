"""Layout switches at a round's boundary: the target's layout, machines that refuse or die, tokens and fences."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.status import FinishedOutcome
from rljob_runtime.coordinator.core.errors import LayoutNotUsable
from rljob_runtime.coordinator.fleet.layouts import PROBLEM, check_layouts
from rljob_runtime.protocols import PeerGone, Refused
from rljob_runtime.protocols.engine_slots import EngineSlots
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.events import LaidOut, Loaded, ProcessStarted, Submitted
from rljob_runtime.simulator.peers.control_plane import SimulatedControlPlane
from rljob_runtime.simulator.peers.engines.replica import SimulatedReplica
from tests.support.simulated_job import Stage, job, until

# --- the arithmetic ---


@pytest.mark.parametrize(
    ("accelerators", "each", "size", "leading"),
    [(1, 1, 1, (0,)), (2, 1, 2, (0,)), (4, 1, 2, (0, 2)), (8, 2, 2, (0, 1, 2, 3)), (8, 2, 8, (0,)), (6, 1, 3, (0, 3))],
)
def test_the_slots_that_lead(accelerators, each, size, leading):
    assert EngineSlots(accelerators, each).leading(size) == leading


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 64))
def test_a_layout_uses_every_accelerator_once_or_is_refused(count, each, size):
    slots = EngineSlots(count * each, each)
    if size in slots.sizes:
        used = [index * each + place for index in slots.leading(size) for place in range(size)]
        assert used == list(range(count * each))
    else:
        with pytest.raises(ValueError, match=rf"size {size} does not fit a machine of {count * each} accelerators"):
            slots.leading(size)


def test_accelerators_that_do_not_split_into_slots_are_refused():
    with pytest.raises(ValueError, match="8 accelerators of a machine do not split into engine slots of 3"):
        EngineSlots(8, 3)


def test_a_size_that_does_not_split_the_model_ends_the_job_at_start():
    shape = {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576, "num_hidden_layers": 30,
             "intermediate_size": 1536, "vocab_size": 49152}  # fmt: skip
    files = {"config.json": json.dumps(shape).encode()}
    check_layouts(files, (1, 3))
    check_layouts({}, (1, 2))
    with pytest.raises(LayoutNotUsable, match="tensor parallel size 2 does not split the 9 heads and 3 KV heads"):
        check_layouts(files, (1, 2))


# --- at the boundary ---


@pytest.fixture
def stage(tmp_path):
    """Two machines of two accelerators."""
    return Stage(tmp_path / "state.db", replicas=2, sizes=(1, 2))


class Watch:
    """What the engines did, in order."""

    def __init__(self, stage: Stage) -> None:
        self.laid: list[tuple[str, int]] = []
        self.started: list[str] = []
        self.generating: list[set[str]] = []
        self.bad: list[str] = []
        self._rests: set[str] = set()
        self._version = 0
        stage.watchers.append(self)

    def __call__(self, event) -> None:
        match event:
            case LaidOut(replica, size):
                self.laid.append((replica, size))
                self._rests.add(replica)
            case Loaded(replica, version):
                self._rests.discard(replica)
            case ProcessStarted(name) if "/replica-" in name:
                self.started.append(name)
            case Submitted(replica, _, _, version):
                if replica in self._rests:
                    self.bad.append(f"{replica} generates with the weights it had before its change of layout")
                if version != self._version:
                    self.generating.append(set())
                    self._version = version
                self.generating[-1].add(replica.split("/")[1])


def retarget(short, long, after):
    async def action(stage):
        await until(lambda: len(stage.closed) >= after, tick=0.01)
        stage.control.set_tensor_parallel(short, long)

    return action


def test_the_next_round_runs_in_the_targets_layout_in_the_same_processes(stage):
    """1 → 2 → 1: each change is in force for whole rounds, no process is restarted, and every round says what it ran
    with."""
    stage.job = job(rounds=6)
    watch = Watch(stage)
    assert stage.play(retarget(2, 2, after=1), retarget(1, 1, after=3)).outcome is FinishedOutcome.COMPLETE
    sizes = [report.tensor_parallel_size for report in stage.closed]
    assert sizes == sorted(sizes[:4]) + [1] * 2
    assert sizes[3] == 2
    assert [len(replicas) for replicas in watch.generating] == [2 // size for size in sizes]
    assert sorted(watch.started) == [f"rollout-{m}/replica-{s}" for m in range(2) for s in range(2)]
    assert watch.bad == []
    changed = [report.layout_seconds > 0 for report in stage.closed]
    assert changed == [before != after for before, after in zip([1, *sizes], sizes, strict=False)]
    assert stage.control.last.warnings == ()
    ids = stage.trained_ids()
    assert len(ids) == len(set(ids)) == 6 * 3 * 2


def test_short_and_long_rounds_have_layouts_of_their_own(tmp_path):
    stage = Stage(
        tmp_path / "state.db",
        job=job(rounds=8, prompts=4, tail={"enabled": True, "promptFactor": 1.5, "responseFactor": 1}),
        replicas=2,
        sizes=(1, 2),
    )
    assert stage.play(retarget(2, 1, after=1)).outcome is FinishedOutcome.COMPLETE
    ran = {(report.kind.value, report.tensor_parallel_size) for report in stage.closed[2:]}
    assert ran == {("Short", 2), ("Long", 1)}


def test_an_accelerator_works_for_one_engine_at_a_time(tmp_path):
    """Four replicas, in layouts of 1, 4, 2 and 1: an engine starts on released accelerators only."""
    stage = Stage(tmp_path / "state.db", job=job(rounds=9, machines=1), machines=1, replicas=4, sizes=(1, 2, 4))
    starts: list[int] = []

    def watch(event) -> None:
        if isinstance(event, LaidOut):
            replicas = [stage.world.process(f"rollout-0/replica-{index}").peer for index in range(4)]
            first = int(event.replica[-1])
            taken = range(first, first + event.tensor_parallel)
            for index, replica in enumerate(replicas):
                covers = range(index, index + (replica._layout or 0))
                assert index == first or not set(covers) & set(taken), (
                    f"{event} while replica {index} runs {replica._layout}"
                )
            starts.append(event.tensor_parallel)

    stage.watchers.append(watch)
    changes = [retarget(size, size, after) for size, after in ((4, 1), (2, 3), (1, 5))]
    assert stage.play(*changes).outcome is FinishedOutcome.COMPLETE
    assert starts == [1] * 4 + [4] + [2] * 2 + [1] * 4


def test_applied_is_said_when_the_layout_is_in_force(stage):
    laid = Watch(stage).laid
    seen: list[tuple[int, int]] = []
    revision = []

    async def action(stage):
        await until(lambda: len(stage.closed) >= 1, tick=0.01)
        stage.control.set_tensor_parallel(2, 2)
        revision.append(stage.control._target.revision)

    def report(event) -> None:
        if revision and type(event).__name__ == "Reported" and event.status.applied == revision[0]:
            seen.append(sum(size == 2 for _, size in laid))

    stage.watchers.append(report)
    assert stage.play(action).outcome is FinishedOutcome.COMPLETE
    assert seen
    assert min(seen) == 2


def test_a_machine_whose_engine_fails_keeps_its_layout_with_a_warning(stage):
    asked: list[int] = []

    async def break_one(stage):
        await until(lambda: len(stage.closed) >= 1, tick=0.01)
        replica = stage.world.process("rollout-1/replica-0").peer
        switch_layout = replica.switch_layout

        async def refuse(term, size):
            if size == 2:
                asked.append(size)
                raise Refused("out of memory")
            return await switch_layout(term, size)

        replica.switch_layout = refuse
        stage.control.set_tensor_parallel(2, 2)

    stage.job = job(rounds=5)
    watch = Watch(stage)
    assert stage.play(break_one).outcome is FinishedOutcome.COMPLETE
    (problem,) = stage.control.last.warnings
    assert problem.reason == PROBLEM
    assert problem.message == "rollout-1 keeps tensor parallel size 1, not 2: out of memory"
    assert stage.closed[-1].tensor_parallel_size == 2, "one of two machines speaks for no round"
    assert asked == [2], "a layout that was refused is not tried again at every boundary"
    assert watch.generating[-1] == {"replica-0", "replica-1"}
    assert len(watch.started) == 4
    assert watch.bad == []


@pytest.fixture
def broken(monkeypatch):
    """Names of machines whose engines do not start in any layout, with any coordinator."""
    machines: set[str] = set()
    switch_layout = SimulatedReplica.switch_layout

    async def refuse(replica, term, size):
        if replica.name.partition("/")[0] in machines:
            raise Refused("out of memory")
        return await switch_layout(replica, term, size)

    monkeypatch.setattr(SimulatedReplica, "switch_layout", refuse)
    return machines


def test_a_machine_without_a_layout_joins_when_its_engines_start(stage, broken):
    broken.add("rollout-1")

    async def repair(stage):
        await until(lambda: len(stage.closed) >= 2, tick=0.01)
        broken.clear()

    stage.job = job(rounds=60)
    watch = Watch(stage)
    assert stage.play(repair).outcome is FinishedOutcome.COMPLETE
    problems = [problem for report in stage.control.reports for problem in report.warnings]
    told = {problem.message for problem in problems if problem.reason == PROBLEM}
    assert told == {"rollout-1 has no engine of tensor parallel size 1: out of memory"}
    assert stage.control.last.warnings == ()
    assert any(replica.startswith("rollout-1/") for replica, _ in watch.laid)


@pytest.mark.parametrize("after", [0, 1])
def test_a_job_whose_machines_start_no_engine_ends_with_their_error(stage, broken, after):
    """From the start, or once all machines were lost in the middle of a round."""

    async def lose_all(stage):
        await until(lambda: len(stage.closed) >= after, tick=0.01)
        broken.update({"rollout-0", "rollout-1"})
        if after:
            await until(lambda: stage.coordinator.loop.generation is not None, tick=0.01)
            for name in broken:
                stage.world.kill(name)

    finished = stage.play(lose_all)
    assert (finished.outcome, finished.reason) == (FinishedOutcome.FAILED, "LayoutNotUsable")
    assert finished.message == (
        "no rollout machine can start its engines, at least 3 tries each: "
        "rollout-0 has no engine of tensor parallel size 1: out of memory; "
        "rollout-1 has no engine of tensor parallel size 1: out of memory"
    )
    assert stage.rounds == list(range(1, after + 1))


def test_one_bad_machine_does_not_end_a_job_before_the_others_join(stage, broken):
    broken.add("rollout-0")
    stage.control = SimulatedControlPlane(stage.job, stage.machines, observe=stage.observe)
    stage.control.withdraw("rollout-1")

    async def place(stage):
        await asyncio.sleep(100.0)
        assert stage.rounds == []
        stage.control.place("rollout-1")

    assert stage.play(place).outcome is FinishedOutcome.COMPLETE


def test_what_a_machine_refused_is_no_word_of_its_next_pod(stage, broken):
    """The first machine was unable, and has another pod, which takes its time. Meanwhile the second one is unable."""
    broken.add("rollout-0")

    async def swap(stage):
        await until(lambda: len(stage.closed) >= 5, tick=0.01)
        gate = stage.world.hold_back("rollout-0")
        broken.symmetric_difference_update({"rollout-0", "rollout-1"})
        stage.control.replace("rollout-0")
        stage.world.kill("rollout-1")
        await asyncio.sleep(100.0)
        gate.set()

    stage.job = job(rounds=8)
    assert stage.play(swap).outcome is FinishedOutcome.COMPLETE


def test_engines_that_start_after_a_while_end_no_job(stage, broken):
    """As where the memory of a former process is not free yet."""
    broken.update({"rollout-0", "rollout-1"})

    async def repair(stage):
        await asyncio.sleep(20.0)
        broken.clear()

    assert stage.play(repair, join_patience=30.0).outcome is FinishedOutcome.COMPLETE


def test_the_problem_ends_with_the_wish(stage):
    async def break_both(stage):
        await until(lambda: len(stage.closed) >= 1, tick=0.01)
        for machine in range(2):
            replica = stage.world.process(f"rollout-{machine}/replica-0").peer

            async def refuse(term, size, switch_layout=replica.switch_layout):
                if size == 2:
                    raise Refused("no")
                return await switch_layout(term, size)

            replica.switch_layout = refuse
        stage.control.set_tensor_parallel(2, 2)

    stage.job = job(rounds=6)
    assert stage.play(break_both, retarget(1, 1, after=4)).outcome is FinishedOutcome.COMPLETE
    told = [bool(report.warnings) for report in stage.control.reports]
    assert True in told
    assert not told[-1]
    assert {report.tensor_parallel_size for report in stage.closed} == {1}


def test_a_machine_lost_in_a_layout_change_returns_in_the_new_layout(stage):
    killed = []

    async def break_one(stage):
        await until(lambda: len(stage.closed) >= 1, tick=0.01)
        replica = stage.world.process("rollout-1/replica-0").peer

        async def die(term, size):
            killed.append(size)
            stage.world.kill("rollout-1")
            raise PeerGone("dead")

        replica.switch_layout = die
        stage.control.set_tensor_parallel(2, 2)

    stage.job = job(rounds=6)
    watch = Watch(stage)
    assert stage.play(break_one).outcome is FinishedOutcome.COMPLETE
    assert killed == [2]
    assert stage.control.last.warnings == ()
    assert ("rollout-1/replica-0", 2) in watch.laid
    assert stage.closed[-1].tensor_parallel_size == 2
    ids = stage.trained_ids()
    assert len(ids) == len(set(ids)) == 6 * 3 * 2


def test_a_new_coordinator_finds_engines_in_their_layout_and_leaves_them(stage):
    stage.job = job(rounds=5)
    watch = Watch(stage)

    async def program():
        async def change_and_stop():
            await until(lambda: len(stage.closed) >= 1, tick=0.01)
            stage.control.set_tensor_parallel(2, 2)
            await until(lambda: len(stage.closed) >= 3, tick=0.01)
            stage.coordinator.stop()

        helper = asyncio.create_task(change_and_stop())
        assert await stage.coordinate() is None
        await helper
        laid = list(watch.laid)
        assert (await stage.coordinate()).outcome is FinishedOutcome.COMPLETE
        assert watch.laid == laid
        assert len(watch.started) == 4

    virtual_time.run(program())
    assert stage.closed[-1].tensor_parallel_size == 2
