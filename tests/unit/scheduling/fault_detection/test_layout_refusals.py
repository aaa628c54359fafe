"""Layout refusals: a machine is unable after enough refusals over enough seconds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rljob_runtime.scheduling.fault_detection.layout_refusals import MIN_REFUSALS, LayoutRefusals, refused_again


def refusals(times: Sequence[float]) -> LayoutRefusals:
    found = None
    for time in times:
        found = refused_again(found, time, f"refused at {time:g}")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("times", "patience", "unable"),
    [
        pytest.param([0.0], 0.0, False, id="one refusal is too few"),
        pytest.param([0.0, 90.0], 60.0, False, id="two refusals are too few, however long they reach"),
        pytest.param([0.0, 1.0, 2.0], 60.0, False, id="three refusals in two seconds are too early"),
        pytest.param([0.0, 30.0, 60.0], 60.0, True, id="three refusals over the patience"),
        pytest.param([0.0, 30.0, 59.9], 60.0, False, id="just below the patience"),
        pytest.param([0.0, 1.0, 2.0, 60.0], 60.0, True, id="the time counts from the first refusal"),
    ],
)
def test_machine_is_unable_after_enough_refusals_over_the_patience(times, patience, unable):
    assert refusals(times).unable(patience) is unable


def test_refusals_are_three_at_least():
    assert MIN_REFUSALS == 3


def test_the_last_reason_is_kept():
    assert refusals([1.0, 2.0]) == LayoutRefusals(2, first=1.0, last=2.0, reason="refused at 2")
