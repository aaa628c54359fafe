"""Debian packages: a private apt that keeps its files in the cache, and the few packages that have to be installed."""

from __future__ import annotations

import getpass
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hack.local_cluster.settings import ClusterError, locked

Execute = Callable[[Sequence[str | Path], Path | None, Mapping[str, str] | None], None]


def mirrors(uris: str, suite: str) -> list[str]:
    """Addresses of the archives that this machine's apt takes ``suite`` from.

    ``uris``: what `apt-get --print-uris update` prints, a quoted address of every suite's InRelease. That works
    before any list was fetched.
    """
    return list(dict.fromkeys(re.findall(rf"^'(\S+)/dists/{re.escape(suite)}/InRelease'", uris, re.MULTILINE)))


def sources(addresses: Sequence[str], suite: str, keyring: str) -> str:
    """Return a sources file with the binaries of ``suite``'s main section."""
    stanza = ["Types: deb", f"URIs: {' '.join(addresses)}", f"Suites: {suite}", "Components: main"]
    return "\n".join([*stanza, f"Signed-By: {keyring}", ""])


class PrivateApt:
    """apt with every file of its own below ``folder``: needs no root and leaves the machine's lists alone."""

    def __init__(self, folder: Path, execute: Execute, suite: str | None = None) -> None:
        """``suite``: the Debian release to take packages from; by default, this machine's."""
        self._folder, self._execute = folder, execute
        self._suite = suite or _own_suite()
        options = {
            "Dir::State::lists": folder / "lists",
            "Dir::Cache": folder / "cache",
            "Dir::Etc::sourcelist": "/dev/null",
            "Dir::Etc::sourceparts": folder / "sources.d",
            "APT::Sandbox::User": getpass.getuser(),
            "Acquire::Languages": "none",
            "APT::Get::Download-Only": "true",
        }
        self._apt = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items())]

    def update(self) -> None:
        """Fetch the lists. Raises ClusterError when this machine's apt knows no archive of the suite."""
        if (self._folder / "updated").exists():
            return
        known = mirrors(_uris(), self._suite)
        keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
        if not known or not keyring.exists():
            raise ClusterError(f"apt here knows no archive of Debian {self._suite or '(no suite named)'}")
        for name in ("lists/partial", "cache/archives/partial", "sources.d", "download"):
            (self._folder / name).mkdir(parents=True, exist_ok=True)
        (self._folder / "sources.d/rljob.sources").write_text(sources(known, self._suite, str(keyring)))
        self._execute([*self._apt, "update"], None, None)
        (self._folder / "updated").touch()

    def download(self, packages: Sequence[str]) -> list[Path]:
        """Return the packages' archives, newest version of the suite each."""
        folder = self._folder / "download"
        self._execute([*self._apt, "download", *packages], folder, None)
        return [_only(folder, f"{package}_*.deb") for package in packages]


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise ClusterError(f"expected one {folder}/{pattern}, found {len(found)}: remove the folder and build again")
    return found[0]


def _own_suite() -> str:
    """Return the code name of this machine's release, or nothing."""
    try:
        return platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    except OSError:
        return ""


def _uris() -> str:
    command = ["apt-get", "--print-uris", "update"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return ""


def ensure_commands(commands: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Have every command (name → package), installing what is missing when root. Raises ClusterError when not."""
    if not _missing(commands):
        return
    with locked("apt", 900, "another process installs packages; waiting for it"):
        if packages := _missing(commands):
            _install(packages, say)


def _missing(commands: Mapping[str, str]) -> list[str]:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    return sorted({package for name, package in commands.items() if not shutil.which(name, path=path)})


def _install(packages: Sequence[str], say: Callable[[str], None]) -> None:
    if os.geteuid() != 0:
        raise ClusterError(f"missing: {', '.join(packages)}. As root: apt-get install {' '.join(packages)}")
    say(f"installing {', '.join(packages)}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *packages]):
        done = subprocess.run(["apt-get", *command], env=env, capture_output=True, text=True)
        if done.returncode:
            raise ClusterError(f"apt-get {command[0]}: {done.stderr.strip()[-500:]}")
