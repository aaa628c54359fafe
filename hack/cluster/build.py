"""Builds Kubernetes from Debian's own source package into the cache, once.

A finished folder has the marker ``complete``. Everything else is made under ``work`` and renamed into place, so an
interrupted build goes on where it was, and a lock keeps two from building at once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from . import recipe
from .apt import PrivateApt, ensure_commands
from .controlplane import Stopwatch
from .images import architecture
from .settings import ClusterError, cache_dir, locked

_BEAT = 15.0
"""Seconds between signs of life of a long step."""


def cache() -> Path:
    return cache_dir() / "k8s" / recipe.own_key()


def binaries() -> Path:
    """The folder of finished binaries, building them first where they are not there yet."""
    if not (cache() / "complete").exists():
        run()
    return cache() / "bin"


def run(*, keep_work: bool = False) -> Path:
    """Build what is missing. Returns the folder of binaries. Raises ClusterError with a step's log on failure."""
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    with locked(f"build-{folder.name}", 3600, "another process builds the same binaries; waiting for it"):
        if not (folder / "complete").exists():
            Builder(folder).run()
            (folder / "complete").touch()
        if not keep_work:
            shutil.rmtree(folder / "work", ignore_errors=True)
    return folder / "bin"


class Builder:
    """One build, step by step, below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.work = folder / "work"
        self.log = folder / "build.log"
        self.gopath = self.work / "gopath"
        self.source = self.gopath / "src/k8s.io/kubernetes"
        self.unpacked = self.work / "packages"
        self.watch = Stopwatch()
        self.step = 0
        self.steps = 6 + len(recipe.COMPONENTS)

    def run(self) -> None:
        self.say(f"Kubernetes {recipe.VERSION} is built once, into {self.bin.parent}; log: {self.log}")
        ensure_commands({**recipe.BUILD_COMMANDS, **recipe.RUN_COMMANDS}, self.say)
        apt = PrivateApt(self.work / "apt", recipe.SUITE, self.execute)
        self.done("package lists", apt.update)
        self.done("packages", partial(self.unpack, apt))
        self.done("source", partial(self.fetch, apt))
        self.done("generated code", self.generate)
        for name in recipe.COMPONENTS:
            self.done(name, partial(self.compile, name, f"k8s.io/kubernetes/cmd/{name}"))
        self.done("pause", partial(self.compile, "pause", str(recipe.pause_source())))
        self.done("container runtime", self.copy_unpacked)
        if missing := [n for n in recipe.binaries() if not (self.bin / n).exists()]:
            raise ClusterError(f"the build made no {', '.join(missing)}; see {self.log}")

    def say(self, text: str) -> None:
        self.watch.say(text)

    def done(self, what: str, act: Callable[[], object]) -> None:
        self.step += 1
        self.say(f"({self.step}/{self.steps}) {what}")
        act()

    def execute(
        self, command: Sequence[str | Path], cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        """Run a command, its output to the log, with a sign of life now and then."""
        argv = [str(part) for part in command]
        with open(self.log, "a") as log:
            print(f"$ {' '.join(argv)}", file=log, flush=True)
            child = subprocess.Popen(argv, cwd=cwd, env={**os.environ, **(env or {})}, stdout=log, stderr=log)
            started = beat = time.monotonic()
            try:
                while child.poll() is None:
                    time.sleep(0.05)
                    if time.monotonic() - beat >= _BEAT:
                        beat = time.monotonic()
                        self.say(f"      … {beat - started:.0f} s")
            finally:
                if child.poll() is None:
                    child.terminate()
                    child.wait()
        if child.returncode:
            end = "\n  ".join(["", *self.log.read_text(errors="replace").splitlines()[-15:]])
            raise ClusterError(f"{argv[0]} failed with {child.returncode}; the end of {self.log}: {end}")

    def unpack(self, apt: PrivateApt) -> None:
        wanted = [*recipe.UNPACKED, *recipe.TOOLCHAIN, recipe.REFLECT2]
        if not (self.unpacked / "complete").exists():
            for archive in apt.download(wanted):
                self.execute(["dpkg", "-x", archive, self.unpacked])
            (self.unpacked / "complete").touch()

    def fetch(self, apt: PrivateApt) -> None:
        if self.source.is_dir():
            return
        version, archive = apt.source("kubernetes")
        if not version.split("really")[-1].startswith(recipe.VERSION):
            raise ClusterError(f"Debian's kubernetes source is {version}; this recipe is for {recipe.VERSION}")
        part = self.source.with_name("kubernetes.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        self.execute(["tar", "-x", "-f", archive, "-C", part, "--strip-components=1"])
        part.replace(self.source)

    def generate(self) -> None:
        """The generated Go files, which the release's archive leaves out."""
        if (self.work / "generated").exists():
            return
        stamp = [f"KUBE_GIT_VERSION=v{recipe.VERSION}", "KUBE_GIT_MAJOR=1", "KUBE_GIT_MINOR=20"]
        stamp += ["KUBE_GIT_COMMIT=debian", "KUBE_GIT_TREE_STATE=clean"]
        self.execute(["make", "-C", self.source, "generated_files", *stamp], env=self.go_environment())
        (self.work / "generated").touch()

    def go_environment(self) -> dict[str, str]:
        root = self.unpacked / "usr/lib/go-1.19"
        return {
            "PATH": f"{root / 'bin'}:{os.environ['PATH']}",
            "GOROOT": str(root),
            "GOPATH": str(self.gopath),
            "GOCACHE": str(self.work / "gocache"),
            "GO111MODULE": "off",
            "GOFLAGS": "",
            "GOARCH": architecture(),
            "CGO_ENABLED": "0",
        }

    def overlay(self) -> Path:
        """The build's changes to the source, as `go build -overlay` takes them: the source itself stays as it is.

        Besides the patches: Debian's reflect2 1.0.2 for the vendored 1.0.1, with which kube-apiserver, built by
        Go 1.18 or later, dies on its first custom resource.
        """
        vendored = self.source / "vendor/github.com/modern-go/reflect2"
        newer = self.unpacked / "usr/share/gocode/src/github.com/modern-go/reflect2"
        replace = {str(path): "" for path in vendored.glob("*.go")}
        replace |= {str(vendored / path.name): str(path) for path in newer.glob("*.go")}
        for number, patch in enumerate(recipe.PATCHES):
            text = (self.source / patch.file).read_text()
            if text.count(patch.old) != 1:
                raise ClusterError(f"{patch.file} has {text.count(patch.old)} times {patch.old!r}; expected one")
            changed = self.work / f"patched-{number}.go"
            changed.write_text(text.replace(patch.old, patch.new))
            replace[str(self.source / patch.file)] = str(changed)
        path = self.work / "overlay.json"
        path.write_text(json.dumps({"Replace": replace}, indent=1))
        return path

    def compile(self, name: str, package: str) -> None:
        if (self.bin / name).exists():
            return
        self.bin.mkdir(parents=True, exist_ok=True)
        part = self.work / f"{name}.part"
        flags: list[str | Path] = ["-overlay", self.overlay(), "-ldflags", recipe.link_flags(), "-o", part]
        self.execute(["go", "build", *flags, package], self.source, self.go_environment())
        part.replace(self.bin / name)

    def copy_unpacked(self) -> None:
        for files in recipe.UNPACKED.values():
            for source, target in files.items():
                (self.bin / target).parent.mkdir(parents=True, exist_ok=True)
                part = self.work / "copy.part"
                shutil.copy2(self.unpacked / source, part)
                part.replace(self.bin / target)


if __name__ == "__main__":
    sys.exit(f"use {Path(__file__).with_name('cluster')} build")
