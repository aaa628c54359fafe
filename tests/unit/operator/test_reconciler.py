"""An error of the operator itself is told: Stalled and an event, until a look at the job succeeds."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.leader_election import LeadershipLost
from rljob_operator import reconciler
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.status.invalid_spec import INTERNAL_ERROR, plan_failed
from rljob_operator.reconciler import unexpected_failure
from rljob_operator.writers.calls import RequeueAfter
from tests.support.operator.harness import NOW, Server, condition, manifest

WHY = ConditionReason(INTERNAL_ERROR, "The operator failed to reconcile this job: TypeError: no. It is tried again.")


def document(**status: Any) -> dict[str, Any]:
    found = manifest()
    found["metadata"] |= {"uid": "1", "generation": 3, "resourceVersion": "7"}
    return {**found, "status": status}


def held(type_: str, status: str, reason: str = "Because") -> dict[str, Any]:
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def told(status: Any) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one["reason"]) for one in status["conditions"]}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TypeError("'str' object is not a mapping"), INTERNAL_ERROR),
        (KeyError("name"), INTERNAL_ERROR),
        (RecursionError("maximum recursion depth exceeded"), INTERNAL_ERROR),
        (TimeoutError(), INTERNAL_ERROR),
        (ApiError(403, "Forbidden", "services is forbidden"), "RequestRefused"),
        (ApiError(422, "Invalid", "Role is invalid"), "RequestRefused"),
        (ApiError(413, "RequestEntityTooLarge", "too large"), "RequestRefused"),
        (ApiError(503, "", "overloaded"), None),
        (ApiError(409, "Conflict", "changed"), None),
        (ApiError(404, "NotFound", "gone"), None),
        (Unreachable("no answer"), None),
        (LeadershipLost("another one leads"), None),
        (RequeueAfter("an earlier job is there", 1.0), None),
    ],
    ids=repr,
)
def test_what_is_told_and_what_passes_by_itself(error: Exception, reason: str | None) -> None:
    found = unexpected_failure(error)
    assert (found.reason if found is not None else None) == reason
    if found is not None:
        assert str(error)[:20] in found.message


def test_a_job_that_waits_is_stalled_and_not_ready() -> None:
    status, (event,) = plan_failed(document(), WHY, NOW)
    assert status is not None
    assert told(status) == {"Ready": ("False", INTERNAL_ERROR), "Stalled": ("True", INTERNAL_ERROR)}
    assert (status["phase"], status["observedGeneration"]) == ("Stalled", 3)
    assert (event.reason, event.message) == (INTERNAL_ERROR, WHY.message)


def test_a_job_that_runs_stays_ready_and_keeps_what_is_known_of_it() -> None:
    before = {
        "phase": "Running",
        "conditions": [held("Ready", "True"), held("Reconciling", "True"), held("Degraded", "False")],
        "incarnations": {"rollout-0": 4},
        "runtime": {"round": 7},
    }
    status, events = plan_failed(document(**before), WHY, NOW)
    assert status is not None
    assert told(status) == {
        "Stalled": ("True", INTERNAL_ERROR),
        "Ready": ("True", "Because"),
        "Degraded": ("False", "Because"),
    }
    assert (status["phase"], status["incarnations"]) == ("Running", {"rollout-0": 4})
    assert "runtime" not in status, "that is the coordinator's"
    assert len(events) == 1
    assert plan_failed(document(**{**status, "runtime": {"round": 8}}), WHY, NOW) == (None, []), "told once"


def test_a_job_that_has_ended_is_left_as_it_is() -> None:
    status, events = plan_failed(document(phase="Succeeded", conditions=[held("Complete", "True")]), WHY, NOW)
    assert status is None
    assert [event.reason for event in events] == [INTERNAL_ERROR]


@pytest.mark.cluster
async def test_an_error_in_a_plan_is_told_and_taken_back(
    server: Server, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = reconciler.plan

    def broken(job: Any, *rest: Any) -> Any:
        if job.name == "demo":
            raise TypeError("'str' object is not a mapping")
        return whole(job, *rest)

    monkeypatch.setattr(reconciler, "plan", broken)
    await server.apply_job()
    job = await server.until(lambda j: condition(j, "Stalled") == f"True/{INTERNAL_ERROR}")
    message = next(c["message"] for c in job["status"]["conditions"] if c["type"] == "Stalled")
    assert "TypeError: 'str' object is not a mapping" in message
    await server.until_events({INTERNAL_ERROR})
    assert await server.pods() == {}
    await server.apply_job("other")
    await server.until(lambda j: (j.get("status") or {}).get("members"), "other")
    monkeypatch.setattr(reconciler, "plan", whole)
    await server.until(lambda j: condition(j, "Stalled") is None and (j.get("status") or {}).get("members"))


@pytest.mark.cluster
async def test_a_request_that_is_refused_for_good_is_told(
    server: Server, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = type(server.kube).create

    async def forbidden(self: Any, resource: Any, body: Any) -> Any:
        if body["kind"] == "Service" and body["metadata"]["namespace"] == server.namespace:
            raise ApiError(403, "Forbidden", "services is forbidden: no right to create them")
        return await create(self, resource, body)

    monkeypatch.setattr(type(server.kube), "create", forbidden)
    await server.apply_job()
    job = await server.until(lambda j: condition(j, "Stalled") == "True/RequestRefused")
    assert "services is forbidden" in stalled(job)
    monkeypatch.setattr(type(server.kube), "create", create)
    await server.until(lambda j: condition(j, "Stalled") is None and (j.get("status") or {}).get("members"))


def stalled(job: dict[str, Any]) -> str:
    return next(str(c["message"]) for c in job["status"]["conditions"] if c["type"] == "Stalled")
