"""Weight versions: no number is used twice, whatever is undone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.scheduling.weight_versions import Versions, may_start


@given(st.lists(st.integers(-3, 1), max_size=40))
def test_versions_are_never_used_twice_whatever_is_undone(moves):
    """1: the next step; 0: publish again after the same step; negative: rewind so far."""
    versions, step, used = Versions(), 0, set()
    for move in moves:
        if move < 0:
            step = max(0, step + move)
            versions = versions.rewind(step)
        step += max(move, 0)
        number = versions.next_version()
        assert number not in used
        used.add(number)
        versions = versions.publish(number, step)
        assert versions.of_step(step) == number
        assert versions.step_of(number) == step
        assert not versions.is_abandoned(number)
        assert all(versions.is_abandoned(e.version) for e in versions.history if e.step > step)


def test_a_version_seen_elsewhere_is_not_used_again():
    versions = Versions().with_observed(8)
    assert versions.next_version() == 9
    with pytest.raises(ValueError, match="at least 9"):
        versions.publish(8, 0)


@pytest.mark.parametrize(
    ("loaded", "missing", "waited", "expected"),
    [(0, 0, True, False), (1, 0, False, True), (1, 1, False, False), (1, 1, True, True), (0, 2, True, False)],
)
def test_a_round_starts_with_all_machines_or_after_the_wait(
    loaded: int, missing: int, waited: bool, expected: bool
) -> None:
    assert may_start(loaded, missing, waited) is expected
