"""What the operator's administrator decides, as far as policies depend on it."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_RUNTIME_IMAGE = "rljob-runtime:0.1.0"


@dataclass(frozen=True)
class Config:
    """Settings that enter into plans."""

    runtime_image: str = DEFAULT_RUNTIME_IMAGE
    """Image of the pods' main containers where the template names none."""
    image_pull_policy: str | None = None
    """For the main containers where the template names none; None leaves it to the cluster."""
    network_policy: bool = True
    """Whether each job gets a NetworkPolicy that admits only its own pods (and anybody to the health port)."""
    lease_seconds: int = 30
    """Duration of the Lease that a coordinator renews: silent for so long, it is replaced."""
    unschedulable_grace_seconds: float = 5.0
    """A pod without a node for so long makes the job Stalled."""
