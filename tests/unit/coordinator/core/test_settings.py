"""What the spec says about sampling is in every request, in both modes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec import AdaptiveTensorParallel, Mode, Sampling, SwitchState
from rljob_runtime.coordinator.core.settings import Settings, sampling_of
from rljob_runtime.protocols import trajectory
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchRules
from rljob_runtime.scheduling.adaptive_tp.switch_costs import State
from rljob_runtime.scheduling.episodes.episode import EpisodeRules, Versions
from rljob_runtime.scheduling.episodes.limits import Limits
from rljob_runtime.scheduling.episodes.resumption import Recovery
from rljob_runtime.scheduling.lending.policy import LoanRules
from tests.support.simulated_job import Stage, job

CHOSEN = {"temperature": 0.7, "topP": 0.9, "topK": 20, "minP": 0.05}


def test_without_a_choice_tokens_are_drawn_from_all() -> None:
    assert sampling_of(job().spec) == trajectory.Sampling(max_tokens=40, temperature=1.0)


def test_the_choice_of_an_evaluation_is_over_that_of_training() -> None:
    training = Sampling.model_validate(CHOSEN)
    assert Sampling().over(training) == training
    assert Sampling(temperature=0, top_k=0).over(training).to_dict() == {**CHOSEN, "temperature": 0, "topK": 0}


@pytest.mark.parametrize("mode", Mode)
def test_every_request_has_the_choice_of_the_spec(tmp_path: Path, mode: Mode) -> None:
    spec: Any = {"mode": mode, "algorithm": CHOSEN, "data": {"stopStrings": ["</answer>", "\n\n"]}}
    stage, held = Stage(tmp_path / "state.db", job=job(**spec)), []

    async def watch(stage: Stage) -> None:
        while True:
            process = stage.world.process("rollout-0/replica-0")
            held.extend(process.peer.held.values() if process is not None else ())
            await asyncio.sleep(0.05)

    stage.play(watch)
    assert held
    expected = Settings.of(stage.job).sampling
    assert (expected.top_p, expected.top_k, expected.min_p) == (0.9, 20, 0.05)
    for one in held:
        asked = one.request.sampling
        assert (asked.max_tokens, asked.temperature) == (40, 0.7)
        assert (asked.top_p, asked.top_k, asked.min_p) == (0.9, 20, 0.05)
        assert asked.stop_strings == ("</answer>", "\n\n")
        assert asked.seed is not None


@pytest.mark.parametrize(
    ("adaptive", "sizes", "rules"),
    [
        ({}, [1, 2], None),
        ({"enabled": "Auto"}, None, None),
        ({"enabled": "Auto"}, [2], None),
        ({"enabled": True}, [1, 2], SwitchRules(frozenset({1, 2}), 0.03, 3, State.AUTO)),
        (
            {"enabled": "Auto", "sizes": [4, 2], "state": "Migrate", "minGain": 0.1, "maxSwitches": 1},
            [1, 2, 4],
            SwitchRules(frozenset({2, 4}), 0.1, 1, State.MIGRATE),
        ),
    ],
)
def test_machines_switch_inside_a_round_between_sizes_of_the_spec(
    adaptive: Any, sizes: list[int] | None, rules: SwitchRules | None
) -> None:
    start = sizes[0] if sizes is not None else 1
    rollout = {"acceleratorsPerMachine": 4, "tensorParallelSize": start, "allowedTensorParallelSizes": sizes}
    assert Settings.of(job(adaptiveTensorParallel=adaptive, rollout=rollout)).switch_rules == rules


CALC = {"name": "calc", "kind": "Tools", "tools": [{"function": "calculator.py:evaluate"}]}
SWE = {"name": "swe", "kind": "Agent", "command": ["agent"], "maxTurns": 80, "timeoutSeconds": 600}


@pytest.mark.parametrize(
    ("episode", "calc", "swe"),
    [
        (None, Limits(16, 96, 300.0), Limits(80, 96, 600.0)),
        ({"maxTurns": 40, "maxTokens": 64, "maxForks": 0}, Limits(16, 64, 300.0, 0), Limits(40, 64, 600.0, 0)),
    ],
)
def test_the_lower_limit_of_environment_and_job_bounds_an_episode(
    episode: dict[str, int] | None, calc: Limits, swe: Limits
) -> None:
    spec: Any = {"data": {"maxPromptTokens": 56}, **({"episode": episode} if episode else {})}
    rules = Settings.of(job(environments=[CALC, SWE], **spec)).environments
    assert list(rules.items()) == [
        ("calc", EpisodeRules(calc, Versions.SINGLE, Recovery.REPLAY)),
        ("swe", EpisodeRules(swe, Versions.SINGLE, Recovery.RERUN)),
    ]


@pytest.mark.parametrize(
    ("environment", "recovery"),
    [
        (CALC, Recovery.REPLAY),
        ({**CALC, "state": "Stateful"}, Recovery.REPLAY),
        ({**CALC, "state": "Stateless"}, Recovery.NEXT_TURN),
        (SWE, Recovery.RERUN),
    ],
)
def test_another_runner_goes_on_and_programs_run_again(environment: Any, recovery: Recovery) -> None:
    rewards = {"reward": "calculator.py:score"}
    made = Settings.of(job(environments=[{**environment, **rewards}])).environments
    assert [one.recovery for one in made.values()] == [recovery]


@pytest.mark.parametrize(
    ("mode", "episode", "versions"),
    [
        ("Asynchronous", {}, Versions.MIXED),
        ("Asynchronous", {"episode": {"maxTurns": 4}}, Versions.MIXED),
        ("OnPolicy", {}, Versions.SINGLE),
        ("Asynchronous", {"episode": {"versions": "Single"}}, Versions.SINGLE),
        ("Asynchronous", {"episode": {"versions": "Mixed"}}, Versions.MIXED),
        ("OnPolicy", {"episode": {"versions": "Mixed"}}, Versions.SINGLE),
    ],
)
def test_versions_are_mixed_in_asynchronous_jobs_unless_they_ask_for_one(
    mode: str, episode: Any, versions: Versions
) -> None:
    made = Settings.of(job(environments=[CALC], mode=mode, **episode))
    assert {one.versions for one in made.environments.values()} == {versions}
    assert made.mixes_versions == (versions is Versions.MIXED)


@pytest.mark.parametrize(
    ("changes", "merged"),
    [
        ({}, True),
        ({"repack": {"enabled": False}}, False),
        ({"environments": [CALC]}, False),
        ({"environments": [CALC], "episode": {"versions": "Single"}}, True),
        ({"environments": [CALC], "episode": {"versions": "Single"}, "repack": {"enabled": False}}, False),
        ({"environments": [CALC], "episode": {"versions": "Mixed"}}, False),
    ],
)
def test_replicas_are_merged_unless_newer_weights_need_no_release(changes: dict[str, Any], merged: bool) -> None:
    assert (Settings.of(job(mode=Mode.ASYNCHRONOUS, **changes)).repack is not None) is merged


def test_an_episodes_length_is_that_of_all_its_turns_and_tools() -> None:
    longest = [Settings.of(job(environments=made, data={"maxPromptTokens": 100})).longest_response
               for made in ([], [CALC])]  # fmt: skip
    assert longest == [40, 140]


@pytest.mark.parametrize("environments", [[], [CALC]])
def test_rounds_that_stream_may_loan_machines_that_have_episodes(environments: list[dict[str, Any]]) -> None:
    settings = Settings.of(job(stream="Auto", environments=environments))
    assert any(plan.stream for plan in settings.choices.plans)
    assert isinstance(settings.lending, LoanRules)


@pytest.mark.parametrize(("environments", "state"), [([], State.MIGRATE), ([CALC], State.RECOMPUTE)])
def test_keys_and_values_of_episodes_are_not_moved(environments: list[dict[str, Any]], state: State) -> None:
    sizes = {"slotsPerMachine": 2, "allowedTensorParallelSizes": [1, 2], "engine": "Reference"}
    adaptive = {"enabled": True, "state": "Auto" if environments else "Migrate"}
    rules = Settings.of(job(rollout=sizes, adaptiveTensorParallel=adaptive, environments=environments)).switch_rules
    assert rules is not None
    assert rules.state is state


def test_an_evaluation_counts_only_under_the_same_turns() -> None:
    def digest(**spec: Any) -> str:
        return Settings.of(job(evaluation=[{"name": "held"}], **spec)).evaluations[0].digest

    same = {**CALC, "runners": 4, "rewardSeconds": 600}
    assert digest(environments=[CALC]) == digest(environments=[same])
    others: list[dict[str, Any]] = [
        {},
        {"environments": [{**CALC, "maxTurns": 4}]},
        {"environments": [{**CALC, "toolSeconds": 60}]},
        {"environments": [CALC, SWE]},
        {"environments": [CALC], "episode": {"maxTokens": 64}},
    ]
    assert len({digest(environments=[CALC]), *(digest(**one) for one in others)}) == 1 + len(others)


def test_rates_of_loans_hold_for_the_same_machines_and_algorithm() -> None:
    def digest(**spec: Any) -> str:
        return Settings.of(job(**spec)).gradients

    assert digest() == digest(rounds=9, machines=3, evaluation=[{"name": "held"}])
    others: list[dict[str, Any]] = [
        {"trainer": {"replicas": 2}},
        {"algorithm": {"klCoefficient": 0.1}},
        {"rollout": {"slotsPerMachine": 2}},
    ]
    assert len({digest(), *(digest(**one) for one in others)}) == 1 + len(others)


def test_the_spec_and_the_policy_have_the_same_defaults() -> None:
    spec, rules = AdaptiveTensorParallel(), SwitchRules(frozenset())
    assert (spec.min_gain, spec.max_switches, spec.state.value) == (rules.min_gain, rules.max_switches, rules.state)
    assert {one.value for one in SwitchState} == {one.value for one in State}
