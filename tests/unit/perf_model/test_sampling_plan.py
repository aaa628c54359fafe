"""Where an engine is measured: few points, inside its cache, the corners first."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.perf_model.sampling_plan import LEAST_CONTEXT, MOST_SHARE, Point, sampling_plan


def test_a_plan_spelled_out():
    plan = [(point.batch, point.context) for point in sampling_plan(4, 64, 10_000, 8)]
    assert plan == [(1, 16), (1, 64), (4, 16), (4, 64), (1, 32), (2, 16), (2, 32), (2, 64), (4, 32)]


def test_where_the_cache_is_small_the_widest_batch_takes_what_it_holds():
    plan = sampling_plan(64, 1024, 11_650, 12)
    assert set(plan[:4]) == {Point(1, 16), Point(1, 1024), Point(64, 16), Point(64, 151)}
    assert len(plan) < 50


@given(st.integers(2, 512), st.integers(32, 200_000), st.integers(2_000, 3_000_000), st.integers(1, 64))
def test_every_point_fits_and_any_beginning_spans_the_region(batch, context, kv_tokens, steps):
    try:
        plan = sampling_plan(batch, context, kv_tokens, steps)
    except ValueError:
        assert MOST_SHARE * kv_tokens < 2 * (LEAST_CONTEXT + steps) * 2, "refused only where there is no room"
        return
    assert all(one.batch * (one.context + steps) <= MOST_SHARE * kv_tokens for one in plan)
    assert all(1 <= one.batch <= batch and LEAST_CONTEXT <= one.context <= context for one in plan)
    assert len(set(plan)) == len(plan) <= 10 * 20
    first, widest = plan[:4], max(one.batch for one in plan)
    assert {one.batch for one in first} >= {1, widest}
    assert max(one.context for one in plan) in {one.context for one in first}


@given(st.integers(64, 512), st.integers(2_000, 100_000))
def test_points_are_spaced_by_factors(batch, context):
    plan = sampling_plan(batch, context, 1 << 40, 8)
    for field in ("batch", "context"):
        values = sorted({getattr(one, field) for one in plan})
        assert all(1.4 <= later / earlier <= 6 for earlier, later in pairwise(values))


@pytest.mark.parametrize(
    ("batch", "context", "kv_tokens"),
    [(1, 1000, 10_000), (8, 16, 10_000), (8, 1000, 40)],
    ids=["batch", "context", "KV"],
)
def test_an_engine_too_small_to_be_sampled_is_refused(batch, context, kv_tokens):
    with pytest.raises(ValueError, match="two sizes of batch, and two contexts of 16 tokens or more, would be right"):
        sampling_plan(batch, context, kv_tokens, 8)
