"""What runs inside the actors: one host that calls the peer it was made with, and the factories of the peers.

Engines, torch and relays are imported in the factories only, so that an actor's process holds what it needs and no
more.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from rljob_api import RLJob
from rljob_api.status import Member
from rljob_runtime.protocols import PeerError

DELIVERY_SECONDS = 240.0
"""A loaned machine gives its sums up after that; below the bound of the call (`CallTimeouts.gradients`), so that it
tells."""

COMPUTING_NICENESS = 15
"""Of every actor but a relay, which has the pod's own: it answers the coordinator's beats, and where answers are late
on a busy machine, so is what is done about one that is gone."""


@dataclass(frozen=True)
class ActorPlacement:
    """Where a pod (or a logical machine) keeps what. `host` is the address that its sockets listen on."""

    shared_memory: Path
    """The machine's weights; each machine has a folder of its own below."""
    scratch: Path
    """May be lost: tokenizer files."""
    models: Path
    """Cache of models that are unpacked or downloaded."""
    volume: Path
    """The trainer's: checkpoints and the final model."""
    relay_key: Path
    host: str = "127.0.0.1"


@dataclass(frozen=True)
class Answer:
    """A peer's answer: a value, or a protocol error by name. Nothing of an exception but its text crosses."""

    value: Any = None
    error: str | None = None
    message: str = ""


@ray.remote
class ActorHost:
    """The actor: one peer, made by `factory` (`module:function`), and its methods by name. `niceness`: its threads'."""

    def __init__(self, factory: str, arguments: dict[str, Any], niceness: int = 0) -> None:
        stand_back(niceness)
        module, _, function = factory.partition(":")
        self._peer = getattr(importlib.import_module(module), function)(**arguments)

    def _accelerators(self) -> list[str]:
        """Those that Ray gave this actor, in CUDA_VISIBLE_DEVICES' words."""
        return [device for device in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device]

    async def call(self, method: str, *arguments: Any) -> Answer:
        """Call a method of the peer. `ready` and `accelerators` are there for every peer."""
        if method == "accelerators":
            return Answer(self._accelerators())
        if method == "ready" and not hasattr(self._peer, "ready"):
            return Answer()
        try:
            return Answer(await getattr(self._peer, method)(*arguments))
        except PeerError as error:
            return Answer(error=type(error).__name__, message=str(error))


def stand_back(niceness: int) -> None:
    """All threads of this process, and so what they start; none comes to the fore."""
    for thread in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.setpriority(os.PRIO_PROCESS, thread, max(niceness, os.getpriority(os.PRIO_PROCESS, thread)))


def make_relay(job: RLJob, member: Member, places: ActorPlacement) -> Any:
    """`protocols.Relay`, listening on the pod's address."""
    from rljob_runtime.relay.config import RelayConfig
    from rljob_runtime.relay.relay import Relay, read_key
    from rljob_runtime.relay.settings import RelaySettings

    config = RelayConfig(
        machine=member.machine,
        incarnation=member.incarnation,
        folder=places.shared_memory / member.machine,
        key=read_key(places.relay_key),
        settings=RelaySettings.of(job.spec.relay),
        host=places.host,
    )
    return Relay(config)


def make_replica(job: RLJob, member: Member, places: ActorPlacement, name: str, model_files: dict[str, bytes]) -> Any:
    """`protocols.Replica`, reading the machine's weights from shared memory."""
    from rljob_runtime.rollout.factory import make_replica

    return make_replica(
        name=f"{member.machine}/{name}",
        spec=job.spec,
        model_files=model_files,
        workdir=places.scratch / "replicas",
        segment=places.shared_memory / member.machine,
    )


def make_rank(job: RLJob, member: Member, places: ActorPlacement, rank: int, size: int) -> Any:
    """One rank of the trainer in a thread of its own, with the way to the relays if it is the first."""
    import torch

    from rljob_runtime.relay.gradient_transfer import GradientInboxes
    from rljob_runtime.relay.publisher import Publisher
    from rljob_runtime.relay.relay import read_key
    from rljob_runtime.relay.settings import RelaySettings
    from rljob_runtime.training.ranks.local_rank import LocalRank
    from rljob_runtime.training.ranks.rank import TrainerRank, TrainerSettings

    # Ray gives an actor one thread; a rank has the machine to itself while it computes.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // max(1, _ranks_here(job))))
    device = "cuda" if job.spec.trainer.accelerators_per_replica else "cpu"
    settings = TrainerSettings.from_spec(job.spec, volume=places.volume, cache_folder=places.models, device=device)

    def publisher() -> Publisher:
        return Publisher(
            places.shared_memory / member.machine,
            read_key(places.relay_key),
            RelaySettings.of(job.spec.relay),
            getattr(torch, job.spec.model.dtype.value),
            incarnation=member.incarnation,
        )

    def inboxes() -> GradientInboxes:
        return GradientInboxes(
            places.shared_memory / f"{member.machine}-inbox",
            read_key(places.relay_key),
            RelaySettings.of(job.spec.relay),
            places.host,
            incarnation=member.incarnation,
        )

    return RankPeer(
        LocalRank(TrainerRank(settings, publisher, rank=rank, size=size, make_inboxes=inboxes), places.host)
    )


def make_worker(job: RLJob, member: Member, places: ActorPlacement, model_files: dict[str, bytes]) -> Any:
    """`protocols.GradientWorker`: a rank for each accelerator of the machine, with the weights of its relay."""
    from rljob_runtime.relay.gradient_transfer import GradientSenderSettings
    from rljob_runtime.relay.relay import read_key
    from rljob_runtime.relay.settings import RelaySettings
    from rljob_runtime.relay.tensors import dtype_name
    from rljob_runtime.rollout.engines.rank_processes import ForkServer
    from rljob_runtime.rollout.factory import write_model_files
    from rljob_runtime.training.config import TrainingConfig
    from rljob_runtime.training.loans.worker import PEER, BlockingGradientWorker
    from rljob_runtime.training.loans.worker_rank import GradientWorkerSettings

    training = TrainingConfig.from_spec(job.spec)
    sender = GradientSenderSettings(
        places.shared_memory / f"{member.machine}-sums",
        read_key(places.relay_key),
        RelaySettings.of(job.spec.relay),
        dtype_name(training.compute_dtype),
        DELIVERY_SECONDS,
        incarnation=member.incarnation,
    )
    settings = GradientWorkerSettings(
        training=training,
        ranks=job.spec.rollout.slots,
        folder=write_model_files(model_files, places.scratch / "workers" / member.machine),
        weights=places.shared_memory / member.machine,
        sender=sender,
        device="cuda" if job.spec.rollout.accelerators_per_machine else "cpu",
    )
    return WorkerPeer(BlockingGradientWorker(member.machine, settings, ForkServer(PEER)))


class RankPeer:
    """A rank in its thread, its methods as coroutines."""

    def __init__(self, rank: Any) -> None:
        self._rank = rank

    async def ready(self) -> None:
        """The process is up; to load the model is `start`'s work."""

    def __getattr__(self, method: str) -> Any:
        return functools.partial(self._rank.call, method)


class WorkerPeer(RankPeer):
    """A gradient unit in its thread. To let go of a loan waits neither for a computation nor for a delivery."""

    def __init__(self, worker: Any) -> None:
        from rljob_runtime.training.ranks.local_rank import LocalRank

        super().__init__(LocalRank(worker))
        self._worker = worker

    async def adopt(self, devices: Sequence[str]) -> None:
        """It computes on these accelerators (in CUDA_VISIBLE_DEVICES' words), which the machine's seats have too."""
        self._worker.adopt(devices)

    async def release(self, term: int) -> None:
        """See `protocols.GradientWorker.release`."""
        with self._worker.releasing(term):
            await self._rank.call("release", term)


def _ranks_here(job: RLJob) -> int:
    return job.spec.trainer.accelerators_per_replica
