"""The expected curve of what is left."""

from dataclasses import replace

import pytest

from rljob_runtime.scheduling.adaptive_tp.load_curve import BINS, POINTS, load_curve
from rljob_runtime.scheduling.adaptive_tp.snapshot import MachineSnapshot, Running
from rljob_runtime.scheduling.lending.gain import OpenGroup
from rljob_runtime.scheduling.round_planner.survival import Survival
from tests.support.adaptive_tp import machine


def snapshot(generated, lengths, cut=(), limit=1000, **more):
    return MachineSnapshot(1, 1, (tuple(Running(10, one) for one in generated),), Survival(lengths, cut), limit, **more)


def test_a_curve_begins_with_what_runs_and_ends_with_nothing():
    curve = load_curve(snapshot([100, 300], [150, 200, 400, 800]))
    first, last = curve[0], curve[-1]
    assert (first.steps, first.running, first.tokens) == (0, 2, 420)
    assert first.squares == 110**2 + 310**2
    assert first.any_runs == pytest.approx(1.0)
    assert (last.running, last.any_runs) == (0, 0)
    assert last.steps == 900
    assert len(curve) <= POINTS


def test_survival_is_of_responses_that_came_so_far():
    """Of four lengths two exceed 300, and one of those exceeds 500."""
    curve = load_curve(snapshot([300], [100, 200, 400, 800]))
    shares = {point.steps: point.running for point in curve}
    assert all(shares[steps] == (1 if steps < 100 else 0.5 if steps < 500 else 0) for steps in shares)


def test_stopped_responses_are_longer_than_they_are():
    """Taken as complete, six responses that were stopped at 300 would say that none becomes longer."""
    curve = load_curve(snapshot([250], [100, 200, 400, 800], cut=[300] * 6))
    assert next(point.running for point in curve if point.steps > 100) == 1


def test_a_response_beyond_all_lengths_runs_to_the_limit():
    curve = load_curve(snapshot([500], [100, 200]))
    assert all(point.running == (point.steps < 500) for point in curve)


def test_the_last_response_decides_more_than_the_mean():
    curve = load_curve(snapshot([100] * 50, [*range(100, 1000, 10)]))
    middle = next(point for point in curve if point.running < 6)
    assert middle.any_runs > 0.9


def test_classes_hold_all_responses():
    many = load_curve(snapshot(range(100, 100 + 3 * BINS), [*range(100, 1000, 10)]))
    assert many[0].running == 3 * BINS
    assert many[0].tokens == sum(range(110, 110 + 3 * BINS))


def test_places_that_are_taken_end_a_response():
    plain = machine((1, 1, 1, 1))
    race = replace(plain, groups=[OpenGroup(1)], wanted=1)
    later = next(place for place, point in enumerate(load_curve(plain)) if point.steps > 1000)
    assert load_curve(race)[0].running == 4
    assert load_curve(race)[later].running < 0.5 * load_curve(plain)[later].running
