"""Rewards that are functions: sums of rules, and every way in which one can fail without hurting but its own sample."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from rljob_api.spec import DataSpec, RLJobSpec
from rljob_api.spec.rewards import Reward, RewardKind
from rljob_runtime.coordinator.inputs import LazyRewards
from rljob_runtime.data.prompt import Prompt
from rljob_runtime.protocols import RewardFailed, RewardsUnavailable
from rljob_runtime.rewards import (
    CodeRule,
    InvalidReward,
    JudgeRule,
    RewardPool,
    Rule,
    builtin,
    function_scorer,
    rules_of,
)
from tests.support.paths import ROOT
from tests.support.rows import slow

PROMPT = Prompt(0, "What is 2 + 2?", (1,), "4")


@pytest.fixture(autouse=True)
def rules_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "tests/support/rewards"), *sys.path]))


def rule(function: str, name: str = "rule", **settings: object) -> Rule:
    return Rule(name, f"reward_functions:{function}", **settings)


async def test_the_reward_is_the_weighted_sum_of_all_rules() -> None:
    rules = [
        rule("length", "a"),
        rule("scaled", "b", weight=0.5, config={"factor": 3}),
        rule("slow_agreement", "c", weight=-2.0),
    ]
    async with RewardPool(rules, workers=2) as pool:
        values = await asyncio.gather(*(pool.score(PROMPT, "x" * n) for n in range(5)))
    assert values == [n + 0.5 * 3 * n - 2 for n in range(5)]
    assert [list(value.terms.items()) for value in values] == [[("a", n), ("b", 3 * n), ("c", 1)] for n in range(5)]
    figures = pool.figures()
    assert figures.scored == 5
    assert not figures.failed
    assert figures.processes <= 2
    assert figures.seconds > 0


FAILURES = {
    "raise": ("Raised", "LookupError: no such thing", False),
    "hang": ("TimedOut", "no value within 1 s", True),
    "hang without the interpreter": ("TimedOut", "no value within 1 s", True),
    "crash": ("Crashed", "ended with code -11", True),
    "exit": ("Crashed", "ended with code 3", True),
    "nan": ("NotFinite", "it returned nan", False),
    "beyond": ("OutOfRange", r"it returned 1e\+308; a number of its range, -1e\+06 to 1e\+06, would be right", False),
    "below": ("OutOfRange", r"it returned -1e\+07", False),
    "infinite": ("NotFinite", "it returned inf", False),
    "text": ("Raised", "it returned str; a number would be right", False),
    "none": ("Raised", "it returned NoneType", False),
    "list": ("Raised", "it returned list", False),
}


async def test_a_failure_of_ours_is_reported_and_the_next_sample_is_scored() -> None:
    async with RewardPool([rule("by_order", timeout_seconds=1)], workers=1) as pool:
        starts = 1
        for number, (order, (reason, message, lost)) in enumerate(FAILURES.items(), start=1):
            with pytest.raises(RewardFailed, match=f"reward rule \\({reason}\\): .*{message}") as raised:
                await pool.score(PROMPT, order)
            assert raised.value.by_response == (reason in ("Raised", "NotFinite", "OutOfRange"))
            assert await pool.score(PROMPT, "fine") == 1.0
            starts += lost
            assert pool.figures().processes == starts, order
            assert pool.figures().failed.total() == number
        assert pool.figures().failed["rule", "Crashed"] == 2
        assert pool.figures().scored == len(FAILURES)


@pytest.mark.parametrize(
    "line",
    ['{"call": "0", "value": 1.0}', "null", "[" * 10_000, *slow('{"value": 1.0}', "5", "[]", '"process"')],
)
async def test_what_an_evaluated_text_writes_is_the_answer_of_no_call(line: str) -> None:
    """A function of the job's may evaluate a text where later ones are scored. One line shifted all later answers."""
    plant = f"""
import os
for number in range(3, 32):
    try:
        os.write(number, {line.encode()!r} + b"\\n")
    except OSError:
        pass
"""
    async with RewardPool([rule("evaluated")], workers=1) as pool:
        with pytest.raises(RewardFailed, match=r"\(Crashed\)"):
            await pool.score(PROMPT, plant)
        assert [await pool.score(PROMPT, text) for text in ("1", "22", "333")] == [1.0, 2.0, 3.0]
        assert pool.figures().processes == 2


async def test_a_value_of_the_range_is_taken_whatever_the_weight() -> None:
    rules = [rule("scaled", weight=1000.0, config={"factor": -1e5}, least=-1e6, most=0.0)]
    async with RewardPool(rules, workers=1) as pool:
        assert await pool.score(PROMPT, "x" * 10) == -1e9
        with pytest.raises(RewardFailed, match=r"it returned -1.1e\+06; a number of its range, -1e\+06 to 0"):
            await pool.score(PROMPT, "x" * 11)


async def test_as_many_calls_run_as_the_largest_parallelism_says() -> None:
    rules = [rule("slow_agreement", "a", parallelism=3), rule("length", "b")]
    async with RewardPool(rules) as pool:
        await asyncio.gather(*(pool.score(PROMPT, "x") for _ in range(9)))
        assert pool.figures().processes == 3


def wait_ended(pid: int) -> None:
    deadline = time.monotonic() + 20
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
            assert time.monotonic() < deadline, f"process {pid} lives on"
            time.sleep(0.05)


async def test_a_busy_machine_makes_no_rule_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker waits for a processor does not count, within reason."""
    began = time.monotonic()
    async with RewardPool([rule("by_order", timeout_seconds=0.3)], workers=1) as pool:
        with pytest.raises(RewardFailed, match="TimedOut"):
            await pool.score(PROMPT, "sleep for a second")
        monkeypatch.setattr(function_scorer, "waited_seconds", lambda pid: time.monotonic() - began)
        assert await pool.score(PROMPT, "sleep for a second") == 1.0
        monkeypatch.setattr(function_scorer, "starved", lambda elapsed, allowed: elapsed > 2 * allowed)
        with pytest.raises(RewardFailed, match="TimedOut"):
            await pool.score(PROMPT, "hang")


async def test_a_worker_that_does_not_come_up_may_come_up_later(monkeypatch: pytest.MonkeyPatch) -> None:
    rewards = [Reward(name="own", kind=RewardKind.PYTHON, function="reward_functions:length")]
    spec = RLJobSpec.model_construct(rewards=rewards, data=DataSpec.model_construct(sources=None), evaluation=())
    lazy = LazyRewards(spec)
    async with AsyncExitStack() as closing:
        for command, why in {
            ("false",): "a worker ended at start with code 1",
            ("/nonexistent/python",): "a worker could not be started: .*No such file",
        }.items():
            with monkeypatch.context() as patch:
                patch.setattr(function_scorer, "_command", lambda rules, command=command: command)
                with pytest.raises(RewardsUnavailable, match=why) as caught:
                    await lazy.open(closing)
            assert caught.value.reason == "RewardsUnavailable"
        await lazy.open(closing)
        await lazy.open(closing)
        assert await lazy.score(PROMPT, "abc") == 3.0
        assert lazy.figures().processes == 1, "opened once"


async def test_without_a_rule_a_response_has_no_reward_and_never_a_zero() -> None:
    spec = RLJobSpec.model_construct(rewards=(), data=DataSpec.model_construct(sources=None), evaluation=())
    lazy = LazyRewards(spec)
    async with AsyncExitStack() as closing:
        await lazy.open(closing)
        with pytest.raises(
            RewardFailed, match=r"its environment gave no reward, and spec\.rewards has no rule"
        ) as told:
            await lazy.score(PROMPT, "abc")
        assert told.value.by_response, "it would be the same again"
        assert lazy.figures().scored == 0
        assert lazy.take_anchors() == {}


async def test_what_a_rule_started_ends_with_it(tmp_path) -> None:
    note = tmp_path / "pid"
    async with RewardPool([rule("by_order", timeout_seconds=2)], workers=1) as pool:
        with pytest.raises(RewardFailed, match="TimedOut"):
            await pool.score(Prompt(0, "", (1,), str(note)), "leave a child")
        await asyncio.to_thread(wait_ended, int(note.read_text()))


async def test_a_cancelled_call_does_not_mix_up_the_next_answers() -> None:
    async with RewardPool([rule("by_order", timeout_seconds=3)], workers=1) as pool:
        call = asyncio.create_task(pool.score(PROMPT, "hang"))
        await asyncio.sleep(0.2)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await pool.score(PROMPT, "fine") == 1.0


async def test_leaving_the_pool_ends_its_processes() -> None:
    async with RewardPool([rule("length")], workers=2) as pool:
        await asyncio.gather(*(pool.score(PROMPT, "x") for _ in range(8)))
        (scorer,) = pool._functions
        pids = [worker.pid for worker in scorer.pool.running()]
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        # A module that cannot be imported is told by the container's test of the same.
        pytest.param(
            Rule("r", "no_such_module:f"), "module 'no_such_module' cannot be imported", marks=pytest.mark.slow
        ),
        (rule("absent"), "has no function 'absent'"),
        pytest.param(rule("number"), "has no function 'number'", marks=pytest.mark.slow),
        pytest.param(rule("needs_three"), "missing a required argument: 'extra'", marks=pytest.mark.slow),
        (rule("length", config={"colour": "red"}), "unexpected keyword argument 'colour'"),
    ],
)
async def test_a_rule_that_cannot_be_loaded_is_named_at_the_start(bad: Rule, message: str) -> None:
    with pytest.raises(InvalidReward, match=message):
        async with RewardPool([bad]):
            pass


@pytest.mark.parametrize(
    ("answer", "response", "value"),
    [
        ("4", "2 + 2 = 4", 1.0),
        ("4", "The answer is \\boxed{4}.", 1.0),
        ("4", "I believe it is 5.", 0.0),
        ("4", "", 0.0),
        ("1/2", "So it is 0.5", 1.0),
        ("\\frac{3}{4}", "$\\frac{6}{8}$", 1.0),
        (7, "It is 7", 1.0),
    ],
)
def test_math_compares_final_answers(answer: object, response: str, value: float) -> None:
    assert builtin.math(Prompt(0, "?", (1,), answer), response) == value


def test_math_without_a_usable_reference_is_our_failure() -> None:
    with pytest.raises(ValueError, match="the reference answer '' contains no answer"):
        builtin.math(Prompt(0, "?", (1,), ""), "4")


@pytest.mark.parametrize(
    ("extract", "response", "value"),
    [
        ("Auto", "<answer>-4</answer>", 1.0),
        ("Auto", "-4", 1.0),
        ("Tag", "-4", 0.0),
        ("LastNumber", "5 - 3 - 6 makes -4", 1.0),
        ("LastNumber", "nothing", 0.0),
        ("Whole", "5", 0.0),
    ],
)
def test_reasoning_gym_asks_the_tasks_own_scorer(extract: str, response: str, value: float) -> None:
    metadata = {"source_dataset": "basic_arithmetic", "source_index": 0, "expression": "5 - 3 - 6"}
    prompt = Prompt(0, "Calculate 5 - 3 - 6.", (1,), "-4", metadata)
    assert builtin.reasoning_gym(prompt, response, extract=extract) == pytest.approx(value, abs=0.05)


def test_reasoning_gym_needs_a_task() -> None:
    with pytest.raises(ValueError, match=r"config\.task"):
        builtin.reasoning_gym(PROMPT, "4")
    assert builtin.reasoning_gym(PROMPT, "4", task="basic_arithmetic") == 1.0
    with pytest.raises(ValueError, match="extract is 'Nothing'"):
        builtin.reasoning_gym(PROMPT, "4", task="basic_arithmetic", extract="Nothing")


def test_number_rewards() -> None:
    assert [builtin.has_number(PROMPT, text) for text in ("4", "four")] == [1.0, 0.0]
    assert [builtin.last_number(PROMPT, text) for text in ("2 and 4", "4 or 5", "none")] == [1.0, 0.0, 0.0]


def test_rules_of_a_spec() -> None:
    rewards = [
        Reward(name="answer", kind=RewardKind.MATH, timeout={"max_seconds": 7}),
        Reward(
            name="style",
            kind=RewardKind.PYTHON,
            weight=0.1,
            function="mine:style",
            config={"a": 1},
            range={"min": -5, "max": 7},
            parallelism=9,
        ),
    ]
    answer, style = rules_of(rewards)
    assert (answer.least, answer.most, answer.parallelism) == (0.0, 1.0, 2), "a share, whatever a text chose"
    assert (style.least, style.most, style.parallelism) == (-5.0, 7.0, 9)
    assert (answer.function, answer.weight, answer.timeout_seconds) == ("rljob_runtime.rewards.builtin:math", 1.0, 7)
    assert (style.function, style.weight, style.config) == ("mine:style", 0.1, {"a": 1})
    for kind in (RewardKind.JUDGE, RewardKind.PYTHON):
        with pytest.raises(InvalidReward, match=rf"spec.rewards\[0\] j: kind {kind.value} needs"):
            rules_of([Reward.model_construct(**dict(rewards[0]) | {"name": "j", "kind": kind, "judge": None})])


def test_rules_of_programs_and_judges() -> None:
    timeout = {"min_seconds": 1, "factor": 2, "max_seconds": 9}
    rewards = [
        Reward(name="plain", kind=RewardKind.CODE),
        Reward(name="tests", kind=RewardKind.CODE, weight=2, code={"tests_field": "cases"}, timeout=timeout),
        Reward(name="taste", kind=RewardKind.JUDGE, judge={"url": "http://j/v1", "model": "m"}, timeout=timeout),
    ]
    plain, tests, taste = rules_of(rewards)
    assert isinstance(plain, CodeRule)
    assert isinstance(tests, CodeRule)
    assert isinstance(taste, JudgeRule)
    assert plain.settings.tests_field == "tests"
    assert (tests.weight, tests.settings.tests_field, tests.timeout.factor) == (2, "cases", 2)
    assert (taste.settings.model, taste.timeout_seconds) == ("m", 9)
