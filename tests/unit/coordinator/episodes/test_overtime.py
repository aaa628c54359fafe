"""An attempt whose runner reports too long after the deadline ends as a failure of ours, and no sooner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_api.spec.environments import REPORT_SECONDS, Environment
from rljob_env.config import Config, load_config
from rljob_env.conversation import LATE_SECONDS
from rljob_env.runner import RunnerSettings
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.protocols.environments import EpisodeReport
from rljob_runtime.protocols.turns import AttemptEnded
from rljob_runtime.scheduling.episodes.ends import AbortCause, EndState
from tests.support.episode_book import bench
from tests.support.episode_job import ENVIRONMENT
from tests.support.simulated_job import job

DEADLINE = 1060.0
"""Of an attempt of 1000."""
CALC = {"name": "calc", "kind": "Tools", "tools": [{"function": "calculator.py:evaluate"}]}
VERIFIED = {"name": "calc", "kind": "Verifiers", "verifiers": {"id": "gsm8k"}}


def test_a_limit_of_a_reward_is_the_overtime_of_its_attempts() -> None:
    environments = [{**CALC, "rewardSeconds": 600}, {**CALC, "name": "quick", "reward": "calculator.py:score"}]
    made = Settings.of(job(environments=environments)).environments
    assert {name: rules.overtime for name, rules in made.items()} == {"calc": 610.0, "quick": 30.0}


@pytest.mark.parametrize("overtime", [30.0, 610.0])
async def test_a_reward_may_take_its_time_after_the_deadline(tmp_path: Any, overtime: float) -> None:
    async with bench(tmp_path, overtime=overtime) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5])
        made.now[0] = DEADLINE + overtime
        await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])
        made.book.runners.look(made.now[0])
        await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(1.0))
        assert made.book.totals.ends == {EndState.COMPLETED: 1}


@pytest.mark.parametrize("overtime", [30.0, 610.0])
async def test_a_report_after_the_overtime_comes_too_late(tmp_path: Any, overtime: float) -> None:
    async with bench(tmp_path, overtime=overtime) as made:
        episode = await made.begun()
        made.now[0] = DEADLINE + overtime + 0.1
        await made.book.runners.heartbeat(ENVIRONMENT, "r", [episode])
        attempt = made.book.number(episode.attempt)
        assert attempt is not None
        made.book.runners.look(made.now[0])
        with pytest.raises(AttemptEnded):
            await made.book.runners.done(ENVIRONMENT, "r", episode, EpisodeReport(1.0))
        assert made.book.totals.aborts == {AbortCause.ENVIRONMENT: 1}
        assert attempt.episode.end is not None
        assert f"within {overtime:g} s of its deadline" in attempt.episode.end.detail


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(0.01, 3600), st.sampled_from([CALC, VERIFIED]), st.sampled_from([None, "score.py:right"]))
def test_a_runner_gives_up_before_its_coordinator_does(
    tmp_path: Any, seconds: float, kind: dict[str, Any], reward: str | None
) -> None:
    """Each scoring fits: the read of the conversation and one reward, or the package's scoring and one."""
    environment = Environment.model_validate({**kind, "reward": reward, "rewardSeconds": seconds})
    config = runner_config(tmp_path, environment)
    assert config.environment.reward_seconds == seconds
    scorings = 2 if environment.verifiers is not None and reward is not None else 1
    given_up = RunnerSettings.of(config).overrun_seconds
    assert LATE_SECONDS + scorings * seconds < given_up < environment.overtime_seconds
    assert environment.overtime_seconds == pytest.approx(scorings * seconds + REPORT_SECONDS)


def runner_config(folder: Path, environment: Environment) -> Config:
    """Return what a runner reads of an environment, as operator and local run write it."""
    file = folder / "config.json"
    told = {"url": "http://gateway", "keyFile": "key", "environment": environment.runner_options()}
    file.write_text(json.dumps(told))
    return load_config(str(file), {})
