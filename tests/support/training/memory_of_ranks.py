"""python -m tests.support.training.memory_of_ranks MODEL VOLUME RANKS

Prints the bytes that each rank took at most, to load, train and publish.
Beyond what a process has with torch and its process group: one number a rank, as a JSON list.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import transformers.models.llama.modeling_llama  # noqa: F401 - what a first use imports is not what a rank holds

from rljob_runtime.protocols import Chain, PublishReport
from rljob_runtime.training.batch.delivery import plan_train
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.model.optimizer import gather_full
from rljob_runtime.training.ranks.rank import TrainerRank
from rljob_runtime.training.ranks.settings import TrainerSettings
from tests.support.training.toys import make_groups

STEPS = 2
"""The first has no moments until its end."""
PAGE = os.sysconf("SC_PAGE_SIZE")


def private_bytes() -> int:
    """What this process has written to: no file that it only maps."""
    _, resident, shared, *_ = Path("/proc/self/statm").read_text().split()
    return (int(resident) - int(shared)) * PAGE


class Peak(threading.Thread):
    """Looks every few milliseconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before = self.highest = private_bytes()

    def run(self) -> None:
        while True:
            self.highest = max(self.highest, private_bytes())
            time.sleep(0.002)


class Walking:
    """A publisher that walks through the weights and keeps none."""

    def publish(self, version: int, tensors: Mapping[str, torch.Tensor]) -> PublishReport:
        return PublishReport(version, sum(gather_full(tensor.detach()).nbytes for tensor in tensors.values()), 0.0)

    def ship(self, term: int, chain: Chain) -> None:
        pass

    def close(self) -> None:
        pass


def play(pipe: Connection, model: str, volume: str, rank: int, size: int) -> None:
    torch.set_num_threads(1)
    settings = TrainerSettings(
        training=TrainingConfig(dtype="bfloat16", max_tokens_per_microbatch=64),
        model_source=model,
        cache_folder=Path(volume) / "cache",
        checkpoint_folder=Path(volume) / "checkpoints",
        export_folder=Path(volume) / "model",
    )
    trainer = TrainerRank(settings, Walking, rank=rank, size=size)
    if rank == 0 and size > 1:
        pipe.send(trainer.rendezvous(1, "127.0.0.1"))
    port = pipe.recv() if size > 1 else 0
    peak = Peak()
    peak.start()
    trainer.start(1, "127.0.0.1", port)
    for step in range(1, STEPS + 1):
        delivery, shares = plan_train(trainer.progress(1), step, make_groups(step, 3), size)
        trainer.train(1, step, delivery, shares[rank])
    trainer.publish(1, 1, STEPS, Chain(epoch=1, revision=0, members=()))
    pipe.send(peak.highest - peak.before)
    trainer.close()


def main(model: str, volume: str, size: int) -> None:
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for rank in range(size):
        ours, theirs = context.Pipe()
        process = context.Process(target=play, args=(theirs, model, volume, rank, size))
        process.start()
        pipes.append(ours)
        processes.append(process)
    if size > 1:
        port = pipes[0].recv()
        for pipe in pipes:
            pipe.send(port)
    print(json.dumps([pipe.recv() for pipe in pipes]))
    for process in processes:
        process.join(60)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
