"""Fork server: imports what ranks need once, then forks rank processes.

Importing vLLM takes 9 to 40 s; a forked rank builds its engine in about half a second. The fork server has one thread
and touches no accelerator; otherwise forking is not safe. It lives as long as its control socket. When the replica's
process ends in any way, the fork server kills its process group, including ranks that hang in a collective.

    python -m rljob_runtime.rollout.engines.fork_server MODULE:CLASS SOCKET

Each rank makes one object of the class and serves its methods as commands; `close` is the last command. `warm_up` of
the class imports what the ranks need.
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
    """Import, then fork one rank for each socket received, until the control socket closes."""
    # If CUDA itself looks for devices here, forked processes cannot use it.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    module, _, name = peer.partition(":")
    kind = getattr(importlib.import_module(module), name)
    kind.warm_up()
    # Present objects are shared with all ranks and never garbage. Frozen, they cost no collection and no page copies.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # No process waits for ranks: their sockets report their end.
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
    """Run one rank; never returns."""
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
    """Execute commands until `close` or the end of the connection.

    A command is (method, arguments). An answer is (value, None) or (None, error).
    """
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
    """Return the error if the receiver can rebuild it, else a RuntimeError with its text.

    The receiver can rebuild errors of its own classes whose arguments are strings and integers.
    """
    name = type(error).__module__
    if not name.startswith("rljob_runtime.") and name != "builtins":
        return RuntimeError(f"{type(error).__name__}: {error}")
    args = error.args if len(error.args) > 1 else (str(error),)
    plain = all(isinstance(arg, str | int | None) for arg in args)
    return type(error)(*args) if plain and error.args else RuntimeError(str(error))


if __name__ == "__main__":
    main(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
