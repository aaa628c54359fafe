"""What the demo tells of the node that it switches off."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import generate_latest

from hack.chaos.observation import Observation
from hack.chaos.timeline import Starts, Timeline, in_starts, own_start
from hack.demo_faults import Begins, last_line, leased_of
from rljob_runtime.gateway.metrics import GatewayMetrics, GatewayParts
from tests.support.chaos import HEALTHY, filled_again, without

LOST = without(HEALTHY, "rollout-1")


def test_each_moment_is_noted_once_in_seconds_after_the_power_was_cut() -> None:
    found = Timeline(50.0, ("rollout-1",), HEALTHY)
    coming, there = (filled_again(LOST, "rollout-1", ready=ready) for ready in (False, True))
    looks = [
        (49.0, LOST),
        (50.1, HEALTHY),
        (50.9, LOST),
        (51.2, replace(LOST, suspects=frozenset({("rollout-1", 1)}))),
        (53.0, replace(coming, suspects=frozenset({("rollout-1", 1)}))),
        (60.0, coming),
        (75.0, there),
        (76.0, replace(there, generating=("rollout-0",))),
    ]
    assert not any(found.observe(replace(seen, at=at)) for at, seen in looks)
    assert found.observe(replace(there, at=80.0, generating=("rollout-0", "rollout-1")))
    moments = {"closed": 0.9, "suspected": 1.2, "created": 3.0, "joined": 25.0, "generating": 30.0}
    assert found.moments == pytest.approx(moments)
    lines = found.table(Starts({"rollout-0": 90.0, "rollout-1": 60.0})).splitlines()
    assert lines[0] == "rollout-1: seconds after the power was cut"
    assert [line.split()[-1] for line in lines[1:6]] == ["0.9", "1.2", "3.0", "25.0", "30.0"]
    assert [line.strip() for line in lines[6:]] == [
        "the replacement's start, from pod to chain: 22.0 s; it generated after 1.36 of it (goal: at most 1.5)",
        "the first start, from pod to chain: 60.0 s; it generated after 0.50 of it (goal: at most 1.5)",
    ]


def test_a_replacement_that_fails_again_does_not_generate() -> None:
    found = Timeline(0.0, ("rollout-1",), HEALTHY)
    there = filled_again(LOST, "rollout-1")
    again = replace(there, generating=("rollout-1",), suspects=frozenset({("rollout-1", 2)}))
    for at, seen in ((5.0, there), (6.0, replace(LOST, pods=there.pods)), (7.0, again)):
        assert not found.observe(replace(seen, at=at))
    table = found.table(Starts())
    assert "never" in table
    assert "first start" not in table, "no first start was observed"
    assert "it never generated" in table
    assert found.observe(replace(again, at=8.0, suspects=frozenset()))


def test_a_first_start_lasts_from_the_pod_until_it_is_in_the_chain() -> None:
    starts = Starts()
    coming = filled_again(LOST, "rollout-1", ready=False)
    looks = [
        (5.0, Observation(5.0)),
        (10.0, without(without(LOST, "rollout-0"), "rollout-2")),
        (40.0, without(LOST, "rollout-2")),
        (45.0, replace(LOST, chain=())),
        (50.0, coming),
        (60.0, replace(coming, pods=filled_again(LOST, "rollout-1").pods)),
        (70.0, filled_again(LOST, "rollout-1")),
        (80.0, LOST),
        (99.0, HEALTHY),
    ]
    for at, seen in looks:
        starts.observe(replace(seen, at=at))
    assert starts.seconds == {"rollout-0": 30.0, "rollout-2": 40.0, "rollout-1": 20.0}, "its second pod's, once"


def test_without_an_end_nothing_is_told_in_starts() -> None:
    whole = {"created": 2.0, "joined": 22.0, "generating": 30.0}
    assert own_start(whole) == 20.0
    assert in_starts(whole, own_start(whole)) == 1.5
    for missing in ("created", "joined"):
        assert own_start({name: at for name, at in whole.items() if name != missing}) is None
    assert in_starts(whole, None) is None
    assert in_starts(whole, 0.0) is None
    assert in_starts({"created": 2.0, "joined": 22.0}, 20.0) is None


def test_the_last_line_has_what_the_history_says() -> None:
    runtime = {"round": 30, "rewardFirst": 0.2, "rewardLast": 0.8, "weightVersion": 33}
    assert last_line(runtime, 1, {"lost": 0, "duplicated": 0}, 42.04) == (
        "demo: Complete rounds=30 reward_first=0.200 reward_last=0.800 weight_version=33 "
        "faults=1 lost=0 duplicated=0 recovered_seconds=42.0"
    )
    assert last_line(runtime, 0, {}, None).endswith("faults=0 lost=unknown duplicated=unknown recovered_seconds=never")
    agents = {"lost": 0, "duplicated": 0, "episodes": {"proved": 640, "turns": 1200, "unproved": 0}}
    line = last_line(runtime, 1, agents, 42.0, 12)
    assert " faults=1 episodes=640 turns=1200 reencoded=0 resumed=12 lost=0 duplicated=0 " in line


def test_episodes_begin_when_runners_have_received_more_of_them() -> None:
    begins = Begins()
    looks = [(None, False), (10.0, False), (10.0, False), (14.0, True), (14.0, False), (None, False), (20.0, False)]
    assert [begins.look(leased) for leased, _ in looks] == [right for _, right in looks]


def test_the_number_of_leased_attempts_is_read_from_the_gateway() -> None:
    registry = GatewayMetrics(GatewayParts()).registry()
    assert leased_of(generate_latest(registry).decode()) == 0.0
    assert leased_of("") is None
