"""A base that is not admitted: what Kueue says of it, whether that passes by itself, and what to do if not.

Kueue tells why in words only, which stay as they are in the message. The signs here are of its release 0.17; words
that are in no table are told as a wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_operator.policies.base.kueue_objects import Hold, Workload


@dataclass(frozen=True)
class _Sign:
    """Words, what they mean, and what to do."""

    words: tuple[str, ...]
    reason: str
    advice: str
    while_others_pass: bool = True
    """It stands whatever other flavors wait for."""


_AGREE = "make the template's nodeSelector, affinity and tolerations agree with one of the queue's flavors"
_CLAIMS = "ask by spec.accelerator.deviceClass, or for nothing but a number of devices of a class"

_PENDING = (
    _Sign(
        ("unavailable in ClusterQueue",),
        "ResourceNotInQueue",
        "name the resource, with a quota, in the ClusterQueue's resourceGroups, or do not ask for it",
    ),
    _Sign(
        ("doesn't match ClusterQueue selector",),
        "NamespaceNotSelected",
        "label the namespace as the ClusterQueue's namespaceSelector asks, or change that",
    ),
    _Sign(
        ("resources validation failed", "LimitRange"),
        "WorkloadInvalid",
        "change the containers' requests and limits",
    ),
    _Sign(
        ("maximum capacity",),
        "QuotaTooSmall",
        "raise the quota, or ask for fewer or smaller machines",
        while_others_pass=False,
    ),
    _Sign(("node affinity", "untolerated taint"), "FlavorMismatch", _AGREE, while_others_pass=False),
)
"""While it is considered."""

_INADMISSIBLE = (
    _Sign(("doesn't exist", "terminating or missing"), "QueueNotFound", ""),
    _Sign(
        ("is not mapped in DRA configuration",),
        "DeviceClassNotMapped",
        "name the class in resources.deviceClassMappings of Kueue's configuration, or set spec.accelerator.resource",
    ),
    _Sign(("not supported", "does not support use of resource claims", "unsupported"), "ClaimNotCounted", _CLAIMS),
)
"""When it is not considered at all."""

_PASSES = ("unused quota", "more needed", "preempt")
_RETRIED = "failed to get claim spec"
"""Kueue has not seen a ResourceClaimTemplate yet, and looks again."""


def waiting(base: Workload, queue: str) -> Hold:
    """Why a job may have no pods while its base is not admitted."""
    why, name = base.why, f"Workload {base.name}"
    if not base.active:
        return Hold("WorkloadDeactivated", f"{name} is not active ({why.message}); set its spec.active to true", True)
    if base.evicted and base.reserved:
        return Hold("Evicted", f"Kueue evicted {name}: {why.reason}: {why.message}")
    if why.reason == "Inadmissible" and _RETRIED not in why.message:
        sign = _found(_INADMISSIBLE, why.message)
        reason = sign.reason if sign is not None else "QueueInactive"
        named = f"make it, or set the label kueue.x-k8s.io/queue-name to another than {queue}"
        return Hold(reason, f"{name}: {why.message}; {(sign.advice if sign is not None else '') or named}", True)
    sign = _found(_PENDING, why.message)
    if sign is not None:
        return Hold(sign.reason, f"{name} never gets quota of queue {queue}: {why.message}; {sign.advice}", True)
    return Hold("WaitingForAdmission", f"{name} waits in queue {queue}: {why.reason}: {why.message}")


def _found(signs: Sequence[_Sign], message: str) -> _Sign | None:
    passes = any(word in message for word in _PASSES)
    fitting = (sign for sign in signs if any(word in message for word in sign.words))
    return next((sign for sign in fitting if sign.while_others_pass or not passes), None)
