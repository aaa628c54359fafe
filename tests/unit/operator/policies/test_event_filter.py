"""Which changes of jobs, pods and runners can change a decision: a row for each field that does, or does not."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from rljob_api.status import Role
from rljob_operator.policies import event_filter
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.base.kueue_objects import QUEUE
from rljob_operator.policies.pods.manifests import render_pod
from tests.support.operator.harness import make_job

JOB: dict[str, Any] = {
    "metadata": {"uid": "u", "generation": 1, "labels": {QUEUE: "research"}},
    "spec": {"rounds": 3},
    "status": {
        "phase": "Running",
        "runtime": {
            "event": 1,
            "suspects": [{"machine": "rollout-0", "incarnation": 1, "reason": "Silent", "witnesses": ["a"]}],
            "relay": {"epoch": 1, "revision": 2, "chain": ["rollout-1"]},
            "warnings": [{"reason": "CheckpointDiskFull", "message": "9 GB are missing"}],
        },
    },
}
SUSPECT = "status.runtime.suspects.0"


def changed(path: str, value: object) -> dict[str, Any]:
    """Return the job with another value at this path."""
    job = deepcopy(JOB)
    *above, last = path.split(".")
    node: Any = job
    for step in above:
        node = node[int(step) if isinstance(node, list) else step]
    node[last] = value
    return job


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.uid", "another"),
        ("metadata.generation", 2),
        ("metadata.deletionTimestamp", "2026-01-01T00:00:00Z"),
        ("metadata.labels", {QUEUE: "production"}),
        ("status.runtime.event", 2),
        ("status.runtime.applied", 3),
        ("status.runtime.drained", ["rollout-1"]),
        ("status.runtime.finished", {"outcome": "Complete"}),
        ("status.runtime.suspects", []),
        (f"{SUSPECT}.machine", "rollout-1"),
        (f"{SUSPECT}.incarnation", 2),
        (f"{SUSPECT}.reason", "KeepsFailing"),
        (f"{SUSPECT}.witnesses", ["a", "b"]),
        ("status.runtime.warnings", []),
        ("status.runtime.relay.chain", ["rollout-2"]),
    ],
)
def test_a_request_or_an_acknowledgement_of_a_job_is_relevant(path: str, value: object) -> None:
    assert event_filter.job_signature(changed(path, value)) != event_filter.job_signature(JOB)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.resourceVersion", "9"),
        ("metadata.labels", {QUEUE: "research", "team": "a"}),
        ("status.phase", "Stalled"),
        ("status.runtime.progress", 0.5),
        (f"{SUSPECT}.witnesses", ["b"]),
        ("status.runtime.relay.revision", 3),
        ("status.runtime.warnings", [{"reason": "CheckpointDiskFull", "message": "8 GB are missing"}]),
    ],
)
def test_a_report_of_a_job_is_irrelevant(path: str, value: object) -> None:
    assert event_filter.job_signature(changed(path, value)) == event_filter.job_signature(JOB)


@pytest.mark.parametrize(
    ("status", "relevant"),
    [
        ({"phase": "Pending"}, False),
        ({"phase": "Pending", "startTime": "2026-01-01T00:00:00Z"}, False),
        ({"phase": "Pending", "podIP": "10.0.0.1"}, True),
        ({"phase": "Running", "podIP": "10.0.0.1"}, True),
        ({"phase": "Failed"}, True),
        ({"phase": "Pending", "conditions": [{"type": "Ready", "status": "True"}]}, True),
    ],
)
def test_a_pod_is_relevant_once_it_is_not_as_it_was_made(status: dict[str, Any], relevant: bool) -> None:
    pod = render_pod(make_job(), NewPod("rollout-0", Role.ROLLOUT, 1), 1, Config())
    assert (event_filter.pod_signature({**pod, "status": status}) is not None) is relevant


@pytest.mark.parametrize(("reported_only", "seconds"), [(False, 0.0), (True, 1.0)])
def test_what_is_only_reported_is_reported_together(reported_only: bool, seconds: float) -> None:
    assert event_filter.wake_delay(reported_only) == seconds
