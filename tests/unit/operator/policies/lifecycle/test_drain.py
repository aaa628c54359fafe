"""Drain: when a machine may leave, and when the pods of a suspended job may go."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rljob_api.status import RLJobStatus
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.observation import Observed, Pod
from rljob_operator.policies.lifecycle import drain
from tests.support.operator.harness import NOW, make_job
from tests.support.operator.observed_pods import running_pod

COORDINATOR = running_pod("coordinator-0")
TOLD = {"revision": 7, "machines": ["rollout-0"], "phase": "Run"}


@pytest.mark.parametrize(
    ("pods", "runtime", "since", "gone"),
    [
        ([COORDINATOR], None, NOW, set()),
        ([COORDINATOR], {"applied": 7, "drained": ["rollout-1"]}, NOW, {"rollout-1"}),
        ([COORDINATOR], {"applied": 6, "drained": ["rollout-1"]}, NOW, set()),  # speaks of an older target
        ([COORDINATOR], None, NOW - timedelta(seconds=61), {"rollout-1"}),
        ([], None, NOW, {"rollout-1"}),  # no coordinator to drain it
        ([replace(COORDINATOR, ready=False)], None, NOW, {"rollout-1"}),
    ],
)
def test_when_a_machine_may_leave(pods: list[Pod], runtime: Any, since: Any, gone: set[str]) -> None:
    status = RLJobStatus.model_validate({"target": TOLD, "drainSince": since.isoformat()})
    if runtime is not None:
        status = RLJobStatus.model_validate({**status.to_dict(), "runtime": runtime})
    seen = Observed((*pods, running_pod("rollout-0"), running_pod("rollout-1")))
    assert drain.drained_machines(seen, status, make_job().spec, NOW) == gone


TRAINER = running_pod("trainer-0")
STARTING = replace(COORDINATOR, ready=False)
UNSAVED = {"round": 5, "checkpoint": {"round": 5, "name": "step-5"}, "stage": "Training"}
"""One update more may have been made."""
SUSPEND = {**TOLD, "phase": "Suspend"}
STOPPED = {**UNSAVED, "applied": 7, "stage": "Suspended"}
SAVED = {**STOPPED, "applied": 3}
"""The suspension before."""


@pytest.mark.parametrize(
    ("pods", "target", "runtime", "seconds", "stops"),
    [
        ([COORDINATOR, TRAINER], SUSPEND, UNSAVED, 0, False),
        ([COORDINATOR, TRAINER], SUSPEND, STOPPED, 0, True),
        ([COORDINATOR, TRAINER], SUSPEND, {**STOPPED, "applied": 6}, 0, False),
        ([COORDINATOR, TRAINER], SUSPEND, UNSAVED, 61, True),
        # No process is there to save it.
        ([TRAINER], SUSPEND, UNSAVED, 0, True),
        ([replace(STARTING, phase="Failed"), TRAINER], SUSPEND, UNSAVED, 0, True),
        ([replace(STARTING, deleting=True), TRAINER], SUSPEND, UNSAVED, 0, True),
        # A coordinator that starts will save what the trainer holds.
        ([STARTING, TRAINER], SUSPEND, UNSAVED, 0, False),
        ([STARTING, TRAINER], SUSPEND, {"stage": "Starting"}, 0, False),
        ([STARTING, TRAINER], TOLD, UNSAVED, 61, False),  # it has not been asked yet
        ([STARTING, TRAINER], SUSPEND, UNSAVED, 61, True),
        # It has nothing to save, or hardly will start.
        ([STARTING, TRAINER], SUSPEND, SAVED, 0, True),
        ([STARTING, TRAINER], SUSPEND, None, 0, True),
        ([STARTING, replace(TRAINER, ready=False)], SUSPEND, UNSAVED, 0, True),
        ([replace(STARTING, unschedulable="0/3 nodes"), TRAINER], SUSPEND, UNSAVED, 0, True),
        ([replace(STARTING, waiting=ConditionReason("ErrImagePull", "")), TRAINER], SUSPEND, UNSAVED, 0, True),
    ],
)
def test_when_a_suspended_jobs_pods_may_go(
    pods: list[Pod], target: Any, runtime: Any, seconds: float, stops: bool
) -> None:
    since = (NOW - timedelta(seconds=seconds)).isoformat()
    told = {"target": target, "drainSince": since, **({} if runtime is None else {"runtime": runtime})}
    status = RLJobStatus.model_validate(told)
    assert drain.may_suspend(Observed((*pods, running_pod("rollout-0"))), status, make_job().spec, NOW) is stops
