"""Deadlines: the earliest one that lies ahead."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.policies.base.deadlines import earliest_wait
from tests.support.operator.harness import NOW


@given(st.lists(st.none() | st.integers(-100, 100), max_size=5))
def test_waits_lie_ahead(offsets: list[int | None]) -> None:
    moments = [None if o is None else NOW + timedelta(seconds=o) for o in offsets]
    wait = earliest_wait(moments, NOW)
    ahead = [o for o in offsets if o is not None and o > 0]
    assert wait == (min(ahead) if ahead else None)
