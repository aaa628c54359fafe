"""Who is believed dead by whom: tables and properties of the decision, no I/O, no clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.scheduling.fault_detection.suspicion import (
    COORDINATOR,
    MOST_SECONDS,
    Heartbeats,
    Suspicion,
    neighbours,
)

HEARTBEAT = 0.5
NAMES = ("a", "b", "c", "d", "e")


# --- heartbeats ---


def test_two_missed_heartbeats_in_a_row_make_a_machine_silent():
    heartbeats = Heartbeats().record_miss(HEARTBEAT, 0.0)
    assert not heartbeats.silent
    assert heartbeats.record_miss(HEARTBEAT, 0.0).silent
    assert not heartbeats.record_answer(0.3).record_miss(HEARTBEAT, 0.0).silent


def test_a_coordinator_that_stood_still_blames_no_machine():
    heartbeats = Heartbeats()
    for _ in range(10):
        heartbeats = heartbeats.record_miss(HEARTBEAT, own_delay=0.3)
    assert not heartbeats.silent


@pytest.mark.parametrize(
    ("answers", "seconds"),
    [((), 0.25), ((0.001, 0.002), 0.25), ((0.1, 0.001), 0.4), ((0.5,), 2.0), ((30.0,), MOST_SECONDS)],
)
def test_a_busy_machine_is_given_the_time_that_it_is_seen_to_take(answers, seconds):
    heartbeats = Heartbeats()
    for answer in answers:
        heartbeats = heartbeats.record_answer(answer)
    assert heartbeats.timeout(HEARTBEAT) == pytest.approx(seconds)


@given(st.lists(st.one_of(st.none(), st.floats(0, 100)), max_size=60), st.floats(0.05, 10))
def test_silence_is_two_misses_and_the_timeout_has_bounds(history, heartbeat):
    heartbeats, missed = Heartbeats(), 0
    for answer in history:
        heartbeats = heartbeats.record_miss(heartbeat, 0.0) if answer is None else heartbeats.record_answer(answer)
        missed = missed + 1 if answer is None else 0
        assert heartbeats.silent == (missed >= 2)
        assert heartbeat / 2 <= heartbeats.timeout(heartbeat) <= max(heartbeat / 2, MOST_SECONDS)


def test_a_machine_without_power_leaves_the_chain_in_2_5_heartbeats():
    """The worst moment is just after an answer: a whole period to the next heartbeat, another to the one after it."""
    worst = HEARTBEAT + HEARTBEAT + Heartbeats().record_answer(0.01).timeout(HEARTBEAT)
    assert worst == 2.5 * HEARTBEAT < 1.5


# --- witnesses ---

SAID = st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), max_size=12)


@given(SAID, st.sets(st.sampled_from(NAMES)))
def test_one_neighbour_that_reaches_a_machine_is_enough(said, present):
    suspicion = Suspicion("HeartbeatLost")
    for neighbour, reached in said:
        suspicion = suspicion.with_report(neighbour, reached)
    last = {neighbour: reached for neighbour, reached in said if neighbour in present}
    expected = () if any(last.values()) else tuple(sorted(last))
    assert suspicion.witnesses(present) == (COORDINATOR, *expected)


@pytest.mark.parametrize(
    ("chain", "machine", "present", "asked"),
    [
        ("abcde", "c", "abde", "bd"),
        ("abcde", "a", "bcde", "bc"),
        ("abcde", "e", "abcd", "dc"),
        ("abcde", "c", "ae", "ae"),
        ("abcde", "c", "abd", "bd"),
        ("abcde", "c", "", ""),
        ("ab", "a", "b", "b"),
        ("a", "a", "", ""),
        ("ab", "x", "ab", "ba"),
        ("", "x", "abc", "ab"),
        ("abc", "b", "abcx", "ac"),
        ("ab", "b", "xy", "xy"),
    ],
)
def test_the_nearest_that_are_left_are_asked(chain, machine, present, asked):
    assert neighbours(tuple(chain), machine, set(present)) == tuple(asked)


@given(st.permutations(NAMES), st.sampled_from((*NAMES, "x")), st.sets(st.sampled_from((*NAMES, "y"))))
def test_each_other_member_is_asked_once(chain, machine, present):
    asked = neighbours(chain, machine, present)
    assert len(asked) == len(set(asked)) == min(2, len(present - {machine}))
    assert set(asked) <= present - {machine}
