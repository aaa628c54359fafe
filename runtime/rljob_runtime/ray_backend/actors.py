"""Ray actors: one host class that calls its peer, and the factories of the peers.

Only the factories import engines, torch and relays, so that an actor's process loads only what it needs.
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
from rljob_api.spec.training import SwitchState
from rljob_api.status import Member
from rljob_runtime.protocols import PeerError

DELIVERY_SECONDS = 240.0
"""Seconds after which a loaned machine stops sending its sums. Less than `CallTimeouts.gradients`, so that the call
returns the error."""

COMPUTING_NICENESS = 15
"""Niceness of every actor but the relay. The relay keeps the pod's, because it answers heartbeats: late answers on a
busy machine delay the detection of failures."""


@dataclass(frozen=True)
class ActorPlacement:
    """Folders of a pod or a logical machine. `host` is the address that its sockets listen on."""

    shared_memory: Path
    """Weights; each machine has its own subfolder."""
    scratch: Path
    """Files that may be lost, e.g. tokenizer files."""
    models: Path
    """Cache of unpacked or downloaded models."""
    volume: Path
    """Checkpoints and the final model."""
    relay_key: Path
    host: str = "127.0.0.1"


@dataclass(frozen=True)
class Answer:
    """A peer's answer: a value, or a `PeerError` by name and text."""

    value: Any = None
    error: str | None = None
    message: str = ""


@ray.remote
class ActorHost:
    """The actor: one peer, made by `factory` (`module:function`), called by method name. `niceness`: of its threads."""

    def __init__(self, factory: str, arguments: dict[str, Any], niceness: int = 0) -> None:
        lower_priority(niceness)
        module, _, function = factory.partition(":")
        self._peer = getattr(importlib.import_module(module), function)(**arguments)

    def _accelerators(self) -> list[str]:
        """Return the accelerators that Ray assigned to this actor, as CUDA_VISIBLE_DEVICES names them."""
        return [device for device in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device]

    async def call(self, method: str, *arguments: Any) -> Answer:
        """Call a method of the peer. Every peer has `ready` and `accelerators`."""
        if method == "accelerators":
            return Answer(self._accelerators())
        if method == "ready" and not hasattr(self._peer, "ready"):
            return Answer()
        try:
            return Answer(await getattr(self._peer, method)(*arguments))
        except PeerError as error:
            return Answer(error=type(error).__name__, message=str(error))


def lower_priority(niceness: int) -> None:
    """Lower the priority of all threads of this process, and of those that they start. Never raises a priority."""
    for thread in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.setpriority(os.PRIO_PROCESS, thread, max(niceness, os.getpriority(os.PRIO_PROCESS, thread)))


def make_relay(job: RLJob, member: Member, placement: ActorPlacement) -> Any:
    """Make a `protocols.Relay` that listens on the pod's address."""
    from rljob_runtime.relay.config import RelayConfig
    from rljob_runtime.relay.relay import Relay, read_key
    from rljob_runtime.relay.settings import RelaySettings

    config = RelayConfig(
        machine=member.machine,
        incarnation=member.incarnation,
        folder=placement.shared_memory / member.machine,
        key=read_key(placement.relay_key),
        settings=RelaySettings.of(job.spec.relay),
        host=placement.host,
    )
    return Relay(config)


def make_replica(
    job: RLJob, member: Member, placement: ActorPlacement, name: str, model_files: dict[str, bytes]
) -> Any:
    """Make a `protocols.Replica` that reads the machine's weights from shared memory."""
    from rljob_runtime.rollout.factory import make_replica
    from rljob_runtime.rollout.kv.kv_file import FOLDER_SUFFIX
    from rljob_runtime.rollout.kv_exchange import KvExchange

    segment, kv = placement.shared_memory / member.machine, None
    if job.spec.switch_sizes and job.spec.adaptive_tensor_parallel.state is not SwitchState.RECOMPUTE:
        # Not below the segment: the relay removes what it does not know there.
        folder = placement.shared_memory / f"{member.machine}{FOLDER_SUFFIX}"
        kv = KvExchange(folder, job.name, f"{member.machine}-{member.incarnation}", segment)
    return make_replica(
        name=f"{member.machine}/{name}",
        spec=job.spec,
        model_files=model_files,
        workdir=placement.scratch / "replicas",
        segment=segment,
        kv=kv,
    )


def make_rank(job: RLJob, member: Member, placement: ActorPlacement, rank: int, size: int) -> Any:
    """Make one trainer rank in its own thread. The first rank publishes to the relays."""
    import torch

    from rljob_runtime.relay.gradient_transfer import GradientInboxes
    from rljob_runtime.relay.publisher import Publisher
    from rljob_runtime.relay.relay import read_key
    from rljob_runtime.relay.settings import RelaySettings
    from rljob_runtime.training.ranks.local_rank import LocalRank
    from rljob_runtime.training.ranks.rank import TrainerRank
    from rljob_runtime.training.ranks.settings import TrainerSettings

    # Ray sets one thread for an actor; a rank uses the whole machine while it computes.
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // max(1, _ranks_here(job))))
    device = "cuda" if job.spec.trainer.accelerators_per_replica else "cpu"
    settings = TrainerSettings.from_spec(
        job.spec, volume=placement.volume, cache_folder=placement.models, device=device
    )

    def publisher() -> Publisher:
        return Publisher(
            placement.shared_memory / member.machine,
            read_key(placement.relay_key),
            RelaySettings.of(job.spec.relay),
            getattr(torch, job.spec.model.dtype.value),
            incarnation=member.incarnation,
        )

    def inboxes() -> GradientInboxes:
        return GradientInboxes(
            placement.shared_memory / f"{member.machine}-inbox",
            read_key(placement.relay_key),
            RelaySettings.of(job.spec.relay),
            placement.host,
            incarnation=member.incarnation,
        )

    return RankPeer(
        LocalRank(TrainerRank(settings, publisher, rank=rank, size=size, make_inboxes=inboxes), placement.host)
    )


def make_worker(job: RLJob, member: Member, placement: ActorPlacement, model_files: dict[str, bytes]) -> Any:
    """Make a `protocols.GradientWorker`: a rank for each accelerator, with the weights of the machine's relay."""
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
        placement.shared_memory / f"{member.machine}-sums",
        read_key(placement.relay_key),
        RelaySettings.of(job.spec.relay),
        dtype_name(training.compute_dtype),
        DELIVERY_SECONDS,
        incarnation=member.incarnation,
    )
    settings = GradientWorkerSettings(
        training=training,
        ranks=job.spec.rollout.slots,
        folder=write_model_files(model_files, placement.scratch / "workers" / member.machine),
        weights=placement.shared_memory / member.machine,
        sender=sender,
        device="cuda" if job.spec.rollout.accelerators_per_machine else "cpu",
    )
    return WorkerPeer(BlockingGradientWorker(member.machine, settings, ForkServer(PEER)))


class RankPeer:
    """A rank in its own thread, with coroutines as methods."""

    def __init__(self, rank: Any) -> None:
        self._rank = rank

    async def ready(self) -> None:
        """Return when the process is up. `start` loads the model."""

    def __getattr__(self, method: str) -> Any:
        return functools.partial(self._rank.call, method)


class WorkerPeer(RankPeer):
    """A gradient unit in its own thread. The end of a loan waits for no computation and no delivery."""

    def __init__(self, worker: Any) -> None:
        from rljob_runtime.training.ranks.local_rank import LocalRank

        super().__init__(LocalRank(worker))
        self._worker = worker

    async def adopt(self, devices: Sequence[str]) -> None:
        """Compute on these accelerators (as CUDA_VISIBLE_DEVICES names them), which it shares with the engines."""
        self._worker.adopt(devices)

    async def release(self, term: int) -> None:
        """See `protocols.GradientWorker.release`."""
        with self._worker.releasing(term):
            await self._rank.call("release", term)


def _ranks_here(job: RLJob) -> int:
    return job.spec.trainer.accelerators_per_replica
