"""One episode: with `reset: Pod` a runner ends after its episode, and the operator replaces its pod.

The kubelet starts an ended container again, in the same pod with the same volumes. So the episode leaves a mark there,
and a runner that finds it ends immediately. The exit code tells the operator.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path

from rljob_env.episode import Assignment, Harness, Report

USED = 86
"""Exit code of a runner whose pod has had its episode."""


class PodMark:
    """A file that says that this pod has had its episode."""

    def __init__(self, folder: Path, pod: str | None = None) -> None:
        """`folder`: one that lives as long as the pod. `pod`: its name, else the host's."""
        # By the pod's name: the folder may be a volume that outlives the pod.
        name = pod or socket.gethostname()
        self._file = folder / f"used-{name}"
        self._was_set = False

    @property
    def is_set(self) -> bool:
        """Tell whether the pod has had its episode, or what seems so: a program may have made the file."""
        # A program may have removed it, too.
        return self._was_set or os.path.lexists(self._file)

    def set(self) -> None:
        """Write the mark. Raises `OSError` where that cannot be."""
        self._file.touch(mode=0o600)
        self._was_set = True


class MarkingHarness:
    """A harness that marks its pod before its episode begins."""

    def __init__(self, harness: Harness, mark: PodMark) -> None:
        self._harness, self._mark = harness, mark

    async def run(self, assignment: Assignment) -> Report:
        """Run an episode. Raises what the harness raises, and `OSError` without an episode if the mark is not made."""
        self._mark.set()
        return await self._harness.run(assignment)

    async def close(self) -> None:
        """End the harness."""
        await self._harness.close()
