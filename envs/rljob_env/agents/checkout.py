"""Checkout: a git checkout, and working copies of it, one for each episode.

A copy is a repository of its own that borrows the objects of the checkout. So it costs the files of one commit, and
what a program does to branches, stashes or settings stays in its copy. The checkout may be read-only.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rljob_env.config import BadConfig
from rljob_env.failures import Failed, Part
from rljob_env.foreign_code.guard import Guard
from rljob_env.foreign_code.output import Output, piped
from rljob_env.foreign_code.processes import bare_environment, process_group

LOOK_SECONDS = 60.0
"""Longest time of a question about the checkout, before the runner leases."""
COPIES = max(4, os.cpu_count() or 1)
"""Copies that are made at a time: each writes the files of a commit."""
# The checkout may be another user's, as in an image. What is read of it is its owner's code anyway.
GIT = ("git", "-c", "safe.directory=*")


@dataclass(frozen=True)
class Checkout:
    """A commit of a checkout. `inside`: the folder below the checkout's top in which programs begin."""

    objects: Path
    commit: str
    object_format: str
    shallow: bytes = b""
    """The commits whose parents are absent, as git writes them."""
    inside: str = ""


def open_checkout(folder: Path) -> Checkout:
    """Return the commit that is checked out in a folder now. Raises `BadConfig`."""

    def asked(*arguments: str) -> str:
        command = [*GIT, "-C", str(folder), *arguments]
        variables = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
        try:
            done = subprocess.run(command, env=variables, capture_output=True, timeout=LOOK_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BadConfig(f"environment.reset: GitRestore needs git: {error}") from error
        if done.returncode:
            said = done.stderr.decode("utf-8", "replace").strip()
            right = "a folder of a git checkout with a commit would be right"
            raise BadConfig(f"environment.checkout: {folder} is none: {said[:500]}; {right}")
        return os.fsdecode(done.stdout).removesuffix("\n")

    commit = asked("rev-parse", "--verify", "HEAD^{commit}")
    inside = asked("rev-parse", "--show-prefix")
    asked("cat-file", "-e", f"{commit}:{inside}")
    shallow = folder / asked("rev-parse", "--git-path", "shallow")
    return Checkout(
        (folder / asked("rev-parse", "--git-path", "objects")).resolve(),
        commit,
        asked("rev-parse", "--show-object-format"),
        shallow.read_bytes() if shallow.is_file() else b"",
        inside,
    )


class WorkingCopies:
    """Makes working copies of a checkout. What contains them removes them."""

    def __init__(self, checkout: Checkout, guard: Guard) -> None:
        self._checkout = checkout
        self._guard = guard
        self._places = asyncio.Semaphore(COPIES)

    async def make(self, folder: Path, home: Path, seconds: float) -> Path:
        """Make a copy in a new folder within so many seconds; return the folder in it where programs begin.

        `home`: that of git's processes. Raises `Failed`.
        """
        checkout = self._checkout
        try:
            async with asyncio.timeout(seconds), self._places:
                form = f"--object-format={checkout.object_format}"
                await self._git(("init", "-q", "--template=", form, str(folder)), home)
                inner = folder / ".git"
                (inner / "objects/info").mkdir(parents=True, exist_ok=True)
                (inner / "objects/info/alternates").write_bytes(os.fsencode(checkout.objects) + b"\n")
                if checkout.shallow:
                    (inner / "shallow").write_bytes(checkout.shallow)
                await self._git(("-C", str(folder), "checkout", "-q", "--detach", checkout.commit), home)
        except TimeoutError as error:
            raise Failed(Part.ENVIRONMENT, "the working copy was not there at the deadline") from error
        return folder / checkout.inside

    async def _git(self, arguments: Sequence[str], home: Path) -> None:
        output = Output()
        try:
            async with piped(output) as log:
                pipes: dict[str, Any] = {"stdin": asyncio.subprocess.DEVNULL, "stdout": log, "stderr": log}
                environment = bare_environment(home, {"LC_ALL": "C"})
                async with process_group((*GIT, *arguments), environment, home, self._guard, **pipes) as process:
                    code = await process.wait()
        except OSError as error:
            raise Failed(Part.ENVIRONMENT, f"no working copy: git cannot be started: {error}") from error
        if code:
            raise Failed(Part.ENVIRONMENT, f"no working copy: git {arguments[0]} ended with {code}: {output.text()}")
