"""Which pod group APIs the API server has, asked for jobs that need one to begin, at any time."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from rljob_api.spec import Gang, RLJob
from rljob_kube.client import Kube
from rljob_operator.owned_resources import POD_GROUPS
from rljob_operator.policies.gang import pod_groups

KNOWN_SECONDS = 300.0
"""An API that was there is believed to be there for so long."""


class PodGroupApis:
    """Answers of discovery. What is absent is asked for at every look: it may be installed at any moment."""

    def __init__(self, kube: Kube, *, clock: Callable[[], float] = monotonic) -> None:
        self._kube = kube
        self._clock = clock
        self._seen: dict[Gang, float] = {}

    async def served(self, job: RLJob) -> bool | None:
        """Whether the API of the job's gang is there. None: the job needs none now."""
        kind = job.spec.scheduling.gang
        if not pod_groups.gathers(job.spec, job.status):
            return None
        now = self._clock()
        if kind in self._seen and now - self._seen[kind] < KNOWN_SECONDS:
            return True
        self._seen.pop(kind, None)
        api = POD_GROUPS[kind]
        if await self._kube.serves(api.group, api.version, api.plural):
            self._seen[kind] = now
        return kind in self._seen
