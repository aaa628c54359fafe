"""Predictions beside the real coordinator: the cluster model of asynchronous training, and rounds of episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import pytest

from rljob_api.status import RoundReport
from rljob_bench.async_systems.asynchronous import Job, Policy
from rljob_bench.async_systems.groups import Prompts
from rljob_bench.async_systems.hardware import Hardware
from rljob_bench.async_systems.outcome import Outcome
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.scheduling.asynchronous.repack import RepackRules
from rljob_runtime.simulator.core.events import Event, Reported
from rljob_runtime.simulator.episode_side import Environment, EpisodeScenario
from rljob_runtime.simulator.faults.plan import FaultPlan
from rljob_runtime.simulator.peers.cluster import ClusterSpec
from rljob_runtime.simulator.peers.engines.engine_kind import EngineKind
from rljob_runtime.simulator.peers.harness import HarnessScript
from rljob_runtime.simulator.peers.traced_harness import TracedScript
from rljob_runtime.simulator.peers.trainer import TrainerCosts
from rljob_runtime.simulator.run import simulate
from rljob_runtime.simulator.scenario import Experience, Scenario
from rljob_runtime.workloads import Prompt, Response, ToolCall, Turn, Workload
from tests.support.rows import slow

MACHINES, PROMPTS, RESPONSES = 4, 8, 4
ROUNDS, FEW_ROUNDS, WARM_UP, COOL_DOWN = 76, 40, 12, 4
"""When updates come to an end nothing more is begun: the last ones are not like the others."""
JOBS = 2
"""Two jobs whose prompts differ by where they begin are up to a tenth apart where the trainer is fast: which replicas
meet with one version is chance."""
ENGINE = EngineKind(
    LatencyModel(((1, 0.05), (64, 0.1)), 1e-6, 0.02, 1e-4, 0.0), kv_tokens=100_000, max_sequences=256, load_seconds=0.5
)
TOOL_SECONDS = 6.0
"""As long as a turn takes."""
HOP_SECONDS, PUBLISH_SECONDS, REPACK_SECONDS = 0.2, 0.1, 2.0
MOVE_SECONDS = 0.75
"""Until the first tokens of all that moved have come from the receiver: prefill, and most of a second between two
streams."""


@dataclass(frozen=True)
class Tailed:
    """A response of every eleven is fifteen times as long as the shortest; `first` is the first prompt."""

    first: int
    task: str = "tailed"

    def prompt(self, step: int, index: int, responses: int, attempt: int = 0) -> Prompt:
        number = self.first + step * PROMPTS + index
        return Prompt(index, 10, tuple(Response((Turn(self._length(number, one)),)) for one in range(responses)))

    @staticmethod
    def _length(number: int, sample: int) -> int:
        place = number * RESPONSES + sample
        return 600 if place % 11 == 0 else 40 + 7 * (place % 5)


@dataclass(frozen=True)
class Searched:
    """Turns with a tool between any two: one to three of them, and eight in a response of every eleven."""

    first: int
    task: str = "searched"

    def prompt(self, step: int, index: int, responses: int, attempt: int = 0) -> Prompt:
        number = self.first + step * PROMPTS + index
        return Prompt(index, 10, tuple(Response(self._turns(number * RESPONSES + one)) for one in range(responses)))

    @staticmethod
    def _turns(place: int) -> tuple[Turn, ...]:
        number = 8 if place % 11 == 0 else 1 + place % 3
        tool = ToolCall(TOOL_SECONDS, 20)
        return (*[Turn(30 + 7 * (place % 5), (tool,))] * (number - 1), Turn(40))


def modelled(workload: Workload, step: float, capacity: float | None, repack: bool, rounds: int) -> Outcome:
    hardware = Hardware(
        MACHINES,
        ENGINE.latency,
        ENGINE.kv_tokens,
        token_seconds=0.0,
        update_seconds=step,
        load_seconds=ENGINE.load_seconds,
        stall_seconds=PUBLISH_SECONDS,
        broadcast_seconds=MACHINES * HOP_SECONDS,
        max_sequences=ENGINE.max_sequences,
    )
    rules = RepackRules(0.99, 64) if repack else None
    policy = Policy(capacity, repack=rules, interval=REPACK_SECONDS, move_seconds=MOVE_SECONDS)
    return Job(hardware, Prompts(workload, PROMPTS, RESPONSES, 500, 1000), policy).play(
        WARM_UP, rounds - WARM_UP - COOL_DOWN
    )


def coordinated(
    workload: Workload,
    step: float,
    capacity: float | None,
    repack: bool,
    rounds: int,
    episodes: EpisodeScenario | None = None,
) -> Sequence[RoundReport]:
    scenario = Scenario(
        seed=0,
        machines=MACHINES,
        rounds=rounds,
        prompts=PROMPTS,
        responses=RESPONSES,
        prompts_an_epoch=10_000,
        checkpoint_every=rounds,
        site=ClusterSpec(engine=ENGINE, latency=0.001, hop_seconds=HOP_SECONDS),
        costs=TrainerCosts(step=step, publish=PUBLISH_SECONDS),
        workload="",
        reward_seconds=0.0,
        experience=Experience(
            capacity=None if capacity is None else round(capacity * PROMPTS),
            repack_seconds=REPACK_SECONDS if repack else None,
        ),
        episodes=episodes,
    )
    reports: dict[int, RoundReport] = {}

    def see(event: Event) -> None:
        if isinstance(event, Reported) and event.status.last_round is not None:
            reports[event.status.last_round.round] = event.status.last_round

    outcome = simulate(scenario, FaultPlan(), (see,), workload)
    assert outcome.passed, outcome.violation
    return [reports[number] for number in range(WARM_UP + 1, rounds - COOL_DOWN + 1)]


# Any two values of the first three meet in a row.
@pytest.mark.parametrize(
    ("step", "capacity", "repack", "rounds"),
    [
        (1.0, None, True, FEW_ROUNDS),
        pytest.param(1.0, None, True, ROUNDS, marks=pytest.mark.slow),
        pytest.param(1.0, 2.0, False, ROUNDS, marks=pytest.mark.slow),
        pytest.param(12.0, None, False, ROUNDS, marks=pytest.mark.slow),
        pytest.param(12.0, 2.0, True, ROUNDS, marks=pytest.mark.slow),
        pytest.param(1.0, None, False, ROUNDS, marks=pytest.mark.slow),
        pytest.param(1.0, 2.0, True, ROUNDS, marks=pytest.mark.slow),
        pytest.param(12.0, None, True, ROUNDS, marks=pytest.mark.slow),
        pytest.param(12.0, 2.0, False, ROUNDS, marks=pytest.mark.slow),
    ],
)
def test_the_model_is_true_to_the_coordinator(step: float, capacity: float | None, repack: bool, rounds: int) -> None:
    """Where rollouts are slower than the trainer, and where it is slower: updates an hour to a tenth, staleness to half
    an update. The long responses come in waves, so a few updates would say little."""
    jobs = [Tailed(job) for job in range(JOBS)]
    told = [modelled(job, step, capacity, repack, rounds) for job in jobs]
    reports = [report for job in jobs for report in coordinated(job, step, capacity, repack, rounds)]
    assert_alike(told, reports)
    assert any(one.moved for one in told) == any(report.moved_responses for report in reports) == repack


@pytest.mark.slow
def test_the_model_is_true_to_episodes_that_wait_for_tools() -> None:
    """The same turns and waits, played by harnesses on the coordinator."""
    workload, step, capacity = Searched(0), 1.0, 2.0
    script = TracedScript(workload=workload, responses=RESPONSES)
    episodes = EpisodeScenario((Environment(script, seconds=3_000.0),))
    told = modelled(workload, step, capacity, False, FEW_ROUNDS)
    assert_alike([told], coordinated(workload, step, capacity, False, FEW_ROUNDS, episodes))


def assert_alike(told: Sequence[Outcome], reports: Sequence[RoundReport]) -> None:
    seconds = fmean(report.seconds or 0.0 for report in reports)
    staleness = fmean(report.staleness or 0.0 for report in reports)
    assert fmean(one.round_seconds for one in told) == pytest.approx(seconds, rel=0.1)
    assert fmean(one.staleness().mean for one in told) == pytest.approx(staleness, abs=0.5)


TOOLS = LatencyModel(((1, 0.010), (64, 0.020)), 1e-7, 0.010, 2e-5, 0.0)


@pytest.mark.parametrize("tool_seconds", [*slow(0.0, 0.5, 2.0), 10.0])
def test_rounds_of_episodes_are_predicted_with_the_time_of_their_tools(tool_seconds: float) -> None:
    """With tools of 10 s, rounds took four times as long as their turns alone, and each was a surprise."""
    reports: dict[int, RoundReport] = {}
    engine = EngineKind(TOOLS, kv_tokens=1 << 20, max_sequences=256, stream_seconds=0.5)
    script = HarnessScript(turns=6, prompt_tokens=40, tool_tokens=30, tool_seconds=tool_seconds, turn_tokens=200)
    scenario = Scenario(
        seed=1,
        machines=2,
        rounds=7,
        prompts=16,
        responses=8,
        prompts_an_epoch=1000,
        checkpoint_every=10,
        site=ClusterSpec(engine=engine),
        costs=TrainerCosts(step=2.0, token=1e-5),
        workload="rollpacker-7b-8k",
        reward_seconds=0.1,
        episodes=EpisodeScenario(environments=(Environment(script),)),
        auto=True,
        first_responses=64,
    )

    def observe(event: Event) -> None:
        if isinstance(event, Reported) and event.status.last_round is not None:
            reports[event.status.last_round.round] = event.status.last_round

    outcome = simulate(scenario, FaultPlan(()), [observe])
    assert outcome.passed, outcome.violation
    foreseen = [one.seconds / one.predicted_seconds for one in reports.values() if one.predicted_seconds]
    assert len(foreseen) == 5
    assert max(foreseen) < 1.4
    assert min(foreseen) > 0.9
