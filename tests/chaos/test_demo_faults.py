"""What the demo tells of the node that it switches off."""

from __future__ import annotations

from dataclasses import replace

import pytest
from chaos_kit import WHOLE, filled_again, without
from hack.chaos.timeline import Timeline
from hack.demo_faults import last_line

LOST = without(WHOLE, "rollout-1")


def test_each_moment_is_noted_once_in_seconds_after_the_power_was_cut() -> None:
    found = Timeline(50.0, ("rollout-1",), WHOLE)
    coming, there = (filled_again(LOST, "rollout-1", ready=ready) for ready in (False, True))
    looks = [
        (49.0, LOST),
        (50.1, WHOLE),
        (50.9, LOST),
        (51.2, replace(LOST, suspects=frozenset({("rollout-1", 1)}))),
        (53.0, replace(coming, suspects=frozenset({("rollout-1", 1)}))),
        (60.0, coming),
        (75.0, there),
        (76.0, replace(there, generating=("rollout-0",))),
    ]
    assert not any(found.see(replace(seen, at=at)) for at, seen in looks)
    assert found.see(replace(there, at=80.0, generating=("rollout-0", "rollout-1")))
    moments = {"closed": 0.9, "suspected": 1.2, "created": 3.0, "joined": 25.0, "generating": 30.0}
    assert found.moments == pytest.approx(moments)
    lines = found.table().splitlines()
    assert lines[0] == "rollout-1: seconds after the power was cut"
    assert [line.split()[-1] for line in lines[1:]] == ["0.9", "1.2", "3.0", "25.0", "30.0"]


def test_a_replacement_that_fails_again_does_not_generate() -> None:
    found = Timeline(0.0, ("rollout-1",), WHOLE)
    there = filled_again(LOST, "rollout-1")
    again = replace(there, generating=("rollout-1",), suspects=frozenset({("rollout-1", 2)}))
    for at, seen in ((5.0, there), (6.0, replace(LOST, pods=there.pods)), (7.0, again)):
        assert not found.see(replace(seen, at=at))
    assert "never" in found.table()
    assert found.see(replace(again, at=8.0, suspects=frozenset()))


def test_the_last_line_has_what_the_history_says() -> None:
    runtime = {"round": 30, "rewardFirst": 0.2, "rewardLast": 0.8, "weightVersion": 33}
    assert last_line(runtime, 1, {"lost": 0, "duplicated": 0}, 42.04) == (
        "demo: Complete rounds=30 reward_first=0.200 reward_last=0.800 weight_version=33 "
        "faults=1 lost=0 duplicated=0 recovered_seconds=42.0"
    )
    assert last_line(runtime, 0, {}, None).endswith("faults=0 lost=unknown duplicated=unknown recovered_seconds=never")
