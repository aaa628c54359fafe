"""Backend: finds or makes the coordinator's peers; and the control plane as the coordinator sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rljob_api import RLJob
from rljob_api.status import Member, RuntimeStatus
from rljob_runtime.protocols.engine_slots import EngineSlots
from rljob_runtime.protocols.errors import Refused
from rljob_runtime.protocols.gradient_worker import GradientWorker
from rljob_runtime.protocols.relay import Relay
from rljob_runtime.protocols.replica import Replica
from rljob_runtime.protocols.trainer import Trainer


@dataclass(frozen=True)
class MachinePeers:
    """The actors of one rollout machine: its relay, and one replica for each engine slot."""

    member: Member
    relay: Relay
    replicas: tuple[Replica, ...]
    accelerators_per_slot: int = 1
    worker: GradientWorker | None = None
    """The gradient worker; None if the machine cannot be loaned."""
    shares_accelerators: bool = False
    """Whether the worker uses the accelerators of the engines. While it does, all engines must be asleep."""

    def leading(self, tensor_parallel: int) -> tuple[Replica, ...]:
        """Return the replicas that generate in this layout. Raises `Refused` if it does not fit the machine."""
        each = self.accelerators_per_slot
        slots = EngineSlots(len(self.replicas) * each, each)
        try:
            return tuple(self.replicas[index] for index in slots.leading(tensor_parallel))
        except ValueError as error:
            raise Refused(f"{self.member.machine}: {error}") from error


class Backend(Protocol):
    """Finds or makes the actors on a machine that has joined.

    Names are deterministic, so that a restarted coordinator finds the actors that live on.
    """

    async def trainer(self, term: int, members: Sequence[Member]) -> Trainer:
        """Find or make the trainer group over these pods."""
        ...

    async def has_trainer(self, members: Sequence[Member]) -> bool:
        """Return whether the trainer group of an earlier coordinator lives on these pods.

        Raises `PeerError` if that is unknown.
        """
        ...

    async def rollout_machine(self, term: int, member: Member, model_files: dict[str, bytes]) -> MachinePeers:
        """Find or make relay and replicas of one machine, in any layout.

        Raises `PeerTimeout` if it does not join in time.
        """
        ...

    async def release(self, member: Member) -> None:
        """End a machine's actors. Never raises for one that has already ended."""
        ...


class ControlPlane(Protocol):
    """The operator, as the coordinator sees it: a job to follow and a place to report to."""

    async def observe(self) -> Job:
        """Return the newest known job. Blocks for one API call at most."""
        ...

    async def wait_changed(self, seconds: float) -> None:
        """Wait until the job changes, for at most `seconds`."""
        ...

    async def report(self, status: RuntimeStatus) -> None:
        """Apply `status.runtime`. Raises `PeerTimeout` if the API server is unreachable; the caller tries again."""
        ...


@dataclass(frozen=True)
class Job:
    """A consistent view of the RLJob as the API server holds it."""

    job: RLJob
    """Spec and the operator's part of the status."""
    resource_version: str
