"""Processes: foreign code in a session of its own, so that all of it can be ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljob_env.foreign_code.guard import Guard

PROXY_KEY = "RLJOB_PROXY_KEY"
"""Set in a pod whose environment reaches hosts by name. Another proxy may have credentials of the user's."""
PROXY_VARIABLES = tuple(
    spelled for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY") for spelled in (name, name.lower())
)
END_SECONDS = 1.0
"""Time between the request to end and the kill."""


def bare_environment(home: Path, more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of foreign code: of the runner's the path, the language and the job's egress proxy.

    Programs that are installed beside the runner's Python are found first.
    """
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    kept = ("LANG", *(PROXY_VARIABLES if PROXY_KEY in os.environ else ()))
    language = {name: os.environ[name] for name in kept if name in os.environ}
    return {"PATH": path, "HOME": str(home), "TMPDIR": str(home), **language, **more}


def python_path() -> dict[str, str]:
    """Return PYTHONPATH, where the runner's own package may be, or nothing where it is not set.

    Its entries are absolute: an empty or a relative one would be a folder of where the program begins.
    """
    entries = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, entries.split(os.pathsep)))} if entries else {}


@contextlib.asynccontextmanager
async def process_group(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, guard: Guard, **pipes: Any
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a program in a session of its own; at the end of the context nothing of its process group lives.

    `guard` ends it if this process dies. Raises `OSError` if it cannot be started.
    """
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
            preexec_fn=guard.begin,
            **pipes,
        )
    )
    try:
        # asyncio ends a program whose start is cancelled without its session, and waits for ever if that holds a pipe.
        process = await asyncio.shield(starting)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):
            await _end_once_started(starting, guard)
        raise
    guard.look()
    try:
        yield process
    finally:
        await asyncio.shield(_end(process, guard))


async def _end_once_started(starting: asyncio.Future[asyncio.subprocess.Process], guard: Guard) -> None:
    process = await starting
    await _end(process, guard)


async def _end(process: asyncio.subprocess.Process, guard: Guard) -> None:
    """End a session: ask it first if its program still runs, then kill what is left of it."""
    if process.returncode is None and _signal(process.pid, signal.SIGTERM):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
    _signal(process.pid, signal.SIGKILL)
    await process.wait()
    guard.end(process.pid)


def _signal(group: int, number: signal.Signals) -> bool:
    """Send a signal to a group; say whether there is one."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True
