"""Shell: commands with their output in a log, and Debian packages unpacked without installing them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hack.local_cluster.programs.apt import PrivateApt
from hack.local_cluster.settings import ClusterError, cache_dir

Run = Callable[[Sequence[str | Path], Path | None, Mapping[str, str] | None], None]


def home() -> Path:
    """Return the folder of the cache that everything here is kept in."""
    return cache_dir() / "kind"


def logged(log: Path) -> Run:
    """Return a function that runs a command with its output to ``log``; it raises ClusterError with the log's end."""
    log.parent.mkdir(parents=True, exist_ok=True)

    def run(command: Sequence[str | Path], cwd: Path | None = None, env: Mapping[str, str] | None = None) -> None:
        argv = [str(part) for part in command]
        with open(log, "a") as out:
            print(f"$ {' '.join(argv)}", file=out, flush=True)
            done = subprocess.run(argv, cwd=cwd, env={**os.environ, **(env or {})}, stdout=out, stderr=out, check=False)
        if done.returncode:
            end = "\n  ".join(["", *log.read_text(errors="replace").splitlines()[-15:]])
            raise ClusterError(f"{argv[0]} failed with {done.returncode}; the end of {log}: {end}")

    return run


def unpacked(package: str, run: Run) -> Path:
    """Return a folder with the files of a Debian package of this machine's own release. Raises ClusterError."""
    folder = home() / "debian" / package
    if not folder.exists():
        apt = PrivateApt(home() / "apt", run)
        apt.update()
        (archive,) = apt.download([package])
        part = folder.with_name(f".{package}.part")
        shutil.rmtree(part, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        run(["dpkg", "-x", archive, part], None, None)
        part.replace(folder)
    return folder


def which(name: str) -> str | None:
    """Return the path of a program, root's folders included."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
