"""Children: the Secrets, Services, Roles and other objects that a job owns beside its pods."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from rljob_api import constants as c
from rljob_api.keys.proxy_key import mint_proxy_key
from rljob_api.keys.runner_key import mint_runner_key
from rljob_api.spec import RLJob
from rljob_kube.client import KubeClient
from rljob_kube.errors import ApiError
from rljob_kube.manifests.objects import Child, Role, Secret
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.pod_refusal import no_priority_class
from rljob_operator.policies.gang import pod_groups
from rljob_operator.readers.owned_resources import resource_of
from rljob_operator.seals import Seals
from rljob_operator.writers.calls import name_taken, together

_NEVER_CHANGED = frozenset(
    {"Secret", "Lease", "ServiceAccount", "RoleBinding", "ResourceClaimTemplate", pod_groups.KIND}
)

_KEY_BYTES = 32


class ChildWriter:
    """Creates and updates the objects of a job."""

    def __init__(self, kube: KubeClient, seals: Seals, parallel: int) -> None:
        """`parallel` bounds the concurrent requests of one job."""
        self._kube = kube
        self._seals = seals
        self._parallel = parallel

    async def ensure(self, job: RLJob, manifests: Sequence[Child]) -> ConditionReason | None:
        """Create or update all children concurrently.

        Return the first name that belongs to another owner.
        """
        found = await together([self._ensure_one(job, manifest) for manifest in manifests], self._parallel)
        return next((stall for stall in found if stall is not None), None)

    async def _ensure_one(self, job: RLJob, manifest: Child) -> ConditionReason | None:
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
        taken = name_taken(job, live)
        if taken is not None:
            return taken
        if manifest["kind"] == "PodGroup":
            if not covers(live, pod_groups.changes(manifest)):
                await self._kube.merge(resource, job.namespace, name, pod_groups.changes(manifest))
        elif kind not in _NEVER_CHANGED and not (covers(live, manifest) and is_as_wide(live, manifest)):
            applied = await self._kube.apply(resource, manifest)
            if kind == "Role":
                self._seals.made(job.metadata.uid, applied)
        return None

    def _completed(self, job: RLJob, manifest: Child) -> Child:
        """Add what an object has from its creation on and keeps."""
        if manifest["kind"] == "Secret":
            secret: Secret = {**manifest, "stringData": _fresh_secrets(job, manifest["metadata"]["name"])}
            return secret
        if manifest["kind"] == "Role":
            role: Role = {**manifest, "metadata": {**manifest["metadata"], **self._seals.first(job.metadata.uid)}}
            return role
        return manifest


def _fresh_secrets(job: RLJob, name: str) -> dict[str, str]:
    """Return fresh keys for the Secret of this name: the job's own, that of its environments or of its proxy."""
    if name == c.environments_secret_of(job.name, job.metadata.uid):
        runners = secrets.token_hex(_KEY_BYTES)
        keys = {c.CAPABILITY_KEY: secrets.token_hex(_KEY_BYTES), c.RUNNERS_KEY: runners}
        return keys | {c.runner_key_item(one): mint_runner_key(bytes.fromhex(runners), one) for one in _names(job)}
    if name == c.egress_secret_of(job.name, job.metadata.uid):
        proxies = secrets.token_hex(_KEY_BYTES)
        own = {c.proxy_key_item(one): mint_proxy_key(bytes.fromhex(proxies), one) for one in _names(job)}
        return {c.PROXY_KEYS_KEY: proxies} | own
    return {c.AUTH_RAY_TOKEN: secrets.token_hex(_KEY_BYTES), c.AUTH_RELAY_KEY: secrets.token_hex(_KEY_BYTES)}


def _names(job: RLJob) -> list[str]:
    return [environment.name for environment in job.spec.environments]


def _child_refusal(job: RLJob, kind: str, error: ApiError) -> ConditionReason | None:
    """Explain why a child was refused. None where another try may succeed."""
    if kind != pod_groups.KIND:
        return None
    return no_priority_class(error.message) or pod_groups.refusal(job, error.status, error.message)


def is_as_wide(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Tell whether a NetworkPolicy has nothing that it should not: a rule without ports admits more than one with."""
    if wanted["kind"] != "NetworkPolicy":
        return True
    return covers(without_empty(wanted["spec"]), without_empty(live.get("spec", {})))


def without_empty(value: Any) -> Any:
    """Return a value without its empty lists and objects, which servers leave out, add or keep."""
    if isinstance(value, dict):
        return {key: kept for key, one in value.items() if (kept := without_empty(one)) not in ([], {}, None)}
    return [without_empty(one) for one in value] if isinstance(value, list) else value


def covers(live: object, wanted: object) -> bool:
    """Tell whether `live` contains everything in `wanted`. The server may have added defaults."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(key in live and covers(live[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return (
            isinstance(live, list)
            and len(live) == len(wanted)
            and all(covers(one, other) for one, other in zip(live, wanted, strict=True))
        )
    return live == wanted
