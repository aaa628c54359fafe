"""Fork server: imports what ranks need once, and forks rank processes that start from there.

Importing vLLM takes 9 to 40 s; a forked rank builds its engine in about half a second. The fork server has one thread
and touches no accelerator; otherwise forking is not safe. It lives as long as its control socket. When the replica's
process ends in any way, the fork server kills its process group, including ranks that hang in a collective.

    python -m rljob_runtime.rollout.engines.fork_server MODULE:CLASS SOCKET

An object of the class is what a rank is: it is made in the rank, and its methods are what can be asked of it; `close`
is the last. The class's `warm_up` imports what it needs.
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


def main(peer: str, control: socket.socket) -> None:
    """Import, then fork a rank for each socket that comes, until there come no more."""
    # A look for accelerators by CUDA itself would make it unusable in whatever is forked.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    module, _, name = peer.partition(":")
    kind = getattr(importlib.import_module(module), name)
    kind.warm_up()
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
            _rank(parent, json.loads(message), Connection(descriptor), kind)
        os.close(descriptor)


def _rank(fork_server: int, devices: list[str], connection: Connection, kind: type) -> None:
    """The life of a rank; never returns."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != fork_server:
        os._exit(1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(devices)
    code = 0
    try:
        serve(connection, kind())
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve(connection: Connection, peer: object) -> None:
    """Do what is asked until `close` or the end of the connection. A question is (method, arguments); an answer is
    (value, None) or (None, error)."""
    connection.send(os.getpid())
    method = ""
    while method != "close":
        try:
            method, arguments = connection.recv()
        except EOFError:
            return
        try:
            answer: tuple[Any, Exception | None] = (getattr(peer, method)(*arguments), None)
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


if __name__ == "__main__":
    main(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
