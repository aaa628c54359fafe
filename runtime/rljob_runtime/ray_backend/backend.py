"""The coordinator's peers as Ray actors: detached, named after their pod, pinned to it, never retried.

A coordinator that comes back finds the same names. This module holds no decision, timer or retry: bounds come with
each call, and every error is told in the protocol's words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray import exceptions

from rljob_api import RLJob
from rljob_api.status import Member, Role
from rljob_runtime import protocols
from rljob_runtime.coordinator.core.settings import lending_rules
from rljob_runtime.protocols import GradientWorker, MachinePeers, PeerError, PeerGone, PeerTimeout, Refused, Trainer
from rljob_runtime.protocols.engine_slots import EngineSlots
from rljob_runtime.protocols.remote import CallTimeouts, RemoteRelay, RemoteReplica, RemoteWorker
from rljob_runtime.ray_backend.actor_table import is_abandoned
from rljob_runtime.ray_backend.actors import COMPUTING_NICENESS, ActorHost, ActorPlacement, Answer
from rljob_runtime.scheduling.lending.policy import LoanRules

# An actor waits in a node's queue for its pod's resource, and takes next to nothing of it.
SLIVER = 0.001
RELAY, WORKER = "relay", "worker"
BULKY = frozenset({"submit", "compute"})
"""Calls whose arguments are as large as what models write: prompts with what was generated, groups."""
# Not asyncio's own threads: questions to a head that is away fill those, and a full object store these.
_SENDERS = ThreadPoolExecutor(4, "send")
_EXIT = "Worker exit detail:"
"""Ray's, of a process whose end it did not ask for."""


@dataclass(frozen=True)
class Factories:
    """What runs in the actors: `module:function`, imported there and not here."""

    relay: str = "rljob_runtime.ray_backend.actors:make_relay"
    replica: str = "rljob_runtime.ray_backend.actors:make_replica"
    rank: str = "rljob_runtime.ray_backend.actors:make_rank"
    worker: str = "rljob_runtime.ray_backend.actors:make_worker"


class UnexpectedActorError(Refused):
    """An error that is none of the protocol's: a bug of ours, and what was asked may be half done."""


class RayChannel:
    """The way to one actor."""

    def __init__(self, name: str, handle: Any) -> None:
        self.name = name
        self._handle = handle
        self._sending: set[asyncio.Future[Any]] = set()

    async def call(self, bound: float, method: str, *arguments: Any) -> Any:
        """See `remote.PeerChannel`. A caller that gives up leaves the far end to do what it was asked."""
        future: asyncio.Future[Answer] | None = None
        try:
            async with asyncio.timeout(bound):
                future = asyncio.wrap_future((await self._send(method, *arguments)).future())
                future.add_done_callback(_heard)
                answer = await asyncio.shield(future)
        except TimeoutError:
            if future is not None:
                future.cancel()
            raise PeerTimeout(f"{self.name}: no answer to {method} within {bound:g} s") from None
        except exceptions.RayTaskError as error:
            raise UnexpectedActorError(f"{self.name}: {method} failed: {error.cause!r}") from error
        except exceptions.ActorUnavailableError as error:
            raise PeerTimeout(f"{self.name}: cannot be reached now: {error}") from error
        except exceptions.RayActorError as error:
            raise PeerGone(f"{self.name}: its process has ended: {_cause(error)}") from error
        except exceptions.RayError as error:
            raise PeerTimeout(f"{self.name}: {method}: {error}") from error
        if answer.error is not None:
            raise _error_named(answer.error)(answer.message)
        return answer.value

    async def _send(self, method: str, *arguments: Any) -> Any:
        """The reference to the answer. Ray pickles the arguments first. Nothing but polls overtakes what is on its way
        to this actor, though its caller has given it up."""
        if method in BULKY:
            loop = asyncio.get_running_loop()
            sending = loop.run_in_executor(_SENDERS, self._handle.call.remote, method, *arguments)
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)
            sending.add_done_callback(_heard)
            return await asyncio.shield(sending)
        if self._sending and method != "poll":
            await asyncio.wait(self._sending)
        return self._handle.call.remote(method, *arguments)


def _heard(done: asyncio.Future[Any]) -> None:
    """Whoever gives up hears no more of it, and asyncio would complain of an error that nobody heard."""
    if not done.cancelled():
        done.exception()


def _cause(error: exceptions.RayActorError) -> str:
    """Why an actor's process has ended, in one line: what its constructor raised, or what Ray saw of its end."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    seen = next((line for line in lines if _EXIT in line), lines[-1] if lines else "")
    return seen.rpartition(_EXIT)[2].strip()[:300]


def _error_named(name: str) -> type[PeerError]:
    """The protocol's error of that name; what a peer should not have raised is a refusal."""
    found = getattr(protocols, name, None)
    return found if isinstance(found, type) and issubclass(found, PeerError) else Refused


class RayRank:
    """One rank of the trainer, as `training.ranks.group.TrainerGroup` wants it."""

    def __init__(self, wire: RayChannel, host: str, bounds: CallTimeouts) -> None:
        self.host = host
        self._wire = wire
        self._bounds = bounds

    async def call(self, method: str, *arguments: Any) -> Any:
        """A rank that fails as nobody foresaw has left the others waiting in a collective: then the group is of no
        more use. As it starts, that is a refusal: it would fail again."""
        starting = method in ("rendezvous", "start")
        try:
            return await self._wire.call(self._bounds.start if starting else self._bounds.train, method, *arguments)
        except UnexpectedActorError as error:
            if starting:
                raise
            raise PeerGone(str(error)) from error

    async def put(self, value: Any) -> Any:
        """A reference to the value in Ray's object store. In a thread: to copy many tokens takes its time."""
        try:
            async with asyncio.timeout(self._bounds.train):
                return await asyncio.to_thread(ray.put, value)
        except TimeoutError:
            raise PeerTimeout(f"Ray's object store took nothing within {self._bounds.train:g} s") from None
        except exceptions.RayError as error:
            raise PeerTimeout(f"Ray's object store does not take what the ranks are to train on: {error}") from error


class RayBackend:
    """`protocols.Backend` over the Ray cluster that this process is connected to.

    `resource_of` names the custom resource that a member's node carries.
    """

    def __init__(
        self,
        job: RLJob,
        places: ActorPlacement,
        resource_of: Callable[[Member], str],
        bounds: CallTimeouts | None = None,
        factories: Factories | None = None,
    ) -> None:
        self._job = job
        self._places = places
        self._resource_of = resource_of
        self._bounds = bounds or CallTimeouts()
        self._factories = factories or Factories()

    async def trainer(self, term: int, members: Sequence[Member]) -> Trainer:
        """See `protocols.Backend.trainer`."""
        from rljob_runtime.training.ranks.group import TrainerGroup

        members = sorted(members, key=lambda member: int(member.machine.rpartition("-")[2]))
        each = max(1, self._job.spec.trainer.accelerators_per_replica)
        ranks = [(member, local) for member in members for local in range(each)]
        wires = await asyncio.gather(
            *(
                self._actor(
                    member,
                    f"rank-{local}",
                    self._factories.rank,
                    gpus=1 if self._job.spec.trainer.accelerators_per_replica else 0,
                    rank=number,
                    size=len(ranks),
                )
                for number, (member, local) in enumerate(ranks)
            )
        )
        return TrainerGroup(
            [RayRank(wire, member.ip or "", self._bounds) for wire, (member, _) in zip(wires, ranks, strict=True)]
        )

    async def has_trainer(self, members: Sequence[Member]) -> bool:
        """See `protocols.Backend.has_trainer`."""
        names = [self._actor_name(member, name) for member in members for name in self._rank_names()]
        return all(await asyncio.gather(*(asyncio.to_thread(self._there, name) for name in names)))

    async def rollout_machine(self, term: int, member: Member, model_files: dict[str, bytes]) -> MachinePeers:
        """See `protocols.Backend.rollout_machine`."""
        relay = await self._actor(member, RELAY, self._factories.relay)
        seats, names = self._seats(), self._seat_names()
        wires = await asyncio.gather(
            *(
                self._actor(
                    member,
                    name,
                    self._factories.replica,
                    gpus=seats.each if self._job.spec.rollout.accelerators_per_machine else 0,
                    name=name,
                    model_files=model_files,
                )
                for name in names
            )
        )
        if seats.count > 1 and len(self._job.spec.rollout.tensor_parallel_sizes) > 1:
            await self._share_accelerators(wires)
        shares = bool(self._job.spec.rollout.accelerators_per_machine)
        worker = await self._worker(member, model_files, wires if shares else ())
        return MachinePeers(
            member,
            RemoteRelay(member.machine, relay, self._bounds),
            tuple(
                RemoteReplica(f"{member.machine}/{name}", wire, self._bounds)
                for name, wire in zip(names, wires, strict=True)
            ),
            seats.each,
            worker,
            shares_accelerators=shares and worker is not None,
        )

    async def _share_accelerators(self, wires: Sequence[RayChannel]) -> None:
        """Tell each seat which accelerators its layouts may take: its own and those of the seats after it."""
        bound = self._bounds.command
        own = await asyncio.gather(*(wire.call(bound, "accelerators") for wire in wires))
        rest = [[device for devices in own[index:] for device in devices] for index in range(len(wires))]
        await asyncio.gather(*(wire.call(bound, "adopt", devices) for wire, devices in zip(wires, rest, strict=True)))

    async def _worker(
        self, member: Member, model_files: dict[str, bytes], seats: Sequence[RayChannel]
    ) -> GradientWorker | None:
        """Made with the replicas, so that a loan finds it ready. It computes on all accelerators of these seats: Ray
        counts them as the seats', and gives the worker none."""
        if not isinstance(lending_rules(self._job), LoanRules):
            return None
        wire = await self._actor(member, WORKER, self._factories.worker, model_files=model_files)
        if seats:
            bound = self._bounds.command
            own = await asyncio.gather(*(seat.call(bound, "accelerators") for seat in seats))
            await wire.call(bound, "adopt", [device for devices in own for device in devices])
        return RemoteWorker(member.machine, wire, self._bounds)

    async def release(self, member: Member) -> None:
        """See `protocols.Backend.release`."""
        trainer = member.role is Role.TRAINER
        names = self._rank_names() if trainer else [RELAY, WORKER, *self._seat_names()]
        await asyncio.gather(*(asyncio.to_thread(self._kill, self._actor_name(member, name)) for name in names))

    def _seats(self) -> EngineSlots:
        rollout = self._job.spec.rollout
        return EngineSlots(rollout.slots, rollout.tensor_parallel_sizes[0])

    def _rank_names(self) -> list[str]:
        return [f"rank-{index}" for index in range(max(1, self._job.spec.trainer.accelerators_per_replica))]

    def _seat_names(self) -> list[str]:
        return [f"replica-{index}" for index in range(self._seats().count)]

    def _actor_name(self, member: Member, name: str) -> str:
        return f"{self._job.name}/{member.machine}.{member.incarnation}/{name}"

    async def _actor(self, member: Member, part: str, factory: str, gpus: int = 0, **arguments: Any) -> RayChannel:
        """Find or make an actor on the member's pod, and wait until it is ready."""
        resource = self._resource_of(member)
        await asyncio.to_thread(self._expect_node, resource)
        full_name = self._actor_name(member, part)
        await asyncio.to_thread(self._clear, full_name)
        places = replace(self._places, host=member.ip or "127.0.0.1")
        arguments |= {"job": self._job, "member": member, "places": places}
        handle = await asyncio.to_thread(
            lambda: ActorHost.options(  # type: ignore[attr-defined]
                name=full_name,
                namespace=self._job.name,
                get_if_exists=True,
                lifetime="detached",
                num_cpus=0,
                num_gpus=gpus,
                resources={resource: SLIVER},
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=64,
            ).remote(factory, arguments, 0 if part == RELAY else COMPUTING_NICENESS)
        )
        wire = RayChannel(full_name, handle)
        await wire.call(self._bounds.start, "ready")
        return wire

    def _expect_node(self, resource: str) -> None:
        """An actor for a node that is not there would wait for ever, and hold its name."""
        try:
            nodes = ray.nodes()
        except exceptions.RayError as error:
            raise PeerTimeout(f"the Ray head does not answer: {error}") from error
        if not any(node["Alive"] and node["Resources"].get(resource) for node in nodes):
            raise PeerTimeout(f"no node with resource {resource} has joined yet")

    def _there(self, name: str) -> bool:
        handle, abandoned = self._registration(name)
        return handle is not None and not abandoned

    def _clear(self, name: str) -> None:
        """Free the name of an actor that will never be."""
        if self._registration(name)[1]:
            self._kill(name)

    def _registration(self, name: str) -> tuple[Any, bool]:
        """The actor of that name, None if there is none, and whether it will never be."""
        try:
            handle = ray.get_actor(name, namespace=self._job.name)
            return handle, is_abandoned(handle)
        except ValueError:
            return None, False
        except exceptions.RayError as error:
            raise PeerTimeout(f"the Ray head does not answer: {error}") from error

    def _kill(self, name: str) -> None:
        try:
            ray.kill(ray.get_actor(name, namespace=self._job.name))
        except (ValueError, exceptions.RayError):
            # There is none, or the head is away and it will be found by its name again.
            return
