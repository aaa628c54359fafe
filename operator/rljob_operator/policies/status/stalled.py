"""Stall reasons: why a job cannot progress without a person, most severe first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from rljob_api.constants import LABEL_EGRESS_OF, LABEL_ENVIRONMENT
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.deadlines import deadline, is_past
from rljob_operator.policies.base.observation import IMAGE_REASONS, Observed, Pod
from rljob_operator.policies.base.pod_refusal import pod_refusal
from rljob_operator.policies.base.runners import PROXY, Runners
from rljob_operator.policies.base.single_episode_pods import refusal


def find_stall_reason(
    observed: Observed, blocked: Collection[str], too_few: bool, config: Config, now: datetime
) -> ConditionReason | None:
    """Return the reason for Stalled; None without one.

    `blocked` machines have an exhausted budget. `too_few`: without them the job is below its minimum.
    """
    pods = [pod for pod in observed.pods if pod.live]
    waiting = [pod for pod in pods if pod.waiting is not None]
    for reason, group in (("ImagePullFailed", IMAGE_REASONS), ("ContainerConfigError", None)):
        hit = [p for p in waiting if p.waiting is not None and (group is None or p.waiting.reason in group)]
        if hit and hit[0].waiting is not None:
            return ConditionReason(reason, f"{_names(hit)}: {hit[0].waiting.message}")
    homeless = [pod for pod in pods if pod.unschedulable is not None and is_past(_patience(pod, config), now)]
    if homeless:
        waits = f"{len(homeless)} of {len(pods)} pods find no node ({_names(homeless)})"
        return ConditionReason("Unschedulable", f"{waits}: {homeless[0].unschedulable}")
    if blocked and too_few:
        return ConditionReason(
            "ReplacementBudgetExhausted",
            f"given up after too many failures in a row: {', '.join(sorted(blocked))}; raise "
            "spec.failurePolicy.maxReplacementsPerMachine to try again",
        )
    seen = [*observed.runners.values(), *([observed.proxy] if observed.proxy is not None else [])]
    return next((why for one in seen if (why := _runners(one)) is not None), None)


def _runners(one: Runners) -> ConditionReason | None:
    """Explain why pods of an environment, or the egress proxy's, are not created or do not become ready.

    The Deployment's conditions say so, and the states of containers. Pods cannot write them.
    """
    whose = PROXY if one.name == PROXY else f"environment {one.name}"
    if (refused := refusal(one)) is not None:
        return pod_refusal(403 if "forbidden" in refused else 422, f"{whose}: {refused}")
    if one.ready >= one.wanted:
        return None
    if one.broken is not None:
        return one.broken
    if one.overdue is None:
        return None
    if one.name == PROXY:
        pods = f"read the events and the logs of the pod with the label {LABEL_EGRESS_OF}"
        return ConditionReason("RunnersNotStarting", f"the egress proxy of the runners takes too long to start; {pods}")
    pods = f"read the events and the logs of the pods with the label {LABEL_ENVIRONMENT}={one.name}"
    counts = f"{one.ready} of {one.wanted} runners of environment {one.name} are ready, and the others take too long"
    return ConditionReason("RunnersNotStarting", f"{counts}; {pods}")


def stall_deadlines(observed: Observed, config: Config) -> list[datetime | None]:
    """Return when unschedulable pods become a stall reason."""
    return [_patience(pod, config) for pod in observed.pods if pod.live and pod.unschedulable is not None]


def _patience(pod: Pod, config: Config) -> datetime | None:
    return deadline(pod.created, config.unschedulable_grace_seconds)


def _names(pods: Sequence[Pod]) -> str:
    names = [pod.machine for pod in pods]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
