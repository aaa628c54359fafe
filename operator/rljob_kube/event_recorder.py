"""Event recorder: one Event object for each (job, reason, message), whose count rises when it repeats."""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime

from rljob_kube.client import KubeClient
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.manifests.objects import Event
from rljob_kube.resources import EVENT, RLJOB

_logger = logging.getLogger(__name__)
_REMEMBERED = 4096
_COMPONENT = "rljob-operator"


def _utc_now() -> datetime:
    return datetime.now(UTC)


class EventRecorder:
    """Writes events of RLJobs. A failed write is logged, and stops nothing: an event decides nothing."""

    def __init__(self, kube: KubeClient, *, clock: Callable[[], datetime] = _utc_now) -> None:
        self._kube = kube
        self._clock = clock
        self._counts: OrderedDict[tuple[str, str], int] = OrderedDict()

    async def record(self, namespace: str, job: str, uid: str, kind: str, reason: str, message: str) -> None:
        """Record an event. `kind`: Normal or Warning. `reason`: CamelCase. `message` is cut after 1,024 characters."""
        name = event_name(job, uid, reason, message)
        try:
            if (namespace, name) in self._counts:
                await self._count_up(namespace, name)
            else:
                await self._first(namespace, name, job, uid, kind, reason, message)
        except (ApiError, Unreachable) as error:
            _logger.warning("%s/%s: event %s could not be written: %s", namespace, job, reason, error)

    async def _first(self, namespace: str, name: str, job: str, uid: str, kind: str, reason: str, message: str) -> None:
        now = self._clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        manifest: Event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": namespace},
            "involvedObject": {
                "apiVersion": RLJOB.api_version,
                "kind": RLJOB.kind,
                "name": job,
                "namespace": namespace,
                "uid": uid,
            },
            "type": kind,
            "reason": reason,
            "message": message[:1024],
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "source": {"component": _COMPONENT},
            "reportingComponent": _COMPONENT,
            "reportingInstance": _COMPONENT,
        }
        try:
            await self._kube.create(EVENT, manifest)
        except ApiError as error:
            if not error.already_exists:
                raise
            known = await self._kube.get(EVENT, namespace, name)  # an earlier process wrote it
            self._remember(namespace, name, int(known.get("count") or 1))
            await self._count_up(namespace, name)
        else:
            self._remember(namespace, name, 1)

    async def _count_up(self, namespace: str, name: str) -> None:
        count = self._counts[namespace, name] + 1
        now = self._clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            await self._kube.merge(EVENT, namespace, name, {"count": count, "lastTimestamp": now})
        except ApiError as error:
            if error.not_found:  # events live for an hour
                del self._counts[namespace, name]
                return
            raise
        self._remember(namespace, name, count)

    def _remember(self, namespace: str, name: str, count: int) -> None:
        self._counts[namespace, name] = count
        self._counts.move_to_end((namespace, name))
        while len(self._counts) > _REMEMBERED:
            self._counts.popitem(last=False)


def event_name(job: str, uid: str, reason: str, message: str) -> str:
    """Return the Event's name: equal for equal events, in every process."""
    digest = hashlib.sha256("\0".join((uid, reason, message)).encode()).hexdigest()
    return f"{job}.{digest[:16]}"
