"""Pod network: cuts the connections of one pod to a port, from outside of it, on a local cluster.

A pod has no right to change its network. Its node runs on this machine, so its network namespace is entered from here.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")


def process_of(uid: str, proc: Path = PROC) -> int | None:
    """Return a process of the pod with this uid, by the control groups of all processes; None if there is none."""
    names = (f"pod{uid}", f"pod{uid.replace('-', '_')}")  # Of kubelet's two drivers of control groups.
    for process in sorted(proc.glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            groups, command = ((process / name).read_text(errors="replace") for name in ("cgroup", "cmdline"))
        except OSError:  # It has ended.
            continue
        # What starts the containers of a pod has the network of the node.
        if any(name in groups for name in names) and "containerd-shim" not in command:
            return int(process.name)
    return None


def rules(port: int) -> Iterable[tuple[str, ...]]:
    """Return what drops all packets of connections to a port, in both directions, also of those that are open."""
    yield ("OUTPUT", "-p", "tcp", "--dport", str(port), "-j", "DROP")
    yield ("INPUT", "-p", "tcp", "--sport", str(port), "-j", "DROP")


def cut(pid: int, port: int) -> str:
    """Cut a process's network namespace off from a port of all others; return what is wrong, or ""."""
    return "".join(_iptables(pid, "-I", rule) for rule in rules(port))


def join(pid: int, port: int) -> str:
    """Take `cut` back; return what is wrong, or "". A process that has ended took its network along."""
    if not (PROC / str(pid)).exists():
        return ""
    return "".join(_iptables(pid, "-D", rule) for rule in rules(port))


def _iptables(pid: int, action: str, rule: tuple[str, ...]) -> str:
    inside = ["nsenter", "-t", str(pid), "-n", "iptables", "-w", action, *rule]
    done = subprocess.run(inside, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""
