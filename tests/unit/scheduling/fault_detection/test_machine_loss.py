"""Losses that suggest a broken machine, as a table."""

from __future__ import annotations

import pytest

from rljob_runtime.scheduling.fault_detection.machine_loss import NOT_SHIPPED, SILENT, suggests_broken_machine


@pytest.mark.parametrize(
    ("reason", "refused", "expected"),
    [
        ("ProcessExited", False, True),
        ("WeightsNotReceived", False, True),
        ("WeightsNotLoaded", True, False),
        (SILENT, False, False),
        (NOT_SHIPPED, False, False),
    ],
)
def test_a_loss_suggests_a_broken_machine(reason: str, refused: bool, expected: bool) -> None:
    assert suggests_broken_machine(reason, refused) is expected
