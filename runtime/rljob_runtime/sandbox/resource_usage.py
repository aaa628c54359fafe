"""What a running process has used, from /proc and its clocks. Each raises `OSError` when the process is gone."""

from __future__ import annotations

import time

_CPU_CLOCK_OF_ALL_THREADS = 2

STARVED_FACTOR, STARVED_SECONDS = 4.0, 60.0


def cpu_seconds(pid: int) -> float:
    """Processor time of all threads, to the nanosecond: the clock id that clock_getcpuclockid(3) makes."""
    return time.clock_gettime((~pid << 3) | _CPU_CLOCK_OF_ALL_THREADS)


def waited_seconds(pid: int) -> float:
    """How long the main thread was ready to run and got no processor; 0 where the kernel does not count that."""
    try:
        return int(_read(pid, "schedstat").split()[1]) / 1e9
    except (FileNotFoundError, IndexError):
        return 0.0


def starved(elapsed: float, allowed: float) -> bool:
    """Whether a process that may run for `allowed` seconds and is not done `elapsed` seconds after its start never
    got its processor."""
    return elapsed > STARVED_FACTOR * allowed + STARVED_SECONDS


def threads(pid: int) -> int:
    """Of the process."""
    after_name = _read(pid, "stat").rpartition(")")[2].split()
    return int(after_name[17])


def bytes_written(pid: int) -> int:
    """By write calls, to whatever; or the pages of files on disk that they took, if those are more: a byte in each."""
    return max(int(_field(pid, "io", name)) for name in ("wchar", "write_bytes"))


def address_space(pid: int) -> tuple[int, int]:
    """(bytes now, the most there ever were)."""
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
