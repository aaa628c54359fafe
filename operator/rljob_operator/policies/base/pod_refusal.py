"""Pod refusal: why the API server refuses a pod, from its message, as the reason of Stalled."""

from __future__ import annotations

from rljob_operator.policies.base.condition_reason import ConditionReason


def pod_refusal(status: int, message: str) -> ConditionReason:
    """Explain the API server's refusal of a pod, as the reason of Stalled."""
    if status == 403:
        quota = "exceeded quota" in message
        return no_priority_class(message) or ConditionReason("QuotaExceeded" if quota else "PodForbidden", message)
    return ConditionReason("PodInvalid", message)


def no_priority_class(message: str) -> ConditionReason | None:
    """Explain the refusal where the PriorityClass of an object does not exist."""
    if "no PriorityClass" not in message:
        return None
    advice = "create it, or name another one in spec.scheduling.priorityClassName or in the pod template"
    return ConditionReason("PriorityClassMissing", f"{message}; {advice}")
