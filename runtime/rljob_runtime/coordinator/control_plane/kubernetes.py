"""Kubernetes control plane: watches one RLJob by name, and reports by server-side apply of `status.runtime`."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from rljob_api import RLJob
from rljob_api.admission.last_accepted import running_job
from rljob_api.status import RuntimeStatus
from rljob_kube.resources import RLJOB
from rljob_runtime.coordinator.control_plane.pod_client import ApiClient
from rljob_runtime.coordinator.core.async_utils import wait_for_event
from rljob_runtime.protocols import Job, PeerError, PeerTimeout

log = logging.getLogger(__name__)

WATCH_SECONDS = 240
"""Duration of one watch: shorter than the idle timeouts of proxies."""

FAILURE_SECONDS = 2.0
"""Pause after a watch that failed."""


class KubernetesControlPlane:
    """A `protocols.ControlPlane` for one job. `run` watches it."""

    def __init__(self, client: ApiClient, namespace: str, name: str) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._newest: dict[str, Any] | None = None
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Watch until cancelled. After a failure it reads the job again, so that no change is missed."""
        while True:
            try:
                newest = await self._read()
                version = newest["metadata"]["resourceVersion"]
                async for changed in self._client.watch(RLJOB, self._namespace, self._name, version, WATCH_SECONDS):
                    self._keep(changed)
            except PeerError as error:
                log.info("the watch of the job ended: %s", error)
                await asyncio.sleep(FAILURE_SECONDS)

    async def observe(self) -> Job:
        """See `protocols.ControlPlane`. Returns the last watched job, or reads it before the first event.

        The spec is the last one that the operator accepted.
        """
        newest = self._newest or await self._read()
        return Job(running_job(newest), newest["metadata"]["resourceVersion"])

    async def wait_changed(self, seconds: float) -> None:
        """See `protocols.ControlPlane`."""
        if not await wait_for_event(self._changed, seconds):
            # In case the watch has missed a change.
            await self._read()
            self._changed.clear()

    async def report(self, status: RuntimeStatus) -> None:
        """See `protocols.ControlPlane`. Forced: no other client may own `status.runtime`."""
        body = {
            "apiVersion": RLJOB.api_version,
            "kind": RLJOB.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "status": {"runtime": status.to_dict()},
        }
        await self._client.apply_status(RLJOB, body)

    async def job(self) -> RLJob:
        """Return the job; retry while the API server is unreachable."""
        while True:
            try:
                return (await self.observe()).job
            except PeerTimeout as error:
                log.warning("the job cannot be read, next try follows: %s", error)
                await asyncio.sleep(FAILURE_SECONDS)

    async def _read(self) -> dict[str, Any]:
        newest = await self._client.get(RLJOB, self._namespace, self._name)
        self._keep(newest)
        return newest

    def _keep(self, newest: dict[str, Any]) -> None:
        if self._newest is None or newest["metadata"]["resourceVersion"] != self._newest["metadata"]["resourceVersion"]:
            self._newest = newest
            self._changed.set()
