"""Open files: what the descriptors of another process lead to."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def open_files(pid: int) -> set[str]:
    """Return the targets of a process's descriptors. It may close some meanwhile."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(link))
    return found
