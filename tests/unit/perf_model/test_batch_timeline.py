"""Batch timeline against a walk that looks at every run at every event."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.perf_model.batch_timeline import BatchTimeline, race_ends

STEPS = st.lists(st.integers(1, 50).map(float), max_size=8).map(sorted)


def decode(batch: int, context: float, steps: float) -> float:
    return steps * (1 + batch) + 0.001 * (steps * context + batch * steps * steps / 2)


def walk(steps: list[float], contexts: list[int], start: float) -> list[float]:
    """The end of each run, one after the other."""
    ends, made, now = [], 0.0, start
    for place, until in enumerate(steps):
        context = sum(contexts[place:]) + made * (len(steps) - place)
        now += decode(len(steps) - place, context, until - made)
        made = until
        ends.append(now)
    return ends


@given(STEPS, st.floats(0, 9))
def test_runs_end_in_order_as_in_a_walk(steps, start):
    contexts = [10 * place for place in range(len(steps))]
    timeline = BatchTimeline(steps, contexts, decode, start)
    ends = []
    while timeline.due < inf:
        ends.append(timeline.due)
        assert timeline.stop(timeline.next_run, timeline.due)
    assert ends == pytest.approx(walk(steps, contexts, start))
    assert not any(timeline.alive)


@given(STEPS.filter(len), st.floats(0, 1))
def test_time_goes_on_in_parts_as_in_one(steps, share):
    timeline = BatchTimeline(steps, [1] * len(steps), decode, 0.0)
    due = timeline.due
    timeline.advance(share * due)
    assert timeline.made == pytest.approx(share * steps[0])
    timeline.advance(due)
    assert timeline.made == pytest.approx(steps[0])
    timeline.advance(0.0)
    assert timeline.made == pytest.approx(steps[0]), "never back"


def test_a_run_that_has_stopped_stops_once_and_makes_the_others_faster():
    timeline = BatchTimeline([10.0, 20.0], [0, 0], decode, 5.0)
    assert timeline.stop(1, 5.0)
    assert not timeline.stop(1, 6.0)
    assert timeline.due == pytest.approx(5.0 + decode(1, 0, 10))


def constant(batch: int, context: float, steps: float) -> float:
    return steps


@pytest.mark.parametrize(
    ("missing", "ends", "left"),
    [
        pytest.param(
            [2, 1], [(2.0, 1, 0, None), (3.0, 0, 0, []), (5.0, 1, 1, [(0, 1), (1, 2)])], [0, 0], id="two groups"
        ),
        pytest.param([1, 1], [(2.0, 1, 0, [(0, 1), (1, 1), (1, 2)]), (3.0, 0, 0, [])], [0, 0], id="one place each"),
        pytest.param(
            [0, 1], [(2.0, 1, 0, None), (3.0, 0, 0, []), (5.0, 1, 1, None)], [-2, 0], id="a group had all its places"
        ),
        pytest.param([], [(2.0, 1, 0, None), (3.0, 0, 0, None), (5.0, 1, 1, None)], [], id="no race"),
    ],
)
def test_the_first_runs_take_the_places_and_the_others_stop(missing, ends, left):
    """Runs of group 0 end at 2, 5, 7 and 9 s, the one of group 1 at 3 s."""
    engines = [
        BatchTimeline([3.0, 7.0], [0, 0], constant, 0.0, [1, 0]),
        BatchTimeline([2.0, 5.0, 9.0], [0, 0, 0], constant, 0.0, [0, 0, 0]),
    ]
    found = race_ends(engines, missing)
    assert [next(found) for _ in ends] == ends
    assert missing == left
    if left == [0, 0]:
        assert next(found, None) is None
