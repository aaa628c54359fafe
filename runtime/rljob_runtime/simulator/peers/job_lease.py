"""Job Lease: the Lease at the simulated API server, and the operator's watch of it.

The product's `TermLease` takes and renews it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rljob_kube.resources import Resource
from rljob_runtime.coordinator.control_plane.lease import DURATION, TermLease
from rljob_runtime.coordinator.control_plane.pod_client import Conflict
from rljob_runtime.simulator.core.process_clock import loop_time
from rljob_runtime.simulator.peers.control_plane import SimulatedControlPlane

LOOK_SECONDS = 5.0
"""Between two looks of the operator's."""


class SimulatedLeases:
    """`lease.Leases`. Calls take the time of other API calls."""

    def __init__(self, control: SimulatedControlPlane) -> None:
        self._control = control
        self._version = 0
        self._spec: dict[str, Any] = {"leaseDurationSeconds": DURATION}

    def of(self, pod: int) -> TermLease:
        """Return the Lease as this coordinator's pod sees it."""
        name = f"{self._control.name}-coordinator-0-{pod}"
        return TermLease(self, "simulated", self._control.name, name, lambda: datetime.fromtimestamp(loop_time(), UTC))

    @property
    def looks(self) -> tuple[int, str]:
        """Return the Lease's version, which each renewal raises, and its holder."""
        return self._version, self._spec.get("holderIdentity") or ""

    async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
        await self._control.travel()
        lease = {"spec": dict(self._spec), "version": self._version}
        await self._control.travel()
        return lease

    async def replace(self, resource: Resource, manifest: dict[str, Any]) -> dict[str, Any]:
        await self._control.travel()
        if manifest["version"] != self._version:
            raise Conflict(f"version {manifest['version']} is not {self._version}")
        self._version, self._spec = self._version + 1, dict(manifest["spec"])
        lease = {"spec": dict(self._spec), "version": self._version}
        await self._control.travel()
        return lease


class Watch:
    """The operator's observation of a Lease: how long it is unchanged.

    Time without access to the API server does not count.
    """

    def __init__(self) -> None:
        self._seen: tuple[int, str] | None = None
        self._unchanged = 0.0

    def look(self, lease: tuple[int, str] | None) -> None:
        """Record one observation, `LOOK_SECONDS` after the one before; None if the API server did not answer."""
        if lease is None:
            return
        self._unchanged = self._unchanged + LOOK_SECONDS if lease == self._seen else 0.0
        self._seen = lease

    @property
    def silent(self) -> bool:
        """Whether its holder did not renew it for its duration."""
        return self._seen is not None and bool(self._seen[1]) and self._unchanged > DURATION
