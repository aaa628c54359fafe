"""Idle shares: each moment of a replica has one cause, and all of them are those of a computation moment by moment."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple, fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.timeline.idle import (
    JOINED,
    LEFT,
    LOST,
    IdleShares,
    blocked_row,
    idle_shares,
    length,
    membership,
    subtract,
    union,
)
from rljob_runtime.timeline.record import Interval

PHASES, REWARDS = "coordinator/rounds", "coordinator/rewards"
A, B = "a/replica-0", "b/replica-0"
WAIT = "wait for environments"


def one(row: str, name: str, since: float, until: float | None) -> Interval:
    return Interval(row, name, since, until)


ROUND = [
    one(PHASES, "generation", 0, 60),
    one(A, "generate", 0, 50),
    one(B, "generate", 0, 20),
    one(REWARDS, "rewards", 10, 60),
    one(PHASES, "training", 60, 80),
    one("b/worker", "loan", 30, 70),
    one(PHASES, "weight sync", 80, 100),
    one(A, "load", 90, 95),
]
CASES: dict[str, tuple[list[Interval], str | None, tuple[float, float, float, float, float]]] = {
    # tail, weights, training, environments, rewards
    "a synchronous round": (ROUND, PHASES, (0.05, 0.2, 0.15, 0, 0.05)),
    "its update without the phases": (ROUND, None, (0.375, 0.025, 0, 0, 0.05)),
    "nothing recorded": ([], PHASES, (1, 0, 0, 0, 0)),
    "work to the end": ([one(A, "generate", -5, 200), one(B, "generate", 0, 100)], PHASES, (0, 0, 0, 0, 0)),
    "a full buffer": (
        [one(blocked_row(A), "buffer full", 0, 40), one(B, "generate", 0, 100)],
        None,
        (0.3, 0, 0.2, 0, 0),
    ),
    "a load in a full buffer": (
        [one(blocked_row(A), "buffer full", 0, 40), one(A, "load", 0, 10), one(B, "generate", 0, 100)],
        None,
        (0.3, 0.05, 0.15, 0, 0),
    ),
    "tools take most of a round": (
        [one(A, "generate", 0, 10), one(A, WAIT, 10, 80), one(A, "generate", 80, 100), one(B, "generate", 0, 100)],
        None,
        (0, 0, 0, 0.35, 0),
    ),
    "rewards while another one waits for tools": (
        [one(A, WAIT, 0, 50), one(REWARDS, "rewards", 0, 100)],
        None,
        (0.25, 0, 0, 0.25, 0.5),
    ),
    "a load and a full buffer while all wait": (
        [one(A, WAIT, 0, 50), one(A, "load", 0, 10), one(blocked_row(A), "buffer full", 10, 30), one(B, WAIT, 0, 100)],
        None,
        (0.25, 0.05, 0.1, 0.6, 0),
    ),
    "moments count for nothing": ([one(A, "generate", 5, None), one(B, "generate", 0, 100)], None, (0.5, 0, 0, 0, 0)),
}


@pytest.mark.parametrize(("intervals", "row", "shares"), CASES.values(), ids=CASES)
def test_idle_time_has_a_cause(
    intervals: list[Interval], row: str | None, shares: tuple[float, float, float, float, float]
) -> None:
    found = idle_shares(intervals, 0, 100, [A, B], row)
    assert found is not None
    assert astuple(found) == pytest.approx(shares, abs=1e-9)


MEMBERS: dict[str, tuple[list[Interval], list[str], dict[str, list[tuple[float, float]]]]] = {
    "none joins or leaves": ([one(A, "generate", 0, 50)], [A, B], {A: [(0, 100)], B: [(0, 100)]}),
    "one joins": ([one("b/machine", JOINED, 40, None)], [A, B], {A: [(0, 100)], B: [(40, 100)]}),
    "one joined before": ([one("b/machine", JOINED, -5, None)], [B], {B: [(0, 100)]}),
    "one is lost and comes again": (
        [one("a/machine", LOST, 10, None), one("a/machine", JOINED, 30, None)],
        [A],
        {A: [(0, 10), (30, 100)]},
    ),
    "the last one is lost": ([one(A, "generate", 0, 50), one("a/machine", LOST, 70, None)], [], {A: [(0, 70)]}),
    "a lost one leaves": (
        [one(A, "load", 0, 5), one("a/machine", LOST, 20, None), one("a/machine", LEFT, 30, None)],
        [B],
        {B: [(0, 100)], A: [(0, 20)]},
    ),
    "one comes and goes": (
        [one("b/machine", JOINED, 20, None), one(B, "load", 20, 30), one("b/machine", LEFT, 60, None)],
        [A],
        {A: [(0, 100)], B: [(20, 60)]},
    ),
    "another moment of a machine": ([one("a/machine", "Suspected", 10, None)], [A], {A: [(0, 100)]}),
    "one that was lost while all waited": (
        [one(A, WAIT, 0, 50), one("a/machine", LOST, 70, None)],
        [],
        {A: [(0, 70)]},
    ),
    "a layout that is no more": ([one("a/replica-1", "generate", 0, 50)], [A], {A: [(0, 100)]}),
}


@pytest.mark.parametrize(("intervals", "replicas", "expected"), MEMBERS.values(), ids=MEMBERS)
def test_a_replica_counts_while_its_machine_is_a_member(
    intervals: list[Interval], replicas: list[str], expected: dict[str, list[tuple[float, float]]]
) -> None:
    assert membership(intervals, 0, 100, replicas) == expected


def test_time_outside_the_fleet_is_not_idle() -> None:
    moments = [one("a/machine", LOST, 50, None), one("b/machine", JOINED, 20, None)]
    found = idle_shares([*moments, one(A, "generate", 0, 40), one(B, "generate", 20, 100)], 0, 100, [B], None)
    assert found is not None
    assert astuple(found) == pytest.approx((10 / 130, 0, 0, 0, 0))


def test_without_replicas_or_time_there_is_no_share() -> None:
    assert idle_shares([one(PHASES, "training", 60, 80)], 0, 100, [], PHASES) is None
    assert idle_shares([one("a/machine", JOINED, 100, None)], 0, 100, [A], PHASES) is None
    assert idle_shares(ROUND, 5, 5, [A], PHASES) is None


NAMES = {
    A: ("generate", WAIT, "load"),
    B: ("generate", WAIT, "load"),
    blocked_row(A): ("buffer full",),
    "a/worker": ("loan",),
    REWARDS: ("rewards",),
    PHASES: ("training", "weight sync", "generation"),
    "trainer": ("train",),
}
PAIRS = [(row, name) for row, names in NAMES.items() for name in names]
INTERVALS = st.lists(
    st.builds(
        lambda pair, since, seconds: one(*pair, since, since + seconds),
        st.sampled_from(PAIRS),
        st.integers(-5, 25),
        st.integers(0, 12),
    ),
    max_size=25,
)


CAUSES = [one.name for one in fields(IdleShares)]


def by_moments(intervals: list[Interval], until: int, row: str | None) -> IdleShares:
    """The same, a second at a time."""
    seconds: Counter[str] = Counter()
    for second in range(until):
        now = {(i.row, i.name) for i in intervals if i.since <= second < (i.until or 0)}
        for replica, worker in ((A, "a/worker"), (B, "b/worker")):
            if (replica, "generate") in now or (worker, "loan") in now:
                continue
            if (replica, "load") in now or (row, "weight sync") in now:
                seconds["weights"] += 1
            elif (blocked_row(replica), "buffer full") in now or (row, "training") in now:
                seconds["training"] += 1
            elif (replica, WAIT) in now:
                seconds["environments"] += 1
            elif (REWARDS, "rewards") in now and not any(name in ("generate", WAIT) for _, name in now):
                seconds["rewards"] += 1
            else:
                seconds["tail"] += 1
    return IdleShares(*(seconds[name] / (2 * until) for name in CAUSES))


@given(INTERVALS, st.integers(1, 25), st.sampled_from([PHASES, None]))
def test_it_is_what_a_second_computation_finds(intervals: list[Interval], until: int, row: str | None) -> None:
    found = idle_shares(intervals, 0, until, [A, B], row)
    assert found is not None
    assert astuple(found) == pytest.approx(astuple(by_moments(intervals, until, row)), abs=1e-9)
    assert sum(astuple(found)) <= 1 + 1e-9


SPANS = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)).map(lambda pair: (pair[0], pair[0] + pair[1])))


@given(SPANS, SPANS)
def test_spans_are_sets_of_moments(one: list[tuple[float, float]], other: list[tuple[float, float]]) -> None:
    def moments(spans: list[tuple[float, float]]) -> set[int]:
        return {second for second in range(30) if any(begin <= second < end for begin, end in spans)}

    both, left = union([one, other]), subtract(union([one]), union([other]))
    assert moments(both) == moments(one) | moments(other)
    assert moments(left) == moments(one) - moments(other)
    assert length(both) == len(moments(both))
    assert length(left) == len(moments(left))
