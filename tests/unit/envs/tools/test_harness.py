"""The built-in loop: the model calls functions until it answers. What its arguments cause, the model sees."""

from __future__ import annotations

import asyncio
import textwrap
import time
from pathlib import Path

import httpx
import pytest

from rljob_env.config import TOOLS, EnvironmentConfig
from rljob_env.episode import Assignment, Attempt, Limit
from rljob_env.failures import EpisodeOver, Failed, Part
from rljob_env.model import RETRY_HEADER, LimitReached, Model
from rljob_env.tools.harness import ToolsHarness
from rljob_env.tools.toolbox import Toolbox
from rljob_runtime.protocols.environments import RUNNERS_LIMITS, RUNNERS_PARTS, FailedPart, HarnessLimit
from rljob_runtime.scheduling.episodes.limits import Limits
from tests.support.envs.site import MESSAGES, RECORD, call, open_site, scripted

FUNCTIONS = '''
import os
import time
from rljob_env import ToolServerFailed
from rljob_env.tools.toolbox import Toolbox

def add(a: int, b: int = 0) -> int:
    """Add two numbers."""
    print("what a tool prints is no answer", flush=True)
    return a + b

def divide(a: int, b: int) -> float:
    return a / b

def hang(seconds: float) -> str:
    time.sleep(seconds)
    return "awake"

def die() -> None:
    os._exit(3)

def gone() -> None:
    raise ToolServerFailed("the index is not mounted")

def long() -> str:
    return "x" * 100_000 + "\\ud800"

def of_files(*paths: str) -> None:
    """Have no names for its arguments."""
'''
REWARDS = """
import time

def right(record, messages, answer):
    return {"reward": float(answer == str(record["answer"])), "messages": len(messages)}

def nan(record, messages, answer):
    return float("nan")

def raises(record, messages, answer):
    return record["absent"]

def hang(record, messages, answer):
    time.sleep(600)
"""
ADD = call("add", '{"a": 2, "b": 3}')


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tools.py").write_text(textwrap.dedent(FUNCTIONS))
    (tmp_path / "rewards.py").write_text(textwrap.dedent(REWARDS))
    return tmp_path


async def test_an_answer_without_calls_ends_the_episode_and_is_scored(root: Path) -> None:
    async with open_site(scripted(f"I add.{ADD}", "5")) as site, site.stack:
        report = await site.report_of(site.tools(root, "tools.py:add", reward="rewards.py:right"))
        assert (report.reward, report.failed) == (1.0, None)
        metrics = dict(report.metrics)
        assert metrics.pop("tool_seconds") > 0
        assert metrics == {"turns": 2, "tool_calls": 1, "tool_errors": 0, "messages": 4}
        first, second = site.prompts()
        assert "Add two numbers." in first
        assert second.endswith("<|im_start|>tool\n5<|im_end|>\n<|im_start|>assistant\n")


async def test_without_a_function_the_environment_gives_no_reward(root: Path) -> None:
    async with open_site() as site, site.stack:
        report = await site.report_of(site.tools(root, "tools.py:add"))
        assert (report.reward, report.failed) == (None, None)


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        (call("divide", '{"a": 1, "b": 0}'), "error: ZeroDivisionError: division by zero"),
        (call("divide", '{"a": 1}'), "error: missing arguments: b"),
        (call("divide", '{"a": 1, "b": "x"}'), "error: b is 'x'; a value of type integer would be right"),
        (call("divide", '{"a": 1, "b": true}'), "error: b is True; a value of type integer would be right"),
        (call("divide", '{"a": 1, "b": 2, "c": 3}'), "error: there is no argument 'c'; a, b would be right"),
        (call("multiply", "{}"), "error: there is no tool 'multiply'; divide would be right"),
    ],
)
async def test_what_the_models_arguments_cause_is_an_observation(root: Path, said: str, seen: str) -> None:
    async with open_site(scripted(said, "done")) as site, site.stack:
        report = await site.report_of(site.tools(root, "tools.py:divide"))
        assert report.failed is None
        assert report.metrics["tool_errors"] == 1
        assert f"<|im_start|>tool\n{seen}<|im_end|>" in site.prompts()[1]


async def test_a_tool_that_hangs_is_ended_and_the_next_call_is_answered(root: Path) -> None:
    async with open_site(scripted(call("hang", '{"seconds": 600}'), ADD, "5")) as site, site.stack:
        harness = site.tools(root, "tools.py:hang", "tools.py:add", tool_seconds=3.0)
        report = await site.report_of(harness)
        assert report.failed is None
        assert "error: no answer within 3 s" in site.prompts()[1]
        assert "<|im_start|>tool\n5<|im_end|>" in site.prompts()[2]
        assert (harness.tool_workers.stats.started, harness.tool_workers.stats.timed_out) == (2, 1)


async def test_what_a_tool_returns_is_bounded_and_can_be_sent(root: Path) -> None:
    async with open_site() as site:
        harness = site.tools(root, "tools.py:long")
        found = await harness.tool_workers.observe("tools.py:long", {}, 30.0)
        assert len(found) < 70_000
        assert found.endswith("(34465 more characters)")
        await harness.close()


@pytest.mark.parametrize(
    ("function", "detail"),
    [
        ("tools.py:die", "the process of tools.py:die died"),
        ("tools.py:gone", "the index is not mounted"),
        ("tools.py:of_files", "a model names its arguments"),
        ("tools.py:absent", "has no attribute 'absent'"),
        ("absent.py:add", "cannot load 'absent.py:add'"),
        ("absent_module:add", "No module named 'absent_module'"),
    ],
)
async def test_a_tool_that_breaks_by_itself_is_a_failure_of_ours(root: Path, function: str, detail: str) -> None:
    said = call(function.partition(":")[2], "{}")
    async with open_site(scripted(said, "done")) as site, site.stack:
        report = await site.report_of(site.tools(root, function))
        assert (report.reward, report.failed) == (None, FailedPart.TOOL_SERVER)
        assert detail in report.detail


@pytest.mark.parametrize(
    ("reward", "detail"),
    [
        ("rewards.py:raises", "KeyError: 'absent'"),
        ("rewards.py:nan", "a finite number would be right"),
        ("rewards.py:hang", "did not return within rewardSeconds (3 s)"),
        ("rewards.py:absent", "cannot load"),
    ],
)
async def test_a_reward_that_fails_is_no_zero(root: Path, reward: str, detail: str) -> None:
    async with open_site() as site, site.stack:
        report = await site.report_of(site.tools(root, "tools.py:add", reward=reward, reward_seconds=3.0))
        assert (report.reward, report.failed) == (None, FailedPart.ENVIRONMENT)
        assert detail in report.detail


async def test_the_most_turns_end_an_episode(root: Path) -> None:
    async with open_site(scripted(ADD)) as site, site.stack:
        report = await site.report_of(site.tools(root, "tools.py:add", max_turns=3, reward="rewards.py:right"))
        assert (report.reward, report.metrics["turns"], report.limit) == (0.0, 3, HarnessLimit.TURNS)
        assert len(site.prompts()) == 3


async def test_an_answer_in_the_last_turn_reaches_no_limit(root: Path) -> None:
    async with open_site(scripted(ADD, "5")) as site, site.stack:
        report = await site.report_of(site.tools(root, "tools.py:add", max_turns=2, reward="rewards.py:right"))
        assert (report.reward, report.metrics["turns"], report.limit) == (1.0, 2, None)


async def test_an_episode_that_reaches_its_limit_is_scored(root: Path) -> None:
    async with open_site(scripted(ADD), Limits(turns=2)) as site, site.stack:
        report = await site.report_of(site.tools(root, "tools.py:add", reward="rewards.py:right"))
        assert (report.reward, report.metrics["turns"], report.failed) == (0.0, 2, None)
        assert report.limit is None, "the coordinator has refused a turn"


async def test_the_deadline_ends_an_episode_and_is_no_failure(root: Path) -> None:
    async with open_site(scripted(call("hang", '{"seconds": 600}'))) as site, site.stack:
        harness = site.tools(root, "tools.py:hang", reward="rewards.py:right", tool_seconds=500.0)
        began = time.monotonic()
        report = await site.report_of(harness, seconds=8.0)
        assert time.monotonic() - began >= 6
        assert (report.reward, report.failed, report.limit) == (0.0, None, HarnessLimit.SECONDS)


def answers_of(*answers: httpx.Response | Exception) -> tuple[httpx.AsyncClient, list[httpx.Request]]:
    """Return a client of a stand-in gateway that gives these answers, and then the last again."""
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        found = answers[min(len(sent), len(answers)) - 1]
        if isinstance(found, Exception):
            raise found
        return found

    return httpx.AsyncClient(transport=httpx.MockTransport(answer)), sent


async def test_a_deadline_while_the_gateway_is_away_is_a_failure_of_ours(root: Path) -> None:
    http, sent = answers_of(httpx.ConnectError("refused"))
    async with open_site() as site, site.stack, http:
        harness = ToolsHarness(http, http, EnvironmentConfig("calc", TOOLS), root, site.guard)
        report = await site.report_of(harness, seconds=2.0)
        assert (report.reward, report.failed) == (None, FailedPart.ENVIRONMENT)
        assert report.detail == "the gateway did not answer until the deadline"
        assert len(sent) > 1


ASSIGNMENT = Assignment(Attempt("0.0.0", 1), RECORD, MESSAGES, time.monotonic() + 3600, "http://gateway/v1", "k", "m")
ANSWER = httpx.Response(200, json={"choices": [{"message": {"role": "assistant", "content": "5", "refusal": None}}]})


def refused(status: int, code: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"code": code, "message": "why"}}, headers={"Retry-After": "0"})


async def test_a_request_is_sent_again_as_a_retry_until_the_gateway_answers() -> None:
    http, sent = answers_of(httpx.ReadError("reset"), refused(503, "loading"), httpx.ReadTimeout("slow"), ANSWER)
    async with http:
        model = Model(http, ASSIGNMENT)
        assert await model.answer(MESSAGES, []) == {"role": "assistant", "content": "5"}
    assert [request.headers[RETRY_HEADER] for request in sent] == ["0", "1", "2", "3"]
    assert len({request.content for request in sent}) == 1
    assert (model.sent_again, model.away) == (3, False)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refused(401, "invalid_api_key"), EpisodeOver),
        (refused(403, "attempt_ended"), EpisodeOver),
        (refused(400, "episode_limit_reached"), LimitReached),
        (refused(400, "context_length_exceeded"), LimitReached),
        (refused(400, "unknown_parameter"), Failed),
        (refused(404, "model_not_found"), Failed),
        (httpx.Response(200, json={"choices": []}), Failed),
        (httpx.Response(200, text="<html>"), Failed),
    ],
)
async def test_a_refusal_is_the_policys_end_or_a_failure_of_ours(
    answer: httpx.Response, error: type[Exception]
) -> None:
    http, sent = answers_of(answer)
    async with http:
        with pytest.raises(error):
            await Model(http, ASSIGNMENT).answer(MESSAGES, [])
    assert len(sent) == 1


async def test_an_attempt_that_has_ended_is_not_reported(root: Path) -> None:
    async with open_site() as site, site.stack:
        harness = site.tools(root, "tools.py:add")
        runner = await site.run(harness)
        episode = await site.put()
        del site.coordinator.episodes[episode]
        other = await site.put(1)
        await site.environments.reported(other)
        async with asyncio.timeout(60):
            while runner.stats.ended_before == 0:  # noqa: ASYNC110, the runner's counters have no event
                await asyncio.sleep(0.01)
        assert set(site.environments.reports) == {other}


def test_parts_and_limits_are_those_of_the_protocol() -> None:
    assert [str(part) for part in Part] == [str(part) for part in RUNNERS_PARTS]
    assert [str(limit) for limit in Limit] == [str(limit) for limit in RUNNERS_LIMITS]


class Sum:
    """A source of one tool that takes whatever reaches it."""

    async def tools(self) -> list[dict[str, object]]:
        return [{"name": "sum"}]

    async def call(self, name: str, arguments: object) -> str:
        return "called"


@pytest.mark.parametrize("value", ["1e999", "NaN", '"\\ud800"'])
async def test_arguments_that_no_server_can_be_sent_are_an_observation(value: str) -> None:
    toolbox = Toolbox()
    await toolbox.add(Sum())
    seen = (await toolbox.observation({"function": {"name": "sum", "arguments": f'{{"a": {value}}}'}})).text
    assert seen.startswith("error: the arguments are no JSON")
