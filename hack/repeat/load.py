"""Load: processes that compute without an end, so that what is tested waits for the processors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def load(processes: int) -> Iterator[list[int]]:
    """Keep so many processes computing for the block. Yields their ids."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(processes):
            started.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
        yield [one.pid for one in started]
    finally:
        for one in started:
            one.kill()
        for one in started:
            one.wait()
