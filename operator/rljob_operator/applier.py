"""Applier: executes a plan.

Each step can be repeated: after a crash between two calls, the next plan continues from what is there.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from rljob_api.constants import KIND, pod_name
from rljob_api.spec import RLJob
from rljob_kube.errors import ApiError
from rljob_kube.manifests.metadata import Precondition
from rljob_kube.resources import POD, RLJOB, Json
from rljob_operator.api_access import ApiAccess
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.decisions import Event, Removal
from rljob_operator.policies.base.pod_refusal import pod_refusal
from rljob_operator.policies.creation import Creation
from rljob_operator.policies.phases.steps import Plan
from rljob_operator.policies.refusal import in_order, refused, stalled
from rljob_operator.policies.status import seal
from rljob_operator.policies.status.write_conflict import only_reported
from rljob_operator.seals import Forgery, SealBroken, Seals
from rljob_operator.writers.calls import RequeueAfter, name_taken, together
from rljob_operator.writers.children import ChildWriter
from rljob_operator.writers.deployments import DeploymentWriter
from rljob_operator.writers.workloads import WorkloadWriter

_logger = logging.getLogger(__name__)

STATUS_TRIES = 5
"""Attempts to write a status between two reports of a busy coordinator."""


@dataclass(frozen=True)
class WrittenObjects:
    """Receivers of objects as the server stored them, so that no later list is older.

    A member that a list of `pods` does not show counts as lost.
    """

    pods: Callable[[Iterable[Json]], None]
    deployments: Callable[[Iterable[Json]], None] = lambda items: None


class Applier:
    """Executes plans against the API server."""

    def __init__(
        self,
        api: ApiAccess,
        confirm_leader: Callable[[], Awaitable[None]],
        written: WrittenObjects,
        seals: Seals,
        parallel: int = 8,
    ) -> None:
        """Take what the applier writes with.

        `confirm_leader` raises when another replica may lead; it is called before everything that cannot be undone.
        `parallel` bounds the concurrent requests of one job.
        """
        self._kube = api.kube
        self._recorder = api.recorder
        self._metrics = api.metrics
        self._confirm_leader = confirm_leader
        self._observe_pods = written.pods
        self._seals = seals
        self._children = ChildWriter(api.kube, seals, parallel)
        self._deployments = DeploymentWriter(api.kube, written.deployments, parallel)
        self._workloads = WorkloadWriter(api.kube, confirm_leader, parallel)
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
        given = plan
        conflict = await self._children.ensure(job, plan.children)
        if conflict is not None and plan.status is not None:
            withheld = {creation.new.machine: conflict for creation in plan.creations}
            plan = refused(plan, job, withheld, now) if withheld else stalled(plan, job, plan.status, conflict, now)
        elif conflict is None:
            plan = refused(plan, job, await self._create_pods(job, plan.creations), now)
        if conflict is None and plan is given:  # runners without the job's pods would do nothing
            refusal = await self._deployments.apply(job, plan.deployments)
            if refusal is not None:
                plan = stalled(plan, job, plan.status or job.status, refusal, now)
        unasked = await self._workloads.ask(job, plan.asked)
        if unasked is not None:
            plan = stalled(plan, job, plan.status or job.status, unasked, now)
        if plan.status is not None:
            await self.write_status(job, plan.status.to_dict())
        await self._remove_pods(job, plan.removals)
        for loss in plan.losses:
            self._metrics.replacements.labels(loss.role.value, loss.reason).inc()
        await self.record_events(job, plan.events)
        await self._workloads.settle(job, plan.settled)
        # They run nothing any more, so any replica may delete them. A failure before the events would lose these.
        await together([self._delete_pod(job, pod.name, pod.uid) for pod in plan.used_pods], self._parallel)
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
            precondition: Precondition = {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}
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

    # --- pods ---------------------------------------------------------------------------------------------------------

    async def _create_pods(self, job: RLJob, creations: Sequence[Creation]) -> dict[str, ConditionReason]:
        """Create the pods role by role.

        Stop at the first role with a pod that is refused for good, and return the refusals by machine.
        """
        for group in in_order(creations):
            found = await together([self._create_pod(job, creation) for creation in group], self._parallel)
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
                return name_taken(job, live)
            refusal = pod_refusal(error.status, error.message) if error.status == 403 or error.invalid else None
            if refusal is None:
                raise
            return refusal
        return None

    async def _remove_pods(self, job: RLJob, removals: Sequence[Removal]) -> None:
        if removals:
            await self._confirm_leader()
        await together([self._remove_pod(job, removal) for removal in removals], self._parallel)

    async def _remove_pod(self, job: RLJob, removal: Removal) -> None:
        pod = removal.pod
        _logger.info("%s/%s: delete pod %s: %s", job.namespace, job.name, pod.name, removal.reason)
        if await self._delete_pod(job, pod.name, pod.uid, removal.grace_seconds) and removal.force:
            self._metrics.forced.inc()

    async def _delete_pod(self, job: RLJob, name: str, uid: str, grace_seconds: int | None = None) -> bool:
        """Delete a pod. Return False if a pod of this name has another uid: it is not the one that was judged."""
        try:
            await self._kube.delete(POD, job.namespace, name, uid=uid, grace_seconds=grace_seconds)
        except ApiError as error:
            if not error.conflict:
                raise
            return False
        return True

    async def _delete_job(self, job: RLJob) -> None:
        meta = job.metadata
        try:
            await self._kube.delete(RLJOB, meta.namespace, meta.name, uid=meta.uid)
        except ApiError as error:
            if not error.conflict:
                raise
