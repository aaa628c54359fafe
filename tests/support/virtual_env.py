"""Virtual environments of tests: packages whose pins disagree with this project's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

INSTALL_SECONDS = 600.0
NOT_REACHED = ("error sending request", "dns error", "failed to fetch", "operation timed out", "connection refused")
"""What `uv` says where no package index is reached."""


def virtual_env(folder: Path, *requirements: str) -> Path:
    """Return the Python of a new environment with these packages. Skips the test where no index is reached."""
    python = folder / "bin/python"
    for command in (
        ["venv", "--quiet", "--python", sys.executable, str(folder)],
        ["pip", "install", "--quiet", "--python", str(python), *requirements],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "uv", *command], capture_output=True, text=True, timeout=INSTALL_SECONDS
        )
        if done.returncode and any(words in done.stderr.lower() for words in NOT_REACHED):
            pytest.skip(f"no package index is reached: {done.stderr.strip()[-200:]}")
        assert done.returncode == 0, done.stderr
    return python
