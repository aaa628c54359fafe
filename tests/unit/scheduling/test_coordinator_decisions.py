"""Small decisions of the coordinator's shells, each as a table."""

from __future__ import annotations

import pytest

from rljob_runtime.perf_model.observed_speed import same_batch
from rljob_runtime.scheduling.backoff import MAX_TRAINER_LOSSES, TrainerLosses
from rljob_runtime.scheduling.weight_versions import may_start


def test_a_job_fails_after_too_many_losses_of_the_trainer() -> None:
    losses = TrainerLosses()
    assert [losses.lose() for _ in range(MAX_TRAINER_LOSSES + 1)] == [False] * MAX_TRAINER_LOSSES + [True]


def test_only_a_round_that_was_not_finished_before_is_progress_of_the_trainer() -> None:
    losses = TrainerLosses()
    losses.finish(3)
    losses.lose()
    for repeated in (1, 2, 3):
        losses.finish(repeated)
        assert losses.count == 1
    losses.finish(4)
    assert losses.count == 0


@pytest.mark.parametrize(
    ("loaded", "missing", "waited", "expected"),
    [(0, 0, True, False), (1, 0, False, True), (1, 1, False, False), (1, 1, True, True), (0, 2, True, False)],
)
def test_a_round_starts_with_all_machines_or_after_the_wait(
    loaded: int, missing: int, waited: bool, expected: bool
) -> None:
    assert may_start(loaded, missing, waited) is expected


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(10, 10, True), (10, 8, True), (10, 7, False), (8, 10, True), (2, 1, True), (1, 0, True)],
)
def test_batches_at_two_polls_are_one_sample(first: int, last: int, expected: bool) -> None:
    assert same_batch(first, last) is expected
