"""What GitOps tools make of an RLJob's status: Argo CD by our Lua script, Flux by the kstatus rules."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lupa import LuaRuntime

from rljob_api.status import FinishedOutcome, RLJobStatus
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.decisions import JobOutcome
from rljob_operator.policies.status.conditions import Facts, derive
from tests.support.paths import ROOT

SCRIPT = (ROOT / "docs/guides/argocd/health.lua").read_text()
TYPES = ("Ready", "Reconciling", "Stalled", "Suspended", "Complete", "Failed", "Degraded", "RelayReady")


def argo_health(job: dict[str, Any]) -> tuple[str, str]:
    """(status, message) of docs/guides/argocd/health.lua. Argo CD gives a script no `io` and no `os`; neither do we."""
    lua = LuaRuntime(unpack_returned_tuples=True)
    lua.execute("io = nil; os = nil; require = nil; dofile = nil; loadfile = nil")
    lua.globals().obj = lua.table_from(job, recursive=True)
    answer = lua.execute(SCRIPT)
    return answer["status"], answer["message"]


def kstatus(job: dict[str, Any]) -> str:
    """The documented rules of kstatus for a custom resource, which `flux` and `kubectl`-like tools wait by."""
    metadata, status = job["metadata"], job.get("status", {})
    if "deletionTimestamp" in metadata:
        return "Terminating"
    if status.get("observedGeneration", metadata["generation"]) != metadata["generation"]:
        return "InProgress"
    conditions = {c["type"]: c["status"] for c in status.get("conditions", [])}
    if conditions.get("Reconciling") == "True":
        return "InProgress"
    if conditions.get("Stalled") == "True":
        return "Failed"
    if "Ready" in conditions:
        return "Current" if conditions["Ready"] == "True" else "InProgress"
    return "Current"


def job(
    *true: str, generation: int = 3, observed: int | None = 3, false: tuple[str, ...] = (), **status: Any
) -> dict[str, Any]:
    """An RLJob whose conditions `true` are True and `false` are False."""
    conditions = [
        {
            "type": kind,
            "status": value,
            "reason": f"{kind}Reason",
            "message": f"about {kind}",
            "observedGeneration": observed,
        }
        for kinds, value in ((true, "True"), (false, "False"))
        for kind in kinds
    ]
    if observed is not None:
        status["observedGeneration"] = observed
    return {
        "apiVersion": "rljob.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "demo", "generation": generation},
        "status": {"conditions": conditions, **status},
    }


CASES = [
    # what is shown, job, Argo CD's status, Argo CD's message, kstatus
    (
        "starting",
        job("Reconciling", false=("Ready",)),
        "Progressing",
        "ReconcilingReason: about Reconciling",
        "InProgress",
    ),
    ("waiting", job(false=("Ready",)), "Progressing", "ReadyReason: about Ready", "InProgress"),
    ("running", job("Ready", runtime={"round": 7, "rounds": 24}), "Healthy", "round 7 of 24", "Current"),
    ("running without a report", job("Ready"), "Healthy", "ReadyReason: about Ready", "Current"),
    ("no end in sight", job("Ready", runtime={"round": 7}), "Healthy", "round 7", "Current"),
    ("degraded but at work", job("Ready", "Degraded"), "Healthy", "ReadyReason: about Ready", "Current"),
    ("scaling", job("Ready", "Reconciling"), "Healthy", "ReadyReason: about Ready", "InProgress"),
    ("complete", job("Ready", "Complete"), "Healthy", "CompleteReason: about Complete", "Current"),
    ("failed", job("Failed", "Stalled", false=("Ready",)), "Degraded", "FailedReason: about Failed", "Failed"),
    ("stalled", job("Stalled", false=("Ready",)), "Degraded", "StalledReason: about Stalled", "Failed"),
    ("suspended", job("Suspended", false=("Ready",)), "Suspended", "SuspendedReason: about Suspended", "InProgress"),
    (
        "suspended, then broken",
        job("Suspended", "Stalled", false=("Ready",)),
        "Degraded",
        "StalledReason: about Stalled",
        "Failed",
    ),
    (
        "complete, then suspended",
        job("Ready", "Complete", "Suspended"),
        "Healthy",
        "CompleteReason: about Complete",
        "Current",
    ),
    (
        "spec just edited",
        job("Ready", generation=4),
        "Progressing",
        "waiting for the operator to see the newest spec",
        "InProgress",
    ),
    (
        "failed, then edited",
        job("Failed", "Stalled", generation=4, false=("Ready",)),
        "Progressing",
        "waiting for the operator to see the newest spec",
        "InProgress",
    ),
]


@pytest.mark.parametrize(("job", "argo", "message", "flux"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_chart_health_of_a_job(job: dict[str, Any], argo: str, message: str, flux: str) -> None:
    assert argo_health(job) == (argo, message)
    assert kstatus(job) == flux


VERDICTS = st.one_of(
    st.none(),
    st.builds(JobOutcome, st.sampled_from(FinishedOutcome), st.just("SomeReason"), st.just("because")),
)
TROUBLES = st.none() | st.just(ConditionReason("Unschedulable", "3 of 4 pods find no node"))
COUNTS = st.integers(0, 3)
FACTS = st.builds(
    Facts,
    generation=st.just(3),
    coordinator_ready=st.booleans(),
    trainers_wanted=st.just(1),
    trainers_ready=st.integers(0, 1),
    rollouts_wanted=COUNTS,
    rollouts_ready=COUNTS,
    rollouts_smallest=COUNTS,
    chain_length=COUNTS,
    leaving=COUNTS,
    pods=COUNTS,
    suspending=st.booleans(),
    started=st.booleans(),
    durable=st.booleans(),
    stall=TROUBLES,
    outcome=VERDICTS,
)


@given(FACTS)
def test_chart_health_of_whatever_the_operator_writes(facts: Facts) -> None:
    """The contract, on the operator's own conditions: each of the two tools sees what the facts say."""
    conditions = derive(facts, RLJobStatus(), datetime(2026, 1, 1, tzinfo=UTC))
    written = job()
    written["status"]["conditions"] = [condition.to_dict() for condition in conditions]
    argo, flux = argo_health(written)[0], kstatus(written)
    if facts.outcome is not None:
        assert (argo, flux) == (("Degraded", "Failed") if facts.outcome.failed else ("Healthy", "Current"))
    elif facts.suspending:
        assert argo == ("Progressing" if facts.pods else "Suspended")
        assert flux == "InProgress"
    elif facts.stall is not None:
        assert (argo, flux) == ("Degraded", "Failed")
    elif not facts.is_ready:
        assert (argo, flux) == ("Progressing", "InProgress")
    else:
        assert argo == "Healthy"
        assert flux in ("Current", "InProgress")


def test_chart_health_without_an_operator() -> None:
    """Neither tool calls a job healthy before the operator has read it; kstatus needs the Ready condition for that."""
    fresh = {"metadata": {"name": "demo", "generation": 1}}
    assert argo_health(fresh) == ("Progressing", "waiting for the operator")
    assert argo_health(job("Ready", observed=None)) == ("Progressing", "waiting for the operator")


def test_chart_health_while_being_deleted() -> None:
    leaving = job("Ready", "Complete")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert argo_health(leaving) == ("Progressing", "being deleted")
    assert kstatus(leaving) == "Terminating"


@given(
    true=st.sets(st.sampled_from(TYPES)),
    false=st.sets(st.sampled_from(TYPES)),
    generation=st.integers(1, 3),
    observed=st.none() | st.integers(1, 3),
)
def test_chart_health_is_total_and_never_rosy(
    true: set[str], false: set[str], generation: int, observed: int | None
) -> None:
    """Any mixture of conditions gets one of Argo CD's words, and Healthy is said of a seen, unfailed job alone."""
    status, message = argo_health(job(*true, generation=generation, observed=observed, false=tuple(false - true)))
    assert status in {"Healthy", "Progressing", "Degraded", "Suspended"}
    assert isinstance(message, str)
    if status == "Healthy":
        assert observed is not None
        assert observed >= generation
        assert not true & {"Failed", "Stalled"}
        assert true & {"Ready", "Complete"}
