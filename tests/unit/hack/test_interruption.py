"""What a program of `hack/` started cleans up when the program is interrupted, and ends in any case."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hack.loop.imports import ROOT

CHILD = """
import os, pathlib, time
try:
    pathlib.Path("began").write_text(str(os.getpid())); time.sleep(600)
finally:
    pathlib.Path("unwinds").touch(); time.sleep({seconds}); pathlib.Path("cleaned").touch()
"""
PROGRAMS = {
    "a benchmark": """
import runpy, sys
bench = runpy.run_path({bench!r})
bench["main"].__globals__["rljob"] = lambda: sys.executable
sys.exit(bench["main"](["child.py"]))
""",
    "a part of the loop": """
import sys
from hack.interruption import unwind_on_signals
from hack.loop.parts import Part, run
unwind_on_signals()
run([Part("cluster", (sys.executable, "child.py"))], [])
""",
}


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[str, float], subprocess.Popen[bytes]]]:
    """Start a program whose child needs some seconds to clean up; SIGINT is ignored, as in a shell's background."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(program: str, seconds: float) -> subprocess.Popen[bytes]:
        (tmp_path / "child.py").write_text(CHILD.format(seconds=seconds))
        (tmp_path / "bench").symlink_to(tmp_path / "child.py")  # What `hack/bench` makes of `rljob bench child.py`.
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", PROGRAMS[program].format(bench=str(ROOT / "hack" / "bench"))],
                cwd=tmp_path,
                env=os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}", "KUBECONFIG": "none"},
                stderr=subprocess.DEVNULL,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
            )
        )
        _until((tmp_path / "began").exists)
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("program", PROGRAMS)
def test_an_interrupted_command_cleans_up(tmp_path: Path, started, program: str, number: signal.Signals) -> None:
    """It takes longer than the quarter of a second of `subprocess.call`."""
    process = started(program, 0.5)
    process.send_signal(number)
    assert process.wait(60) != 0
    assert (tmp_path / "cleaned").exists()


def test_a_second_interruption_does_not_wait(tmp_path: Path, started) -> None:
    process = started("a benchmark", 600.0)
    process.send_signal(signal.SIGINT)
    _until((tmp_path / "unwinds").exists)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    assert process.wait(60) != 0
    child = Path("/proc") / (tmp_path / "began").read_text()
    _until(lambda: not child.exists())


def _until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.02)
