"""One job, once: observe, plan, act."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from rljob_api import InvalidSpec
from rljob_operator.act import Actor, Postponed
from rljob_operator.kube.client import Kube
from rljob_operator.kube.recorder import Recorder
from rljob_operator.kube.resources import RLJOB, Json
from rljob_operator.metrics import Metrics
from rljob_operator.observe import Key, Observer
from rljob_operator.policies.admission import admit, is_ours
from rljob_operator.policies.config import Config
from rljob_operator.policies.invalid import plan_invalid
from rljob_operator.policies.objects import addressed_by
from rljob_operator.policies.plan import plan

_logger = logging.getLogger(__name__)

_REFUSED_AGAIN_SECONDS = 15.0


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Reconciler:
    """What the queue calls for each key."""

    def __init__(
        self,
        kube: Kube,
        observer: Observer,
        actor: Actor,
        recorder: Recorder,
        metrics: Metrics,
        config: Config,
        *,
        forget: Callable[[Key], None] = lambda key: None,
        clock: Callable[[], datetime] = _utc_now,
    ) -> None:
        self._kube = kube
        self._observer = observer
        self._actor = actor
        self._recorder = recorder
        self._metrics = metrics
        self._config = config
        self._forget = forget
        self._clock = clock

    async def __call__(self, key: Key, since: float) -> float | None:
        """Bring one job a step nearer to its spec. Returns the seconds after which time alone may change the
        decision."""
        began = time.monotonic()
        result = "error"
        try:
            again = await self._reconcile(key, since)
            result = "ok"
            return again
        except Postponed as reason:
            result = "postponed"
            _logger.debug("%s/%s: %s", *key, reason)
            return reason.seconds
        finally:
            self._metrics.reconciles.labels(result).inc()
            self._metrics.reconcile_seconds.observe(time.monotonic() - began)

    async def _reconcile(self, key: Key, since: float) -> float | None:
        document = await self._fetch(key)
        if document is None or document["metadata"].get("deletionTimestamp"):
            return None
        if not is_ours(document):
            return None
        try:
            admitted = admit(document)
        except InvalidSpec as invalid:
            await self._tell_invalid(document, invalid)
            return None
        job = admitted.job
        seen = await self._observer.observe(job)
        now = self._clock()
        decided = plan(job, seen, now, self._config, admitted.refused)
        if decided.empty:
            return decided.again_seconds
        addressed = addressed_by(decided.children)
        if addressed is not None:
            # Whatever ends this look half-way, the next one makes sure of the address again.
            self._observer.addressed(job, None)
        done = await self._actor.carry_out(job, decided, now)
        if addressed is not None and done is decided:
            self._observer.addressed(job, addressed)
        if decided.children and not seen.children_present:
            self._observer.ensured(job)
        if decided.losses and decided.creations:
            self._metrics.recovery_seconds.observe(max(0.0, asyncio.get_running_loop().time() - since))
        if done is not decided:  # the API server refused a part for good; a human or a quota may change its mind
            waits = [_REFUSED_AGAIN_SECONDS, decided.again_seconds]
            return min(wait for wait in waits if wait is not None)
        return decided.again_seconds

    async def _fetch(self, key: Key) -> Json | None:
        found = await self._kube.find(RLJOB, *key)
        if found is None:
            self._forget(key)
        return found

    async def _tell_invalid(self, document: dict[str, Any], invalid: InvalidSpec) -> None:
        """Stalled, with every mistake by its path. The next try is at the next generation: nothing else can help."""
        status, events = plan_invalid(document, invalid.errors, self._clock())
        meta = document["metadata"]
        where = meta["namespace"], meta["name"], meta["uid"]
        if status is not None:
            await self._actor.apply_status(*where, meta["resourceVersion"], status)
        for event in events:
            await self._recorder.record(*where, event.kind, event.reason, event.message)
