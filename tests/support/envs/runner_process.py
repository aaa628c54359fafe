"""Runner process: a runner of an environment as a program of its own, until the test has no need of it."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.envs.site import RUNNER_KEY


@contextmanager
def runner_process(
    python: Sequence[str], folder: Path, url: str, environment: Mapping[str, Any], variables: Mapping[str, str]
) -> Iterator[None]:
    """Run a runner, with its key and settings in the folder. `python`: the command of its Python.

    Fails if it has ended before the context is left."""
    (folder / "key").write_text(RUNNER_KEY)
    settings = {"url": url, "keyFile": "key", "root": str(folder), "environment": {"name": "calc", **environment}}
    (folder / "config.json").write_text(json.dumps(settings))
    process = subprocess.Popen([*python, "-m", "rljob_env", "config.json"], cwd=folder, env=variables)
    try:
        yield
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
