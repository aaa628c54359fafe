"""Drawn scenarios are jobs that can end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rljob_api.spec.training import Mode
from rljob_runtime.simulator.drawn_scenario import draw_scenario, draw_switching
from rljob_runtime.simulator.peers.cluster import SHORT_BOUNDS
from rljob_runtime.simulator.scenario import Scenario


@pytest.mark.parametrize(
    "draw",
    [draw_scenario, lambda seed: draw_scenario(seed, Mode.ASYNCHRONOUS), draw_switching],
    ids=["OnPolicy", "Asynchronous", "switches"],
)
def test_the_longest_update_of_a_drawn_job_ends_before_its_time_out(draw: Callable[[int], Scenario]) -> None:
    longest = {}
    for seed in range(1000):
        drawn = draw(seed)
        tokens = drawn.prompts * drawn.responses * drawn.max_response_tokens
        longest[seed] = drawn.costs.step + tokens * drawn.costs.token
    assert max(longest.values()) < SHORT_BOUNDS.train, max(longest, key=lambda seed: longest[seed])
    assert len(set(longest.values())) > 4
