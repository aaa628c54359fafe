"""What leaves or is lost in the middle of an evaluation changes none of its numbers, in both modes."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec.training import Mode
from rljob_api.status import FinishedOutcome
from rljob_runtime.coordinator.fleet.machine import machine_of
from rljob_runtime.coordinator.on_policy.loop import OnPolicyLoop
from rljob_runtime.evaluation import EvaluationResult
from rljob_runtime.protocols import GenerateRequest
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.simulator.core.events import Event, Generated, ProcessStarted, Submitted
from rljob_runtime.simulator.peers.engines.replica import SimulatedReplica
from tests.support.simulated_job import Stage, job, until

CHECK = {"name": "check", "everyRounds": 2, "responsesPerPrompt": 2, "maxPrompts": 20}
RESPONSES = 40
MIDDLE = 15
"""Responses of the evaluation before the first round after which something happens."""


@dataclass
class Watched:
    """What the replicas did for the evaluation before the first round."""

    replicas: dict[TrajectoryKey, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Where each response was started, in order."""
    ended: list[TrajectoryKey] = field(default_factory=list)
    """Responses in the order of their ends."""
    trainers: list[int] = field(default_factory=list)
    """Responses that had ended when a trainer started."""


def stage_of(folder: Path, mode: Mode) -> tuple[Stage, Watched]:
    stage = Stage(folder / "state.db", job(rounds=2, mode=mode, every_rounds=1, evaluation=[CHECK]))
    watched = Watched()

    def watch(event: Event) -> None:
        if isinstance(event, ProcessStarted) and event.process == "trainer":
            watched.trainers.append(len(watched.ended))
        if stage.evaluated or not isinstance(event, Submitted | Generated) or event.key.prompt.evaluation is None:
            return
        if isinstance(event, Submitted):
            watched.replicas[event.key].append(event.replica)
        else:
            watched.ended.append(event.key)

    stage.watchers.append(watch)
    return stage, watched


async def middle(watched: Watched) -> None:
    await until(lambda: len(watched.ended) >= MIDDLE)


async def a_machine_is_replaced(stage: Stage) -> None:
    """As after the loss of its node."""
    assert stage.control is not None
    stage.control.replace("rollout-0")


async def a_machine_stops(stage: Stage) -> None:
    """As for a loan, or for a switch of its size."""
    assert stage.coordinator is not None
    loop = stage.coordinator.loop
    evaluator = loop._evaluation.evaluator if isinstance(loop, OnPolicyLoop) else loop._evaluator
    await evaluator.stop(evaluator._pool, lambda replica: machine_of(replica) == "rollout-0")


async def a_machine_leaves(stage: Stage) -> None:
    """As for the maintenance of its node."""
    assert stage.control is not None
    stage.control.ask_to_go("rollout-0")
    await until(lambda: stage.world.process("rollout-0/replica-0") is None)
    stage.control.replace("rollout-0")


async def fewer_machines(stage: Stage) -> None:
    assert stage.control is not None
    stage.control.scale(1)


MOVES: dict[str, tuple[Callable[[Stage], Any], bool]] = {
    "a machine is replaced": (a_machine_is_replaced, True),
    "a machine stops": (a_machine_stops, True),
    "a machine leaves": (a_machine_leaves, False),
    "fewer machines": (fewer_machines, False),
}
"""Each with whether responses are started again elsewhere: a machine that leaves ends its own first."""


def numbers(result: EvaluationResult) -> tuple[Any, ...]:
    return (result.name, result.round, result.average, result.average_error, result.pass_at, result.failed)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[Mode, int, int], tuple[Any, ...]]:
    """The numbers of each evaluation by mode, round and weight version."""
    found = {}
    for mode in Mode:
        stage, watched = stage_of(tmp_path_factory.mktemp("calm"), mode)
        stage.play()
        assert [one.round for one in stage.evaluated] == [0, 2]
        assert len(watched.ended) == len(watched.replicas) == RESPONSES
        found |= {(mode, one.round, one.weight_version): numbers(one) for one in stage.evaluated}
    return found


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[TrajectoryKey, set[Any]]:
    """What replicas were asked for each response of an evaluation.

    Simulated texts do not depend on it. Those of an engine do: equal requests have equal texts."""
    found: dict[TrajectoryKey, set[Any]] = defaultdict(set)
    submit = SimulatedReplica.submit

    async def submitted(self: SimulatedReplica, term: int, requests: Sequence[GenerateRequest]) -> None:
        for one in requests:
            if one.key.prompt.evaluation is not None:
                wanted = (one.weight_version, one.prompt_token_ids, one.prefix_token_ids, one.sampling)
                found[one.key].add(wanted)
        await submit(self, term, requests)

    monkeypatch.setattr(SimulatedReplica, "submit", submitted)
    return found


def check(
    stage: Stage,
    mode: Mode,
    undisturbed: dict[tuple[Mode, int, int], tuple[Any, ...]],
    asked: dict[TrajectoryKey, set[Any]],
) -> None:
    assert [one.round for one in stage.evaluated] == [0, 2]
    first, last = stage.evaluated
    # Simulated weights of another version number give other texts.
    assert numbers(first) == undisturbed[mode, 0, first.weight_version]
    if (expected := undisturbed.get((mode, 2, last.weight_version))) is not None:
        assert numbers(last) == expected
    assert last.failed == 0
    assert len(asked) == 2 * RESPONSES
    seeds = {one.seed for wanted in asked.values() for *_, one in wanted}
    assert len(seeds) == RESPONSES, "one for each response, in each evaluation the same"
    assert [key for key, wanted in asked.items() if len(wanted) > 1] == [], "the same request again"


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize(("move", "again"), MOVES.values(), ids=MOVES)
def test_responses_that_move_to_another_replica_give_the_same_numbers(
    tmp_path: Path, mode: Mode, move: Callable[[Stage], Any], again: bool, undisturbed: Any, asked: Any
) -> None:
    stage, watched = stage_of(tmp_path, mode)

    async def disturb(stage: Stage) -> None:
        await middle(watched)
        await move(stage)

    finished = stage.play(disturb)
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    assert any(len(replicas) > 1 for replicas in watched.replicas.values()) is again
    assert len(watched.replicas) == RESPONSES
    check(stage, mode, undisturbed, asked)


@pytest.mark.parametrize("mode", Mode)
def test_a_trainer_that_moves_gives_the_same_numbers(tmp_path: Path, mode: Mode, undisturbed: Any, asked: Any) -> None:
    stage, watched = stage_of(tmp_path, mode)

    async def move(stage: Stage) -> None:
        await middle(watched)
        assert stage.control is not None
        stage.world.kill("trainer")
        stage.control.replace("trainer-0")

    finished = stage.play(move)
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE
    assert watched.trainers[0] == 0
    assert MIDDLE <= watched.trainers[1] <= RESPONSES
    check(stage, mode, undisturbed, asked)


@pytest.mark.parametrize("mode", Mode)
def test_a_coordinator_move_changes_no_result_and_keeps_what_ended(
    tmp_path: Path, mode: Mode, undisturbed: Any, asked: Any
) -> None:
    stage, watched = stage_of(tmp_path, mode)

    async def lives() -> Any:
        former = asyncio.create_task(stage.coordinate())
        await middle(watched)
        former.cancel()
        await asyncio.gather(former, return_exceptions=True)
        assert stage.evaluated == []
        return await stage.coordinate()

    finished = virtual_time.run(lives())
    assert finished.outcome is FinishedOutcome.COMPLETE
    again = sum(len(replicas) > 1 for replicas in watched.replicas.values())
    assert 0 < again < RESPONSES, "what has a reward is not generated again"
    check(stage, mode, undisturbed, asked)
