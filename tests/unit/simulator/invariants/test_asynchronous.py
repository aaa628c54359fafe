"""The invariants of `mode: Asynchronous`: each is broken by an event that breaks it, and by nothing that is right."""

from dataclasses import replace

import pytest

from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey
from rljob_runtime.simulator.core.events import Committed, EpisodeReported, Published, Row, StoreLost, Submitted
from rljob_runtime.simulator.core.tokens import digest
from rljob_runtime.simulator.invariants.asynchronous import ExperienceInvariants

KEY = TrajectoryKey(PromptKey(0, 0), 0)


def cursor(position):
    return Row("pool", (), (0, position))


def group(draw=0, step=None, outcome=None):
    return Row("groups", (0, 0, draw), (1, None, None, step, outcome, None))


def sample(attempt=1, replica="a", draw=0):
    return Row("samples", (0, 0, draw, 0), (attempt, 0, replica, None, None, None))


def chunk(size, start=0, draw=0):
    return Row("experience_chunks", (0, 0, draw, 0, start), (size,))


def boundary(step):
    return Row("boundaries", (step,), (0, 0, "[]", "[]"))


def gone(row):
    return replace(row, values=None)


def committed(*rows):
    return Committed(rows)


def reported(failed):
    return EpisodeReported("r", KEY, 1, None, failed)


def submitted(replica="a", attempt=1, prefix=0):
    return Submitted(replica, KEY, attempt, 1, prefix)


LAUNCHED = (committed(cursor(1), group(), sample()), submitted(), committed(chunk(5)))
MOVES = (*LAUNCHED, committed(sample(attempt=2)))
"""The attempt is given, and its source goes on."""
FINISHED = (*LAUNCHED, committed(Row("samples", (0, 0, 0, 0), (1, 0, "a", "stop", None, None))))
BEGUN_AGAIN = committed(gone(chunk(5)), sample())
MOVED = committed(sample(attempt=2, replica="b"), gone(chunk(3, 5)))


def broken_by(*events):
    invariants = ExperienceInvariants(1, 10, lambda: 0.0, bound=1)
    for event in events:
        invariants(event)
    return invariants.broken and invariants.broken.invariant


@pytest.mark.parametrize(
    "events",
    [
        pytest.param((*MOVES, submitted("b", 2, 5), committed(chunk(3, 5)), MOVED), id="a move"),
        pytest.param(
            (*MOVES, committed(chunk(3, 5)), submitted("b", 2, 5), MOVED), id="its destination is notified late"
        ),
        pytest.param((*LAUNCHED, committed(sample(attempt=2)), submitted("b", 2, 5)), id="it goes on elsewhere"),
        pytest.param(
            (*LAUNCHED, committed(gone(chunk(5)), sample(attempt=2)), submitted("b", 2)), id="its reward has failed"
        ),
        pytest.param((*FINISHED, reported("runner"), BEGUN_AGAIN), id="its runner handed it back"),
        pytest.param(
            (
                *LAUNCHED,
                committed(group(outcome="requeued")),
                committed(group(draw=1), sample(attempt=2, draw=1)),
                submitted("b", 2),
            ),
            id="drawn again",
        ),
        pytest.param((*LAUNCHED, StoreLost(), committed(group(), sample(attempt=9)), submitted("b", 9)), id="again"),
    ],
)
def test_what_is_right_breaks_nothing(events):
    assert broken_by(*events) is None


@pytest.mark.parametrize(
    ("invariant", "events"),
    [
        ("no progress lost", (*MOVES, submitted("b", 2, 4))),
        ("no progress lost", (*LAUNCHED, committed(gone(chunk(5))))),
        ("no progress lost", (*FINISHED, BEGUN_AGAIN)),
        ("no progress lost", (*FINISHED, reported("environment"), BEGUN_AGAIN)),
        ("one lease", (*LAUNCHED, submitted("b"))),
        ("one place", (*LAUNCHED, committed(group(draw=1)))),
        ("one place", (*LAUNCHED, committed(group(outcome="trained")), committed(group(draw=1)))),
        ("one place", (committed(cursor(2), group(), boundary(0)),)),
        (
            "trained once",
            (Published(1, 0, digest(()), 0.0), *LAUNCHED, committed(group(step=1, outcome="trained"), boundary(1))),
        ),
    ],
)
def test_each_is_broken_by_what_breaks_it(invariant, events):
    assert broken_by(*events) == invariant
