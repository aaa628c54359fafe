"""When a report is due, and what a new coordinator takes from the last one."""

import pytest

from rljob_api.status import CheckpointStatus, RelayTopology, RoundReport, RuntimeStatus, RuntimeTotals
from rljob_runtime.scheduling.status_cadence import Reported, resumed_status, reward_ends, seconds_until_report

BASE = RuntimeStatus(term=1, event=3, round=2, stage="Training")


@pytest.mark.parametrize(
    ("changes", "age", "wait"),
    [
        ({}, 0.0, None),
        ({}, 1000.0, None),
        ({"event": 4}, 0.0, 0.0),
        ({"term": 2}, 0.0, 0.0),
        ({"stage": "Publishing"}, 0.0, 5.0),
        ({"stage": "Publishing"}, 4.0, 1.0),
        ({"stage": "Publishing"}, 9.0, 0.0),
        ({"progress": 0.5}, 0.0, 30.0),
        ({"progress": 0.5, "kv_cache_use": 0.2}, 10.0, 20.0),
        ({"progress": 0.5, "stage": "Publishing"}, 0.0, 5.0),
    ],
)
def test_when_a_report_is_due(changes, age, wait):
    assert seconds_until_report(Reported(BASE, at=100.0), BASE.model_copy(update=changes), 100.0 + age) == wait


def test_the_first_report_is_due_immediately():
    assert seconds_until_report(Reported(), BASE, 0.0) == 0.0


def test_first_and_last_fifth():
    def ends(*rewards: float) -> tuple[float | None, float | None]:
        return reward_ends(len(rewards), lambda first: sum(rewards[:first]))

    assert ends() == (None, None)
    assert ends(0.5) == (0.5, 0.5)
    assert ends(0.0, 0.2, *[9.0] * 6, 0.8, 1.0) == (0.1, 0.9)
    assert ends(1 / 3) == (0.3333, 0.3333)


def test_a_new_coordinator_takes_up_what_lasts_and_nothing_else() -> None:
    before = RuntimeStatus(
        term=3,
        event=9,
        round=4,
        rounds=9,
        applied=2,
        drained=("rollout-1",),
        stage="Training",
        progress=0.5,
        relay=RelayTopology(epoch=2, chain=("rollout-0",)),
        last_round=RoundReport(round=4),
        totals=RuntimeTotals(tokens=70),
        checkpoint=CheckpointStatus(round=4, name="step-00000004"),
    )
    after = resumed_status(before, term=5)
    assert (after.term, after.rounds, after.stage) == (5, 9, "Starting")
    assert (after.event, after.round) == (9, 4)
    assert (after.applied, after.drained, after.progress) == (None, (), None)
    written, rewritten = before.to_dict(), after.to_dict()
    assert {key for key, value in written.items() if isinstance(value, dict)} <= rewritten.keys()
