"""The store's benchmark: a small run has every figure, and holds everything it was given."""

from __future__ import annotations

import json

import pytest

from rljob_bench import store as store_bench
from rljob_bench.store import Plan, store


def test_a_small_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process: what is patched here is not there in a spawned one."""
    plan = Plan(responses=16, tokens=50, rate=16 * 7)
    assert plan.step == 7
    measured = store_bench.measure(plan, seed=1)
    monkeypatch.setattr(store_bench, "ProcessPoolExecutor", _Here)
    monkeypatch.setattr(store_bench, "QUICK", plan)
    result = json.loads(json.dumps(store(quick=True, seed=1)))
    figures = {figure["name"]: figure for figure in result["figures"]}
    assert figures.keys() == {
        "tokens_per_second",
        "over_plain_sqlite",
        "flush_p50_seconds",
        "flush_worst_seconds",
        "late_flushes",
        "forget_piece_worst_seconds",
        "memory_mb",
        "restart_seconds",
    }
    assert len(measured["flushes"]) == 8
    assert len(measured["pieces"]) == row_of(result)["pieces"] == 1
    assert 0 <= figures["late_flushes"]["value"] <= 8
    assert figures["tokens_per_second"]["goal"] == 400_000
    assert figures["memory_mb"]["limit"] == 16 * 50 * 8 / 1e6
    assert result["settings"]["responses"] == 16
    row = row_of(result)
    assert row["store_seconds"] > 0
    assert row["forget_seconds"] > 0


def row_of(result):
    (row,) = result["rows"]
    return row


class _Here:
    def __init__(self, workers: int, mp_context: object) -> None:
        pass

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def submit(self, work, *arguments):
        self._result = work(*arguments)
        return self

    def result(self) -> object:
        return self._result
