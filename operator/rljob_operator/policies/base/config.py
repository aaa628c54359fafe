"""Config: settings of the administrator that enter into plans."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_api.constants import COORDINATOR_LEASE_SECONDS

DEFAULT_RUNTIME_IMAGE = "rljob-runtime:0.1.0"


@dataclass(frozen=True)
class Config:
    """Settings that enter into plans."""

    runtime_image: str = DEFAULT_RUNTIME_IMAGE
    """Image of the pods' main containers where the template names none."""
    image_pull_policy: str | None = None
    """Pull policy of the main containers where the template names none. None leaves it to the cluster."""
    network_policy: bool = True
    """Create a NetworkPolicy for each job: only its own pods reach each other, and any client reaches the health
    port."""
    coordinator_lease_seconds: int = COORDINATOR_LEASE_SECONDS
    """Duration of the Lease that a coordinator renews: silent for so long, it is replaced."""
    unschedulable_grace_seconds: float = 5.0
    """Seconds after which a pod without a node makes the job Stalled."""
