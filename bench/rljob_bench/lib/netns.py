"""Network namespaces on one machine, joined by links of a known rate: where the relay is measured and tested.

They form a line, or a star around a switch.

    node 0 ══ link 0 ══ node 1 ══ link 1 ══ node 2 …

Each link is a veth pair with a token bucket on both ends, so the wire limits a transfer and not the processor. Needs
root, `ip` and `tc`; `unavailable` returns why it cannot be used.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_NAMESPACES = Path("/var/run/netns")


def unavailable() -> str | None:
    """Why namespaces cannot be made here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    probe = f"rljob-{secrets.token_hex(4)}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    if made.returncode:
        return f"ip netns add: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", probe], check=True)
    return None


class Line:
    """`nodes` namespaces in a row, each link shaped to `rate` bits per second (None: unlimited).

    Use as a context manager: its end removes the namespaces and their links. Raises CalledProcessError.
    """

    def __init__(self, nodes: int, rate: int | None) -> None:
        self.nodes = nodes
        self._rate = rate
        self._prefix = f"rljob-{secrets.token_hex(4)}"

    def __enter__(self) -> Line:
        try:
            for node in range(self.nodes):
                _run("ip", "netns", "add", self.name(node))
                self.run(node, "ip", "link", "set", "lo", "up")
            for link in range(self.nodes - 1):
                self._join(link)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for node in range(self.nodes):
            if (_NAMESPACES / self.name(node)).exists():
                _run("ip", "netns", "delete", self.name(node))

    def name(self, node: int) -> str:
        """Return the name of the namespace of `node`."""
        return f"{self._prefix}-{node}"

    def address(self, node: int) -> str:
        """Where the node before `node` reaches it; the first node only reaches itself."""
        return f"10.211.{node - 1}.2" if node else "127.0.0.1"

    def command(self, node: int, *command: str) -> list[str]:
        """Return the command line that runs `command` in `node`."""
        return ["ip", "netns", "exec", self.name(node), *command]

    def run(self, node: int, *command: str) -> None:
        """Run `command` in `node` and wait. Raises CalledProcessError."""
        _run(*self.command(node, *command))

    def unplug(self, node: int) -> None:
        """Nothing gets to the node or from it any more, as when its machine has no power."""
        for device in ([f"left{node - 1}"] if node else []) + ([f"right{node}"] if node + 1 < self.nodes else []):
            self.run(node, "ip", "link", "set", device, "down")

    def packets_of_one_segment(self) -> None:
        """Limit each packet to the size of a real wire's, where the kernel would send 64 KiB.

        A rule on packets then has the effect that it has on a real network.
        """
        for link in range(self.nodes - 1):
            for node, device in ((link, f"right{link}"), (link + 1, f"left{link}")):
                self.run(node, "ip", "link", "set", "dev", device, "gso_max_segs", "1")

    @contextmanager
    def inside(self, node: int) -> Iterator[None]:
        """Move the calling thread into `node`: sockets it opens belong there, also afterwards."""
        with open("/proc/thread-self/ns/net") as home, open(_NAMESPACES / self.name(node)) as there:
            _enter(there.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    def _join(self, link: int) -> None:
        right, left = f"right{link}", f"left{link}"
        ends = ((link, right, f"10.211.{link}.1/30"), (link + 1, left, f"10.211.{link}.2/30"))
        self.run(link, "ip", "link", "add", right, "type", "veth", "peer", "name", left, "netns", self.name(link + 1))
        for node, device, address in ends:
            self.run(node, "ip", "address", "add", address, "dev", device)
            self._open(node, device)

    def _open(self, node: int, device: str) -> None:
        self.run(node, "ip", "link", "set", device, "up")
        if self._rate is not None:
            # The queue holds more than a socket's buffer, so that the bucket delays and never drops.
            bucket = ("rate", f"{self._rate}bit", "burst", "128kb", "limit", "16mb")
            self.run(node, "tc", "qdisc", "add", "dev", device, "root", "tbf", *bucket)


class Star(Line):
    """`nodes` namespaces that all reach each other over a switch; what each sends and receives is shaped to `rate`."""

    def __init__(self, nodes: int, rate: int | None) -> None:
        super().__init__(nodes + 1, rate)
        self._hub = nodes

    def address(self, node: int) -> str:
        """Where all others reach it."""
        return f"10.212.0.{node + 1}"

    def unplug(self, node: int) -> None:
        """See `Line.unplug`."""
        self.run(self._hub, "ip", "link", "set", f"port{node}", "down")

    def _join(self, link: int) -> None:
        """Each link is a node's."""
        if link == 0:
            self.run(self._hub, "ip", "link", "add", "switch", "type", "bridge")
            self.run(self._hub, "ip", "link", "set", "switch", "up")
        port = f"port{link}"
        self.run(link, "ip", "link", "add", "way", "type", "veth", "peer", "name", port, "netns", self.name(self._hub))
        self.run(link, "ip", "address", "add", f"{self.address(link)}/24", "dev", "way")
        self.run(self._hub, "ip", "link", "set", port, "master", "switch")
        self._open(link, "way")
        self._open(self._hub, port)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
