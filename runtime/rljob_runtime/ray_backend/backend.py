"""Ray backend: the coordinator's peers as detached Ray actors, each named after its pod and pinned to it.

A restarted coordinator finds them by name. This module holds no decision, timer or retry: each call has a timeout, and
every error becomes a `PeerError`.
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

SLIVER = 0.001
"""The share that an actor takes of its pod's resource. The resource only pins the actor to the pod."""
RELAY, WORKER = "relay", "worker"
BULKY = frozenset({"submit", "compute"})
"""Calls with large arguments: prompts with partial responses, and groups."""
_SENDERS = ThreadPoolExecutor(4, "send")
"""Threads for large calls, which a full object store blocks. Calls to an unreachable head block asyncio's threads."""
_EXIT = "Worker exit detail:"
"""What Ray writes before the reason of an unexpected exit."""


@dataclass(frozen=True)
class Factories:
    """The functions that make the peers, as `module:function`. Only the actors import them."""

    relay: str = "rljob_runtime.ray_backend.actors:make_relay"
    replica: str = "rljob_runtime.ray_backend.actors:make_replica"
    rank: str = "rljob_runtime.ray_backend.actors:make_rank"
    worker: str = "rljob_runtime.ray_backend.actors:make_worker"


class UnexpectedActorError(Refused):
    """A peer raised an error that is not a `PeerError`. This is a bug; the command may be half done."""


class RayChannel:
    """A `PeerChannel` to one actor."""

    def __init__(self, name: str, handle: Any) -> None:
        self.name = name
        self._handle = handle
        self._sending: set[asyncio.Future[Any]] = set()

    async def call(self, timeout: float, method: str, *arguments: Any) -> Any:
        """See `remote.PeerChannel`. The actor completes a command whose caller was cancelled."""
        future: asyncio.Future[Answer] | None = None
        try:
            async with asyncio.timeout(timeout):
                future = asyncio.wrap_future((await self._send(method, *arguments)).future())
                future.add_done_callback(_discard_result)
                answer = await asyncio.shield(future)
        except TimeoutError:
            if future is not None:
                future.cancel()
            raise PeerTimeout(f"{self.name}: no answer to {method} within {timeout:g} s") from None
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
        """Send a call and return the reference to its answer.

        Ray pickles the arguments first, which takes time if they are large. Only polls may overtake a large call, even
        if its caller was cancelled.
        """
        if method in BULKY:
            loop = asyncio.get_running_loop()
            sending = loop.run_in_executor(_SENDERS, self._handle.call.remote, method, *arguments)
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)
            sending.add_done_callback(_discard_result)
            return await asyncio.shield(sending)
        if self._sending and method != "poll":
            await asyncio.wait(self._sending)
        return self._handle.call.remote(method, *arguments)


def _discard_result(done: asyncio.Future[Any]) -> None:
    """Read the result of a call whose caller was cancelled: asyncio warns about unread errors."""
    if not done.cancelled():
        done.exception()


def _cause(error: exceptions.RayActorError) -> str:
    """Return in one line why an actor's process ended: its constructor's error, or what Ray reports."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    seen = next((line for line in lines if _EXIT in line), lines[-1] if lines else "")
    return seen.rpartition(_EXIT)[2].strip()[:300]


def _error_named(name: str) -> type[PeerError]:
    """Return the `PeerError` of that name, or `Refused` if there is none."""
    found = getattr(protocols, name, None)
    return found if isinstance(found, type) and issubclass(found, PeerError) else Refused


class RayRank:
    """One trainer rank, as `training.ranks.group.TrainerGroup` expects it."""

    def __init__(self, channel: RayChannel, host: str, timeouts: CallTimeouts) -> None:
        self.host = host
        self._channel = channel
        self._timeouts = timeouts

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the rank.

        After an unexpected error the other ranks wait in a collective, so that the group counts as gone. During the
        start it is a refusal, because another start would fail too.
        """
        starting = method in ("rendezvous", "start")
        try:
            return await self._channel.call(
                self._timeouts.trainer_start if starting else self._timeouts.train, method, *arguments
            )
        except UnexpectedActorError as error:
            if starting:
                raise
            raise PeerGone(str(error)) from error

    async def put(self, value: Any) -> Any:
        """Put the value into Ray's object store and return its reference. Runs in a thread, because it copies."""
        try:
            async with asyncio.timeout(self._timeouts.train):
                return await asyncio.to_thread(ray.put, value)
        except TimeoutError:
            raise PeerTimeout(f"Ray's object store did not accept the data within {self._timeouts.train:g} s") from None
        except exceptions.RayError as error:
            raise PeerTimeout(f"Ray's object store does not accept the ranks' training data: {error}") from error


class RayBackend:
    """A `protocols.Backend` over the Ray cluster that this process is connected to.

    `resource_of` returns the custom resource of a member's node.
    """

    def __init__(
        self,
        job: RLJob,
        placement: ActorPlacement,
        resource_of: Callable[[Member], str],
        timeouts: CallTimeouts | None = None,
        factories: Factories | None = None,
    ) -> None:
        self._job = job
        self._places = placement
        self._resource_of = resource_of
        self._timeouts = timeouts or CallTimeouts()
        self._factories = factories or Factories()

    async def trainer(self, term: int, members: Sequence[Member]) -> Trainer:
        """See `protocols.Backend.trainer`."""
        from rljob_runtime.training.ranks.group import TrainerGroup

        members = sorted(members, key=lambda member: int(member.machine.rpartition("-")[2]))
        each = max(1, self._job.spec.trainer.accelerators_per_replica)
        ranks = [(member, local) for member in members for local in range(each)]
        channels = await asyncio.gather(
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
            [
                RayRank(channel, member.ip or "", self._timeouts)
                for channel, (member, _) in zip(channels, ranks, strict=True)
            ]
        )

    async def has_trainer(self, members: Sequence[Member]) -> bool:
        """See `protocols.Backend.has_trainer`."""
        names = [self._actor_name(member, name) for member in members for name in self._rank_names()]
        return all(await asyncio.gather(*(asyncio.to_thread(self._exists, name) for name in names)))

    async def rollout_machine(self, term: int, member: Member, model_files: dict[str, bytes]) -> MachinePeers:
        """See `protocols.Backend.rollout_machine`."""
        relay = await self._actor(member, RELAY, self._factories.relay)
        slots, names = self._slots(), self._replica_names()
        channels = await asyncio.gather(
            *(
                self._actor(
                    member,
                    name,
                    self._factories.replica,
                    gpus=slots.each if self._job.spec.rollout.accelerators_per_machine else 0,
                    name=name,
                    model_files=model_files,
                )
                for name in names
            )
        )
        if slots.count > 1 and len(self._job.spec.rollout.tensor_parallel_sizes) > 1:
            await self._share_accelerators(channels)
        shares = bool(self._job.spec.rollout.accelerators_per_machine)
        worker = await self._worker(member, model_files, channels if shares else ())
        return MachinePeers(
            member,
            RemoteRelay(member.machine, relay, self._timeouts),
            tuple(
                RemoteReplica(f"{member.machine}/{name}", channel, self._timeouts)
                for name, channel in zip(names, channels, strict=True)
            ),
            slots.each,
            worker,
            shares_accelerators=shares and worker is not None,
        )

    async def _share_accelerators(self, channels: Sequence[RayChannel]) -> None:
        """Give each replica the accelerators that its layouts may use: its own and those of the slots after it."""
        timeout = self._timeouts.command
        own = await asyncio.gather(*(channel.call(timeout, "accelerators") for channel in channels))
        rest = [[device for devices in own[index:] for device in devices] for index in range(len(channels))]
        await asyncio.gather(
            *(channel.call(timeout, "adopt", devices) for channel, devices in zip(channels, rest, strict=True))
        )

    async def _worker(
        self, member: Member, model_files: dict[str, bytes], engines: Sequence[RayChannel]
    ) -> GradientWorker | None:
        """Make the gradient worker together with the replicas, so that a loan finds it ready.

        It computes on the accelerators of all `engines`. Ray assigns them to the engines, and none to the worker.
        """
        if not isinstance(lending_rules(self._job), LoanRules):
            return None
        channel = await self._actor(member, WORKER, self._factories.worker, model_files=model_files)
        if engines:
            timeout = self._timeouts.command
            own = await asyncio.gather(*(one.call(timeout, "accelerators") for one in engines))
            await channel.call(timeout, "adopt", [device for devices in own for device in devices])
        return RemoteWorker(member.machine, channel, self._timeouts)

    async def release(self, member: Member) -> None:
        """See `protocols.Backend.release`."""
        trainer = member.role is Role.TRAINER
        names = self._rank_names() if trainer else [RELAY, WORKER, *self._replica_names()]
        await asyncio.gather(*(asyncio.to_thread(self._kill, self._actor_name(member, name)) for name in names))

    def _slots(self) -> EngineSlots:
        rollout = self._job.spec.rollout
        return EngineSlots(rollout.slots, rollout.tensor_parallel_sizes[0])

    def _rank_names(self) -> list[str]:
        return [f"rank-{index}" for index in range(max(1, self._job.spec.trainer.accelerators_per_replica))]

    def _replica_names(self) -> list[str]:
        return [f"replica-{index}" for index in range(self._slots().count)]

    def _actor_name(self, member: Member, name: str) -> str:
        return f"{self._job.name}/{member.machine}.{member.incarnation}/{name}"

    async def _actor(self, member: Member, part: str, factory: str, gpus: int = 0, **arguments: Any) -> RayChannel:
        """Find or make an actor on the member's pod; wait until it is ready."""
        resource = self._resource_of(member)
        await asyncio.to_thread(self._check_node, resource)
        full_name = self._actor_name(member, part)
        await asyncio.to_thread(self._free_name, full_name)
        placement = replace(self._places, host=member.ip or "127.0.0.1")
        arguments |= {"job": self._job, "member": member, "placement": placement}
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
        channel = RayChannel(full_name, handle)
        await channel.call(self._timeouts.start, "ready")
        return channel

    def _check_node(self, resource: str) -> None:
        """Raise `PeerTimeout` if the node has not joined: an actor for it would wait forever and keep its name."""
        try:
            nodes = ray.nodes()
        except exceptions.RayError as error:
            raise PeerTimeout(f"the Ray head does not answer: {error}") from error
        if not any(node["Alive"] and node["Resources"].get(resource) for node in nodes):
            raise PeerTimeout(f"no node with resource {resource} has joined yet")

    def _exists(self, name: str) -> bool:
        handle, abandoned = self._registration(name)
        return handle is not None and not abandoned

    def _free_name(self, name: str) -> None:
        """Free the name of an actor that Ray will never start."""
        if self._registration(name)[1]:
            self._kill(name)

    def _registration(self, name: str) -> tuple[Any, bool]:
        """Return the actor of that name (None if there is none), and whether Ray will never start it."""
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
            # It does not exist, or the head is unreachable; then a later release finds it by name.
            return
