"""An environment behind an OpenEnv server: answers are actions, rewards are summed, and its failures are no zeros."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from rljob_env.failures import Failed, Part
from rljob_env.openenv.actions import ActionRefused, action_of, instruction, observation_text, result_text, tool_of
from rljob_env.openenv.harness import reset_arguments
from rljob_env.openenv.session import STEP_SECONDS
from rljob_env.runner import RunnerSettings
from rljob_env.tools.toolbox import ToolError
from rljob_runtime.protocols.environments import FailedPart, HarnessLimit
from rljob_runtime.scheduling.episodes.limits import Limits
from tests.support.envs.site import RECORD, call, open_site, scripted
from tests.support.envs.stand_in_openenv import BET, CALL, GUESS, StandInOpenEnv

REWARDS = "def none(record, messages, answer):\n    return {'reward': 0.0, 'messages': len(messages)}\n"


async def test_answers_are_actions_until_the_environment_is_done(tmp_path: Path) -> None:
    server = StandInOpenEnv()
    async with server.serve() as url, open_site(scripted("3", " 5 ")) as site, site.stack:
        report = await site.report_of(site.open_env(tmp_path, url))
        assert (report.reward, report.failed) == (1.25, None)
        metrics = dict(report.metrics)
        assert metrics.pop("env_seconds") > 0
        assert metrics == {"turns": 2, "env_steps": 2, "refused_actions": 0, "done": 1}
        first, second = site.prompts()
        assert "<|im_start|>user\n2+3\n\nGuess a number.<|im_end|>" in first
        assert second.endswith("<|im_start|>user\nwrong<|im_end|>\n<|im_start|>assistant\n")
        assert server.actions == [{"guess": "3"}, {"guess": "5"}]


async def test_each_response_to_a_record_has_the_same_task_in_its_own_session(tmp_path: Path) -> None:
    server = StandInOpenEnv()
    async with server.serve() as url, open_site() as site, site.stack:
        await site.run(site.open_env(tmp_path, url))
        records = [RECORD, RECORD, {**RECORD, "prompt": "other"}, {**RECORD, "reset": {"seed": 7, "level": 2}}]
        for index, record in enumerate(records):
            await site.environments.reported(await site.put(index, record=record))
        seeds = [one["seed"] for one in server.resets]
        assert seeds[0] == seeds[1] != seeds[2]
        assert server.resets[3] == {"seed": 7, "level": 2}
        assert server.sessions == 0


async def test_an_action_of_several_fields_is_a_json_object(tmp_path: Path) -> None:
    server = StandInOpenEnv(BET)
    said = scripted("I bet on 5", '{"guess": "5"}', '```json\n{"guess": "5", "stake": 2}\n```')
    async with server.serve() as url, open_site(said) as site, site.stack:
        report = await site.report_of(site.open_env(tmp_path, url))
        assert (report.reward, report.failed, report.metrics["refused_actions"]) == (1.0, None, 2)
        first, second, third = site.prompts()
        assert 'Answer with a JSON object of this schema: {"title": "BetAction"' in first
        assert "error: the answer is no action" in second
        assert "error: stake: Field required" in third
        assert report.metrics["env_steps"] == 1


async def test_actions_that_call_tools_are_offered_as_tools(tmp_path: Path) -> None:
    server = StandInOpenEnv(CALL)
    said = scripted(call("guess", "{}"), call("guess", '{"number": "3"}'), call("guess", '{"number": "5"}') * 2)
    async with server.serve() as url, open_site(said) as site, site.stack:
        report = await site.report_of(site.open_env(tmp_path, url))
        assert (report.reward, report.failed) == (1.25, None)
        first, second, third = site.prompts()
        assert "Guess the number." in first
        assert "<|im_start|>tool\nerror: invalid_args of the tool<|im_end|>" in second
        assert "<|im_start|>tool\nwrong<|im_end|>" in third
        # The environment was done after the first of two calls.
        assert [one["arguments"] for one in server.actions] == [{}, {"number": "3"}, {"number": "5"}]


async def test_an_answer_without_calls_ends_an_episode_with_tools(tmp_path: Path) -> None:
    said = scripted(call("guess", '{"number": "3"}'), "I give up")
    async with StandInOpenEnv(CALL).serve() as url, open_site(said) as site, site.stack:
        report = await site.report_of(site.open_env(tmp_path, url))
        assert (report.reward, report.metrics["turns"], report.metrics["done"]) == (0.25, 2, 0)


@pytest.mark.parametrize(
    ("fault", "detail"),
    [
        (("schema", "absent"), "does not describe its actions"),
        (("reset", "raises"), "failed in reset: EXECUTION_ERROR: the disk is full"),
        (("step", "raises"), "failed in step: EXECUTION_ERROR: the disk is full"),
        (("step", "hangs"), "within 1 s"),
        (("step", "breaks off"), "broke off in step"),
        (("step", "no JSON"), "answers a step with 'no JSON'"),
        (("step", '{"type": "observation", "data": {}}'), "answers a step with"),
        (
            ("step", '{"type": "observation", "data": {"observation": {}, "done": true, "reward": NaN}}'),
            "a finite number would be right",
        ),
    ],
)
async def test_a_failure_of_the_environment_is_no_reward(tmp_path: Path, fault: tuple[str, str], detail: str) -> None:
    async with StandInOpenEnv(fault=fault).serve() as url, open_site(scripted("3")) as site, site.stack:
        seconds = 1.0 if fault[1] == "hangs" else STEP_SECONDS
        report = await site.report_of(site.open_env(tmp_path, url, step_seconds=seconds))
        assert (report.reward, report.failed) == (None, FailedPart.ENVIRONMENT)
        assert detail in report.detail


async def test_a_transport_failure_of_a_tool_is_no_reward(tmp_path: Path) -> None:
    said = scripted(call("guess", '{"number": "gone"}'))
    async with StandInOpenEnv(CALL).serve() as url, open_site(said) as site, site.stack:
        report = await site.report_of(site.open_env(tmp_path, url))
        assert (report.reward, report.failed) == (None, FailedPart.TOOL_SERVER)


async def test_a_server_that_is_not_there_is_a_failure_of_ours(tmp_path: Path) -> None:
    async with StandInOpenEnv().serve() as url:
        pass
    async with open_site() as site, site.stack:
        report = await site.report_of(site.open_env(tmp_path, url))
        assert (report.reward, report.failed) == (None, FailedPart.ENVIRONMENT)


async def test_an_environment_silent_at_the_deadline_is_a_failure_of_ours(tmp_path: Path) -> None:
    async with StandInOpenEnv(fault=("step", "hangs")).serve() as url, open_site() as site, site.stack:
        report = await site.report_of(site.open_env(tmp_path, url), seconds=1.5)
        assert (report.reward, report.failed) == (None, FailedPart.ENVIRONMENT)
        assert "did not answer until the deadline" in report.detail


async def test_an_episode_waits_for_a_place_at_its_server(tmp_path: Path) -> None:
    server = StandInOpenEnv(places=1)
    async with server.serve() as url, open_site(scripted("3", "5")) as site, site.stack:
        harness = site.open_env(tmp_path, url)
        await site.run(harness, RunnerSettings(episodes=3, heartbeat_seconds=0.05))
        episodes = [await site.put(index) for index in range(3)]
        reports = await asyncio.gather(*(site.environments.reported(one) for one in episodes))
        assert [(one.reward, one.failed) for one in reports] == [(1.25, None)] * 3
        assert server.most_sessions == 1
        assert harness.stats.server_full == server.refused > 0


@pytest.mark.parametrize(
    ("limits", "most", "turns", "stated"),
    [(Limits(), 3, 3, HarnessLimit.TURNS), (Limits(turns=2), 16, 2, None)],
    ids=["its own", "the gateway's"],
)
async def test_a_limit_ends_an_episode_with_the_rewards_so_far(
    tmp_path: Path, limits: Limits, most: int, turns: int, stated: HarnessLimit | None
) -> None:
    async with StandInOpenEnv().serve() as url, open_site(scripted("3"), limits) as site, site.stack:
        report = await site.report_of(site.open_env(tmp_path, url, max_turns=most))
        assert (report.reward, report.failed, report.limit) == (0.25 * turns, None, stated)
        assert (report.metrics["turns"], report.metrics["done"]) == (turns, 0)


@pytest.mark.parametrize("said", [("3", "5"), (call("guess", '{"number": "3"}'), "I give up")])
async def test_an_end_in_the_last_turn_reaches_no_limit(tmp_path: Path, said: tuple[str, str]) -> None:
    server = StandInOpenEnv(GUESS if said[1] == "5" else CALL)
    async with server.serve() as url, open_site(scripted(*said)) as site, site.stack:
        report = await site.report_of(site.open_env(tmp_path, url, max_turns=2))
        assert (report.metrics["turns"], report.failed, report.limit) == (2, None, None)


async def test_a_deadline_while_the_model_generates_is_stated_as_the_limit(tmp_path: Path) -> None:
    async with StandInOpenEnv().serve() as url, open_site(scripted("3")) as site, site.stack:

        def says(prompt: str, turn: int) -> str:
            site.coordinator.weights.clear()
            return "3"

        site.coordinator.engine.script = says
        report = await site.report_of(site.open_env(tmp_path, url), seconds=4.0)
        assert (report.reward, report.failed, report.limit) == (0.25, None, HarnessLimit.SECONDS)
        site.coordinator.weights.set()


@pytest.mark.parametrize(("reward", "expected"), [(None, None), ("rewards.py:none", 0.0)])
async def test_an_environment_without_rewards_leaves_them_to_the_job(
    tmp_path: Path, reward: str | None, expected: float | None
) -> None:
    (tmp_path / "rewards.py").write_text(REWARDS)
    async with StandInOpenEnv(rewards=False).serve() as url, open_site(scripted("5")) as site, site.stack:
        report = await site.report_of(site.open_env(tmp_path, url, reward=reward))
        assert (report.reward, report.failed) == (expected, None)


@pytest.mark.parametrize(
    ("answer", "schema", "action"),
    [
        (" 5\n", GUESS, {"guess": "5"}),
        ('{"guess": "5"}', GUESS, {"guess": "5"}),
        ('{"other": "5"}', GUESS, {"guess": '{"other": "5"}'}),
        ("{}", GUESS, {"guess": "{}"}),
        ("[1]", GUESS, {"guess": "[1]"}),
        ('```\n{"stake": 1, "guess": "5"}\n```', BET, {"stake": 1, "guess": "5"}),
        ("hi", {"properties": {"metadata": {}, "message": {"type": "string"}}}, {"message": "hi"}),
    ],
)
def test_an_answer_as_an_action(answer: str, schema: Any, action: Any) -> None:
    assert action_of(answer, schema) == action


@pytest.mark.parametrize("answer", ["", "5", "[" * 100_000, '{"other": 1}', "```", "``````"])
def test_an_answer_that_is_no_action_is_refused(answer: str) -> None:
    with pytest.raises(ActionRefused):
        action_of(answer, BET)


def test_what_the_model_sees() -> None:
    assert observation_text({"metadata": {"a": 1}}) == ""
    assert observation_text({"text": "hello", "metadata": {}}) == "hello"
    assert observation_text({"board": [1], "text": "é"}) == '{"board": [1], "text": "é"}'
    assert instruction(GUESS) == instruction(CALL) == ""
    assert "metadata" not in instruction(BET)
    assert result_text({"result": "plain"}) == "plain"
    assert result_text({"result": {"a": 1}}) == '{"a": 1}'
    with pytest.raises(ToolError, match="why"):
        result_text({"result": {"content": [{"type": "text", "text": "why"}], "is_error": True}})
    with pytest.raises(Failed, match="as a tool"):
        tool_of({"name": "guess"})


def test_wrong_arguments_of_a_reset_are_a_failure_of_ours() -> None:
    with pytest.raises(Failed, match="field reset") as caught:
        reset_arguments({"reset": 7})
    assert caught.value.part is Part.ENVIRONMENT
