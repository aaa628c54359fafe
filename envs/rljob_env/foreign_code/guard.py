"""Guard: a process that ends what a runner started, if the runner dies without doing so.

    python -m rljob_env.foreign_code.guard

Lines on standard input name the process groups: `+GROUP` when one begins, `-GROUP` when it has ended. The input ends
with the runner, however it ends, and the groups that are left are killed then. The guard has a session of its own, so
what kills the runner's does not kill it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys

log = logging.getLogger(__name__)


class Guard:
    """The guard of this process."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "rljob_env.foreign_code.guard"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def begin(self, group: int) -> None:
        """Let a group be killed when this process is no more."""
        self._tell(f"+{group}\n")

    def end(self, group: int) -> None:
        """Forget a group that has ended: its number may become another's."""
        self._tell(f"-{group}\n")

    def close(self) -> None:
        """End the guard, and the groups that it knows."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            # A line is one write of a few bytes, so it arrives complete.
            os.write(self._process.stdin.fileno(), line.encode())
        except BrokenPipeError:
            log.warning("the guard has died: what runs now may outlive this runner")


def main() -> None:
    """Wait for the runner's end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # It ends with the runner, and not before.
    groups: set[int] = set()
    for line in sys.stdin:
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
