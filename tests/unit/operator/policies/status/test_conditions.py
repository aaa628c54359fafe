"""Conditions as kstatus reads them, and the phase that `kubectl get` shows."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.status import Phase, RLJobStatus
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.status import conditions
from tests.support.operator.harness import NOW

facts = st.builds(
    conditions.Facts,
    generation=st.integers(1, 3),
    coordinator_ready=st.booleans(),
    trainers_wanted=st.integers(0, 2),
    trainers_ready=st.integers(0, 2),
    rollouts_wanted=st.integers(0, 3),
    rollouts_ready=st.integers(0, 3),
    rollouts_smallest=st.integers(0, 3),
    chain_length=st.integers(0, 3),
    leaving=st.integers(0, 1),
    replacing=st.sampled_from([(), ("rollout-0",)]),
    pods=st.integers(0, 3),
    suspending=st.booleans(),
    started=st.booleans(),
    stall=st.sampled_from([None, ConditionReason("Unschedulable", "0/3")]),
)


@given(facts)
def test_conditions_are_kstatus(found: conditions.Facts) -> None:
    derived = conditions.derive(found, RLJobStatus(), NOW)
    by_type = {condition.type: condition.status.value for condition in derived}
    assert len(by_type) == len(derived)
    assert "Ready" in by_type
    assert not {"Stalled", "Reconciling"} <= by_type.keys()
    assert all(by_type[t] == "True" for t in ("Stalled", "Reconciling") if t in by_type)
    assert all(c.reason and c.observed_generation == found.generation for c in derived)
    # What `kubectl get` shows of a job that waits for a human is what Stalled says.
    if "Stalled" in by_type and by_type["Ready"] == "False":
        stalled, ready = ({c.type: c for c in derived}[t] for t in ("Stalled", "Ready"))
        assert (ready.reason, ready.message) == (stalled.reason, stalled.message)
        assert conditions.phase(found) is Phase.STALLED
    # What kstatus calls Current: Ready, and nothing under way.
    if by_type["Ready"] == "True" and found.leaving == 0 and not found.replacing and found.started:
        assert found.stall is not None or found.rollouts_ready < found.rollouts_wanted or "Reconciling" not in by_type


def test_a_transition_time_changes_only_with_its_status() -> None:
    first = conditions.derive(conditions.Facts(generation=1), RLJobStatus(), NOW)
    later = NOW + timedelta(hours=1)
    again = conditions.derive(conditions.Facts(generation=2), RLJobStatus(conditions=first), later)
    assert {c.last_transition_time for c in again} == {NOW}
    ready = conditions.Facts(generation=2, coordinator_ready=True, started=True)
    changed = conditions.derive(ready, RLJobStatus(conditions=again), later)
    times = {c.type: c.last_transition_time for c in changed}
    assert times["Ready"] == later
    assert times["Complete"] == NOW


TRAINER_WAITS = conditions.Facts(generation=1, coordinator_ready=True, trainers_wanted=1, pods=3)
RUNS = conditions.Facts(generation=1, coordinator_ready=True, started=True, pods=3)
NO_IMAGE = ConditionReason("ImagePullFailed", "trainer-0: container main, image nowhere:1: not found")
NO_SANDBOX = (ConditionReason("SandboxUnavailable", "Landlock would be right"),)
WRONG = ConditionReason("InvalidSpec", "spec.rounds: 0 must be at least 1")


@pytest.mark.parametrize(
    ("found", "state", "reason"),
    [
        (replace(TRAINER_WAITS, pods=0), "Pending", "TrainerNotReady"),
        (TRAINER_WAITS, "Starting", "TrainerNotReady"),
        (replace(TRAINER_WAITS, stall=NO_IMAGE), "Stalled", "ImagePullFailed"),
        (replace(TRAINER_WAITS, refused=WRONG), "Starting", "InvalidSpec"),
        (replace(TRAINER_WAITS, refused=WRONG, stall=NO_IMAGE), "Stalled", "InvalidSpec"),
        (replace(TRAINER_WAITS, suspending=True, stall=NO_IMAGE), "Suspending", "Suspended"),
        (RUNS, "Running", "RoundsProgressing"),
        # With fewer machines than there should be, and enough of them.
        (replace(RUNS, stall=NO_IMAGE), "Running", "RoundsProgressing"),
        (replace(RUNS, problems=NO_SANDBOX), "Stalled", "SandboxUnavailable"),
        (replace(RUNS, refused=WRONG), "Running", "InvalidSpec"),
    ],
)
def test_state_and_reason_show_what_stands_in_the_way(found: conditions.Facts, state: str, reason: str) -> None:
    (ready,) = (c for c in conditions.derive(found, RLJobStatus(), NOW) if c.type == "Ready")
    assert (conditions.phase(found).value, ready.reason) == (state, reason)


@pytest.mark.parametrize(("found", "state"), [(TRAINER_WAITS, "Stalled"), (RUNS, "Running")])
def test_a_refusal_found_on_the_way_is_shown_where_the_job_waits_for_it(found: conditions.Facts, state: str) -> None:
    before = RLJobStatus(conditions=conditions.derive(found, RLJobStatus(), NOW), phase=conditions.phase(found))
    quota = ConditionReason("QuotaExceeded", "exceeded quota: pods")
    after = conditions.stalled_now(before, before, quota, 1, NOW)
    reason = "QuotaExceeded" if state == "Stalled" else "RoundsProgressing"
    assert (after.phase.value, after.condition("Ready").reason) == (state, reason)
    assert after.condition("Stalled").reason == "QuotaExceeded"
    assert conditions.stalled_now(after, after, quota, 1, NOW + timedelta(hours=1)) == after


@pytest.mark.parametrize("reason", ["SandboxUnavailable", "RewardsUnavailable", "EngineMismatch"])
def test_a_missing_sandbox_stalls_the_job_and_nothing_else_does(reason: str) -> None:
    running = conditions.Facts(generation=1, coordinator_ready=True, started=True)
    lacking = ConditionReason(reason, "reward tests needs a sandbox: Landlock would be right")
    full = ConditionReason("CheckpointFailed", "no space left")

    def told(*problems: ConditionReason, **changes: Any) -> dict[str, tuple[str, str]]:
        found = conditions.derive(replace(running, problems=problems, **changes), RLJobStatus(), NOW)
        shown = ("Ready", "Reconciling", "Stalled", "Degraded", "Failed")
        return {c.type: (c.status.value, c.reason) for c in found if c.type in shown}

    alone = told(lacking)
    assert alone["Ready"] == ("False", reason)
    assert alone["Stalled"] == ("True", reason)
    assert alone["Degraded"] == ("False", "AsDesired")
    assert alone["Failed"] == ("False", "InProgress")
    assert "Reconciling" not in alone
    both = told(full, lacking)
    assert (both["Stalled"], both["Degraded"]) == (("True", reason), ("True", "CheckpointFailed"))
    assert told(lacking, stall=ConditionReason("Unschedulable", ""))["Stalled"] == ("True", "Unschedulable")
    assert "Stalled" not in told(full)
    assert "Stalled" not in told(lacking, suspending=True), "suspension is the way out"
