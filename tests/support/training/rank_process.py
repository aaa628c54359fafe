"""A trainer rank in a process of its own, behind a pipe: what the Ray binding is in production.

Processes are forked from a server that has imported torch once.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from rljob_runtime.protocols import PeerError, PeerGone
from rljob_runtime.relay.gradient_transfer import GradientInboxes
from rljob_runtime.relay.settings import RelaySettings
from rljob_runtime.training.ranks.rank import TrainerRank
from rljob_runtime.training.ranks.settings import TrainerSettings
from tests.support.training.toys import FakePublisher

PATIENCE = 120
KEY = b"an-authentic-relay-key-of-this-job"
RELAY = RelaySettings(chunk_bytes=1024, heartbeat_seconds=2.0, rebuild_timeout_seconds=10.0)


def serve(pipe: Connection, settings: TrainerSettings, rank: int, size: int, inbox: Path | None) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    make_inboxes = None if inbox is None else lambda: GradientInboxes(inbox, KEY, RELAY, "127.0.0.1")
    trainer = TrainerRank(settings, FakePublisher, rank=rank, size=size, make_inboxes=make_inboxes)
    while (command := pipe.recv()) is not None:
        method, arguments = command
        try:
            pipe.send(getattr(trainer, method)(*arguments))
        except PeerError as error:
            pipe.send(error)
    trainer.close()


class ProcessRank:
    host = "127.0.0.1"

    def __init__(self, settings: TrainerSettings, rank: int, size: int, inbox: Path | None = None):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            ["rljob_runtime.training.ranks.rank", "transformers.models.llama.modeling_llama"]
        )
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, settings, rank, size, inbox), daemon=True)
        self.process.start()
        theirs.close()
        # One thread: an abandoned call still takes its own answer from the pipe.
        self._calls = ThreadPoolExecutor(1)

    async def call(self, method: str, *arguments: Any) -> Any:
        answer = await asyncio.get_running_loop().run_in_executor(self._calls, self._ask, method, arguments)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def put(self, value: Any) -> Any:
        return value

    def _ask(self, method: str, arguments: tuple[Any, ...]) -> Any:
        try:
            self.pipe.send((method, arguments))
            return self.pipe.recv() if self.pipe.poll(PATIENCE) else PeerGone("no answer")
        except (EOFError, BrokenPipeError):
            return PeerGone("the rank's process ended")

    def end(self) -> None:
        self._calls.shutdown(wait=False, cancel_futures=True)
        if self.process.is_alive():
            self.pipe.send(None)
            self.process.join(20)
        self.process.kill()
        self.process.join()
