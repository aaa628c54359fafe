"""The zygote: a process that has imported an engine once, and forks rank processes that begin where it stands.

To import vLLM takes 9 to 40 s; a forked rank builds its engine in about half a second. The zygote is single-threaded
and touches no accelerator, or forking would not be safe. It lives as long as the socket it was given: when the
replica's process ends, however, the zygote ends its whole process group, ranks that hang in a collective included.

    python -m rljob_runtime.rollout.zygote ENGINE SOCKET
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

PR_SET_PDEATHSIG = 1
MOST_BYTES = 1 << 16


def main(kind: str, control: socket.socket) -> None:
    """Import, then fork a rank for each socket that comes, until there come no more."""
    _warm_up(kind)
    # What is here now is shared with all ranks and never garbage: collections need not look at it, nor copy its pages.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Nobody waits for ranks: their sockets tell of their end.
    parent = os.getpid()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MOST_BYTES, 1)
        if not message:
            os.killpg(0, signal.SIGKILL)
        (descriptor,) = descriptors
        if os.fork() == 0:
            control.close()
            _rank(parent, json.loads(message), Connection(descriptor))
        os.close(descriptor)


def _warm_up(kind: str) -> None:
    if kind == "VLLM":
        from rljob_runtime.rollout import vllm_compat

        vllm_compat.warm_up()
    else:
        import torch

        importlib.import_module("rljob_runtime.rollout.reference")
        torch.set_num_threads(1)


def _rank(zygote: int, devices: list[str], connection: Connection) -> None:
    """The life of a rank; never returns."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != zygote:
        os._exit(1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    code = 0
    try:
        serve(connection)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve(connection: Connection) -> None:
    """Do what is asked until `close` or the end of the connection. A question is (method of `_Rank`, arguments); an
    answer is (value, None) or (None, error)."""
    connection.send(os.getpid())
    rank = _Rank()
    while not rank.closed:
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer: tuple[Any, Exception | None] = (getattr(rank, method)(*arguments), None)
        except Exception as error:
            answer = (None, portable(error))
        connection.send(answer)


def portable(error: Exception) -> Exception:
    """The error itself where the other side has its class and can make it from words and numbers, else its text."""
    name = type(error).__module__
    if not name.startswith("rljob_runtime.") and name != "builtins":
        return RuntimeError(f"{type(error).__name__}: {error}")
    args = error.args if len(error.args) > 1 else (str(error),)
    plain = all(isinstance(arg, str | int | None) for arg in args)
    return type(error)(*args) if plain and error.args else RuntimeError(str(error))


class _Rank:
    """The engine of one rank, its methods as they are asked for over the connection."""

    def __init__(self) -> None:
        self._engine: Any = None
        self._leads = True
        self.closed = False

    def build(self, kind: str, settings: Any) -> None:
        from rljob_runtime.rollout.factory import make_engine

        os.environ.update(
            RANK=str(settings.rank), LOCAL_RANK=str(settings.rank), WORLD_SIZE=str(settings.tensor_parallel)
        )
        self._leads = settings.rank == 0
        self._engine = make_engine(kind, settings)
        if kind == "VLLM":
            from rljob_runtime.rollout import vllm_compat

            vllm_compat.unlink_message_queue()

    def step(self) -> Any:
        """All outputs from the first rank; from the others what tells whether theirs are the same."""
        outputs = self._engine.step()
        return (outputs if self._leads else None), agreement(outputs), self.state()

    def state(self) -> Any:
        """Of the first rank: busy, stats."""
        return (self._engine.busy, self._engine.stats()) if self._leads else None

    def add(self, request: Any) -> Any:
        self._engine.add(request)
        return self.state()

    def abort(self, ids: list[str]) -> Any:
        self._engine.abort(ids)
        return self.state()

    def load(self, version: int) -> Any:
        self._engine.load(version)
        return self.state()

    def check(self, request: Any) -> None:
        self._engine.check(request)

    def sleep(self) -> Any:
        self._engine.sleep()
        return self.state()

    def wake(self) -> None:
        self._engine.wake()

    def close(self) -> None:
        self.closed = True
        if self._engine is not None:
            self._engine.close()


def agreement(outputs: list[Any]) -> int:
    """A number that differs where the tokens of a step do."""
    return hash(tuple(output.token_ids for output in outputs))


if __name__ == "__main__":
    main(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
