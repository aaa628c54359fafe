"""`rljob bench laminar`, `repack` and `staleness`: what they print, and that it is within what they call the limit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rljob_bench.async_systems.systems import System, printed_layout
from rljob_bench.simulated.laminar import laminar
from rljob_bench.simulated.repack import flat, repack
from rljob_bench.simulated.staleness import staleness
from rljob_runtime.simulator.peers.assumptions import LAMINAR_MODELS
from rljob_runtime.workloads import TraceError


def values(result: dict[str, Any]) -> dict[str, float]:
    json.dumps(result)
    for one in result["figures"]:
        assert one["limit"] is None or one["value"] <= 1.02 * one["limit"], one["name"]
    return {one["name"]: one["value"] for one in result["figures"]}


@pytest.fixture(scope="module")
def compared() -> dict[str, Any]:
    return laminar(quick=True, seed=1)


@pytest.mark.slow
def test_every_system_has_a_row_at_every_scale(compared: dict[str, Any]) -> None:
    rows = [(row["system"], row["accelerators"]) for row in compared["rows"]]
    assert sorted(rows) == sorted((system.value, total) for system in System for total in (16, 256))


@pytest.mark.slow
def test_at_the_largest_scale_rljob_outruns_all_batch_systems(compared: dict[str, Any]) -> None:
    figures = values(compared)
    for other in ("synchronous", "one_step_staleness", "stream_generation", "ours_without_repack"):
        assert figures[f"dapo.7b-256.ours_over_{other}"] > 1


@pytest.mark.slow
def test_tables_name_what_they_rest_on(compared: dict[str, Any]) -> None:
    assert compared["settings"]["assumptions"]["move_seconds"]["source"]
    assert [one["name"] for one in compared["settings"]["splits"]] == ["7b", "32b", "72b"]


@pytest.mark.slow
def test_repack_fills_caches_and_gains_more_at_flat_latency() -> None:
    figures = values(repack(quick=True, seed=1))
    assert figures["table-1.kv_use"] > figures["table-1.kv_use_without"]
    assert figures["table-1.flat-latency.generation"] > figures["table-1.generation"] > 1
    assert figures["table-1.generation"] > 0.99 * figures["table-1.generation_by_the_papers_rule"]


def test_a_flat_latency_does_not_know_batch_or_context() -> None:
    latency = flat(printed_layout(System.OURS, LAMINAR_MODELS[1], 2).hardware().latency)
    assert latency.step(1, 0) == latency.step(500, 1_000_000)


def test_staleness_shares_add_up() -> None:
    result = staleness(quick=True, seed=1)
    values(result)
    for row in result["rows"]:
        assert sum(row["when_trained"].values()) == pytest.approx(1, abs=1e-3)
        assert sum(row["when_whole"].values()) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("bench", [laminar, repack, staleness])
def test_a_folder_that_is_none_is_refused(bench: Any, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="is no folder"):
        bench(quick=True, seed=0, traces=tmp_path / "none")


def test_recorded_lengths_take_the_place_of_generated_ones(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    rows = [
        {"step": 0, "rank": 0, "dp_rank": 0, "local_index": place, "input": 9, "output": [50 + place, 900],
         "n_sampling": 2, "validate": False}
        for place in range(32)
    ]  # fmt: skip
    (folder / "packed_lengths_step_0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = staleness(quick=True, seed=0, traces=tmp_path)
    assert result["settings"]["lengths"] == ["mine"]
