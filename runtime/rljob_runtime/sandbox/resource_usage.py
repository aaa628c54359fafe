"""Resource usage: that of a running process, from /proc and its clocks.

Each function raises `OSError` when the process has ended.
"""

from __future__ import annotations

import time

_CPU_CLOCK_OF_ALL_THREADS = 2

STARVED_FACTOR, STARVED_SECONDS = 4.0, 60.0


def cpu_seconds(pid: int) -> float:
    """Return the processor time of all threads, to the nanosecond.

    The clock id is that of clock_getcpuclockid(3).
    """
    return time.clock_gettime((~pid << 3) | _CPU_CLOCK_OF_ALL_THREADS)


def waited_seconds(pid: int) -> float:
    """Return how long the main thread was ready to run without a processor.

    0 where the kernel does not count that.
    """
    try:
        return int(_read(pid, "schedstat").split()[1]) / 1e9
    except (FileNotFoundError, IndexError):
        return 0.0


def starved(elapsed: float, allowed: float) -> bool:
    """Return whether a process never got its processor.

    It may run for `allowed` seconds and has not finished `elapsed` seconds after its start.
    """
    return elapsed > STARVED_FACTOR * allowed + STARVED_SECONDS


def threads(pid: int) -> int:
    """Return the number of threads of the process."""
    after_name = _read(pid, "stat").rpartition(")")[2].split()
    return int(after_name[17])


def bytes_written(pid: int) -> int:
    """Return the bytes of all write calls, or of the disk pages written when those are more.

    A program can dirty a whole page with one byte.
    """
    return max(int(_field(pid, "io", name)) for name in ("wchar", "write_bytes"))


def address_space(pid: int) -> tuple[int, int]:
    """Return the current and the largest address space in bytes."""
    now, most = (_field(pid, "status", name).removesuffix(" kB") for name in ("VmSize", "VmPeak"))
    return int(now) << 10, int(most) << 10


def _field(pid: int, file: str, name: str) -> str:
    for line in _read(pid, file).splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    raise OSError(f"/proc/{pid}/{file} has no {name}")


def _read(pid: int, name: str) -> str:
    with open(f"/proc/{pid}/{name}", encoding="ascii", errors="replace") as file:
        return file.read()
