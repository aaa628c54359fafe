"""Parts: commands one after the other, up to the first that fails, and the seconds of each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO

from hack.interruption import run_to_end
from hack.resumable import Resumable

from . import failures

LONGEST = 3
"""Parts that a late run names."""
NOTHING_COLLECTED = 5
"""pytest's exit status when a marker expression leaves no test."""


@dataclass(frozen=True)
class Part:
    """A command with a name. A `background` part runs concurrently with the parts after it."""

    name: str
    command: tuple[str, ...]
    background: bool = False
    may_be_empty: bool = False
    """True if no test at all is a success."""
    prepares: bool = False
    """True if later parts need it in each run, also where it has passed before."""


@dataclass(frozen=True)
class Row:
    """Result of a part."""

    part: str
    seconds: float
    passed: bool


def run(
    parts: Sequence[Part],
    rows: list[Row],
    now: Callable[[], float] = time.monotonic,
    *,
    go_on: bool = False,
    passed_before: Resumable | None = None,
) -> bool:
    """Run the parts and append a row for each; say whether all passed. A failure ends the rest, unless they `go_on`.

    Parts in `passed_before` are not run again, and those that pass are added.
    """
    waiting: list[BackgroundPart] = []
    healthy = True
    closed = partial(close, rows, passed_before)
    try:
        for part in left(parts, rows, passed_before):
            print(f"── {part.name}", flush=True)
            if part.background:
                waiting.append(BackgroundPart(part, now))
                continue
            began = now()
            status = run_to_end(part.command)
            passed = status == 0 or (part.may_be_empty and status == NOTHING_COLLECTED)
            healthy &= closed(Row(part.name, now() - began, passed))
            for other in [one for one in waiting if one.ended]:
                waiting.remove(other)
                healthy &= closed(other.result())
            if not healthy and not go_on:
                return False
        # A list: each has its row, also behind one that failed.
        return all([healthy, *[closed(other.result()) for other in waiting]])
    finally:
        for other in waiting:
            other.end()


class BackgroundPart:
    """A part that runs concurrently with others, on idle processors. It prints after its end: all if it failed."""

    def __init__(self, part: Part, now: Callable[[], float]) -> None:
        self._part, self._now, self._began = part, now, now()
        self._seconds = 0.0
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        # A separate session can be ended with all its processes.
        self._process = subprocess.Popen(
            part.command, stdout=self._output, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_least_share
        )
        # A thread records the time of its end, which may be long before `result`.
        self._waiter = threading.Thread(target=self._wait, daemon=True)
        self._waiter.start()

    @property
    def ended(self) -> bool:
        """True if it has ended, with success or not."""
        return self._process.poll() is not None

    def result(self) -> Row:
        """Wait for its end and return its row. Print its output, the last line only if it passed."""
        self._waiter.join()
        self._output.seek(0)
        passed = self._process.returncode == 0
        lines = self._output.read().decode(errors="replace").splitlines()
        # What passed must not hide the failure of another part above it.
        print("\n".join([f"── {self._part.name}", *(lines[-1:] if passed else lines)]), flush=True)
        return Row(self._part.name, self._seconds, passed)

    def _wait(self) -> None:
        self._process.wait()
        self._seconds = self._now() - self._began

    def end(self) -> None:
        """Kill it if it still runs."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._waiter.join()
        self._output.close()


def _least_share() -> None:
    """Use idle processor time only: sessions have their own shares, see sched(7) on autogroups."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):  # A kernel without autogroups, or one that refuses: then the class alone decides.
        Path("/proc/self/autogroup").write_text("19", encoding="ascii")


def left(parts: Sequence[Part], rows: list[Row], passed_before: Resumable | None) -> list[Part]:
    """Return the parts to run. Those that passed in an earlier run of this tree have a row with their seconds."""
    seconds = dict(passed_before.entries) if passed_before is not None else {}
    done = [part.name for part in parts if part.name in seconds and not part.prepares]
    for name in done:
        print(f"── {name}: passed before on this tree, {seconds[name]:.0f} s", flush=True)
    rows += [Row(name, seconds[name], True) for name in done]
    return [part for part in parts if part.name not in done]


def close(rows: list[Row], passed_before: Resumable | None, row: Row) -> bool:
    """Append a row, print it, and keep it if it passed."""
    rows.append(row)
    if passed_before is not None and row.passed:
        passed_before.add((row.part, row.seconds))
    print(f"── {row.part}: {'' if row.passed else 'FAILED after '}{row.seconds:.0f} s", flush=True)
    return row.passed


@contextmanager
def report(name: str, file: Path, began: float | None = None, budget: float | None = None) -> Iterator[list[Row]]:
    """Print the table of a run's parts at its end, however it ends, and write it to a file, beside the tests' results.

    Tests that failed follow the table. A run that takes longer than its budget, in seconds, prints a warning.
    """
    began = time.time() if began is None else began
    before = failures.written(file.parent)
    rows = [Row("set-up", time.time() - began, True)]
    try:
        yield rows
    finally:
        total = time.time() - began
        print(table(name, rows, total), flush=True)
        if (late := warning(name, rows, total, budget)) is not None:
            print(late, flush=True)
        failed = [row.part for row in rows if not row.passed]
        for line in failures.of_parts(failed, before, folder=file.parent):
            print(line, flush=True)
        file.parent.mkdir(parents=True, exist_ok=True)
        figures = {
            "run": name,
            "seconds": round(total, 1),
            "budget_seconds": budget,
            "parts": [asdict(row) | {"seconds": round(row.seconds, 1)} for row in rows],
        }
        file.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def table(name: str, rows: Sequence[Row], total: float) -> str:
    """Lay the rows out, one a line, with the elapsed time as their sum."""
    width = max(len(name), *(len(row.part) for row in rows))
    lines = [f"{row.part:<{width}}  {row.seconds:6.0f} s{'' if row.passed else '  FAILED'}" for row in rows]
    return "\n".join([*lines, f"{name:<{width}}  {total:6.0f} s"])


def warning(name: str, rows: Sequence[Row], total: float, budget: float | None) -> str | None:
    """Say that a run took longer than its budget, and which parts took most; none within the budget."""
    if budget is None or total <= budget:
        return None
    longest = sorted(rows, key=lambda row: row.seconds, reverse=True)[:LONGEST]
    shares = ", ".join(f"{row.part} {row.seconds:.0f} s" for row in longest)
    return f"warning: {name} took {total:.0f} s, over its budget of {budget:.0f} s; its longest parts: {shares}"
