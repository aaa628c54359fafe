"""A trainer, and gradient units on machines that are loaned to it."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from rljob_runtime.protocols import Chain, ContributionReceipt, RelayMember
from rljob_runtime.relay.gradient_transfer import GradientInboxes, GradientSenderSettings
from rljob_runtime.relay.manifest import checksum, layout
from rljob_runtime.relay.segment import SegmentWriter
from rljob_runtime.relay.tensors import describe, dtype_name, gather
from rljob_runtime.rollout.engines.rank_processes import ForkServer
from rljob_runtime.training.loans.worker import BlockingGradientWorker
from rljob_runtime.training.loans.worker_rank import GradientWorkerSettings
from tests.support.training.rank_groups import settings_of
from tests.support.training.rank_process import KEY, RELAY
from tests.support.training.toys import FakePublisher, LoneRank, watched

VERSION = 4
CHAIN = Chain(1, 0, ())


class Site:
    """A trainer with an inbox, the weights that it published in a machine's segment, and units that read them."""

    device = "cpu"

    def __init__(self, memory: Path, model: Path, volume: Path, fork_server: ForkServer, **config: object) -> None:
        self.memory = memory
        self.model = model
        self.fork_server = fork_server
        self.units: list[BlockingGradientWorker] = []
        self.settings = settings_of(model, volume, max_grad_norm=None, **config)
        self.config = self.settings.training
        self.publisher = FakePublisher()
        self.inboxes = GradientInboxes(memory / "inbox", KEY, RELAY, "127.0.0.1")
        self.trainer = LoneRank(self.settings, lambda: self.publisher, make_inboxes=lambda: self.inboxes)
        self.trainer.start(1)
        self.segment = SegmentWriter.open(memory / "rollout")
        self.publish(VERSION, 0)
        assert self.trainer._started is not None
        self.gradients = watched(self.trainer._started.learner)

    def publish(self, version: int, step: int) -> None:
        """As the relay chain would bring it."""
        self.trainer.publish(1, version, step, CHAIN)
        self.hold(version, self.publisher.weights)

    def hold(self, version: int, weights: Mapping[str, Tensor]) -> None:
        dtype = getattr(torch, self.config.dtype)
        draft = self.segment.begin(layout(version, describe(weights.items(), dtype), RELAY.chunk_bytes))
        gather(weights.items(), draft.manifest, draft.buffer())
        draft.seal([checksum(draft.chunk(index)) for index in range(draft.manifest.chunks)])
        self.segment.commit(draft)

    def worker(self, name: str, ranks: int = 2, **sender: object) -> BlockingGradientWorker:
        """A machine's unit of so many accelerators. `sender`: what its sender has that others have not."""
        brings = GradientSenderSettings(
            self.memory / f"{name}-sums", KEY, RELAY, dtype_name(self.config.compute_dtype), 20.0
        )
        settings = GradientWorkerSettings(
            self.config,
            ranks,
            self.model,
            self.memory / "rollout",
            dataclasses.replace(brings, **sender),  # type: ignore[arg-type]
            self.device,
        )
        self.units.append(BlockingGradientWorker(name, settings, self.fork_server))
        return self.units[-1]

    def open(self, count: int = 1, term: int = 1) -> tuple[RelayMember, ...]:
        return self.trainer.open_gradient_inboxes(term, count)

    def deliver(self, worker: BlockingGradientWorker) -> ContributionReceipt:
        """As the only one."""
        return worker.deliver(1, 1, 1, *self.open())

    def close(self) -> None:
        for unit in self.units:
            unit.release(99)
        self.trainer.close()
        self.segment.close()


def pids_of(unit: BlockingGradientWorker) -> list[int]:
    assert unit._ranks is not None
    return unit._ranks.processes.pids


def kill(unit: BlockingGradientWorker, rank: int) -> None:
    os.kill(pids_of(unit)[rank], signal.SIGKILL)


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)
