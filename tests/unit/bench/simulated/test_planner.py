"""The operator's planner and the coordinator in virtual time: its target is applied, engines change, and it pays."""

from collections import defaultdict
from itertools import pairwise

import pytest

from rljob_api.status import RoundKind, RoundReport
from rljob_bench.simulated.planner import PLANNER, SIZES, planner
from rljob_runtime.simulator.drawn_scenario import draw_scenario
from rljob_runtime.simulator.peers.control_plane import SimulatedControlPlane


@pytest.fixture(scope="module")
def result():
    return planner(quick=True, seed=0)


@pytest.fixture(scope="module")
def runs(result):
    found = defaultdict(list)
    for row in result["rows"]:
        found[row["run"]].append(row)
    return found


def test_fixed_sizes_stay_and_the_planner_moves_up_under_pressure(runs):
    for size in SIZES:
        assert {row["tensor_parallel_size"] for row in runs[f"TP {size}"]} == {size}
    short = [row for row in runs[PLANNER] if row["kind"] == RoundKind.SHORT.value]
    sizes = [row["tensor_parallel_size"] for row in short]
    rise = next(place for place, (one, other) in enumerate(pairwise(sizes)) if other > one)
    assert sizes[0] == SIZES[0]
    assert short[rise]["preemptions"] > 0


def test_it_does_not_return_to_a_size_predicted_slower(runs):
    """Four quiet rounds in a row would be a reason to, by preemptions alone."""
    short = [row for row in runs[PLANNER] if row["kind"] == RoundKind.SHORT.value]
    large = [row for row in short if row["tensor_parallel_size"] > SIZES[0]]
    assert len(large) > 4
    assert large == short[-len(large) :]
    assert not any(row["preemptions"] for row in large)
    for row in large[1:]:
        predicted, size = row["predicted_seconds"], row["tensor_parallel_size"]
        assert predicted[str(SIZES[0])] > predicted[str(size)] > 0


def test_a_change_costs_the_seconds_of_a_change(runs):
    rows = runs[PLANNER]
    for before, after in pairwise(rows):
        assert (after["layout_seconds"] > 0) == (before["tensor_parallel_size"] != after["tensor_parallel_size"])
    assert all(row["layout_seconds"] == 0 for row in runs["TP 1"])


def test_all_runs_play_the_same_kinds_of_rounds(runs):
    kinds = {tuple(row["kind"] for row in rows) for rows in runs.values()}
    assert len(kinds) == 1
    assert {"Short", "Long"} == set(*kinds)


def test_the_figures_are_of_these_rows(result, runs):
    figures = {figure["name"]: figure for figure in result["figures"]}
    seconds = {run: sum(row["generation_seconds"] for row in rows) for run, rows in runs.items()}
    for size in SIZES:
        figure = figures[f"generation time, TP {size} over planner"]
        assert figure["value"] == pytest.approx(seconds[f"TP {size}"] / seconds[PLANNER])
        assert figure["limit"] >= max(1.0, figure["value"] * 0.999)
    assert figures["generation time, TP 1 over planner"]["value"] > 1
    assert figures["preemptions saved against TP 1, where the planner starts"]["value"] > 0
    changed = [
        before["tensor_parallel_size"] != after["tensor_parallel_size"]
        for kind in ("Short", "Long")
        for before, after in pairwise([row for row in runs[PLANNER] if row["kind"] == kind])
    ]
    assert figures["changes of the size"]["value"] == sum(changed) > 0


def test_a_job_without_a_choice_is_told_nothing():
    plain = next(one for one in map(draw_scenario, range(100)) if not one.site.wider)
    control = SimulatedControlPlane(plain.job, plain.machines)
    control._choose_layouts(RoundReport(round=1, preemptions=1, tensor_parallel_size=1))
    assert control._job.status.parallelism is None
