"""The tensor parallel size to start at: of the shortest round, whatever the engines are short of."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.profile import SizedRound
from rljob_runtime.scheduling.round_planner.initial_tp import best_tp_size, simulate_tp_sizes
from rljob_runtime.scheduling.round_planner.round_simulator import EngineFleet, PromptDemand, simulate_round

NARROW = LatencyModel(((1.0, 0.010), (64.0, 0.030)), 1e-7, 0.010, 1e-5, 0.0)
WIDE = LatencyModel(((1.0, 0.008), (64.0, 0.025)), 1e-7, 0.010, 1e-5, 0.0)
"""Of two accelerators, which spend much on each other: a fifth faster."""
PLENTY = 1_000_000


def stages(narrow_kv: int = PLENTY, wide_kv: int = PLENTY, batch: int = 64) -> dict[int, EngineFleet]:
    """Four accelerators as four engines or as two."""
    return {2: EngineFleet(WIDE, 2, wide_kv, batch), 1: EngineFleet(NARROW, 4, narrow_kv, batch)}


@pytest.mark.parametrize(
    ("stages", "prompts", "length", "best"),
    [
        pytest.param(stages(batch=8), 16, 200, 1, id="more engines take more at a time"),
        pytest.param(stages(), 1, 200, 2, id="one group everywhere: steps are what counts"),
        pytest.param(stages(narrow_kv=1_000, wide_kv=12_000), 8, 200, 2, id="a small cache preempts"),
        pytest.param(stages(narrow_kv=150), 8, 200, 2, id="a cache that holds no response"),
        pytest.param(stages(narrow_kv=150, wide_kv=150), 8, 200, None, id="none that does"),
        pytest.param({1: EngineFleet(NARROW, 4, PLENTY), 2: EngineFleet(NARROW, 4, PLENTY)}, 8, 200, 1, id="equal"),
    ],
)
def test_the_best_size(stages: dict[int, EngineFleet], prompts: int, length: int, best: int | None) -> None:
    played = simulate_tp_sizes(stages, [PromptDemand(20, (length,) * 8)] * prompts, 8)
    assert [one.tensor_parallel for one in played] == sorted(stages)
    assert [one.replicas for one in played] == [stages[size].replicas for size in sorted(stages)]
    assert best_tp_size(played) == best, played


def test_preemptions_are_told() -> None:
    small, large = simulate_tp_sizes(stages(narrow_kv=1_000, wide_kv=12_000), [PromptDemand(20, (200,) * 8)] * 8, 8)
    assert small.preemptions > large.preemptions == 0


@given(
    lengths=st.lists(st.lists(st.integers(1, 300), min_size=2, max_size=2), min_size=1, max_size=12),
    kv=st.integers(50, 2_000),
    batch=st.integers(1, 8),
)
def test_it_is_the_shortest_of_the_rounds_that_can_be_played(lengths: list[list[int]], kv: int, batch: int) -> None:
    asked = [PromptDemand(10, tuple(its)) for its in lengths]
    engines = stages(kv, 2 * kv, batch)
    played = simulate_tp_sizes(engines, asked, 2)
    seconds = {}
    for size, stage in engines.items():
        try:
            seconds[size] = simulate_round(stage, asked, len(asked), len(asked), 2).seconds
        except ValueError:
            continue
    assert {one.tensor_parallel: one.seconds for one in played if one.seconds is not None} == seconds
    best = best_tp_size(played)
    assert (best is None) == (not seconds)
    assert best is None or seconds[best] == min(seconds.values())
    assert best_tp_size(list(reversed(played))) == best
    faster = {size: replace(stage, kv_tokens=PLENTY) for size, stage in engines.items()}
    assert best_tp_size(simulate_tp_sizes(faster, asked, 2)) is not None


def test_no_sizes_have_no_best() -> None:
    assert best_tp_size([]) is None
    assert best_tp_size([SizedRound(tensor_parallel=1, replicas=1)]) is None
