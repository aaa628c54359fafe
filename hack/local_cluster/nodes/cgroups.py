"""Control groups: those of a real node, on cgroup v1 and v2.

A node gets a group of its own in every hierarchy; a cgroup namespace makes that group the root its kubelet sees.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hack.local_cluster.settings import ClusterError

V2_CONTROLLERS = ("cpuset", "cpu", "io", "memory", "hugetlb", "pids")
_NEEDED = ("cpu", "memory", "pids")


@dataclass(frozen=True)
class Hierarchy:
    """One mounted cgroup tree. ``controllers`` of a named v1 tree is ``name=...``."""

    mount: Path
    version: int
    controllers: tuple[str, ...]

    @property
    def mount_options(self) -> list[str]:
        """What ``mount`` needs to show the same tree once more."""
        if self.version == 2:
            return ["-t", "cgroup2"]
        named = self.controllers[0].startswith("name=")
        return ["-t", "cgroup", "-o", ",".join((*(("none",) if named else ()), *self.controllers))]


def hierarchies(mountinfo: str, v2_controllers: str = "") -> list[Hierarchy]:
    """Return the trees a node has to be in, from ``/proc/self/mountinfo``.

    With the memory controller in a v1 tree (v1, or "hybrid") those are all v1 trees; else the v2 tree alone.
    ``v2_controllers`` is the text of the v2 root's ``cgroup.controllers``. Raises ClusterError when a controller
    that kubelet needs is nowhere.
    """
    legacy, unified = [], []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fstype, _, options = after.split()[:3]
        mount = Path(before.split()[4])
        if fstype == "cgroup":
            words = options.split(",")
            flags = {"rw", "ro", "xattr", "clone_children", "noprefix", "none"}
            kept = tuple(w for w in words if w not in flags and not w.startswith("release_agent="))
            legacy.append(Hierarchy(mount, 1, kept))
        elif fstype == "cgroup2":
            unified.append(Hierarchy(mount, 2, tuple(c for c in V2_CONTROLLERS if c in v2_controllers.split())))
    chosen = legacy if any("memory" in h.controllers for h in legacy) else unified[:1]
    offered = {c for h in chosen for c in h.controllers}
    if lacking := [c for c in _NEEDED if c not in offered]:
        raise ClusterError(
            f"nodes need the cgroup controllers {', '.join(lacking)}; use kind, or a cluster of your own"
        )
    return _unique(chosen)


def _unique(found: Sequence[Hierarchy]) -> list[Hierarchy]:
    """One per set of controllers: a tree can be mounted in several places."""
    first: dict[tuple[str, ...], Hierarchy] = {}
    for tree in found:
        first.setdefault(tree.controllers, tree)
    return list(first.values())


def of_this_machine() -> list[Hierarchy]:
    v2 = ""
    for candidate in ("/sys/fs/cgroup/cgroup.controllers", "/sys/fs/cgroup/unified/cgroup.controllers"):
        with contextlib.suppress(FileNotFoundError):
            v2 += Path(candidate).read_text()
    return hierarchies(Path("/proc/self/mountinfo").read_text(), v2)


def create(trees: Sequence[Hierarchy], group: str) -> None:
    """Make ``group`` (a relative path such as ``rljob246/node-1``) in every tree, ready to hold processes."""
    for tree in trees:
        path = tree.mount
        for part in Path(group).parts:
            parent, path = path, path / part
            if tree.version == 2:
                delegate(parent, tree.controllers)
            path.mkdir(exist_ok=True)
            if "cpuset" in tree.controllers and tree.version == 1:
                # A v1 cpuset starts empty, and an empty one takes no process.
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (path / name).write_text((parent / name).read_text())
                (path / "cgroup.clone_children").write_text("1")


def delegate(group: Path, controllers: Sequence[str]) -> None:
    """v2: let the children of ``group`` have the controllers. Only the machine's root may hold processes then."""
    control = group / "cgroup.subtree_control"
    given = control.read_text().split() if control.exists() else []
    if missing := [c for c in controllers if c not in given]:
        try:
            control.write_text(" ".join(f"+{c}" for c in missing))
        except OSError as error:
            raise ClusterError(f"{control}: cannot delegate {', '.join(missing)}: {error.strerror}") from error


def enter(trees: Sequence[Hierarchy], group: str) -> None:
    """Put this process into ``group`` in every tree."""
    for tree in trees:
        (tree.mount / group / "cgroup.procs").write_text(str(os.getpid()))


def mount_commands(trees: Sequence[Hierarchy], root: Path = Path("/sys/fs/cgroup")) -> list[list[str]]:
    """Return the commands that show the node's own groups at ``root``, inside its mount and cgroup namespaces.

    v2: the namespace's root group is to delegate, so its processes (the calling one) move into ``init`` first.
    """
    if trees[0].version == 2:
        return [["mount", "-t", "cgroup2", "cgroup2", str(root)]]
    commands = [["mount", "-t", "tmpfs", "-o", "mode=755", "cgroup", str(root)]]
    for tree in trees:
        where = root / tree.mount.name
        commands += [["mkdir", str(where)], ["mount", *tree.mount_options, "cgroup", str(where)]]
        if len(tree.controllers) > 1:  # cpu,cpuacct: also known by each of its names
            commands += [["ln", "-sfn", tree.mount.name, str(root / name)] for name in tree.controllers]
    return commands


def settle(trees: Sequence[Hierarchy], root: Path = Path("/sys/fs/cgroup")) -> None:
    """v2: move the node's init out of its root group and delegate, as v2's "no inner processes" rule asks."""
    if trees[0].version == 2:
        (root / "init").mkdir(exist_ok=True)
        for pid in (root / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (root / "init" / "cgroup.procs").write_text(pid)
        delegate(root, trees[0].controllers)


def remove(trees: Sequence[Hierarchy], group: str, timeout: float = 10) -> None:
    """Remove ``group`` and all below it once its processes have ended; fine when it is not there.

    A kubelet that starts among the groups of an earlier life spends its first minute tidying them.
    """
    end = time.monotonic() + timeout
    for tree in trees:
        top = tree.mount / group
        while top.is_dir():
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):  # busy for as long as the kernel is ending its processes
                    os.rmdir(folder)
            if not top.is_dir():
                break
            if time.monotonic() > end:
                raise ClusterError(f"{top} is still busy {timeout:.0f} s after its processes were killed")
            time.sleep(0.05)


def pids(trees: Sequence[Hierarchy], group: str) -> set[int]:
    """Return processes anywhere below ``group``."""
    found: set[int] = set()
    for tree in trees:
        for folder, _, _ in os.walk(tree.mount / group):
            with contextlib.suppress(OSError):
                found.update(map(int, (Path(folder) / "cgroup.procs").read_text().split()))
    return found
