"""Waiting for Kueue: why a base is not admitted, whether time alone helps, and what to do if not.

Kueue gives reasons in words only, and the message repeats them. The signs are those of its release 0.17. Unknown words
count as a wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_operator.policies.base.kueue_objects import Hold, Workload


@dataclass(frozen=True)
class _Sign:
    """Words of Kueue, their meaning, and what to do."""

    words: tuple[str, ...]
    reason: str
    advice: str
    while_others_pass: bool = True
    """It holds whatever other flavors wait for."""


_AGREE = "make the template's nodeSelector, affinity and tolerations agree with one of the queue's flavors"
_CLAIMS = "use spec.accelerator.deviceClass, or request nothing but a number of devices of a class"

_PENDING = (
    _Sign(
        ("unavailable in ClusterQueue",),
        "ResourceNotInQueue",
        "name the resource, with a quota, in the ClusterQueue's resourceGroups, or do not request it",
    ),
    _Sign(
        ("doesn't match ClusterQueue selector",),
        "NamespaceNotSelected",
        "give the namespace the labels of the ClusterQueue's namespaceSelector, or change that selector",
    ),
    _Sign(
        ("resources validation failed", "LimitRange"),
        "WorkloadInvalid",
        "change the containers' requests and limits",
    ),
    _Sign(
        ("maximum capacity",),
        "QuotaTooSmall",
        "raise the quota, or request fewer or smaller machines",
        while_others_pass=False,
    ),
    _Sign(("node affinity", "untolerated taint"), "FlavorMismatch", _AGREE, while_others_pass=False),
)
"""Signs of a Workload that Kueue considers."""

_INADMISSIBLE = (
    _Sign(("doesn't exist", "terminating or missing"), "QueueNotFound", ""),
    _Sign(
        ("is not mapped in DRA configuration",),
        "DeviceClassNotMapped",
        "name the class in resources.deviceClassMappings of Kueue's configuration, or set spec.accelerator.resource",
    ),
    _Sign(("not supported", "does not support use of resource claims", "unsupported"), "ClaimNotCounted", _CLAIMS),
)
"""Signs of a Workload that Kueue does not consider."""

_PASSES = ("unused quota", "more needed", "preempt")
_RETRIED = "failed to get claim spec"
"""Kueue has not found a ResourceClaimTemplate yet, and tries again."""


def waiting(base: Workload, queue: str) -> Hold:
    """Explain why a job may have no pods while its base is not admitted."""
    why, name = base.why, f"Workload {base.name}"
    if not base.active:
        return Hold("WorkloadDeactivated", f"{name} is not active ({why.message}); set its spec.active to true", True)
    if base.evicted and base.reserved:
        return Hold("Evicted", f"Kueue evicted {name}: {why.reason}: {why.message}")
    if why.reason == "Inadmissible" and _RETRIED not in why.message:
        sign = _found(_INADMISSIBLE, why.message)
        reason = sign.reason if sign is not None else "QueueInactive"
        named = f"create it, or set the label kueue.x-k8s.io/queue-name to another queue than {queue}"
        return Hold(reason, f"{name}: {why.message}; {(sign.advice if sign is not None else '') or named}", True)
    sign = _found(_PENDING, why.message)
    if sign is not None:
        return Hold(sign.reason, f"{name} never gets quota of queue {queue}: {why.message}; {sign.advice}", True)
    return Hold("WaitingForAdmission", f"{name} waits in queue {queue}: {why.reason}: {why.message}")


def _found(signs: Sequence[_Sign], message: str) -> _Sign | None:
    passes = any(word in message for word in _PASSES)
    fitting = (sign for sign in signs if any(word in message for word in sign.words))
    return next((sign for sign in fitting if sign.while_others_pass or not passes), None)
