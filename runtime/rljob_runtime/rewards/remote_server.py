"""Reward server: runs programs and functions in the `rewards` container, without the coordinator's rights.

It listens on a Unix socket in a folder that it shares with the coordinator. The first message of a connection states
its purpose. Then the connection runs one call at a time, and closing it ends its work. `watch` is the coordinator's
liveness connection: when it breaks, the container ends. Messages from the coordinator are trusted; answers are JSON.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import pickle
import signal
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rljob_runtime.rewards.errors import RewardsNotReady, ScoreFailed
from rljob_runtime.rewards.function_scorer import FunctionScorer
from rljob_runtime.rewards.rules import CannotSandbox, InvalidReward, Rule
from rljob_runtime.sandbox.framing import receive, send
from rljob_runtime.sandbox.program import Program, SandboxFailed, SandboxUnavailable
from rljob_runtime.sandbox.sandbox import Sandbox

log = logging.getLogger(__name__)

Json = dict[str, Any]
Call = Callable[[Json], Awaitable[Json]]


async def serve(socket: Path) -> None:
    """Serve until the coordinator leaves, or until SIGTERM arrives while none is connected."""
    await RewardServer(socket).run()


class RewardServer:
    """The server of the container."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._ended = asyncio.Event()
        self._watched = False
        self._connections: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """See `serve`."""
        self._socket.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._connected, self._socket)
        self._socket.chmod(0o660)  # the coordinator may run as another user of the pod's group
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._terminate)
        log.info("rewards are computed here: %s", self._socket)
        async with server:
            await self._ended.wait()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    def _terminate(self) -> None:
        """End on SIGTERM unless a coordinator is connected.

        The coordinator receives the signal as well. The server stays until it leaves.
        """
        if not self._watched:
            self._ended.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._serve_connection(reader, writer)
        except ConnectionError as error:
            log.info("a call was cancelled: %s", error)
        except Exception as error:
            # The caller receives the reason: after a closed connection alone it would retry.
            log.exception("a connection failed unexpectedly")
            with contextlib.suppress(ConnectionError):
                await send(writer, {"broken": f"{type(error).__name__}: {error}"})
        finally:
            self._connections.discard(task)
            writer.close()

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        match await receive(reader):
            case {"watch": True}:
                await self._watch(reader, writer)
            case {"functions": rules}:
                await self._functions(reader, writer, [Rule(**rule) for rule in rules])
            case {"programs": True}:
                await self._programs(reader, writer)
            case None:
                return
            case other:
                await send(writer, {"unknown": f"{str(other)[:200]}; watch, functions or programs would be right"})

    async def _watch(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._watched = True
        await send(writer, {"ready": True})
        await receive(reader)
        log.info("the coordinator has left")
        self._ended.set()

    async def _functions(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, rules: list[Rule]) -> None:
        try:
            async with FunctionScorer(rules, workers=1) as scorer:

                async def call(request: Json) -> Json:
                    prompt, response = pickle.loads(base64.b64decode(request["sample"]))
                    try:
                        reward = await scorer.score(prompt, response)
                        return {"value": float(reward), "terms": reward.terms}
                    except ScoreFailed as failed:
                        return {"failure": failed.failure.value, "rule": failed.rule, "detail": str(failed)}

                await _answer(reader, writer, call)
        except CannotSandbox as error:  # the cause alone: the coordinator adds the name of the reward
            await send(writer, {"unavailable": str(error.__cause__)})
        except InvalidReward as error:
            await send(writer, {"invalid": str(error)})
        except RewardsNotReady as error:
            await send(writer, {"broken": str(error)})

    async def _programs(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with Sandbox(1) as sandbox:

                async def call(request: Json) -> Json:
                    try:
                        return asdict(await sandbox.run(Program(**request)))
                    except SandboxFailed as error:
                        return {"failed": str(error)}

                await _answer(reader, writer, call)
        except SandboxUnavailable as error:
            await send(writer, {"unavailable": str(error)})


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: Call) -> None:
    """Answer one call after the other until the other end closes, which also ends the current call."""
    await send(writer, {"ready": True})
    request = await receive(reader)
    while request is not None:
        # A client sends no request before the answer, so anything read meanwhile is the end.
        following = asyncio.create_task(receive(reader))
        work = asyncio.ensure_future(call(request))
        try:
            await asyncio.wait({work, following}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                return
            await send(writer, work.result())
            request = await following
        finally:
            for task in (work, following):
                task.cancel()
            await asyncio.gather(work, following, return_exceptions=True)
