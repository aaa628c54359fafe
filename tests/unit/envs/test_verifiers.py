"""Environments of the `verifiers` package, with a stand-in for it: its reward, our tokens, its failures ours."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rljob_env.verifiers.episode import outcome
from rljob_runtime.protocols.environments import TRACE_TOKENS, TRACE_TURNS, FailedPart, HarnessLimit
from rljob_runtime.scheduling.episodes.limits import Limits
from tests.support.envs.site import RECORD, open_site, scripted
from tests.support.paths import ROOT

STAND_IN = ROOT / "tests/support/envs/stand_in_verifiers"
FIRST = {**RECORD, "task": 0}
GIVEN = {"deadline": 0.0, "maxTurns": 3}
"""Of an episode whose deadline is over."""


async def test_an_environment_plays_a_task_and_gives_the_reward() -> None:
    async with open_site(scripted("again", "5")) as site, site.stack:
        harness = site.verifiers(STAND_IN, max_turns=3)
        report = await site.report_of(harness, record=FIRST, seconds=120.0)
        assert (report.reward, report.failed) == (1.0, None), report.detail
        metrics = dict(report.metrics)
        assert metrics.pop("env_seconds") > 0
        assert 0 < metrics.pop("seconds") <= 120.0
        tokens = sum(len(tokens) for _, tokens, _ in site.coordinator.engine.emitted)
        traced = {"turns": 2, TRACE_TURNS: 2, TRACE_TOKENS: tokens}
        assert metrics == {"max_turns": 3, "here": 1, "without_shell": 1, "loads": 1, **traced}
        assert site.loss_tokens() == site.coordinator.engine.emitted


async def test_a_record_names_its_task_and_tasks_are_loaded_once() -> None:
    async with open_site(scripted("9")) as site, site.stack:
        await site.run(site.verifiers(STAND_IN))
        rewards = []
        for index, task in enumerate((0, 1, 1)):
            report = await site.environments.reported(await site.put(index, record={**RECORD, "task": task}))
            rewards.append((report.reward, report.metrics["loads"]))
        assert rewards == [(0.0, 1), (1.0, 1), (1.0, 1)]
        assert "4+5" in site.prompts()[2]


@pytest.mark.parametrize(
    ("fault", "record", "detail"),
    [
        ("raises", FIRST, "OSError: the data are gone"),
        ("error", FIRST, "SandboxError: no space"),
        ("unscored", FIRST, "did not score the episode"),
        ("infinite", FIRST, "a finite number would be right"),
        ("", {**RECORD, "task": 2}, "the taskset has 2 tasks"),
        ("", RECORD, "the record's field task is None"),
        ("", {**RECORD, "task": -1}, "the record's field task is -1"),
    ],
)
async def test_a_failure_of_the_environment_is_no_reward(fault: str, record: dict[str, Any], detail: str) -> None:
    async with open_site() as site, site.stack:
        report = await site.report_of(site.verifiers(STAND_IN, fault=fault), record=record)
        assert (report.reward, report.failed) == (None, FailedPart.ENVIRONMENT)
        assert detail in report.detail


async def test_an_environment_that_is_not_there_is_a_failure_of_ours() -> None:
    async with open_site() as site, site.stack:
        report = await site.report_of(site.verifiers(STAND_IN, "absent"), record=FIRST)
        assert (report.reward, report.failed) == (None, FailedPart.ENVIRONMENT)
        assert "taskset 'absent' not found" in report.detail


async def test_an_environment_that_does_not_end_is_killed() -> None:
    async with open_site() as site, site.stack:
        harness = site.verifiers(STAND_IN, fault="sleeps", reward_seconds=0.1)
        report = await site.report_of(harness, record=FIRST, seconds=5.0)
        assert (report.reward, report.failed) == (None, FailedPart.ENVIRONMENT)
        assert (harness.workers.stats.timed_out, harness.workers.stats.died) == (1, 0)


async def test_the_time_of_a_rollout_begins_when_its_environment_is_loaded() -> None:
    """Else the rollout of a cold worker outlives the attempt, which lapses."""
    async with open_site() as site, site.stack:
        report = await site.report_of(site.verifiers(STAND_IN, fault="loads for 3"), record=FIRST, seconds=60.0)
        assert (report.reward, report.failed) == (1.0, None), report.detail
        assert 1.0 < report.metrics["seconds"] <= 57.0


async def test_an_environment_that_loads_for_too_long_is_a_failure_of_ours() -> None:
    async with open_site() as site, site.stack:
        harness = site.verifiers(STAND_IN, fault="loads for 600")
        report = await site.report_of(harness, record=FIRST, seconds=2.0)
        assert (report.reward, report.failed) == (None, FailedPart.ENVIRONMENT)
        assert "did not load within the episode's 2 s: raise timeoutSeconds" in report.detail
        assert harness.workers.stats.timed_out == 0
        await harness.close()
        assert harness._left == set(), "a load ends with its runner"


async def test_a_load_that_outlasts_its_attempt_goes_on_for_the_next_one() -> None:
    """One process loads, and attempts that find a process that has loaded do not wait for it."""
    async with open_site(scripted("5")) as site, site.stack:
        harness = site.verifiers(STAND_IN, fault="loads for 8")
        first = await site.report_of(harness, record=FIRST, seconds=3.0)
        assert first.failed is FailedPart.ENVIRONMENT
        for attempt in range(1, 20):
            report = await site.environments.reported(await site.put(attempt, record=FIRST, seconds=3.0))
            if report.failed is None:
                break
            assert "did not load within" in report.detail or "to load, and its time was over" in report.detail
        assert (report.reward, report.failed) == (1.0, None), report.detail
        assert harness.workers.stats.started == 1


async def test_a_time_out_after_a_long_load_is_a_failure_of_ours() -> None:
    """The next attempt finds a worker that has loaded it, and then the time is the policy's alone."""
    async with open_site() as site, site.stack:
        harness = site.verifiers(STAND_IN, fault="times out, loads for 2")
        report = await site.report_of(harness, record=FIRST, seconds=9.0)
        assert (report.reward, report.failed) == (None, FailedPart.ENVIRONMENT)
        assert "s to load, and its time was over: raise timeoutSeconds" in report.detail
        again = await site.environments.reported(await site.put(1, record=FIRST, seconds=2.0))
        assert (again.reward, again.failed, again.limit) == (1.0, None, HarnessLimit.SECONDS), again.detail


async def test_the_most_turns_of_an_agent_are_stated_as_the_limit() -> None:
    async with open_site(scripted("again")) as site, site.stack:
        report = await site.report_of(site.verifiers(STAND_IN, max_turns=2), record=FIRST)
        assert (report.reward, report.failed, report.limit) == (0.0, None, HarnessLimit.TURNS)


@pytest.mark.parametrize(
    ("stopped", "left", "expected"),
    [
        ({"is_timeout": True}, -1.0, "seconds"),
        ({"is_timeout": True}, 60.0, None),
        ({}, -1.0, None),
        ({"stop_condition": "max_turns", "turns": 3}, 60.0, "turns"),
        ({"stop_condition": "max_turns", "turns": 2}, 60.0, None),
        ({"stop_condition": "agent_completed", "turns": 3}, 60.0, None),
    ],
    ids=[
        "the deadline",
        "its own time",
        "after the deadline",
        "all turns",
        "its own turns",
        "an answer in the last turn",
    ],
)
def test_a_limit_is_the_jobs_and_none_of_the_environments_own(
    stopped: dict[str, Any], left: float, expected: str | None
) -> None:
    turns = stopped.pop("turns", 0)
    one = trace(1.0, calls=[call() for _ in range(turns)], **stopped)
    given = {"deadline": time.monotonic() + left, "maxTurns": 3}
    assert outcome(SimpleNamespace(traces=[one], errors=[]), given)["limit"] == expected


async def test_a_limit_of_the_episode_is_the_policys_doing(tmp_path: Path) -> None:
    async with open_site(scripted("again"), Limits(turns=2)) as site, site.stack:
        report = await site.report_of(site.verifiers(STAND_IN), record=FIRST)
        assert (report.reward, report.failed, report.metrics["turns"]) == (None, None, 2)
        assert "episode_limit_reached" in report.detail


async def test_an_environment_without_a_reward_leaves_it_to_the_job(tmp_path: Path) -> None:
    async with open_site() as site, site.stack:
        report = await site.report_of(site.verifiers(STAND_IN, fault="no reward"), record=FIRST)
        assert (report.reward, report.failed) == (None, None)


async def test_an_environment_without_a_reward_is_scored_with_its_conversation(tmp_path: Path) -> None:
    (tmp_path / "score.py").write_text(
        "def right(record, messages, answer):\n"
        "    assert messages[-1] == {'role': 'assistant', 'content': answer, 'refusal': None}, messages\n"
        "    return {'reward': float(answer == '5'), 'messages': len(messages)}\n"
    )
    for name in ("verifiers", "__init__.py"):
        (tmp_path / name).symlink_to(STAND_IN / name)
    async with open_site(scripted("again", "5")) as site, site.stack:
        harness = site.verifiers(tmp_path, fault="no reward", reward="score.py:right")
        report = await site.report_of(harness, record=FIRST)
        assert (report.reward, report.failed, report.metrics["messages"] > 2) == (1.0, None, True), report.detail


def trace(*rewards: float | None, trainable: bool = True, **more: Any) -> Any:
    given = {str(index): None if one is None else SimpleNamespace(value=one) for index, one in enumerate(rewards)}
    blank = {"metrics": {}, "calls": [], "errors": [], "is_timeout": False, "stop_condition": None}
    return SimpleNamespace(**{"agent": SimpleNamespace(trainable=trainable), "rewards": given, **blank, **more})


def error(message: str, status: int | None = None) -> Any:
    return SimpleNamespace(type="ProviderError", message=message, status_code=status)


def call(status: int | None = None) -> Any:
    return SimpleNamespace(error=None if status is None else error("away", status), usage=None)


@pytest.mark.parametrize(
    ("traces", "errors", "expected"),
    [
        ([trace(0.5, 0.25)], [], ("reward", 0.75)),
        ([trace(1.0), trace(0.0), trace(7.0, trainable=False)], [], ("reward", 0.5)),
        ([trace()], [], ("reward", None)),
        ([trace(1.0, None)], [], ("failed", "the environment did not score the episode")),
        ([trace(1.0)], [error("raised")], ("failed", "ProviderError: raised")),
        ([trace(1.0, errors=[error("upstream 503", 503)])], [], ("failed", "ProviderError: upstream 503")),
        ([trace(errors=[error("no such key", 401)])], [], ("over", "ProviderError: no such key")),
        ([trace(errors=[error("attempt_ended", 403)])], [error("ended")], ("over", None)),
        ([trace(errors=[error("episode_limit_reached", 400)])], [], ("reward", None)),
        ([trace(errors=[error("episode_limit_reached", 400), error("no space")])], [], ("failed", None)),
        ([trace(0.5, is_timeout=True, calls=[call()])], [], ("reward", 0.5)),
        ([trace(0.5, is_timeout=True, calls=[call(), call(503)])], [], ("failed", None)),
        ([trace(0.5, is_timeout=True, calls=[call(503), call()])], [], ("reward", 0.5)),
    ],
)
def test_what_an_episode_of_the_package_means(traces: list[Any], errors: list[Any], expected: tuple[str, Any]) -> None:
    field, value = expected
    found = outcome(SimpleNamespace(traces=traces, errors=errors), GIVEN)
    assert field in found
    assert not {"reward", "failed", "over"} & set(found) - {field}
    assert value is None or found[field] == value


def test_metrics_of_a_package_are_as_many_as_a_report_holds() -> None:
    names = {f"m{index}": 1.0 for index in range(100)} | {"infinite": float("inf"), "x" * 200: 1.0}
    found = outcome(SimpleNamespace(traces=[trace(1.0, metrics=names)], errors=[]), GIVEN)
    assert len(found["metrics"]) == 51
