"""Headless Chromium, installed from Debian's package where this user may do that."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from hack.screenshot import chromium, headless

INSTALL_SECONDS = 240


def dom(file: Path, folder: Path) -> str:
    """Return the document after its script ran. `folder` holds the browser's profile."""
    done = subprocess.run(
        [*headless(browser(), folder), "--dump-dom", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def browser() -> str:
    """Return the path of the program. Without one the test is skipped."""
    path, why = _found_or_installed()
    if path is None:
        pytest.skip(f"no Chromium: {why}")
    return path


@cache
def _found_or_installed() -> tuple[str | None, str]:
    """Return the program, or None and the reason."""
    if (found := chromium()) is not None:
        return found, ""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None, "as root, apt-get install chromium"
    try:
        for arguments in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
            subprocess.run(
                ["apt-get", "-q", *arguments],
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                capture_output=True,
                text=True,
                timeout=INSTALL_SECONDS,
                check=True,
            )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        return None, f"apt-get does not install it: {str(getattr(error, 'stderr', '') or error)[-300:]}"
    return chromium(), "Debian's package has none of the known names"
