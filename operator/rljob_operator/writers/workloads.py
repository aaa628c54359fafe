"""Workloads: what Kueue needs to know about a job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from rljob_api.spec import RLJob
from rljob_kube.client import KubeClient
from rljob_kube.errors import ApiError
from rljob_kube.manifests.objects import Workload
from rljob_kube.resources import WORKLOAD
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.kueue.settlement import Settlement
from rljob_operator.writers.calls import RequeueAfter, name_taken, together


class WorkloadWriter:
    """Creates and settles the Workloads of a job."""

    def __init__(self, kube: KubeClient, confirm_leader: Callable[[], Awaitable[None]], parallel: int) -> None:
        """Take what `Applier` takes."""
        self._kube = kube
        self._confirm_leader = confirm_leader
        self._parallel = parallel

    async def ask(self, job: RLJob, workloads: Sequence[Workload]) -> ConditionReason | None:
        """Create all Workloads.

        Return why one of them could not be created. Admitted ones are not affected.
        """
        found = await together([self._ask_one(job, manifest) for manifest in workloads], self._parallel)
        return next((stall for stall in found if stall is not None), None)

    async def _ask_one(self, job: RLJob, manifest: Workload) -> ConditionReason | None:
        name = manifest["metadata"]["name"]
        try:
            await self._kube.create(WORKLOAD, manifest)
        except ApiError as error:
            if error.already_exists:
                return name_taken(job, await self._kube.get(WORKLOAD, job.namespace, name))
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

    async def settle(self, job: RLJob, settlements: Sequence[Settlement]) -> None:
        """Write what Kueue needs to know. It is the last step, so nothing waits for it."""
        if settlements:
            await self._confirm_leader()
        await together([self._settle_one(job, settlement) for settlement in settlements], self._parallel)

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
