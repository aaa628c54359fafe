"""A Python function becomes a tool: its signature is the schema, and a model's arguments are checked against it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from rljob_env.foreign_code.functions import CannotLoad, called, described, load_function, wrong_arguments
from rljob_env.results import reward_and_metrics


def search(
    query: Annotated[str, "what to look for"],
    most: int = 5,
    order: Literal["newest", "best"] = "best",
    sites: list[str] | None = None,
    more: Any = None,
) -> str:
    """Search the index.

    It holds pages of 2026.
    """
    return query


def test_a_signature_and_a_docstring_are_the_schema() -> None:
    assert described(search) == {
        "name": "search",
        "description": "Search the index.\n\nIt holds pages of 2026.",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "what to look for"},
                "most": {"type": "integer", "default": 5},
                "order": {"enum": ["newest", "best"], "default": "best"},
                "sites": {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}], "default": None},
                "more": {"default": None},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
    }


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        ({"query": "a"}, None),
        ({"query": "a", "most": 3, "order": "newest", "sites": ["b"], "more": {"x": [1]}}, None),
        ({"query": "a", "sites": None}, None),
        ({}, "missing arguments: query"),
        ({"query": 3}, "query is 3; a value of type string would be right"),
        ({"query": "a", "most": 3.5}, "most is 3.5; a value of type integer would be right"),
        ({"query": "a", "most": True}, "most is True; a value of type integer would be right"),
        ({"query": "a", "order": "oldest"}, "order is 'oldest'; 'newest' or 'best' would be right"),
        ({"query": "a", "sites": [3]}, "sites is [3]; a value of type array or a value of type null would be right"),
        ({"q": "a"}, "there is no argument 'q'; query, most, order, sites, more would be right"),
    ],
)
def test_a_models_arguments_are_checked(arguments: dict[str, Any], wrong: str | None) -> None:
    assert wrong_arguments(search, arguments) == wrong


def test_a_function_is_found_in_a_file_beside_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "tools_of_this_test.py").write_text(
        "from neighbour_of_this_test import LIMIT\ndef f():\n  return LIMIT\n"
    )
    (tmp_path / "neighbour_of_this_test.py").write_text("LIMIT = 7\nasync def g(): return 8\n")
    assert called(load_function(tmp_path, "tools_of_this_test.py:f")) == 7
    assert called(load_function(tmp_path, "neighbour_of_this_test:g")) == 8


@pytest.mark.parametrize("name", ["tools", ":f", "json:absent", "json:__doc__", "absent.py:f", "no such:f"])
def test_what_is_no_function_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(CannotLoad):
        load_function(tmp_path, name)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (None, (None, {})),
        (1, (1.0, {})),
        (True, (1.0, {})),
        ({"reward": 0.5, "calls": 2, "metrics": {"share": 0.1}}, (0.5, {"calls": 2.0, "share": 0.1})),
        ({"calls": 2}, (None, {"calls": 2.0})),
    ],
)
def test_a_reward_may_come_with_metrics(value: Any, found: Any) -> None:
    assert reward_and_metrics(value) == found


@pytest.mark.parametrize("value", ["1", float("nan"), float("inf"), 10**400, [1], {"reward": "1"}, {"metrics": 3}])
def test_a_reward_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="would be right"):
        reward_and_metrics(value)
