"""Prefill clock: from the launch of a machine's responses to the last first token, whatever happens to them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.protocols import EngineStats
from rljob_runtime.protocols.trajectory import Lease, PromptKey, TrajectoryKey
from rljob_runtime.scheduling.layouts.prefill_clock import PrefillClock, is_full
from rljob_runtime.scheduling.round_plan import Launch


def key(number: int) -> TrajectoryKey:
    return TrajectoryKey(PromptKey(0, number), 0)


LEASES = {key(number): Lease(f"a/replica-{number % 2}", 2) for number in range(4)}
"""Two responses on each of two replicas."""


def clock() -> PrefillClock:
    return PrefillClock([Launch(one, lease) for one, lease in LEASES.items()], 10.0)


def after(*events: tuple[float, int]) -> PrefillClock:
    """A clock after first tokens of these responses, at these times."""
    made = clock()
    for now, number in events:
        made.record_token(key(number), now)
    return made


@pytest.mark.parametrize(
    ("events", "gone", "full", "expected"),
    [
        ([], {}, "", (False, None)),
        ([(11.0, 0)], {}, "", (False, 1.0)),
        ([(11.0, 0), (11.0, 2), (12.0, 1), (15.0, 3)], {}, "", (True, 5.0)),
        ([(11.0, 0), (19.0, 0), (11.0, 2), (12.0, 1), (15.0, 3), (30.0, 2)], {}, "", (True, 5.0)),
        ([(11.0, 0), (11.0, 2), (12.0, 1), (15.0, 9)], {}, "", (False, 2.0)),
        ([(11.0, 0), (11.0, 2), (12.0, 1)], {key(3): None}, "", (True, 2.0)),
        ([(11.0, 0), (11.0, 2), (12.0, 1)], {key(3): Lease("a/replica-1", 3)}, "", (True, 2.0)),
        ([(11.0, 0), (11.0, 2), (12.0, 1)], {key(0): None}, "", (False, 2.0)),
        ([(11.0, 0), (11.0, 2), (12.0, 1)], {}, "a/replica-1", (True, 2.0)),
        ([(11.0, 0), (11.0, 2)], {}, "a/replica-1", (True, 1.0)),
        ([(11.0, 0), (12.0, 1)], {}, "a/replica-1", (False, 2.0)),
        ([], dict.fromkeys(LEASES), "", (True, None)),
    ],
    ids=[
        "nothing yet",
        "the first token ends nothing",
        "the slowest replica ends it",
        "later tokens change nothing",
        "others are not awaited",
        "one has left",
        "one was launched again",
        "one has left after its token",
        "one waits for a place",
        "a replica without a place",
        "the other replica is awaited",
        "all have left",
    ],
)
def test_the_clock_runs_until_every_response_has_a_token(
    events: list[tuple[float, int]],
    gone: Mapping[TrajectoryKey, Lease | None],
    full: str,
    expected: tuple[bool, float | None],
) -> None:
    made = after(*events)
    made.retain(lambda one: {**LEASES, **gone}.get(one))
    made.record_full(full)
    assert (made.has_ended, made.seconds) == expected


@pytest.mark.parametrize(
    ("number", "is_complete"), [(3, False), (0, True)], ids=["before its first token", "after its first token"]
)
def test_leaving_before_the_first_token_leaves_the_prefill_incomplete(number: int, is_complete: bool) -> None:
    made = after((11.0, 0), (11.0, 2), (12.0, 1))
    made.retain(lambda one: LEASES[one] if one != key(number) else None)
    assert made.is_complete is is_complete


@pytest.mark.parametrize(
    ("stats", "full"),
    [
        (EngineStats(4, 0, 0.99, 0, 0, 0, 0, 0, max_running=4), False),
        (EngineStats(3, 2, 0.5, 0, 0, 0, 0, 0, max_running=4), False),
        (EngineStats(4, 2, 0.5, 0, 0, 0, 0, 0, max_running=4), True),
        (EngineStats(4, 2, 0.5, 0, 0, 0, 0, 0), False),
        (EngineStats(3, 2, 0.9, 0, 0, 0, 0, 0, max_running=4), True),
    ],
    ids=["nothing waits", "the budget of a step", "no place", "an unknown limit", "no room"],
)
def test_requests_wait_for_others_in_a_full_engine(stats: EngineStats, full: bool) -> None:
    assert is_full(stats) is full


@given(st.permutations(range(4)), st.lists(st.floats(10.0, 99.0), min_size=4, max_size=4), st.sets(st.integers(0, 3)))
def test_any_order_of_tokens_and_departures_ends_it(order: list[int], times: list[float], gone: set[int]) -> None:
    made, times = clock(), sorted(times)
    for now, number in zip(times, order, strict=True):
        assert not made.has_ended
        if number in gone:
            left = key(number)
            made.retain(lambda one, left=left: None if one == left else LEASES[one])
        else:
            made.record_token(key(number), now)
    assert made.has_ended
    assert made.is_complete is (not gone)
    tokens = [now for now, number in zip(times, order, strict=True) if number not in gone]
    assert made.seconds == (tokens[-1] - 10.0 if tokens else None)
