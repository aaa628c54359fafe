"""What a machine learns from a switch within its round."""

from rljob_runtime.scheduling.adaptive_tp.guard import SurpriseGuard
from tests.support.adaptive_tp import ENGINES


def test_a_model_is_corrected_after_twenty_slow_steps():
    guard = SurpriseGuard()
    guard.stepped(4, 19, measured=1.9, predicted=1.0)
    assert guard.slowdown(4) == 1
    guard.stepped(4, 1, measured=0.1, predicted=0.0)
    assert guard.slowdown(4) == 2
    corrected = guard.corrected(ENGINES)
    assert corrected[1] is ENGINES[1]
    assert corrected[4].latency.step(3, 500) == 2 * ENGINES[4].latency.step(3, 500)


def test_a_model_that_is_nearly_right_or_slow_is_left():
    guard = SurpriseGuard()
    guard.stepped(2, 100, measured=1.25, predicted=1.0)
    guard.stepped(4, 100, measured=0.2, predicted=1.0)
    assert guard.corrected(ENGINES) == ENGINES


def test_a_pair_undone_within_its_cost_is_closed():
    guard = SurpriseGuard()
    guard.switched(1, 4, at=10.0, seconds=2.0)
    guard.switched(4, 1, at=13.0, seconds=1.0)
    assert guard.closed == {(1, 4), (4, 1)}
    guard.switched(1, 2, at=14.0, seconds=1.0)
    assert guard.closed == {(1, 4), (4, 1)}


def test_a_pair_that_earned_its_cost_may_be_undone():
    guard = SurpriseGuard()
    guard.switched(1, 4, at=10.0, seconds=2.0)
    guard.switched(4, 1, at=14.5, seconds=1.0)
    guard.switched(1, 4, at=99.0, seconds=1.0)
    assert guard.closed == frozenset()
