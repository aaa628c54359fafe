"""Deployments: the runners of a job's environments.

They are applied on the server from their first write on: fields that a template leaves out later are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rljob_api.spec import RLJob
from rljob_kube.client import KubeClient
from rljob_kube.errors import ApiError
from rljob_kube.manifests.objects import Deployment
from rljob_kube.resources import DEPLOYMENT, Json
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.pod_refusal import pod_refusal
from rljob_operator.writers.calls import RequeueAfter, name_taken, together

_UNTYPED = "failed to create typed patch object"
"""A server's answer to a template that it cannot read. Its status is 500, and another try gives the same."""


class DeploymentWriter:
    """Applies the Deployments of a job."""

    def __init__(self, kube: KubeClient, observe: Callable[[Iterable[Json]], None], parallel: int) -> None:
        """Take what `Applier` takes. `observe` receives Deployments as the server stored them."""
        self._kube = kube
        self._observe = observe
        self._parallel = parallel

    async def apply(self, job: RLJob, manifests: Sequence[Deployment]) -> ConditionReason | None:
        """Apply all Deployments. Return why one cannot be applied; None if all are applied.

        Either the server refuses it for good, or an object of another owner has its name."""
        found = await together([self._apply_one(job, manifest) for manifest in manifests], self._parallel)
        return next((stall for stall in found if stall is not None), None)

    async def _apply_one(self, job: RLJob, manifest: Deployment) -> ConditionReason | None:
        metadata = manifest["metadata"]
        live = await self._kube.find(DEPLOYMENT, job.namespace, metadata["name"])
        if live is not None:
            taken = name_taken(job, live)
            if taken is not None:
                return taken
            # Without the uid, an apply would create a Deployment that is deleted meanwhile.
            manifest = {**manifest, "metadata": {**metadata, "uid": live["metadata"]["uid"]}}
        try:
            self._observe([await self._kube.apply(DEPLOYMENT, manifest)])
        except ApiError as error:
            if error.conflict:
                raise RequeueAfter(f"Deployment {metadata['name']} changed meanwhile: {error.message}", 0.2) from error
            refusal = explain_refusal(metadata["name"], error)
            if refusal is None:
                raise
            return refusal
        return None


def explain_refusal(name: str, error: ApiError) -> ConditionReason | None:
    """Explain why a Deployment is refused for good. None where another try may succeed."""
    if not (error.invalid or error.status == 403 or _UNTYPED in error.message):
        return None
    return pod_refusal(error.status, f"Deployment {name}: {error.message}")
