"""JSON values of fuzzers: any value, and objects that are right except for some of their fields."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(10**400), 10**400)
    | st.floats()
    | st.text()
    | st.sampled_from(["\ud800", "", "1", "text"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)
"""Any value that Python's parser may return, numbers that are none and half characters too."""
NESTED = b'{"a":' * 3000 + b"1" + b"}" * 3000


def objects(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return objects with some of these fields. At times one has another value, or a name that is not known."""
    right = st.fixed_dictionaries({}, optional=fields)
    wrong = st.dictionaries(st.sampled_from(sorted(fields)) | st.text(max_size=6), values, max_size=1)
    return st.one_of(right, right, st.builds(lambda one, other: {**one, **other}, right, wrong))


def written(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Return values as JSON text; at times the text is cut, or nested very deep."""
    whole = strategy.map(lambda value: json.dumps(value).encode())
    cut = st.builds(lambda text, share: text[: int(len(text) * share)], whole, st.floats(0, 1))
    return st.one_of(whole, whole, whole, cut, st.just(NESTED))
