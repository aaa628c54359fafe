"""The back-off of calls, and the losses of the trainer that end a job."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.scheduling.backoff import MAX_TRAINER_LOSSES, Backoff, TrainerLosses


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_back_off_stays_in_its_bounds(failures, uniform):
    policy = Backoff(initial=0.5, maximum=20.0)
    delay = policy.delay(failures, uniform)
    assert 0.25 <= delay <= 20.0
    assert policy.delay(failures + 1, uniform) >= delay


def test_back_off_ends_at_its_limit():
    assert Backoff(limit=3).delay(2) is not None
    assert Backoff(limit=3).delay(3) is None
    with pytest.raises(ValueError, match="initial"):
        Backoff(initial=0.0)


def test_a_job_fails_after_too_many_losses_of_the_trainer() -> None:
    losses = TrainerLosses()
    assert [losses.lose() for _ in range(MAX_TRAINER_LOSSES + 1)] == [False] * MAX_TRAINER_LOSSES + [True]


def test_only_a_round_finished_for_the_first_time_is_trainer_progress() -> None:
    losses = TrainerLosses()
    losses.finish(3)
    losses.lose()
    for repeated in (1, 2, 3):
        losses.finish(repeated)
        assert losses.count == 1
    losses.finish(4)
    assert losses.count == 0
