"""Pod group APIs: discovers which of them the API server has, for jobs that need one to start."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from rljob_api.spec import Gang, RLJob
from rljob_kube.client import KubeClient
from rljob_operator.policies.gang import pod_groups
from rljob_operator.readers.owned_resources import POD_GROUPS

KNOWN_SECONDS = 300.0
"""Seconds for which a discovered API is believed to exist."""


class PodGroupApis:
    """Cache of discovery. An absent API is looked up each time: it may be installed at any moment."""

    def __init__(self, kube: KubeClient, *, clock: Callable[[], float] = monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._served_at: dict[Gang, float] = {}

    async def served(self, job: RLJob) -> bool | None:
        """Tell whether the API of the job's gang exists. None: the job needs none now."""
        kind = job.spec.scheduling.gang
        if not pod_groups.gathers(job.spec, job.status):
            return None
        now = self._clock()
        if kind in self._served_at and now - self._served_at[kind] < KNOWN_SECONDS:
            return True
        self._served_at.pop(kind, None)
        api = POD_GROUPS[kind]
        if await self._kube.serves(api.group, api.version, api.plural):
            self._served_at[kind] = now
        return kind in self._served_at
