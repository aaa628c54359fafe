"""The user sees the traceback of their own function, without our frames, once for each place."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rljob_runtime.rewards.function_worker import InProcessEvaluator, load, score
from rljob_runtime.rewards.rules import InvalidReward, Rule
from rljob_runtime.user_functions.tracebacks import Tracebacks, code_folders, place_of, user_traceback

OWN = """import json

def number(text):
    return int(text)

def reward(prompt, response):
    if response == "json":
        return json.loads("{")
    return number(response)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "own_reward.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    found = importlib.util.find_spec("own_reward")
    assert found is not None
    return importlib.import_module("own_reward")


def error_of(module: Any, response: str) -> BaseException:
    with pytest.raises(ValueError, match=r"invalid literal|Expecting") as raised:
        score(module.reward, None, response)
    assert raised.value.__traceback__ is not None
    return raised.value.with_traceback(raised.value.__traceback__.tb_next)  # without the frame of this test


def test_the_traceback_begins_in_the_users_code(module):
    told = user_traceback(error_of(module, "x"), code_folders()).splitlines()
    assert told[0] == "Traceback (most recent call last):"
    assert "own_reward.py" in told[1]
    assert "in reward" in told[1]
    assert told[-1] == "ValueError: invalid literal for int() with base 10: 'x'"
    assert "function_worker" not in "".join(told)


@pytest.mark.parametrize(
    ("response", "place"), [("x", "own_reward.py:4, in number"), ("json", "own_reward.py:8, in reward")]
)
def test_the_place_is_the_innermost_one_of_the_users_file(module, response, place):
    """Even where a library raises: the user looks into their own file first."""
    assert place_of(error_of(module, response), code_folders()) == place


def test_a_traceback_is_printed_once_for_each_place(module, capsys):
    work = InProcessEvaluator([Rule("own", "own_reward:reward")])
    for response in ("x", "y", "json", "z"):
        answer = work("own", None, response)
    assert answer == {"raised": "ValueError: invalid literal for int() with base 10: 'z' (own_reward.py:4, in number)"}
    assert capsys.readouterr().err.count("Traceback (most recent call last):") == 2
    assert work("own", None, "3") == {"value": 3.0}


def test_the_number_of_printed_tracebacks_is_bounded(module, capsys):
    tracebacks = Tracebacks(most=1)
    for response in ("x", "json"):
        tracebacks.print_once("own", error_of(module, response))
    assert capsys.readouterr().err.count("Traceback") == 1


def test_a_module_that_cannot_be_imported_shows_where(tmp_path, monkeypatch, capsys):
    (tmp_path / "broken_reward.py").write_text("import json\nx = json.nothing\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InvalidReward, match="module 'broken_reward' cannot be imported: AttributeError"):
        load(Rule("own", "broken_reward:reward"))
    told = capsys.readouterr().err
    assert f'File "{tmp_path}/broken_reward.py", line 2' in told
    assert "importlib" not in told
