"""Event filter: decides which watch events can change a decision.

A thousand jobs report all day, and most reports change none.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any

from rljob_operator.policies.base.kueue_objects import QUEUE
from rljob_operator.policies.base.observation import parse_pod
from rljob_operator.policies.base.runner_start import pod_failure
from rljob_operator.policies.base.runners import parse_runners
from rljob_operator.policies.base.single_episode_pods import is_used

Body = Mapping[str, Any]


def job_signature(body: Body) -> Hashable:
    """Extract what decisions depend on: the user's request and the coordinator's acknowledgements.

    Progress reports and the operator's own part are left out.
    """
    meta = body.get("metadata") or {}
    runtime = (body.get("status") or {}).get("runtime") or {}
    suspects = runtime.get("suspects") or []
    return (
        meta.get("uid"),
        meta.get("generation"),
        meta.get("deletionTimestamp"),
        (meta.get("labels") or {}).get(QUEUE),
        runtime.get("event"),
        runtime.get("applied"),
        tuple(runtime.get("drained") or ()),
        tuple((runtime.get("relay") or {}).get("chain") or ()),
        tuple(
            (s.get("machine"), s.get("incarnation"), s.get("reason"), len(s.get("witnesses") or ())) for s in suspects
        ),
        tuple(problem.get("reason") for problem in runtime.get("warnings") or ()),
        bool(runtime.get("finished")),
    )


def pod_signature(body: Body) -> Hashable:
    """Extract what decisions depend on. None for a pod that is as it was created."""
    pod = parse_pod(body)
    if pod is None:
        return None
    signature = (
        pod.phase,
        pod.ready,
        pod.deleting,
        pod.ip,
        pod.lingering,
        pod.ending,
    )
    return None if signature == _UNTOUCHED else signature


def deployment_signature(body: Body) -> Hashable:
    """Extract what decisions depend on: what runners are wanted, how many are ready, and why some are not."""
    return parse_runners(body)


_UNTOUCHED = ("Pending", False, False, None, False, False)

START_FAILURE_DELAY_SECONDS = 1.0
"""Delay before a start failure is reported: the scheduler reports pods one after the other."""


def wake_delay(reported_only: bool) -> float:
    """Return the seconds after which a change wakes its job. `reported_only`: the job does nothing but report it."""
    return START_FAILURE_DELAY_SECONDS if reported_only else 0.0


def pod_start_failure(body: Body) -> Hashable:
    """Return why a pod does not start; None when nothing prevents it.

    The failure is only reported. Of the scheduler's message only the words count: the numbers of nodes change all day
    on a busy cluster.
    """
    pod = parse_pod(body)
    if pod is None or (pod.unschedulable is None and pod.waiting is None):
        return None
    words = None if pod.unschedulable is None else _NUMBER.sub("#", pod.unschedulable)
    return (words, pod.waiting.reason if pod.waiting is not None else None)


def runner_start_failure(body: Body) -> Hashable:
    """Return why a pod of runners does not start, without the kubelet's words: they change with each try."""
    why = pod_failure(body)
    return None if why is None else why.reason


def runner_pod_used(body: Body) -> Hashable:
    """Return True if a pod of runners has had its one episode, else None."""
    return is_used(body) or None


_NUMBER = re.compile(r"[0-9]+")
