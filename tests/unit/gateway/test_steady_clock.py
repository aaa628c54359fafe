"""A clock that is corrected ends no episode."""

from __future__ import annotations

import pytest

from rljob_runtime.gateway.steady_clock import steady_clock


@pytest.mark.parametrize("jump", [-3_600.0, 3_600.0])
def test_a_correction_of_the_system_clock_changes_nothing(jump):
    system, elapsed = [1_000.0], [5.0]
    clock = steady_clock(lambda: system[0], lambda: elapsed[0])
    assert clock() == 1_000.0
    elapsed[0] += 2.0
    system[0] += 2.0 + jump
    assert clock() == 1_002.0
