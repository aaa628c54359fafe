"""Where peers come from, and the operator as the coordinator sees it."""

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
    """The actors of one rollout machine: its relay, and a seat for each `accelerators_per_seat` of its accelerators."""

    member: Member
    relay: Relay
    seats: tuple[Replica, ...]
    accelerators_per_seat: int = 1
    worker: GradientWorker | None = None
    """None where the machine cannot be lent to training."""
    shares_accelerators: bool = False
    """Whether the worker computes on those of the seats: while it holds anything there, all of them must rest."""

    def leading(self, tensor_parallel: int) -> tuple[Replica, ...]:
        """The seats that generate in this layout. Raises `Refused` where it does not fit the machine."""
        each = self.accelerators_per_seat
        try:
            return tuple(
                self.seats[index] for index in EngineSlots(len(self.seats) * each, each).leading(tensor_parallel)
            )
        except ValueError as error:
            raise Refused(f"{self.member.machine}: {error}") from error


class Backend(Protocol):
    """Finds or makes the actors on a machine that has joined. Names are deterministic, so a coordinator that comes back
    finds the ones that lived on."""

    async def trainer(self, term: int, members: Sequence[Member]) -> Trainer:
        """The trainer group over these pods."""
        ...

    async def has_trainer(self, members: Sequence[Member]) -> bool:
        """Whether a former coordinator's trainer group lives on these pods. Raises `PeerError` where nobody can say."""
        ...

    async def rollout_machine(self, term: int, member: Member, model_files: dict[str, bytes]) -> MachinePeers:
        """Relay and seats of one machine, whatever layout they are in; `PeerTimeout` when it has not joined within the
        bound."""
        ...

    async def release(self, member: Member) -> None:
        """End a machine's actors. Never raises for one that is gone."""
        ...


class ControlPlane(Protocol):
    """The operator, as the coordinator sees it: a job to follow and a place to report to."""

    async def observe(self) -> Job:
        """The newest known job; never blocks longer than one API call."""
        ...

    async def wait_changed(self, seconds: float) -> None:
        """Return when the job changed, or after `seconds`."""
        ...

    async def report(self, status: RuntimeStatus) -> None:
        """Apply `status.runtime`. Raises `PeerTimeout` when the API cannot be reached; the caller tries again later."""
        ...


@dataclass(frozen=True)
class Job:
    """A consistent view of the RLJob as the API server holds it."""

    job: RLJob
    """Spec and the operator's part of the status."""
    resource_version: str
