"""Watch events: which of them mark a job, and after how many seconds."""

from __future__ import annotations

from typing import Any
from unittest import mock

from rljob_api.status import Role
from rljob_operator.metrics import Metrics
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NewPod
from rljob_operator.policies.event_filter import START_FAILURE_DELAY_SECONDS, job_signature, pod_signature
from rljob_operator.policies.pods.manifests import render_pod
from rljob_operator.readers.node_cache import NodeCache
from rljob_operator.watch import ChangeFilter, WatchHandlers
from tests.support.operator.harness import make_job


def _body(version: str, **runtime: Any) -> dict[str, Any]:
    return {"metadata": {"uid": "u", "generation": 1, "resourceVersion": version}, "status": {"runtime": runtime}}


def test_a_thousand_progress_reports_are_irrelevant() -> None:
    relevance = ChangeFilter()
    assert relevance.changed("job", job_signature(_body("0", event=1)))
    for number in range(1000):
        body = _body(str(number), event=1, progress=number / 1000, reward=number, tokensPerSecond=number)
        assert not relevance.changed("job", job_signature(body))


def test_a_pod_as_it_was_made_wakes_no_job() -> None:
    pod = render_pod(make_job(), NewPod("rollout-0", Role.ROLLOUT, 1), 1, Config())
    assert not ChangeFilter().changed("pod", pod_signature({**pod, "status": {"phase": "Pending"}}))


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
