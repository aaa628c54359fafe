"""Guard: a process that ends what a runner started, if the runner dies without doing so.

    python -m rljob_env.foreign_code.guard

Lines on standard input name the process groups: `+GROUP` when one begins, `-GROUP` when it has ended. A group names
itself before its program begins: a runner that dies just then has not named it. The input ends with the runner, however
it ends, and the groups that are left are killed then. The guard has a session of its own, so what kills the runner's
does not kill it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

log = logging.getLogger(__name__)


class Guard:
    """The guard of this process."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "rljob_env.foreign_code.guard"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def begin(self) -> None:
        """Register the group of this process: the guard kills the group when the runner dies.

        Call it in a child, before the child's program begins.
        """
        # A child has the default action of SIGPIPE, so a write to a dead guard would end it. `look` reports the death.
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        with contextlib.suppress(BrokenPipeError):
            self._write(f"+{os.getpid()}\n")
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)

    def look(self) -> None:
        """Warn if there is no guard any more."""
        if self._process.poll() is not None:
            log.warning("the guard has died: what runs now may outlive this runner")

    def end(self, group: int) -> None:
        """Forget a group that has ended: its number may become another's."""
        with contextlib.suppress(BrokenPipeError):
            self._write(f"-{group}\n")

    def close(self) -> None:
        """End the guard, and the groups that it knows."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        # A line is one write of a few bytes, so it arrives complete.
        os.write(self._process.stdin.fileno(), line.encode())


def main() -> None:
    """Wait for the runner's end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # It ends with the runner, and not before.
    groups: dict[int, str | None] = {}
    for line in sys.stdin:
        group = int(line[1:])
        if line.startswith("+"):
            groups[group] = _started(group)
        else:
            groups.pop(group, None)
        # A program that could not begin has registered its group, but no line reports the group's end.
        groups = {one: started for one, started in groups.items() if _exists(one)}
    for group, started in groups.items():
        # The number may be another's by now.
        if _started(group) in (None, started):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)


def _exists(group: int) -> bool:
    """Return whether there is a process group of this number."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _started(process: int) -> str | None:
    """Return when a process began, as the kernel counts; None if there is none."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(")")[2].split()[19]


if __name__ == "__main__":
    main()
