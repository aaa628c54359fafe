"""Reconciler: observes one job, plans, and applies the plan."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from rljob_api import InvalidSpec
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.leader_election import LeadershipLost
from rljob_kube.resources import RLJOB, Json
from rljob_operator.api_access import ApiAccess
from rljob_operator.applier import Applier
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import Event
from rljob_operator.policies.base.periods import after_refusal
from rljob_operator.policies.lifecycle.admission import admit, is_managed
from rljob_operator.policies.plan import plan
from rljob_operator.policies.pods.owned_objects import addressed_by
from rljob_operator.policies.status.invalid_spec import INTERNAL_ERROR, plan_failed, plan_invalid
from rljob_operator.readers.observer import Key, Observer
from rljob_operator.writers.calls import RequeueAfter

_logger = logging.getLogger(__name__)


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Reconciler:
    """Work function of the queue."""

    def __init__(
        self,
        api: ApiAccess,
        observer: Observer,
        applier: Applier,
        config: Config,
        *,
        forget: Callable[[Key], None] = lambda key: None,
        clock: Callable[[], datetime] = _utc_now,
    ) -> None:
        self._kube = api.kube
        self._observer = observer
        self._applier = applier
        self._recorder = api.recorder
        self._metrics = api.metrics
        self._config = config
        self._forget = forget
        self._clock = clock

    async def __call__(self, key: Key, since: float) -> float | None:
        """Reconcile one job once.

        Return the seconds after which time alone may change the decision.
        """
        began = time.monotonic()
        result = "error"
        try:
            again = await self._reconcile(key, since)
            result = "ok"
            return again
        except RequeueAfter as reason:
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
        if not is_managed(document) or not is_managed(document := await self._applier.restored(document)):
            return None
        try:
            # A spec may have 256 KiB: in a thread it delays no other job, and no renewal of the Lease.
            admitted = await asyncio.to_thread(admit, document)
        except InvalidSpec as invalid:
            # The next try is at the next generation: only an edit can help.
            await self._write(document, *plan_invalid(document, invalid.errors, self._clock()))
            return None
        job = admitted.job
        observed = await self._observer.observe(job)
        now = self._clock()
        decided = await asyncio.to_thread(plan, job, observed, now, self._config, admitted.refused)
        if decided.empty:
            return decided.again_seconds
        address = addressed_by(decided.children)
        if address is not None:
            # If this reconcile ends half-way, the next one checks the address again.
            self._observer.set_address(job, None)
        done = await self._applier.apply(job, decided, now)
        if address is not None and done is decided:
            self._observer.set_address(job, address)
        if address is not None and not observed.children_present:  # all of them: the Service is among them
            self._observer.mark_created(job)
        if decided.losses and decided.creations:
            self._metrics.recovery_seconds.observe(max(0.0, asyncio.get_running_loop().time() - since))
        if done is not decided:  # the API server refused a part for good; a human or a quota may change its mind
            return after_refusal(decided.again_seconds)
        return decided.again_seconds

    async def _fetch(self, key: Key) -> Json | None:
        found = await self._kube.find(RLJOB, *key)
        if found is None:
            self._forget(key)
        return found

    async def failed(self, key: Key, error: Exception) -> None:
        """Report a lasting error in the job's status: Stalled, until a reconcile succeeds."""
        stall = unexpected_failure(error)
        if stall is None:
            return
        _logger.error("%s/%s: %s", *key, stall.message, exc_info=error)
        document = await self._fetch(key)
        if document is not None and not document["metadata"].get("deletionTimestamp") and is_managed(document):
            document = await self._applier.restored(document)
            await self._write(document, *plan_failed(document, stall, self._clock()))

    async def _write(self, document: Json, status: Json | None, events: Iterable[Event]) -> None:
        meta = document["metadata"]
        where = meta["namespace"], meta["name"], meta["uid"]
        if status is not None:
            await self._applier.apply_status(*where, meta["resourceVersion"], status)
        for event in events:
            await self._recorder.record(*where, event.kind, event.reason, event.message)


def unexpected_failure(error: Exception) -> ConditionReason | None:
    """Explain an error to the job's user. None for an error that is temporary."""
    if isinstance(error, Unreachable | LeadershipLost | RequeueAfter):
        return None
    if isinstance(error, ApiError):
        if error.transient or error.status in (401, 404, 409, 410):
            return None
        advice = "The rest of the job's state does not change. The operator tries again."
        return ConditionReason(
            "RequestRefused", f"The API server refuses a request of the operator: {error}. {advice}"[:2000]
        )
    what = (
        "a reconcile of the job took too long"
        if isinstance(error, TimeoutError)
        else f"{type(error).__name__}: {error}"
    )
    advice = "Running pods continue. The operator tries again. Report this error with the operator's log."
    return ConditionReason(INTERNAL_ERROR, f"The operator failed to reconcile this job: {what[:1500]}. {advice}")
