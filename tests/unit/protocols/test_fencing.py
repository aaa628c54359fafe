"""A peer refuses the commands of an earlier coordinator, and follows a later one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.protocols import StaleTerm, TermFence


@given(st.lists(st.integers(0, 5)))
def test_a_term_is_followed_unless_a_higher_one_was_seen(terms: list[int]) -> None:
    fence, highest = TermFence("relay rollout-0"), 0
    for term in terms:
        if term < highest:
            with pytest.raises(StaleTerm, match=f"term {term} is over: relay rollout-0 follows term {highest}"):
                fence.check(term)
        else:
            fence.check(term)
        highest = max(highest, term)
        assert fence.term == highest
