"""Applier: executes a plan.

Each step can be repeated: after a crash between two calls, the next plan continues from what is there.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime
from typing import TypeVar

from rljob_api.constants import AUTH_RAY_TOKEN, AUTH_RELAY_KEY, KIND, pod_name
from rljob_api.spec import RLJob
from rljob_kube.client import KubeClient
from rljob_kube.errors import ApiError
from rljob_kube.event_recorder import EventRecorder
from rljob_kube.resources import POD, RLJOB, WORKLOAD, Json
from rljob_operator.metrics import Metrics
from rljob_operator.owned_resources import resource_of
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.decisions import Event, Removal
from rljob_operator.policies.creation import Creation
from rljob_operator.policies.gang import pod_groups
from rljob_operator.policies.kueue.settlement import Settlement
from rljob_operator.policies.plan import Plan
from rljob_operator.policies.refusal import in_order, no_priority_class, pod_refusal, refused, stalled
from rljob_operator.policies.status import seal
from rljob_operator.policies.status.write_conflict import only_reported
from rljob_operator.seals import Forgery, SealBroken, Seals

_logger = logging.getLogger(__name__)

T = TypeVar("T")

STATUS_TRIES = 5
"""Attempts to write a status between two reports of a busy coordinator."""

_NEVER_CHANGED = frozenset(
    {"Secret", "Lease", "ServiceAccount", "RoleBinding", "ResourceClaimTemplate", pod_groups.KIND}
)


class RequeueAfter(Exception):
    """A precondition that is not met yet, e.g. an earlier job of the same name that is still being collected."""

    def __init__(self, message: str, seconds: float) -> None:
        """Ask for another try after `seconds`."""
        super().__init__(message)
        self.seconds = seconds


class Applier:
    """Executes plans against the API server."""

    def __init__(
        self,
        kube: KubeClient,
        recorder: EventRecorder,
        metrics: Metrics,
        confirm_leader: Callable[[], Awaitable[None]],
        observe_pods: Callable[[Iterable[Json]], None],
        seals: Seals,
        *,
        parallel: int = 8,
    ) -> None:
        """Take what the applier writes with.

        `confirm_leader` raises when another replica may lead; it is called before everything that cannot be undone.
        `observe_pods` receives pods as the server stored them, so that no later list is older: a member that a list
        does not show counts as lost. `parallel` bounds the concurrent requests of one job.
        """
        self._kube = kube
        self._recorder = recorder
        self._metrics = metrics
        self._confirm_leader = confirm_leader
        self._observe_pods = observe_pods
        self._seals = seals
        self._parallel = parallel

    async def apply(self, job: RLJob, plan: Plan, now: datetime) -> Plan:
        """Execute a plan in its order, and return the plan that was executed.

        It differs from `plan` where the API server refused something for good. Raises `RequeueAfter`, `ApiError` or
        `Unreachable` when the rest must wait for another try.
        """
        if plan.delete_job:
            await self._confirm_leader()
            await self._delete_job(job)
            return plan
        conflict = await self._ensure_children(job, plan.children)
        if conflict is not None and plan.status is not None:
            withheld = {creation.new.machine: conflict for creation in plan.creations}
            plan = refused(plan, job, withheld, now) if withheld else stalled(plan, job, plan.status, conflict, now)
        elif conflict is None:
            plan = refused(plan, job, await self._create_pods(job, plan.creations), now)
        unasked = await self._ask(job, plan.asked)
        if unasked is not None:
            plan = stalled(plan, job, plan.status or job.status, unasked, now)
        if plan.status is not None:
            await self.write_status(job, plan.status.to_dict())
        await self._remove_pods(job, plan.removals)
        for loss in plan.losses:
            self._metrics.replacements.labels(loss.role.value, loss.reason).inc()
        await self.record_events(job, plan.events)
        await self._settle(job, plan.settled)
        return plan

    async def write_status(self, job: RLJob, status: Json) -> None:
        """Apply the operator's part of the status, if the job is still the one that was planned for.

        A coordinator's report that came meanwhile does not matter: it is an event of its own, and the job is planned
        again.
        """
        meta = job.metadata
        version = meta.resource_version
        for tries_left in reversed(range(STATUS_TRIES)):
            try:
                return await self.apply_status(meta.namespace, meta.name, meta.uid, version, status)
            except RequeueAfter:
                live = await self._kube.get(RLJOB, meta.namespace, meta.name)
                if not tries_left or not only_reported(job, live):
                    raise
                version = live["metadata"]["resourceVersion"]

    async def apply_status(self, namespace: str, name: str, uid: str, version: str, status: Json) -> None:
        """Apply the operator's part by name and version.

        Raises `RequeueAfter` when the job has changed meanwhile.
        """
        meta = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": version}
        try:
            await self._seals.announce(namespace, name, uid, status)
            await self._seals.written(await self._apply_part(meta, status))
        except SealBroken as error:
            raise RequeueAfter(str(error), 0.1) from error
        except ApiError as error:
            if error.conflict:
                raise RequeueAfter(f"the job changed meanwhile: {error.message}", 0.1) from error
            if not error.not_found:
                raise

    async def restored(self, document: Json) -> Json:
        """Return the job with the status that an operator wrote.

        Foreign changes are undone and reported as an event.
        """
        try:
            forgery = await self._seals.forgery(document)
        except SealBroken as error:
            raise RequeueAfter(str(error), 0.1) from error
        if forgery is None:
            return document
        await self._confirm_leader()
        try:
            document = await self._undo(document, forgery)
        except ApiError as error:
            if not error.conflict and not error.not_found:
                raise
            raise RequeueAfter(f"the job changed meanwhile: {error.message}", 0.1) from error
        meta, event = document["metadata"], seal.alarm(forgery.fields, forgery.known)
        _logger.warning("%s/%s: %s", meta["namespace"], meta["name"], event.message)
        await self._recorder.record(
            meta["namespace"], meta["name"], meta["uid"], event.kind, event.reason, event.message
        )
        return document

    async def _undo(self, document: Json, forgery: Forgery) -> Json:
        """Restore the operator's part.

        A field of another owner is removed first: an apply does not reach it.
        """
        fields = forgery.fields
        if forgery.truth:
            document = await self._apply_part(document["metadata"], forgery.truth)
            fields = seal.foreign(seal.operator_part(document), forgery.truth)
        if fields:
            meta = document["metadata"]
            precondition = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
            body: Json = {"metadata": precondition, "status": dict.fromkeys(fields)}
            document = await self._kube.merge(RLJOB, meta["namespace"], meta["name"], body, subresource="status")
            if forgery.truth:
                document = await self._apply_part(document["metadata"], forgery.truth)
        await self._seals.undone(document, forgery)
        return document

    async def _apply_part(self, meta: Json, part: Json) -> Json:
        """Apply the operator's part to the object of exactly this version."""
        metadata = {key: meta[key] for key in ("name", "namespace", "uid", "resourceVersion")}
        body = {"apiVersion": RLJOB.api_version, "kind": KIND, "metadata": metadata, "status": part}
        return await self._kube.apply(RLJOB, body, subresource="status")

    async def record_events(self, job: RLJob, events: Sequence[Event]) -> None:
        """Record events of a job."""
        meta = job.metadata
        for event in events:
            await self._recorder.record(meta.namespace, meta.name, meta.uid, event.kind, event.reason, event.message)

    # --- children -----------------------------------------------------------------------------------------------------

    async def _ensure_children(self, job: RLJob, manifests: Sequence[Json]) -> ConditionReason | None:
        """Create or update all children concurrently.

        Return the first name that belongs to another owner.
        """
        found = await self._together([self._ensure(job, manifest) for manifest in manifests])
        return next((stall for stall in found if stall is not None), None)

    async def _ensure(self, job: RLJob, manifest: Json) -> ConditionReason | None:
        """Create an object, or update it where it differs."""
        kind = manifest["kind"]
        resource = resource_of(manifest)
        body = self._completed(job, manifest)
        try:
            made = await self._kube.create(resource, body)
            if kind == "Role":
                self._seals.made(job.metadata.uid, made)
            return None
        except ApiError as error:
            if not error.already_exists:
                refusal = _child_refusal(job, kind, error)
                if refusal is None:
                    raise
                return refusal
        if kind == "Secret":  # its name holds the job's uid, so it is this job's
            return None
        name = manifest["metadata"]["name"]
        live = await self._kube.get(resource, job.namespace, name)
        taken = _taken(job, live)
        if taken is not None:
            return taken
        if kind == pod_groups.KIND and not _covers(live, pod_groups.changes(manifest)):
            await self._kube.merge(resource, job.namespace, name, pod_groups.changes(manifest))
        elif kind not in _NEVER_CHANGED and not _covers(live, manifest):
            applied = await self._kube.apply(resource, manifest)
            if kind == "Role":
                self._seals.made(job.metadata.uid, applied)
        return None

    def _completed(self, job: RLJob, manifest: Json) -> Json:
        """Add what an object has from its creation on and keeps."""
        if manifest["kind"] == "Secret":
            return {**manifest, "stringData": _fresh_secrets()}
        if manifest["kind"] == "Role":
            return {**manifest, "metadata": {**manifest["metadata"], **self._seals.first(job.metadata.uid)}}
        return manifest

    # --- pods ---------------------------------------------------------------------------------------------------------

    async def _create_pods(self, job: RLJob, creations: Sequence[Creation]) -> dict[str, ConditionReason]:
        """Create the pods role by role.

        Stop at the first role with a pod that is refused for good, and return the refusals by machine.
        """
        for group in in_order(creations):
            found = await self._together([self._create_pod(job, creation) for creation in group])
            refusals = {c.new.machine: why for c, why in zip(group, found, strict=True) if why is not None}
            if refusals:
                return refusals
        return {}

    async def _create_pod(self, job: RLJob, creation: Creation) -> ConditionReason | None:
        try:
            self._observe_pods([await self._kube.create(POD, creation.manifest)])
        except ApiError as error:
            if error.already_exists:
                name = pod_name(job.name, creation.new.machine, creation.new.incarnation)
                live = await self._kube.get(POD, job.namespace, name)
                self._observe_pods([live])
                return _taken(job, live)
            refusal = pod_refusal(error.status, error.message) if error.status == 403 or error.invalid else None
            if refusal is None:
                raise
            return refusal
        return None

    async def _remove_pods(self, job: RLJob, removals: Sequence[Removal]) -> None:
        if removals:
            await self._confirm_leader()
        await self._together([self._remove_pod(job, removal) for removal in removals])

    async def _remove_pod(self, job: RLJob, removal: Removal) -> None:
        pod = removal.pod
        _logger.info("%s/%s: delete pod %s: %s", job.namespace, job.name, pod.name, removal.reason)
        try:
            await self._kube.delete(POD, job.namespace, pod.name, uid=pod.uid, grace_seconds=removal.grace_seconds)
        except ApiError as error:
            if not error.conflict:  # a pod of the same name and another uid is not the one that was judged
                raise
            return
        if removal.force:
            self._metrics.forced.inc()

    # --- quota --------------------------------------------------------------------------------------------------------

    async def _ask(self, job: RLJob, workloads: Sequence[Json]) -> ConditionReason | None:
        """Create all Workloads.

        Return why one of them could not be created. Admitted ones are not affected.
        """
        found = await self._together([self._ask_one(job, manifest) for manifest in workloads])
        return next((stall for stall in found if stall is not None), None)

    async def _ask_one(self, job: RLJob, manifest: Json) -> ConditionReason | None:
        name = manifest["metadata"]["name"]
        try:
            await self._kube.create(WORKLOAD, manifest)
        except ApiError as error:
            if error.already_exists:
                return _taken(job, await self._kube.get(WORKLOAD, job.namespace, name))
            if "failed calling webhook" in error.message:
                advice = "check that Kueue's manager runs"
                return ConditionReason(
                    "KueueNotAnswering", f"Workload {name} could not be created: {error.message}; {advice}"
                )
            if error.invalid or "denied the request" in error.message:
                return ConditionReason("WorkloadInvalid", f"Workload {name} is refused: {error.message}")
            if error.status == 403:
                advice = "set kueue.enabled in the values of the operator's chart"
                return ConditionReason(
                    "KueueNotEnabled", f"Workload {name} could not be created: {error.message}; {advice}"
                )
            if not error.not_found:  # the API has gone since the last look, and the next one says so
                raise
        return None

    async def _settle(self, job: RLJob, settlements: Sequence[Settlement]) -> None:
        """Write what Kueue needs to know. It is the last step, so nothing waits for it."""
        if settlements:
            await self._confirm_leader()
        await self._together([self._settle_one(job, settlement) for settlement in settlements])

    async def _settle_one(self, job: RLJob, settlement: Settlement) -> None:
        one = settlement.workload
        try:
            if settlement.status is None:
                await self._kube.delete(WORKLOAD, job.namespace, one.name, uid=one.uid)
                return
            body = {"metadata": {"uid": one.uid, "resourceVersion": one.version}, "status": settlement.status}
            await self._kube.merge(WORKLOAD, job.namespace, one.name, body, subresource="status")
        except ApiError as error:
            if error.conflict:
                raise RequeueAfter(f"Workload {one.name} changed meanwhile: {error.message}", 0.2) from error
            if not error.not_found:
                raise

    async def _delete_job(self, job: RLJob) -> None:
        meta = job.metadata
        try:
            await self._kube.delete(RLJOB, meta.namespace, meta.name, uid=meta.uid)
        except ApiError as error:
            if not error.conflict:
                raise

    async def _together(self, calls: Sequence[Awaitable[T]]) -> list[T]:
        """Run a few calls at a time. All of them end before the first error is raised."""
        gate = asyncio.Semaphore(self._parallel)

        async def one(call: Awaitable[T]) -> T:
            async with gate:
                return await call

        results = await asyncio.gather(*(one(call) for call in calls), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if not isinstance(result, BaseException)]


def _fresh_secrets() -> dict[str, str]:
    return {AUTH_RAY_TOKEN: secrets.token_hex(32), AUTH_RELAY_KEY: secrets.token_hex(32)}


def _taken(job: RLJob, live: Json) -> ConditionReason | None:
    """Tell whether the name of a wanted object is taken by another owner.

    Raises `RequeueAfter` when the owner is an earlier RLJob of the same name, whose objects are being collected.
    """
    owners = live["metadata"].get("ownerReferences") or []
    if any(owner.get("uid") == job.metadata.uid for owner in owners):
        return None
    what = f"{live.get('kind', 'object')} {live['metadata']['name']}"
    if any(owner.get("kind") == KIND and owner.get("name") == job.name for owner in owners):
        raise RequeueAfter(f"{what} of an earlier job of this name still exists", 1.0)
    return ConditionReason("NameTaken", f"{what} exists and is not this job's: delete it, or give the job another name")


def _child_refusal(job: RLJob, kind: str, error: ApiError) -> ConditionReason | None:
    """Explain why a child was refused. None where another try may succeed."""
    if kind != pod_groups.KIND:
        return None
    return no_priority_class(error.message) or pod_groups.refusal(job, error.status, error.message)


def _covers(live: object, wanted: object) -> bool:
    """Tell whether `live` contains everything in `wanted`. The server may have added defaults."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(key in live and _covers(live[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return (
            isinstance(live, list)
            and len(live) == len(wanted)
            and all(_covers(one, other) for one, other in zip(live, wanted, strict=True))
        )
    return live == wanted
