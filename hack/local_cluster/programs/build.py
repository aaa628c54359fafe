"""Build: makes Kubernetes and what runs it from Go modules into the cache, each program once.

A program is made under another name and renamed into place, so that an interrupted build goes on where it was; a lock
keeps two processes from building the same at a time. Programs that serve every Kubernetes minor are built once and
hard-linked into the folder of each.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hack.local_cluster.control_plane.control_plane import Stopwatch
from hack.local_cluster.settings import ClusterError, cache_dir, locked

from . import go, recipe
from .apt import PrivateApt

_INTERVAL = 15.0
"""Seconds between signs of life of a long step."""


def folder(release: recipe.Release | None = None) -> Path:
    """Where the finished programs of a release are, or will be."""
    return cache_dir() / "k8s" / (release or recipe.release()).key() / "bin"


def missing(wanted: Sequence[str] = recipe.CLUSTER, release: recipe.Release | None = None) -> list[str]:
    """Return the programs of ``wanted`` that are not built yet."""
    return [name for name in wanted if not (folder(release) / name).exists()]


def binaries(wanted: Sequence[str] = recipe.CLUSTER, release: recipe.Release | None = None) -> Path:
    """Return the folder that holds the programs ``wanted``, building first what it lacks.

    Raises ClusterError with the end of the log when a step fails.
    """
    release = release or recipe.release()
    where = folder(release)
    if missing(wanted, release):
        where.mkdir(parents=True, exist_ok=True)
        # One build at a time on a machine: it fills the processors by itself.
        with locked("build", 7200, "another process builds Kubernetes; waiting for it"):
            if lacking := missing(wanted, release):
                Builder(release, where).run(lacking)
    return where


class Builder:
    """One build of some programs of a release into ``where``."""

    def __init__(self, release: recipe.Release, where: Path) -> None:
        self.release = release
        self.where = where
        self.work = cache_dir() / "k8s" / "work"
        self.log = where.parent / "build.log"
        self.watch = Stopwatch()

    def run(self, wanted: Sequence[str]) -> None:
        self.work.mkdir(parents=True, exist_ok=True)
        self.say(f"Kubernetes {self.release.version} is built once, into {self.where.parent}; log: {self.log}")
        for number, name in enumerate(wanted, 1):
            target = self.where / name
            target.parent.mkdir(parents=True, exist_ok=True)
            self.say(f"({number}/{len(wanted)}) {self._label(name)}")
            self._make(name, target)
        shutil.rmtree(self.work, ignore_errors=True)
        self.say(f"{', '.join(wanted)}: {_megabytes(self.where)} MB")

    def say(self, text: str) -> None:
        self.watch.say(text)

    def _label(self, name: str) -> str:
        module = self.release.module_of(name)
        return name if module is None else f"{name} {module.version()}"

    def _make(self, name: str, target: Path) -> None:
        module = self.release.module_of(name)
        if module is not None and module is not self.release.kubernetes:
            shared = cache_dir() / "k8s" / module.key() / name
            if not shared.exists():
                self._compile(module, name, shared)
            _link(shared, target)
        elif module is not None:
            self._compile(module, name, target)
        elif name == "pause":
            self._go_build(recipe.pause_source().parent, target, ["-ldflags=-s -w"], recipe.pause_source().name)
        elif name == "runc":
            _copy(self._runc(), target)
        else:
            raise ClusterError(f"nothing here builds {name}")

    def _compile(self, module: recipe.Module, name: str, target: Path) -> None:
        self._go_build(module.folder, target, module.flags(), module.programs[name])

    def _go_build(self, cwd: Path, target: Path, flags: Sequence[str], package: str) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        self.execute([go.command(self.say), "build", *flags, "-o", part, package], cwd, go.ENVIRONMENT)
        part.replace(target)

    def _runc(self) -> Path:
        """Debian's, unpacked and not installed; where apt knows none, the machine's own."""
        apt = PrivateApt(self.work / "apt", self.execute)
        try:
            apt.update()
            (archive,) = apt.download(["runc"])
            self.execute(["dpkg", "-x", archive, self.work / "runc"])
            return self.work / "runc/usr/sbin/runc"
        except ClusterError as error:
            own = shutil.which("runc", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
            if own is None:
                raise ClusterError(f"no runc: {error}; install the package runc, then build again") from error
            self.say(f"      the machine's own {own}: {str(error).splitlines()[0]}")
            return Path(own)

    def execute(
        self, command: Sequence[str | Path], cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        """Run a command, its output to the log, with a sign of life now and then."""
        argv = [str(part) for part in command]
        with open(self.log, "a") as log:
            print(f"$ {' '.join(argv)}", file=log, flush=True)
            child = subprocess.Popen(argv, cwd=cwd, env={**os.environ, **(env or {})}, stdout=log, stderr=log)
            _follow(child, self.say)
        if child.returncode:
            end = "\n  ".join(["", *self.log.read_text(errors="replace").splitlines()[-15:]])
            raise ClusterError(f"{argv[0]} failed with {child.returncode}; the end of {self.log}: {end}")


def _follow(child: subprocess.Popen[bytes], say: Callable[[str], None]) -> None:
    """Wait for a process, with a line each ``_INTERVAL`` seconds; end it when this one is interrupted."""
    started = last = time.monotonic()
    try:
        while child.poll() is None:
            time.sleep(0.05)
            if time.monotonic() - last >= _INTERVAL:
                last = time.monotonic()
                say(f"      … {last - started:.0f} s")
    finally:
        if child.poll() is None:
            child.terminate()
            child.wait()


def _link(source: Path, target: Path) -> None:
    """Link the same file under a second name, or copy it where the file system has no such links."""
    part = target.with_name(f".{target.name}.part")
    part.unlink(missing_ok=True)
    try:
        os.link(source, part)
    except OSError:
        _copy(source, target)
    else:
        part.replace(target)


def _copy(source: Path, target: Path) -> None:
    part = target.with_name(f".{target.name}.part")
    shutil.copy2(source, part)
    part.replace(target)


def _megabytes(where: Path) -> int:
    return sum(path.stat().st_size for path in where.rglob("*") if path.is_file()) // 1_000_000
