"""`rljob bench turns`: what it prints, and that it is within what it calls the limit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rljob_bench.async_systems.systems import System
from rljob_bench.simulated.turns import OneTurn, turns
from rljob_runtime.workloads import TraceError, open_workload


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return turns(quick=True, seed=1)


@pytest.mark.slow
def test_asynchronous_episodes_outrun_synchronous_ones_within_the_limit(result: dict[str, Any]) -> None:
    json.dumps(result)
    figures = {one["name"]: one for one in result["figures"]}
    for one in figures.values():
        assert one["limit"] is None or one["value"] <= 1.02 * one["limit"], one["name"]
    name = "search-r1-7b.7b-256.ours_over_synchronous"
    assert figures[name]["value"] > 1.5
    assert (
        figures[f"{name}.as_one_turn"]["value"] > figures[name]["value"] > figures[f"{name}.of_laminars_job"]["value"]
    )
    assert figures["search-r1-7b.context_tokens"]["value"] > 4 * figures["search-r1-7b.generated_tokens"]["value"]


@pytest.mark.slow
def test_every_system_has_a_row_at_every_scale(result: dict[str, Any]) -> None:
    rows = [(row["system"], row["accelerators"]) for row in result["rows"]]
    assert sorted(rows) == sorted((system.value, total) for system in System for total in (16, 32, 64, 128, 256))


def test_one_turn_has_the_generated_tokens_of_all() -> None:
    workload = open_workload("search-r1-7b", 0)
    drawn, flat = (one.prompt(0, 3, 8) for one in (workload, OneTurn(workload)))
    assert [one.output_tokens for one in flat.responses] == [one.output_tokens for one in drawn.responses]
    assert {len(one.turns) for one in flat.responses} == {1}
    assert flat.responses[0].tool_seconds == 0


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is no folder"):
        turns(quick=True, seed=0, traces=tmp_path / "none")
