"""The layout of a fleet, as a table."""

from __future__ import annotations

import pytest

from rljob_runtime.scheduling.layouts.fleet_layout import layout_of_most


@pytest.mark.parametrize(
    ("sizes", "target", "expected"),
    [
        ([], 2, 2),
        ([1], 2, 1),
        ([1, 1, 2], 2, 1),
        ([1, 2], 2, 2),
        ([1, 2], 1, 1),
        ([4, 2], 1, 2),
    ],
    ids=["no machine", "one", "most", "tie with the target", "tie, smaller target", "tie without the target"],
)
def test_a_fleet_has_the_layout_of_most_machines(sizes: list[int], target: int, expected: int) -> None:
    assert layout_of_most(sizes, target) == expected
