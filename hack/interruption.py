"""Interruption: a program that starts commands lets them clean up when it is interrupted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence

CLEAN_UP_SECONDS = 60.0
"""Time of an interrupted command to end what it started."""


def unwind_on_signals() -> None:
    """Let SIGTERM unwind like Ctrl-C, so that what was started ends too. A shell may have SIGINT ignored."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)


def run_to_end(command: Sequence[str]) -> int:
    """Run a command and return its exit status. It is interrupted with this process, and may clean up.

    Interrupted tests end their clusters. Its group is its own, so that it gets one signal also from a terminal. A shell
    that starts this process in the background has SIGINT ignored, and a child would inherit that.
    """
    process = subprocess.Popen(
        command, process_group=0, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )
    try:
        return process.wait()
    except BaseException:
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            try:
                process.wait(CLEAN_UP_SECONDS)
            finally:  # Its time is over, or a second interruption does not wait for it.
                if process.returncode is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        raise
