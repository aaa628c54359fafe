"""Confined runner: a runner with what it has in a pod, a user without a name and one folder for its files."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.envs.runner_process import runner_process
from tests.support.paths import ROOT

USER = 65532
CONFINE = f"""
mount --bind "$1" "$1"
mount -o remount,bind,ro /
shift
exec unshare --user --map-user={USER} --map-group={USER} -- "$@"
"""
"""Runs a command in namespaces of its own. Only the folder of the first argument can be written, and files there are
those of the user."""


def confined(writable: Path, *command: str) -> list[str]:
    """Return the command that runs another one confined. Skips the test where this user may make no namespaces."""
    line = ["unshare", "--mount", "sh", "-ec", CONFINE, "sh", str(writable)]
    tried = subprocess.run([*line, "true"], capture_output=True, text=True, timeout=60, check=False)
    if tried.returncode:
        pytest.skip(f"no namespaces: {tried.stderr.strip()[-200:]}")
    return [*line, *command]


@contextmanager
def confined_runner(
    python: Path, folder: Path, url: str, environment: Mapping[str, Any], *packages: Path
) -> Iterator[None]:
    """Run a runner of an environment whose code is in the folder. `packages`: further folders of its Python's."""
    writable = folder / "tmp"
    writable.mkdir()
    # No HOME: the user has no name, so that no folder can be found by it.
    path = os.pathsep.join(map(str, (ROOT / "envs", *packages)))
    variables = {"PATH": os.environ["PATH"], "PYTHONPATH": path, "TMPDIR": str(writable)}
    with runner_process(confined(writable, str(python)), folder, url, environment, variables):
        yield
