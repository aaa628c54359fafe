"""Resumption: who goes on with an attempt, and what a report of a tool's call means."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.scheduling.episodes.resumption import (
    MOST_RESUMPTIONS,
    CallId,
    CallStatus,
    JournaledCall,
    LostRunner,
    Recovery,
    ToolJournal,
    may_resume,
)

CALL, OTHER = CallId(2, 0), CallId(2, 1)
REPLAY, NEXT_TURN = Recovery.REPLAY, Recovery.NEXT_TURN


@pytest.mark.parametrize(
    ("lost", "resumes"),
    [
        (LostRunner(NEXT_TURN, True, 0, 1.0), True),
        (LostRunner(REPLAY, True, MOST_RESUMPTIONS - 1, math.inf), True),
        (LostRunner(None, True, 0, 1.0), False),
        (LostRunner(NEXT_TURN, False, 0, 1.0), False),
        (LostRunner(NEXT_TURN, True, MOST_RESUMPTIONS, 1.0), False),
        (LostRunner(NEXT_TURN, True, 0, 0.0), False),
    ],
)
def test_another_runner_goes_on_where_all_that_was_done_is_known(lost: LostRunner, resumes: bool):
    assert may_resume(lost) is resumes


@pytest.mark.parametrize(
    ("recovery", "call", "digest", "resumption", "status"),
    [
        (NEXT_TURN, OTHER, b"x", 0, CallStatus.NEW),
        (NEXT_TURN, OTHER, b"x", 1, CallStatus.NEW),
        (NEXT_TURN, CALL, b"a", 0, CallStatus.KNOWN),
        (NEXT_TURN, CALL, b"x", 0, CallStatus.DIFFERENT),
        (NEXT_TURN, CALL, b"a", 1, CallStatus.TWICE),
        (None, CALL, b"a", 1, CallStatus.TWICE),
        (REPLAY, CALL, b"a", 1, CallStatus.REPLAYED),
        (REPLAY, CALL, b"x", 1, CallStatus.DIFFERENT),
        (REPLAY, OTHER, b"x", 1, CallStatus.MISSED),
        (REPLAY, OTHER, b"x", 0, CallStatus.NEW),
    ],
)
def test_a_report_is_what_its_resumption_and_its_answer_say(recovery, call, digest, resumption, status):
    journal = ToolJournal(recovery, [JournaledCall(CALL, b"a", 0)])
    assert journal.take(call, digest, resumption) is status
    assert status.ends == (status in (CallStatus.DIFFERENT, CallStatus.TWICE, CallStatus.MISSED))


def test_a_replayed_call_is_known_and_the_next_runner_replays_it_once_more():
    journal = ToolJournal(REPLAY)
    assert journal.take(CALL, b"a", 0) is CallStatus.NEW
    for resumption in (1, 2):
        assert journal.take(CALL, b"a", resumption) is CallStatus.REPLAYED
        assert journal.take(CALL, b"a", resumption) is CallStatus.KNOWN
    assert journal.take(OTHER, b"b", 2) is CallStatus.NEW


LIVES = st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=6)
"""Of each runner: how many calls it executes before it is lost, and whether the last one's report is lost with it."""


@given(LIVES, st.sampled_from(Recovery))
def test_a_runner_that_does_as_it_is_told_never_ends_an_attempt(lives: list[tuple[int, bool]], recovery: Recovery):
    """Whatever moment its predecessor was lost at. Without a state, no stored call has its effect twice."""
    journal, stored, executed = ToolJournal(recovery), list[CallId](), list[CallId]()
    for resumption, (count, lost) in enumerate(lives):
        if recovery is REPLAY:
            for call in stored:
                assert journal.take(call, str(call).encode(), resumption) is CallStatus.REPLAYED
        known = set(stored)
        for number in range(len(stored), len(stored) + count):
            call = CallId(number + 1, 0)
            assert call not in known
            executed.append(call)
            if not (lost and number == len(known) + count - 1):
                assert journal.take(call, str(call).encode(), resumption) is CallStatus.NEW
                stored.append(call)
    assert len(journal) == len(stored) == len(set(stored))
    assert all(executed.count(call) - 1 <= len(lives) - 1 for call in executed)
