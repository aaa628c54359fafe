"""Drawn jobs with environments: what is drawn, and that it happens in runs which hold every invariant."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import pytest

from rljob_api.spec.environments import EpisodeVersions
from rljob_api.spec.training import Mode
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.episodes.attempt import turn_of
from rljob_runtime.coordinator.fleet.machine import machine_of
from rljob_runtime.coordinator.generation.observed_engines import ObservedEngines
from rljob_runtime.coordinator.on_policy.generation import Generation
from rljob_runtime.perf_model.engine_records import EngineLoad
from rljob_runtime.perf_model.outside_time import INSIDE, OutsideTime
from rljob_runtime.protocols.trajectory import Group, Response, TrajectoryKey
from rljob_runtime.scheduling.asynchronous.async_groups import GroupTracker
from rljob_runtime.scheduling.lending.policy import LoanRules
from rljob_runtime.scheduling.round_plan import Launch
from rljob_runtime.simulator.core.events import (
    EpisodeReported,
    Event,
    Generated,
    LaidOut,
    Submitted,
    Summed,
    Trained,
)
from rljob_runtime.simulator.drawn_scenario import draw_scenario, plan_of
from rljob_runtime.simulator.episode_side import Environment, EpisodeScenario
from rljob_runtime.simulator.faults.plan import FaultPlan, Role, role_of
from rljob_runtime.simulator.invariants.episodes import EpisodeTexts, response_of
from rljob_runtime.simulator.peers.engines.replica_engine import ReplicaEngine
from rljob_runtime.simulator.peers.harness import Fault, HarnessScript
from rljob_runtime.simulator.run import simulate
from rljob_runtime.simulator.scenario import Evaluated, Experience, Scenario
from tests.support.rows import slow

DRAWN = range(400)
SEEDS = tuple(seed for seed in DRAWN if draw_scenario(seed).episodes is not None)
MERGING = (11, 3, 26, 63)
"""Seeds in whose asynchronous runs episodes move."""
SWITCHING = (18, 233, 330, 396)
"""Seeds whose machines switch while episodes have open turns."""
LENDABLE = 32
FAULTS = tuple((fault, 60) for fault in Fault)


def of(seed: int, mode: Mode) -> tuple[Scenario, EpisodeScenario]:
    scenario = draw_scenario(seed, mode)
    assert scenario.episodes is not None
    return scenario, scenario.episodes


@pytest.mark.parametrize("mode", list(Mode))
def test_a_quarter_of_the_seeds_has_environments_as_the_spec_permits(mode: Mode) -> None:
    assert 0.2 < len(SEEDS) / len(DRAWN) < 0.3
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        scenario, episodes = of(seed, mode)
        # Its spec is valid.
        assert len(scenario.job.spec.environments) == len(episodes.environments)
        seen["streaming"] += scenario.stream_training is True
        seen["switches"] += scenario.switches
        seen["loans"] += scenario.site.lendable
        seen["repack"] += Settings.of(scenario.job).repack is not None and scenario.adapt is not None
        seen["tail batching"] += (scenario.tail_factor or 1) > 1
        seen["evaluations"] += bool(scenario.evaluations)
        seen["two environments"] += len(episodes.environments) > 1
        seen["few tokens"] += episodes.max_tokens is not None
        seen["no fork"] += episodes.max_forks == 0
        seen[episodes.versions] += 1
        for one in episodes.environments:
            script = one.harness
            seen["few turns"] += one.max_turns < script.turns
            seen["faults"] += bool(script.faults)
            seen["rewards of the job"] += not script.rewards
            seen["rewards of the environment"] += script.rewards > 0
        seen.update(role_of(fault.target) for fault in plan_of(scenario).faults)
    others = {"tail batching", "switches", "loans"} if mode is Mode.ASYNCHRONOUS else {"repack"}
    wanted = {
        "switches",
        "loans",
        "evaluations",
        "two environments",
        "few tokens",
        "no fork",
        "few turns",
        "faults",
        "tail batching",
        "repack",
    }
    wanted |= {"rewards of the job", "rewards of the environment", *EpisodeVersions}
    assert min(seen[one] for one in wanted - others) >= 5
    assert all(seen[role] for role in Role)


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("seed", [SEEDS[0], *slow(*SEEDS[1:])])
def test_seeds_with_environments_hold_every_invariant(seed: int, mode: Mode) -> None:
    scenario, _ = of(seed, mode)
    outcome = simulate(scenario, plan_of(scenario))
    assert outcome.passed, f"seed {seed}: {outcome.violation}"


@pytest.mark.parametrize("seed", [MERGING[0], *slow(*MERGING[1:])])
def test_episodes_of_drawn_jobs_move_while_everything_fails(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    moved: list[int] = []
    relaunch = GroupTracker.relaunch

    def watched(groups: GroupTracker, source: str, destination: str) -> tuple[list[Launch], list[Launch]]:
        ended, launches = relaunch(groups, source, destination)
        moved.append(len(launches))
        return ended, launches

    monkeypatch.setattr(GroupTracker, "relaunch", watched)
    scenario, _ = of(seed, Mode.ASYNCHRONOUS)
    outcome = simulate(scenario, plan_of(scenario))
    assert outcome.passed, f"seed {seed}: {outcome.violation}"
    assert sum(moved) > 0


@pytest.mark.parametrize("seed", [SWITCHING[0], *slow(*SWITCHING[1:])])
def test_open_turns_go_on_in_the_other_size_from_their_tokens(seed: int) -> None:
    """While everything fails. A response whose machine switches is no other one than before."""
    continued: Counter[TrajectoryKey] = Counter()
    sizes: set[int] = set()

    def observe(event: Event) -> None:
        if isinstance(event, Submitted) and turn_of(event.key) is not None:
            continued[event.key] += event.prefix
        elif isinstance(event, LaidOut):
            sizes.add(event.tensor_parallel)

    scenario, _ = of(seed, Mode.ON_POLICY)
    assert scenario.switches
    outcome = simulate(scenario, plan_of(scenario), [observe])
    assert outcome.passed, f"seed {seed}: {outcome.violation}"
    assert len(sizes) > 1
    assert continued.total() > 100


def test_a_loan_of_a_machine_moves_its_episodes() -> None:
    """Rewards, tokens and versions are those of the episodes' turns, wherever these were generated."""
    loans: list[int] = []
    machines: defaultdict[TrajectoryKey | None, set[str]] = defaultdict(set)

    def observe(event: Event) -> None:
        if isinstance(event, Summed):
            loans.append(event.step)
        elif isinstance(event, Submitted):
            machines[response_of(event.key)].add(machine_of(event.replica))

    scenario, _ = of(LENDABLE, Mode.ON_POLICY)
    rules = LoanRules(0.0, 1.0, requires_gain=False)
    scenario = replace(scenario, adapt=lambda settings: replace(settings, lending=rules), machines=4, rounds=4)
    outcome = simulate(scenario, FaultPlan(()), [observe])
    assert outcome.passed, f"{outcome.violation}"
    assert len(set(loans)) > 1
    assert any(len(names) > 1 for response, names in machines.items() if response is not None)


def test_looks_know_the_time_outside_of_the_round_before(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[OutsideTime] = []
    observed = Generation._observed

    def watched(generation: Generation) -> ObservedEngines:
        engines = observed(generation)
        told.append(engines.outside)
        return engines

    monkeypatch.setattr(Generation, "_observed", watched)
    scenario, _ = of(LENDABLE, Mode.ON_POLICY)
    rules = LoanRules(0.0, 1.0)
    scenario = replace(scenario, adapt=lambda settings: replace(settings, lending=rules), machines=4, rounds=4)
    assert simulate(scenario, FaultPlan(())).passed
    assert told[0] == INSIDE
    assert any(one.inside < 1 and one.token_seconds + one.fixed > 0 for one in told)


@pytest.mark.parametrize("mode", [Mode.ASYNCHRONOUS, *slow(Mode.ON_POLICY)])
def test_what_harnesses_do_happens_and_is_never_an_invented_reward(mode: Mode) -> None:
    """In one job with every fault of a harness, evaluations, and a coordinator that dies."""
    script = HarnessScript(turns=3, faults=FAULTS, seed=2)
    episodes = EpisodeScenario((Environment(script, seconds=40.0), Environment(replace(script, seed=3), max_turns=1)))
    drawn = replace(
        draw_scenario(1, mode), episodes=episodes, edit=None, programs=None, evaluations=(Evaluated(2, 2, 1),)
    )
    seen: Counter[str] = Counter()

    def watch(event: Event) -> None:
        match event:
            case Generated(key=key) if (response := response_of(key)) is not None:
                seen["turns"] += 1
                seen["turns of evaluations"] += response.prompt.evaluation is not None
            case EpisodeReported(failed=failed):
                seen["failed" if failed else "reported"] += 1
            case Trained(groups=groups):
                seen["responses of several turns"] += sum(map(_has_several_turns, _responses(groups)))

    plan = FaultPlan.parse("8 crash coordinator 1; 10 loss gateway 5; 12 crash runner-0 3; 14 hang runner-1 8")
    outcome = simulate(drawn, plan, [watch])
    assert outcome.passed, outcome.violation
    assert outcome.coordinators == 2
    wanted = {"turns", "turns of evaluations", "failed", "reported", "responses of several turns"}
    assert not wanted - set(+seen)


@pytest.mark.parametrize("versions", list(EpisodeVersions))
def test_turns_of_newer_weights_happen_where_versions_are_mixed(versions: EpisodeVersions) -> None:
    """In one job with an evaluation after each update, a trainer that dies and a bound on staleness."""
    script = HarnessScript(turns=6, tool_seconds=2.0, turn_tokens=200, seed=2)
    drawn = replace(
        draw_scenario(1, Mode.ASYNCHRONOUS), machines=2, rounds=5, prompts=2, responses=2, prompts_an_epoch=1000,
        checkpoint_every=2, experience=Experience(bound=2), programs=None, dynamic_sampling=False, edit=None,
        episodes=EpisodeScenario((Environment(script),), versions=versions), evaluations=(Evaluated(2, 1, 1),),
    )  # fmt: skip
    versions_of: defaultdict[tuple[TrajectoryKey, int], set[int]] = defaultdict(set)
    """By response and attempt."""

    def watch(event: Event) -> None:
        if isinstance(event, Generated) and (response := response_of(event.key)) is not None:
            place = turn_of(event.key)
            assert place is not None
            versions_of[response, place[0]].add(event.version)

    outcome = simulate(drawn, FaultPlan.parse("40 crash trainer 1"), [watch])
    assert outcome.passed, outcome.violation
    mixed = [key for (key, _), found in versions_of.items() if len(found) > 1]
    assert bool(mixed) == (versions is EpisodeVersions.MIXED)
    assert not [key for key in mixed if key.prompt.evaluation is not None]


def _responses(groups: tuple[Group, ...]) -> list[Response]:
    return [scored.response for group in groups for scored in group.responses]


def _has_several_turns(response: Response) -> bool:
    return sum(len(one) for one in response.sequences) > 1


def test_a_reward_that_no_runner_reported_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EpisodeTexts, "reported", lambda self, event: None)
    script = HarnessScript(turns=2)
    drawn = replace(draw_scenario(1), episodes=EpisodeScenario((Environment(script),)), edit=None, evaluations=())
    outcome = simulate(drawn, FaultPlan())
    assert outcome.violation is not None
    assert outcome.violation.invariant == "no invented reward"


@pytest.mark.parametrize("episodes", [None, EpisodeScenario((Environment(HarnessScript(turns=4, seed=2)),))])
def test_only_turns_of_started_episodes_pass_waiting_requests(
    monkeypatch: pytest.MonkeyPatch, episodes: EpisodeScenario | None
) -> None:
    """On engines that generate two of the turns that wait at a time."""
    loads: list[EngineLoad] = []
    load = ReplicaEngine.load
    monkeypatch.setattr(ReplicaEngine, "load", lambda engine: loads.append(load(engine)) or loads[-1])
    drawn = draw_scenario(1)
    site = replace(drawn.site, engine=replace(drawn.site.engine, max_sequences=2))
    drawn = replace(drawn, machines=1, prompts=4, responses=4, site=site, episodes=episodes, edit=None, evaluations=())
    outcome = simulate(drawn, FaultPlan())
    assert outcome.passed, outcome.violation
    assert max(one.waiting for one in loads) > 2
    assert (max(one.passed for one in loads) > 0) == (episodes is not None)
