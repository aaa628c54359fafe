"""Cluster settings: where a cluster keeps its things, and which addresses it uses."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[2]
"""The checkout. It is mounted into the pods."""

MAX_NODES = 9
DOMAIN = "cluster.local"
RUNTIME_IMAGE = "rljob.local/runtime:dev"
OPERATOR_IMAGE = "rljob.local/operator:dev"
PAUSE_IMAGE = "rljob.local/pause:dev"

# Second octets tried, in this order, for the cluster's own 10.N.0.0/16.
_OCTETS = tuple(range(246, 219, -1))


class ClusterError(Exception):
    """Something the user can act on; the text says what."""


def cache_dir() -> Path:
    """Return the cache folder: ``$RLJOB_CACHE``, else ``$XDG_CACHE_HOME``, else ``~/.cache``, then ``rljob``."""
    base = os.environ.get("RLJOB_CACHE") or os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).expanduser().resolve() / "rljob"


def venv_dir() -> Path:
    """Return the virtual environment whose Python the pods run: that of this process, else the checkout's ``.venv``.

    Not ``$VIRTUAL_ENV``: that of another checkout may be active, whose code the pods do not see."""
    return Path(sys.prefix) if sys.prefix != sys.base_prefix else ROOT / ".venv"


@dataclass(frozen=True)
class Network:
    """One /16 for everything.

    Nodes are in 10.N.0.0/24, pods of node i in 10.N.i.0/24, Services in 10.N.200.0/22, which are virtual addresses that
    nothing routes.
    """

    octet: int

    @property
    def cidr(self) -> str:
        return f"10.{self.octet}.0.0/16"

    @property
    def host(self) -> str:
        return f"10.{self.octet}.0.1"

    @property
    def service_cidr(self) -> str:
        return f"10.{self.octet}.200.0/22"

    @property
    def service_api(self) -> str:
        return f"10.{self.octet}.200.1"

    @property
    def bridge(self) -> str:
        return f"rljob{self.octet}"

    @property
    def mac(self) -> str:
        """Return the bridge's address.

        A bridge without one takes that of its lowest port: after each removal of that port the API server behind the
        bridge would be unreachable for some seconds.
        """
        return f"02:00:00:00:{self.octet:02x}:01"

    def node(self, index: int) -> str:
        return f"10.{self.octet}.0.{10 + index}"

    def pods(self, index: int) -> str:
        return f"10.{self.octet}.{index}.0/24"

    def veth(self, index: int) -> str:
        return f"{self.bridge}n{index}"


@dataclass(frozen=True)
class Cluster:
    """What ``up`` decided; kept in ``cluster.json`` and read by every later command."""

    name: str
    kind: str  # "real", or "kind" for one that kind made
    nodes: int
    network: Network
    identity: str
    venv: str
    kubernetes: str = ""
    """The Kubernetes minor it runs, as ``1.37``."""

    @property
    def state(self) -> Path:
        return state_dir(self.name)

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def pids(self) -> Path:
        return self.state / "pids"

    @property
    def volumes(self) -> Path:
        return self.state / "volumes"

    @property
    def images(self) -> Path:
        return self.state / "images"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "admin.kubeconfig"

    def node(self, index: int) -> str:
        """Return the name of a node; kind names its own."""
        if self.kind == "kind":
            return f"{self.identity}-worker{'' if index == 1 else index}"
        return node_name(index)

    def node_dir(self, index: int) -> Path:
        return self.state / node_name(index)

    def save(self) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        path = self.state / "cluster.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(asdict(self), indent=1))
        part.replace(path)


def node_name(index: int) -> str:
    return f"node-{index}"


def node_index(name: str) -> int:
    """Return the index in a node's name; kind does not count its first one."""
    digits = re.search(r"\d*$", name)
    return int((digits and digits[0]) or 1)


def state_dir(name: str) -> Path:
    return cache_dir() / "clusters" / name


def load(name: str) -> Cluster | None:
    """Return the cluster of that name, or None when there is none.

    Fields from another version of this tool are left out: every version can take a cluster down by the common fields.
    """
    try:
        raw = json.loads((state_dir(name) / "cluster.json").read_text())
    except FileNotFoundError:
        return None
    known = {field.name: raw[field.name] for field in fields(Cluster) if field.name in raw}
    return Cluster(**{**known, "network": Network(raw["network"]["octet"])})


def existing() -> list[Cluster]:
    """Every cluster of this user, up or half down."""
    folder = cache_dir() / "clusters"
    names = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    return [c for c in map(load, names) if c is not None]


def free_octet(taken: Iterable[int], routed: Iterable[str]) -> int:
    """Return the first second octet whose 10.N.0.0/16 no other cluster has and no route of this machine overlaps."""
    used = set(taken)
    networks = [n for n in map(ipaddress.ip_network, routed) if n.version == 4 and n.prefixlen]
    for octet in _OCTETS:
        block = ipaddress.ip_network(f"10.{octet}.0.0/16")
        if octet not in used and not any(block.overlaps(n) for n in networks):
            return octet
    raise ClusterError(f"no free network: every 10.N.0.0/16 with N in {_OCTETS[-1]}..{_OCTETS[0]} is routed or taken")


def routes() -> list[str]:
    """Destinations in this machine's routing tables."""
    out = subprocess.run(["ip", "-j", "route", "show", "table", "all"], capture_output=True, text=True, check=True)
    entries = json.loads(out.stdout or "[]")
    return [e["dst"] for e in entries if e["dst"] != "default" and ":" not in e["dst"]]


@contextlib.contextmanager
def locked(what: str, timeout: float = 1800, waiting: str = "") -> Iterator[None]:
    """Hold the cache's lock ``what`` against other processes. Its file goes with the holder.

    Raises ClusterError when it is not free within ``timeout`` seconds. The kernel frees it when the holder dies.
    """
    path = cache_dir() / f".{what}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + timeout
    while (handle := _take(path)) is None:
        if waiting:
            print(waiting, flush=True)
            waiting = ""
        if time.monotonic() > end:
            raise ClusterError(f"{path} was held for {timeout:.0f} s by another process")
        time.sleep(0.2)
    with handle:
        try:
            yield
        finally:
            path.unlink()


def _take(path: Path) -> IO[str] | None:
    """Return the file, open and locked; None while another process has it."""
    handle = open(path, "w")  # noqa: SIM115
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A holder that ended since took the file's name with it: what is locked here would exclude no process.
        if os.path.samestat(os.fstat(handle.fileno()), path.stat()):
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    handle.close()
    return None
