"""A Docker engine of one's own, for a machine that has none: on a private socket, and without a change to the firewall.

hack/kind/engine up|down|env        needs root; `env` prints lines for eval
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hack.local_cluster.nodes import cgroups
from hack.local_cluster.process import Daemons
from hack.local_cluster.programs import build, recipe
from hack.local_cluster.settings import ClusterError, cache_dir, locked

from . import capabilities
from .shell import home, logged, unpacked, which

_STARTS_SECONDS = 60.0
_GROUP = "rljob-docker"
"""The control group of the engine's containers, apart from those of another engine."""


def state() -> Path:
    """Return the engine's folder, which goes with it."""
    return cache_dir() / "docker"


def host() -> str:
    """Return the address of the engine's socket, as ``DOCKER_HOST`` has it."""
    return f"unix://{state() / 'docker.sock'}"


def command(folder: Path, runtime: Path | None) -> list[str | Path]:
    """Return the engine's command line. ``runtime``: what runs containers, where plain runc cannot."""
    words: list[str | Path] = [
        "dockerd",
        *(f"--host=unix://{folder / 'docker.sock'}", f"--data-root={folder / 'data'}"),
        *(f"--exec-root={folder / 'exec'}", f"--pidfile={folder / 'dockerd.pid'}"),
        f"--cgroup-parent={_GROUP}",
        # kind has a network of its own. Forwarding rules for it would drop the packets of other clusters here.
        *("--bridge=none", "--iptables=false", "--ip-forward=false", "--ip-masq=false"),
    ]
    if runtime is not None:
        words += [f"--add-runtime=limited={runtime}", "--default-runtime=limited"]
    return words


def up() -> None:
    """Start the engine and wait until it answers; fine when it runs. Raises ClusterError."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise ClusterError("a Docker engine of one's own needs root on Linux; elsewhere install Docker")
    with locked("docker", 900, "another command starts the engine; waiting for it"):
        if answers():
            return
        binaries = build.binaries((*recipe.CONTAINERD.programs, "runc"))
        folder = state()
        folder.mkdir(parents=True, exist_ok=True)
        runtime = None
        if capabilities.lacking():
            runtime = folder / "runc"
            runtime.write_text(capabilities.runtime(binaries / "runc"))
            runtime.chmod(0o755)
        path = os.pathsep.join([str(binaries), *_programs(), os.environ["PATH"], "/usr/sbin", "/sbin"])
        daemons = _daemons()
        first, *rest = command(folder, runtime)
        dockerd = shutil.which(str(first), path=path)
        if dockerd is None:
            raise ClusterError("no dockerd: install the package docker.io")
        process = daemons.start("dockerd", [dockerd, *rest], {"PATH": path})
        end = time.monotonic() + _STARTS_SECONDS
        while not answers():
            if not process.alive or time.monotonic() > end:
                raise ClusterError(f"dockerd does not answer: {daemons.tail('dockerd')}")
            time.sleep(0.2)


def down() -> bool:
    """End the engine and delete what it kept; whether there was one."""
    if not state().exists():
        return False
    if answers():
        if containers := _ask("ps", "--all", "--quiet").split():
            _ask("rm", "--force", "--volumes", *containers)
        _ask("network", "prune", "--force")  # the kernel keeps its bridge otherwise
    _daemons().stop(["dockerd"], grace=30)
    cgroups.remove(cgroups.of_this_machine(), _GROUP)
    for mount in _mounts_below(state()):
        subprocess.run(["umount", "--lazy", mount], check=True)
    shutil.rmtree(state())
    return True


def answers() -> bool:
    """Whether the engine is there."""
    docker = _docker()
    if docker is None or not (state() / "docker.sock").exists():
        return False
    return subprocess.run([docker, "--host", host(), "version"], capture_output=True, check=False).returncode == 0


def use() -> None:
    """Let this process and its children talk to the engine, where it runs and no other is named."""
    docker = _docker()
    if not os.environ.get("DOCKER_HOST") and docker is not None and answers():
        os.environ["DOCKER_HOST"] = host()
        os.environ["PATH"] += os.pathsep + str(Path(docker).parent)


def environment() -> str:
    """Lines for a shell to evaluate."""
    docker = _docker()
    folder = [] if docker is None else [f"export PATH='{Path(docker).parent}':\"$PATH\""]
    return "\n".join([f"export DOCKER_HOST='{host()}'", *folder])


def _ask(*words: str) -> str:
    """Return what the engine answers. Raises ClusterError when it refuses."""
    command = [str(_docker()), "--host", host(), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"docker {words[0]}: {done.stderr.strip()}")
    return done.stdout


def _daemons() -> Daemons:
    return Daemons(state() / "pids", state() / "logs")


def _programs() -> list[str]:
    """Folders with the engine's programs: Debian's package, unpacked, where none is installed."""
    if which("dockerd") is not None:
        return []
    folder = unpacked("docker.io", logged(home() / "engine.log"))
    return [str(folder / "usr/sbin"), str(folder / "usr/bin")]


def _docker() -> str | None:
    return shutil.which("docker") or shutil.which("docker", path=str(home() / "debian/docker.io/usr/bin"))


def _mounts_below(folder: Path) -> list[str]:
    """Mount points of what did not end in time; the deepest first."""
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    return sorted((one for one in points if one.startswith(f"{folder}/")), key=len, reverse=True)


def main(argv: Sequence[str]) -> int:
    try:
        match list(argv):
            case ["up"]:
                up()
                print(environment())
            case ["down"]:
                print(f"the engine {'is down' if down() else 'was not up'}")
            case ["env"]:
                print(environment())
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except ClusterError as error:
        print(f"engine: {error}", file=sys.stderr)
        return 1
    return 0
