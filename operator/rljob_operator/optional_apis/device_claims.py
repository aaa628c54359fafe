"""What the API server has for jobs whose pods claim devices: the API itself, and the templates of the claims."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from rljob_api.spec import RLJob
from rljob_kube.client import Kube
from rljob_kube.resources import CLAIM_TEMPLATE
from rljob_operator.policies.base.observation import Devices
from rljob_operator.policies.pods.devices import API, template_names


class DeviceClaimCache:
    """Asks at each look. What was there is not asked for again for a few seconds; what was absent is."""

    def __init__(self, kube: Kube, *, fresh_seconds: float = 5.0, clock: Callable[[], float] = monotonic) -> None:
        self._kube = kube
        self._fresh = fresh_seconds
        self._clock = clock
        self._seen: dict[tuple[str, str], float] = {}

    async def facts(self, job: RLJob) -> Devices:
        """What there is for this job. Nothing is asked where its pods claim nothing."""
        names = template_names(job)
        if not names:
            return Devices()
        if not await self._there("", ""):
            return Devices(served=False)
        return Devices(templates=frozenset([name for name in names if await self._there(job.namespace, name)]))

    async def _there(self, namespace: str, name: str) -> bool:
        """Whether the template exists; without a name, whether the API is served."""
        now = self._clock()
        self._seen = {key: at for key, at in self._seen.items() if now - at < self._fresh}
        if (namespace, name) in self._seen:
            return True
        if name:
            there = await self._kube.find(CLAIM_TEMPLATE, namespace, name) is not None
        else:
            there = await self._kube.serves(*API)
        if there:
            self._seen[namespace, name] = now
        return there
