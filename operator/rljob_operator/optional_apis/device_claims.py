"""Device claims: reads the API and the templates that a job's claims need."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from rljob_api.spec import RLJob
from rljob_kube.client import KubeClient
from rljob_kube.resources import CLAIM_TEMPLATE
from rljob_operator.policies.base.observation import Devices
from rljob_operator.policies.pods.devices import API, template_names


class DeviceClaimCache:
    """Cache of what exists, for a few seconds. What is absent is read again each time."""

    def __init__(self, kube: KubeClient, *, fresh_seconds: float = 5.0, clock: Callable[[], float] = monotonic) -> None:
        self._kube = kube
        self._fresh = fresh_seconds
        self._clock = clock
        self._known_until: dict[tuple[str, str], float] = {}

    async def facts(self, job: RLJob) -> Devices:
        """Return what exists for this job. Nothing is read for a job without claims."""
        names = template_names(job)
        if not names:
            return Devices()
        if not await self._exists("", ""):
            return Devices(served=False)
        return Devices(templates=frozenset([name for name in names if await self._exists(job.namespace, name)]))

    async def _exists(self, namespace: str, name: str) -> bool:
        """Tell whether a template exists. Without a name: whether the API is served."""
        now = self._clock()
        self._known_until = {key: at for key, at in self._known_until.items() if now - at < self._fresh}
        if (namespace, name) in self._known_until:
            return True
        if name:
            there = await self._kube.find(CLAIM_TEMPLATE, namespace, name) is not None
        else:
            there = await self._kube.serves(*API)
        if there:
            self._known_until[namespace, name] = now
        return there
