"""Which watch events may change a decision. A thousand jobs report all day; what changes nothing of interest wakes
nobody."""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any

from rljob_operator.policies.base.kueue_objects import QUEUE
from rljob_operator.policies.base.observation import parse_pod

Body = Mapping[str, Any]


def job_signature(body: Body) -> Hashable:
    """The part of an RLJob that decisions rest on: what the user asks and what the coordinator acknowledges. The
    progress in its report is not in it, nor is what this operator writes itself."""
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
    """The part of a pod that decisions rest on; None for a pod that is as we create them: nothing has happened to
    it."""
    pod = parse_pod(body)
    if pod is None:
        return None
    signature = (
        pod.phase,
        pod.ready,
        pod.deleting,
        pod.ip,
        pod.lingering,
    )
    return None if signature == _UNTOUCHED else signature


_UNTOUCHED = ("Pending", False, False, None, False)

START_FAILURE_DELAY_SECONDS = 1.0
"""How long a pod's plight may wait to be told: the scheduler says of one pod after the other that it has no place."""


def pod_start_failure(body: Body) -> Hashable:
    """What keeps a pod from starting, None when nothing does. There is nothing to do about it but to tell it. Of the
    scheduler's message only the words count: how many nodes lack something changes all day on a busy cluster."""
    pod = parse_pod(body)
    if pod is None or (pod.unschedulable is None and pod.waiting is None):
        return None
    words = None if pod.unschedulable is None else _NUMBER.sub("#", pod.unschedulable)
    return (words, pod.waiting.reason if pod.waiting is not None else None)


_NUMBER = re.compile(r"[0-9]+")


class ChangeFilter:
    """Remembers the last signature of each object. Its memory is as large as the number of watched objects."""

    def __init__(self) -> None:
        self._last: dict[Hashable, Hashable] = {}

    def changed(self, key: Hashable, signature: Hashable) -> bool:
        """Whether this differs from the last one; an object never seen counts as None."""
        if self._last.get(key) == signature:
            return False
        self._last[key] = signature
        return True

    def forget(self, key: Hashable) -> None:
        """The object is gone."""
        self._last.pop(key, None)
