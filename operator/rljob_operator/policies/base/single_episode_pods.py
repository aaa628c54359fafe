"""Single-episode pods: the pods of an environment with `reset: Pod`, each of which is replaced after its episode.

The runner ends with an exit code that says so. The kubelet starts its container again, and the new runner ends
immediately with the same code. The pod's Deployment replaces what the operator deletes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from rljob_api.constants import MAIN_CONTAINER, RUNNER_POD_USED
from rljob_operator.policies.base.deadlines import deadline, is_past
from rljob_operator.policies.base.observation import parse_time
from rljob_operator.policies.base.runner_start import pod_failure
from rljob_operator.policies.base.runners import RunnerPod, Runners

START_SECONDS = 60
"""Seconds in which the pod of the next episode becomes ready. Meanwhile it counts as ready, so that conditions do not
change with each episode."""


def parse_runner_pod(item: Mapping[str, Any]) -> RunnerPod:
    """Parse a pod of runners from its API object."""
    meta, status = item["metadata"], item.get("status") or {}
    conditions = {one.get("type"): one.get("status") for one in status.get("conditions") or ()}
    return RunnerPod(
        name=meta["name"],
        uid=meta["uid"],
        created=parse_time(meta.get("creationTimestamp")),
        ready=conditions.get("Ready") == "True",
        used=is_used(item),
        deleting=bool(meta.get("deletionTimestamp")),
        failing=pod_failure(item) is not None,
    )


def runs_no_more(item: Mapping[str, Any]) -> bool:
    """Tell whether a pod has ended for good, e.g. by an eviction. Its ReplicaSet has made another one."""
    return (item.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def is_used(item: Mapping[str, Any]) -> bool:
    """Tell whether a runner has said by its end that the pod has had its episode."""
    containers = (item.get("status") or {}).get("containerStatuses") or ()
    return any(_ended_used(one) for one in containers if one.get("name") == MAIN_CONTAINER)


def _ended_used(container: Mapping[str, Any]) -> bool:
    states = ((container.get(name) or {}).get("terminated") or {} for name in ("state", "lastState"))
    return any(ended.get("exitCode") == RUNNER_POD_USED for ended in states)


def used(runners: Iterable[Runners]) -> tuple[RunnerPod, ...]:
    """Return the pods to delete."""
    return tuple(pod for one in runners for pod in one.single_episode_pods or () if pod.used and not pod.deleting)


def ready(runners: Runners, now: datetime, was_ready: bool) -> int:
    """Return how many of the wanted pods are ready, or take the place of used ones just now.

    `was_ready`: all were ready once. So it is where a pod is used: its runner had an episode.
    """
    pods = runners.single_episode_pods
    if pods is None or not (was_ready or any(pod.used for pod in pods)) or refusal(runners) is not None:
        return runners.ready
    return max(runners.ready, runners.wanted - sum(_lacks(pod, now) for pod in pods))


def refusal(runners: Runners) -> str | None:
    """Return why the API server refuses a pod. While a used one ends, a quota may still count it."""
    pods = runners.single_episode_pods or ()
    return None if any(pod.used or pod.deleting for pod in pods) else runners.refused


def next_checks(runners: Iterable[Runners]) -> list[datetime | None]:
    """Return when pods that are not ready count as such."""
    return [
        deadline(pod.created, START_SECONDS)
        for one in runners
        for pod in one.single_episode_pods or ()
        if _may_lack(pod)
    ]


def _lacks(pod: RunnerPod, now: datetime) -> bool:
    return _may_lack(pod) and (pod.failing or is_past(deadline(pod.created, START_SECONDS), now))


def _may_lack(pod: RunnerPod) -> bool:
    return not (pod.ready or pod.used or pod.deleting)
