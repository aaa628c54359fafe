"""The event filter: which changes of jobs and pods are relevant."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from rljob_api.status import Role
from rljob_operator.event_filter import START_FAILURE_DELAY_SECONDS, ChangeFilter, job_signature, pod_signature
from rljob_operator.metrics import Metrics
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.pods.manifests import render_pod
from rljob_operator.readers.node_cache import NodeCache
from rljob_operator.watch import WatchHandlers
from tests.support.operator.harness import make_job


def _body(**runtime: Any) -> dict[str, Any]:
    return {"metadata": {"uid": "u", "generation": 1}, "status": {"runtime": runtime}}


def test_a_thousand_progress_reports_are_irrelevant() -> None:
    relevance = ChangeFilter()
    assert relevance.changed("job", job_signature(_body(event=1)))
    for number in range(1000):
        body = _body(event=1, progress=number / 1000, reward=number, tokensPerSecond=number)
        body["metadata"]["resourceVersion"] = str(number)
        assert not relevance.changed("job", job_signature(body))


@pytest.mark.parametrize(
    "change",
    [
        {"event": 2},
        {"event": 1, "applied": 3},
        {"event": 1, "drained": ["rollout-1"]},
        {"event": 1, "finished": {"outcome": "Complete"}},
        {"event": 1, "suspects": [{"machine": "rollout-0", "incarnation": 1, "witnesses": ["a"]}]},
        {"event": 1, "warnings": [{"reason": "CheckpointDiskFull"}]},
        {"event": 1, "relay": {"epoch": 1, "revision": 2, "chain": ["rollout-1"]}},
    ],
)
def test_what_the_coordinator_acknowledges_is_relevant(change: dict[str, Any]) -> None:
    assert job_signature(_body(**change)) != job_signature(_body(event=1))


def test_a_pod_as_it_was_made_wakes_no_job() -> None:
    pod = render_pod(make_job(), NewPod("rollout-0", Role.ROLLOUT, 1), 1, Config())
    pod["status"] = {"phase": "Pending"}
    assert not ChangeFilter().changed("pod", pod_signature(pod)) or pod_signature(pod) is None
    started = {**pod, "status": {"phase": "Running", "podIP": "10.0.0.1"}}
    assert pod_signature(started) is not None


def test_what_keeps_pods_from_starting_is_told_together() -> None:
    marks: list[float] = []
    watch = WatchHandlers(
        lambda key, seconds: marks.append(seconds),
        lambda key, uid: None,
        mock.Mock(),
        NodeCache(mock.Mock()),
        mock.Mock(),
        Metrics(),
    )
    for number in range(3):
        pod = render_pod(make_job(), NewPod(f"rollout-{number}", Role.ROLLOUT, 1), 1, Config())
        pod["metadata"] |= {"uid": f"uid-{number}"}
        unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
        for status in ({"phase": "Pending"}, {"phase": "Pending", "conditions": [unplaced]}) * 2:
            watch.pod_event("MODIFIED", {**pod, "status": status})
    assert marks == [START_FAILURE_DELAY_SECONDS] * 9
    watch.pod_event("MODIFIED", {**pod, "status": {"phase": "Failed"}})
    assert marks[9:] == [0.0, START_FAILURE_DELAY_SECONDS]


def test_another_reason_of_the_scheduler_is_told_and_another_number_is_not() -> None:
    marks: list[float] = []
    watch = WatchHandlers(
        lambda key, seconds: marks.append(seconds),
        lambda key, uid: None,
        mock.Mock(),
        NodeCache(mock.Mock()),
        mock.Mock(),
        Metrics(),
    )
    pod = render_pod(make_job(), NewPod("rollout-0", Role.ROLLOUT, 1), 1, Config())
    pod["metadata"] |= {"uid": "uid-0"}
    told = []
    for message in ("0/4 nodes: device class a", "0/4 nodes: 4 claims unmet", "0/9 nodes: 9 claims unmet"):
        unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        watch.pod_event("MODIFIED", {**pod, "status": {"phase": "Pending", "conditions": [unplaced]}})
        told.append(len(marks))
    assert told == [1, 2, 2]
