"""A real node from the inside: ``launch`` makes its namespaces, ``init`` is its first process.

python -m hack.local_cluster.nodes.node_init launch|init STATE_DIR BINARIES NODE GROUP
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from . import cgroups, nodeconfig


def launch(args: list[str]) -> None:
    """Enter the node's control groups, then become unshare(1), whose child is the node's init.

    The groups come first: the cgroup namespace takes the groups of this moment for its root.
    """
    cgroups.enter(cgroups.of_this_machine(), args[3])
    flags = ["--net", "--mount", "--uts", "--ipc", "--pid", "--cgroup", "--fork", "--kill-child"]
    inner = [sys.executable, "-m", __spec__.name if __spec__ else __name__, "init", *args]
    os.execvp("unshare", ["unshare", *flags, "--propagation", "private", *inner])


def mount(*args: str | Path) -> None:
    subprocess.run(["mount", *map(str, args)], check=True)


def own_mounts(state: Path, binaries: Path, node: str) -> None:
    """Mount the node's view of the file system: the host's, with its own /proc, /sys, /run and a few folders."""
    trees = cgroups.of_this_machine()
    mount("--make-rshared", "/")
    mount("-t", "proc", "proc", "/proc")
    mount("-t", "sysfs", "sysfs", "/sys")
    for command in cgroups.mount_commands(trees):
        subprocess.run(command, check=True)
    cgroups.settle(trees)
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    mount("--make-rshared", "/run")
    shown = {
        nodeconfig.HOME: state / node,
        nodeconfig.BIN: binaries,
        nodeconfig.VOLUMES: state / "volumes",
        nodeconfig.IMAGES: state / "images",
    }
    for target, source in shown.items():
        target.mkdir(parents=True)
        mount("--bind", source, target)
    for folder in ("/run/lock", "/run/netns", "/run/containerd"):
        os.makedirs(folder, exist_ok=True)
    # Mount points that the host lacks are made in overlays over a tmpfs, not on the host.
    for folder in ("/var/lib", "/var/log"):
        upper, work = (Path("/run/overlay") / f"{kind}{folder.replace('/', '-')}" for kind in ("upper", "work"))
        upper.mkdir(parents=True)
        work.mkdir()
        mount("-t", "overlay", "overlay", "-o", f"lowerdir={folder},upperdir={upper},workdir={work}", folder)
    for source, place in nodeconfig.BINDS.items():
        source.mkdir(parents=True, exist_ok=True)
        os.makedirs(place, exist_ok=True)
        mount("--bind", source, place)
    mount("--make-rshared", "/var/lib/kubelet")
    own_sysctls()


def own_sysctls() -> None:
    for name, value in nodeconfig.SYSCTLS.items():
        real, shown = Path("/proc/sys") / name, Path("/run/sysctl") / name.replace("/", ".")
        if real.exists():
            shown.parent.mkdir(exist_ok=True)
            shown.write_text(value + "\n")
            mount("--bind", shown, real)


def wait_for(what: str, path: Path, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: no {path} after {seconds:.0f} s")
        time.sleep(0.05)


class Supervisor:
    """Keeps the node's daemons running, each with its own log, and collects orphans, as pid 1 has to."""

    def __init__(self, commands: dict[str, list[str]], logs: Path, node: str) -> None:
        self._commands, self._logs, self._node = commands, logs, node
        self._running: dict[int, str] = {}

    def start(self, name: str) -> None:
        with open(self._logs / f"{self._node}.{name}.log", "ab") as log:
            child = subprocess.Popen(
                self._commands[name],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": f"{nodeconfig.BIN}:{os.environ['PATH']}"},
            )
        self._running[child.pid] = name

    def serve(self) -> None:
        """Run daemons without end: one that ended restarts after a second."""
        while True:
            try:
                pid, status = os.waitpid(-1, 0)
            except ChildProcessError:
                pid, status = 0, 0
                time.sleep(1)
            if name := self._running.pop(pid, None):
                print(f"{name} ended with status {status}; starting it again", flush=True)
                time.sleep(1)
                self.start(name)


def init(state: Path, binaries: Path, node: str) -> None:
    socket.sethostname(node)
    logs = state / "logs"
    own_mounts(state, binaries, node)
    wait_for("network", Path("/sys/class/net/eth0"))
    commands = json.loads((nodeconfig.HOME / "etc/daemons.json").read_text())
    supervisor = Supervisor(commands, logs, node)
    supervisor.start("containerd")
    wait_for("containerd", Path(nodeconfig.SOCKET))
    ctr = [f"{nodeconfig.BIN}/ctr", "-n", "k8s.io", "images", "import"]
    for archive in sorted(nodeconfig.IMAGES.glob("*.tar")):
        subprocess.run([*ctr, str(archive)], check=True)
    for name in commands:
        if name != "containerd":
            supervisor.start(name)
    supervisor.serve()


if __name__ == "__main__":
    # pid 1 ignores SIGTERM unless told otherwise; a node ends by losing power.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.argv[1] == "launch":
        launch(sys.argv[2:])
    else:
        init(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
