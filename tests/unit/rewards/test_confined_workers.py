"""Workers with functions of ours alone: a model's text that gets itself evaluated there can do no harm."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from rljob_runtime.data.prompt import Prompt
from rljob_runtime.data.records import local_path
from rljob_runtime.protocols import RewardFailed
from rljob_runtime.rewards import CannotSandbox, RewardPool, Rule, builtin, function_scorer
from rljob_runtime.rewards.rules import confined
from tests.support.rows import slow

SHIPPED = local_path("package://rljob/addition-programs.jsonl")
ATTEMPTS = {
    "its environment": "'a secret' in str(__import__('os').environ)",
    "its environment as it began": "open('/proc/self/environ').read() is not None",
    "the environment of the coordinator": "open(f'/proc/{__import__(\"os\").getppid()}/environ').read() is not None",
    "a file": "open('FOLDER/token').read() is not None",
    "the data that comes with us": f"open({str(SHIPPED)!r}).read() is not None",
    "our code": f"open({builtin.__file__!r}).read() is not None",
    "a file to write": "open('FOLDER/new', 'w') is not None",
    "a file to empty": "__import__('os').open('/dev/null', 512) is not None",
    "a file, asking for no right": "__import__('os').open('/dev/null', 3) is not None",
    "a socket": "__import__('socket').socket() is not None",
    "a process": "__import__('os').system('true') == 0",
    "a signal to the coordinator": "__import__('os').kill(__import__('os').getppid(), 0) is None",
}


def evaluated(expression: str) -> str:
    """A response that some of reasoning-gym's scorers evaluate: worth something if the expression is true."""
    return f"['y', 'es'] if {expression} else []"


async def test_a_text_that_is_evaluated_can_do_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REWARDS_TEST_SECRET", "a secret")
    (tmp_path / "token").write_text("eyJ")
    prompt = Prompt(0, "", (1,), "yes", {"source_dataset": "string_insertion"})
    rules = [
        Rule("gym", "rljob_runtime.rewards.builtin:reasoning_gym"),
        Rule("math", "rljob_runtime.rewards.builtin:math"),
    ]
    async with RewardPool(rules, workers=1) as pool:
        assert await pool.score(prompt, evaluated("True")) > 0, "it is evaluated"
        for what, expression in ATTEMPTS.items():
            assert await pool.score(prompt, evaluated(expression.replace("FOLDER", str(tmp_path)))) == 0.0, what
        assert await pool.score(Prompt(0, "", (1,), "1/2", prompt.metadata), "0.5") == 1.0, "and it can compute"
        assert pool.figures().processes == 1
    assert sorted(os.listdir(tmp_path)) == ["token"]


GYM = Prompt(0, "", (1,), "yes", {"source_dataset": "string_insertion"})


async def test_a_lack_of_memory_is_no_zero() -> None:
    """Libraries catch the error, and call the answer wrong."""
    async with RewardPool([Rule("gym", "rljob_runtime.rewards.builtin:reasoning_gym")], workers=1) as pool:
        with pytest.raises(RewardFailed, match=r"reward gym \(Raised\): the worker had no memory left"):
            await pool.score(GYM, evaluated("[bytes(1 << 20) for _ in range(1 << 20)]"))
        assert await pool.score(GYM, evaluated("True")) > 0
        assert pool.figures().processes == 1


LINES = """
import os
for number in range(3, 64):
    try:
        os.write(number, b'{"value": 0.5}\\n' * 2)
    except OSError:
        pass
"""
POISONS = {
    "every rule gives 1": "[0 for w in [__import__('gc')] for f in w.get_objects() if isinstance(f, dict) and "
    "callable(f.get('gym')) for _ in [f.__setitem__('gym', lambda p, r: 1.0)]] is not None",
    "a library calls everything right": "setattr(__import__('reasoning_gym'), 'get_score_answer_fn', None) is None",
    "much memory is kept": "setattr(__import__('builtins'), 'kept', bytes(1100 << 20)) is None",
    "a line for the next call": f"exec({LINES!r}) is None",
}
"""What a text may try to do to the values of others. Each is evaluated: it is worth something itself."""


@pytest.mark.parametrize("poison", [*slow(*list(POISONS)[:-1]), *list(POISONS)[-1:]])
async def test_a_text_changes_the_value_of_no_other(poison: str) -> None:
    """Wrong, wrong, right, wrong: as if it had never been there."""
    async with RewardPool([Rule("gym", "rljob_runtime.rewards.builtin:reasoning_gym")], workers=1) as pool:
        wrong = await pool.score(GYM, "no idea")
        assert wrong < 1.0
        assert await pool.score(GYM, evaluated(POISONS[poison])) > wrong
        found = [await pool.score(GYM, text) for text in ("wrong a", "wrong b", "['y', 'es']", "wrong c")]
        assert found[:2] + found[3:] == [wrong] * 3
        assert found[2] > wrong
        assert pool.figures().processes == 1


def test_rules_of_ours_that_evaluate_a_text_are_confined() -> None:
    ours, foreign = Rule("a", "rljob_runtime.rewards.builtin:math"), Rule("b", "theirs:length")
    harmless = [Rule(name, f"rljob_runtime.rewards.builtin:{name}") for name in ("has_number", "last_number")]
    assert [confined(rules) for rules in ([ours], [foreign], [ours, foreign])] == [True, False, False]
    assert [rule.confined for rule in harmless] == [False, False]
    pool = RewardPool([ours, foreign, *harmless])
    assert [scorer._rules for scorer in pool._functions] == [(ours,), (foreign, *harmless)]


async def test_what_evaluates_nothing_needs_no_landlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    before = LACKING["Landlock"][0]
    monkeypatch.setattr(function_scorer, "_command", lambda rules: [sys.executable, "-c", WORKER.format(before)])
    async with RewardPool([Rule("number", "rljob_runtime.rewards.builtin:has_number")]) as pool:
        assert await pool.score(GYM, "4") == 1.0


WORKER = "{}; from rljob_runtime.rewards.function_worker import main; main()"
LACKING = {
    "Landlock": (
        "import os; from rljob_runtime.sandbox import landlock; landlock._CREATE_RULESET = 9999",
        r"reward math needs a worker that can do nothing but compute: nothing keeps a worker from this machine's "
        r"files \(.*not implemented\); Landlock \(Linux 5.13 or later\) would be right, or a reward of kind Python "
        "with a function of your own, which is not confined",
    ),
    "a filter that filters": (
        "from rljob_runtime.sandbox import seccomp; seccomp.install = lambda opening: None",
        "a confined worker leaks; it can: empty a file, open a file without asking for a right, open a socket, start a "
        "process",
    ),
    "a single thread": (
        "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
        "a worker has 2 threads before it forks; one would be right",
    ),
}


@pytest.mark.parametrize("lacking", LACKING)
async def test_where_it_cannot_be_confined_it_scores_nothing(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, message = LACKING[lacking]
    monkeypatch.setattr(function_scorer, "_command", lambda rules: [sys.executable, "-c", WORKER.format(before)])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setattr(function_scorer, "_environment", lambda rules: dict(os.environ))
    with pytest.raises(CannotSandbox, match=message) as caught:
        async with RewardPool([Rule("math", "rljob_runtime.rewards.builtin:math")]):
            pass
    assert caught.value.reason == "SandboxUnavailable"


def test_no_alarm_calls_a_right_answer_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine five seconds pass before the checker had one."""
    import signal

    monkeypatch.setattr(signal, "alarm", lambda seconds: seconds and signal.raise_signal(signal.SIGALRM))
    assert builtin.math(Prompt(0, "?", (1,), "1/2"), "So it is 0.5") == 1.0
