"""Self-confinement: a worker that has loaded built-in functions gives up its rights before it reads a model's text.

Some of those functions pass a text to a parser that evaluates it. So the process gives up everything that a sandboxed
program lacks: files except those of libraries, sockets, processes, signals.
"""

from __future__ import annotations

import os
import resource
import socket
import tempfile
from collections.abc import Callable, Mapping

from rljob_runtime.sandbox import landlock, seccomp
from rljob_runtime.sandbox.confine_child import MAX_OPEN_FILES
from rljob_runtime.sandbox.program import SandboxUnavailable
from rljob_runtime.sandbox.resource_usage import threads
from rljob_runtime.sandbox.syscalls import PR_SET_NO_NEW_PRIVS, drop_capabilities, prctl

LIMITS = {
    resource.RLIMIT_AS: 2 << 30,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_NOFILE: MAX_OPEN_FILES,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_MEMLOCK: 0,
}


def confine_this_process(allowed: Mapping[str, landlock.Access]) -> None:
    """Give up all rights except computing, these files and folders, and open descriptors.

    Raises `SandboxUnavailable` where that is impossible or not effective.
    """
    if (count := threads(os.getpid())) != 1:  # other threads would keep their rights
        raise SandboxUnavailable(f"a worker has {count} threads before it is confined; one would be right")
    for limit, value in LIMITS.items():
        hard = resource.getrlimit(limit)[1]
        lower = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (lower, lower))
    try:
        drop_capabilities()
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        landlock.restrict(allowed)
        seccomp.install(seccomp.READ_ONLY)
    except (OSError, KeyError) as error:
        raise SandboxUnavailable(
            f"nothing keeps a worker from this machine's files ({error}); Landlock (Linux 5.13 or later) would be "
            "right, or a reward of kind Python with a function of your own, which is not confined"
        ) from error
    if found := escapes():
        raise SandboxUnavailable(f"a confined worker leaks; it can: {', '.join(found)}")


def escapes() -> list[str]:
    """Return the forbidden actions that this confined process can still do."""
    attempts: dict[str, Callable[[], object]] = {
        "read a file that it was not given": lambda: os.open("/proc/self/environ", os.O_RDONLY),
        "write a file": lambda: tempfile.mkstemp(dir="/tmp"),
        # /dev/null is readable, and these attempts do no harm if they succeed.
        "empty a file": lambda: os.open(os.devnull, os.O_RDONLY | os.O_TRUNC),
        "open a file without asking for a right": lambda: os.open(os.devnull, os.O_ACCMODE),
        "open a socket": socket.socket,
        "start a process": _fork,
        "signal another process": lambda: os.kill(os.getppid(), 0),
    }
    return [what for what, attempt in attempts.items() if _works(attempt)]


def _works(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)
