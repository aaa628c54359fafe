"""The status of an invalid spec."""

from __future__ import annotations

from datetime import timedelta

from rljob_api import FieldError
from rljob_operator.policies.status.invalid_spec import plan_invalid
from tests.support.operator.harness import NOW


def test_an_invalid_spec_keeps_the_rest_of_the_status() -> None:
    raw = {"members": [{"machine": "rollout-0"}], "runtime": {"round": 3}, "conditions": []}
    document = {"metadata": {"generation": 4}, "status": raw}
    errors = [FieldError("spec.rounds", 0, "must be at least 1")]
    status, events = plan_invalid(document, errors, NOW)
    assert status is not None
    assert status["members"] == raw["members"]
    assert "runtime" not in status
    assert status["observedGeneration"] == 4
    assert [(e.kind, e.reason) for e in events] == [("Warning", "InvalidSpec")]
    again = plan_invalid({**document, "status": status}, errors, NOW + timedelta(hours=1))
    assert again == (None, [])
