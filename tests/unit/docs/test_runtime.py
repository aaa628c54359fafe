"""The runtime's own words (problems, ends, suspicions, why something was given up) are told in some page."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from rljob_runtime.rewards.errors import Failure
from rljob_runtime.scheduling.lending.policy import LoanOutcome
from tests.support.docs import PAGES, joined, page, quoted, text_of
from tests.support.paths import ROOT

COORDINATOR = ROOT / "runtime/rljob_runtime/coordinator"
CALLS = {
    "mark_lost": 1,
    "mark_machine_lost": 1,
    "mark_replica_lost": 1,
    "suspect": 1,
    "_finish": 1,
    "filter": 1,
    "requeue": 1,
}
"""Calls that take a reason, and the place of it."""
INSIDE = {"Replaced", "Removed", "Drained"}
"""Of a log line alone."""


@cache
def _trees() -> tuple[ast.Module, ...]:
    folders = (COORDINATOR, COORDINATOR.parent / "scheduling")
    return tuple(ast.parse(path.read_text(encoding="utf-8")) for folder in folders for path in folder.rglob("*.py"))


def _texts() -> Iterator[str]:
    """Reasons as they are written in the sources, and constants that hold one."""
    for tree in _trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "reason" and isinstance(node.value, ast.Constant):
                yield str(node.value.value)
            if isinstance(node, ast.Assign) and _first_name(node.targets[0]) == "reason":
                first = node.value.elts[0] if isinstance(node.value, ast.Tuple) else node.value
                if isinstance(first, ast.Constant):
                    yield str(first.value)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CALLS:
                for given in node.args[CALLS[node.func.attr] :][:1]:
                    if isinstance(given, ast.Constant):
                        yield str(given.value)
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                yield str(node.value.value)


def _first_name(target: ast.expr) -> str | None:
    first = target.elts[0] if isinstance(target, ast.Tuple) else target
    return first.id if isinstance(first, ast.Name) else None


@cache
def _reasons() -> set[str]:
    return {text for text in _texts() if re.fullmatch(r"([A-Z][a-z]+){2,}", text)} - INSIDE


@pytest.mark.parametrize("reason", sorted(_reasons()))
def test_a_reason_of_the_runtime_is_told(reason: str) -> None:
    assert any(re.search(rf"\b{reason}\b", text_of(path)) for path in PAGES)


def test_the_parser_finds_problems_ends_and_suspicions() -> None:
    assert {"StoreSlow", "CheckpointFailed", "NothingToLearn", "TrainerKeepsFailing", "HeartbeatLost"} <= _reasons()
    assert {"CommandFailed", "RewardFailed", "VersionGone", "RewardsKeepFailing"} <= _reasons()


@pytest.mark.parametrize("failure", list(Failure))
def test_a_failure_of_a_reward_is_told(failure: Failure) -> None:
    pages = (page("data-and-rewards.md"), page("reward-scoring.md"))
    assert any(failure.value in text_of(path) for path in pages)


@pytest.mark.parametrize("verdict", list(LoanOutcome))
def test_what_becomes_of_a_loan_is_told(verdict: LoanOutcome) -> None:
    assert verdict.value in text_of(page("training.md"))


def test_what_a_used_folder_refuses_is_told_by_the_list_of_the_api() -> None:
    """A second list goes out of date. That of the API is compared with the code."""
    text = joined(page("concepts/runtime.md"))
    [told] = re.findall(r"another one is refused and changes nothing\. (.*?) Such a run is refused", text)
    assert "[never change](../reference/api.md#what-may-change-later)" in told
    assert quoted(told) == []
