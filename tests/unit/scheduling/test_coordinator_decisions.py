"""Small decisions of the coordinator's shells, each as a table."""

from __future__ import annotations

import pytest

from rljob_runtime.scheduling.backoff import MAX_TRAINER_LOSSES, TrainerLosses
from rljob_runtime.scheduling.weight_versions import may_start


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


@pytest.mark.parametrize(
    ("loaded", "missing", "waited", "expected"),
    [(0, 0, True, False), (1, 0, False, True), (1, 1, False, False), (1, 1, True, True), (0, 2, True, False)],
)
def test_a_round_starts_with_all_machines_or_after_the_wait(
    loaded: int, missing: int, waited: bool, expected: bool
) -> None:
    assert may_start(loaded, missing, waited) is expected
