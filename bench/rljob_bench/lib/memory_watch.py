"""Memory watch: what this process and all processes that it started hold, while they work.

Two measures, because one is exact and the other one cheap. `held` shares what several processes have in common (Pss);
it reads every mapping, so it is taken between rounds. `private` is sampled: a page that forked processes share counts
in each, which a difference of two samples cancels.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

PROC = Path("/proc")
PAGE = os.sysconf("SC_PAGE_SIZE")


class MemoryWatch:
    """Samples of memory while the block runs. `shared`: a folder in shared memory whose files count."""

    def __init__(self, shared: Path, every: float = 0.25) -> None:
        self._shared = shared
        self._every = every
        self._samples: list[tuple[float, int]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="memory", daemon=True)

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def between(self, began: float, ended: float) -> list[int]:
        """Return the bytes of each sample in this part of the monotonic clock's time."""
        return [held for at, held in list(self._samples) if began <= at <= ended]

    def _sample(self) -> None:
        while not self._ended.wait(self._every):
            total = sum(map(_private, _tree(os.getpid()))) + _files(self._shared)
            self._samples.append((time.monotonic(), total))


def held() -> int:
    """Return the bytes that this process and its descendants hold, each shared page once."""
    return sum(map(_proportional, _tree(os.getpid())))


def _tree(root: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    children = defaultdict[int, list[int]](list)
    for name in os.listdir(PROC):
        if name.isdigit() and (parent := _parent(int(name))) is not None:
            children[parent].append(int(name))
    found = [root]
    for pid in found:
        found += children[pid]
    yield from found


def _parent(pid: int) -> int | None:
    text = _read(pid, "stat")
    # The name of a program may contain spaces and brackets.
    return int(text.rpartition(")")[2].split()[1]) if text else None


def _private(pid: int) -> int:
    fields = _read(pid, "statm").split()
    return (int(fields[1]) - int(fields[2])) * PAGE if fields else 0


def _proportional(pid: int) -> int:
    lines = _read(pid, "smaps_rollup").splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def _read(pid: int, name: str) -> str:
    try:
        return (PROC / str(pid) / name).read_text()
    except OSError:  # The process has ended.
        return ""


def _files(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.stat(Path(place) / name).st_blocks * 512
            except FileNotFoundError:
                continue
    return total
