"""A cluster's nodes, from the outside: network, power and cable.

A node is one process tree in network, mount, pid, uts, ipc and cgroup namespaces of its own. No namespace is named
or mounted anywhere: when the processes are killed, the kernel takes everything else with them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hack.local_cluster.process import Daemons, Process, wait_gone
from hack.local_cluster.programs import recipe
from hack.local_cluster.settings import MAX_NODES, Cluster, ClusterError, Network, node_name

from . import cgroups, images, nodeconfig, oci_runtime

COMMANDS: Mapping[str, str] = {**recipe.RUN_COMMANDS, **recipe.NODE_COMMANDS}
"""Commands that have to be installed → their packages."""


def require() -> None:
    """Raise ClusterError unless nodes are possible here."""
    if os.geteuid() != 0:
        raise ClusterError(
            "nodes need root; without it: kind (cluster up --kind), a cluster of your own (KUBECONFIG), "
            "or no cluster (`rljob run`)"
        )


def claim(network: Network) -> bool:
    """Take the network: the switch all nodes hang on; pods are routed behind it.

    False, and nothing done, when another cluster has it.
    """
    if not _ip("link", "add", network.bridge, "type", "bridge", check=False):
        if Path("/sys/class/net", network.bridge).exists():
            return False
        _ip("link", "add", network.bridge, "type", "bridge")  # once more, for the reason
    _ip("address", "add", f"{network.host}/24", "dev", network.bridge)
    _ip("link", "set", network.bridge, "address", network.mac, "up")
    for index in range(1, MAX_NODES + 1):
        _ip("route", "replace", network.pods(index), "via", network.node(index), "dev", network.bridge)
    return True


def release(cluster: Cluster) -> None:
    """Give back the bridge with its routes, any cable left, and the control groups. Fine when nothing is left."""
    network = cluster.network
    for link in [*(network.veth(i) for i in range(1, MAX_NODES + 1)), network.bridge]:
        if Path("/sys/class/net", link).exists():
            _ip("link", "delete", link)
    cgroups.remove(cgroups.of_this_machine(), network.bridge)


def prepare(cluster: Cluster, binaries: Path) -> None:
    """Make the images that every node imports when it starts."""
    cluster.images.mkdir(parents=True, exist_ok=True)
    venv = Path(cluster.venv)
    images.pause(cluster.images / "pause.tar", binaries / "pause")
    images.host_image(cluster.images / "host.tar", venv, images.host_mounts(venv))


def start(cluster: Cluster, binaries: Path, index: int, daemons: Daemons) -> None:
    """Switch a node on, before or after the API server, with the images and the state of its last life."""
    name = node_name(index)
    _configure(cluster, index)
    trees = cgroups.of_this_machine()
    cgroups.remove(trees, _group(cluster, index))
    cgroups.create(trees, _group(cluster, index))
    # Addresses belong to pods that died with the power; kubelet creates the pods again.
    shutil.rmtree(cluster.node_dir(index) / "cni", ignore_errors=True)
    launcher: list[str | Path] = [sys.executable, "-m", "hack.local_cluster.nodes.node_init", "launch"]
    launcher += [cluster.state, binaries, name, _group(cluster, index)]
    process = daemons.start(name, launcher)
    _connect(cluster.network, index, process, daemons)


def serve(cluster: Cluster, daemons: Daemons) -> None:
    """Start the DNS server, once the API server is ready."""
    module = [sys.executable, "-m", "hack.local_cluster.control_plane.dns"]
    daemons.start("dns", [*module, str(cluster.kubeconfig), cluster.network.host])


def power_off(cluster: Cluster, indices: Sequence[int], daemons: Daemons) -> None:
    """Kill every process of the nodes without a notice to the cluster. Fine when they are off."""
    trees = cgroups.of_this_machine()
    for index in indices:
        if process := daemons.get(node_name(index)):
            process.signal(signal.SIGKILL)
    for index in indices:
        if process := daemons.get(node_name(index)):
            wait_gone([process], 5)
        inside = [p for p in map(Process.of, cgroups.pids(trees, _group(cluster, index))) if p]
        for process in inside:
            process.signal(signal.SIGKILL)
        wait_gone(inside, 10)
        cgroups.remove(trees, _group(cluster, index))
        # The kernel deletes the cable with the namespace, but takes its time.
        _ip("link", "delete", cluster.network.veth(index), check=False)
        daemons.forget(node_name(index))


def cable(cluster: Cluster, index: int, *, joined: bool) -> None:
    """Cut or join a node's network cable."""
    veth = cluster.network.veth(index)
    if not Path("/sys/class/net", veth).exists():
        raise ClusterError(f"{node_name(index)} is off")
    _ip("link", "set", veth, "up" if joined else "down")


def way_to_server(cluster: Cluster, index: int, port: int, *, open: bool) -> None:
    """Cut off a node, and the pods on it, from the API server alone, or let them reach it again. Fine when it is so."""
    network = cluster.network
    for source in (network.node(index), network.pods(index)):
        rule = ["INPUT", "-s", source, "-d", network.host, "-p", "tcp", "--dport", str(port), "-j", "DROP"]
        there = _iptables("-C", rule)
        if there == open and not _iptables("-D" if open else "-I", rule):
            raise ClusterError(f"{node_name(index)}: iptables takes no rule for port {port} of {network.host}")


def _iptables(action: str, rule: Sequence[str]) -> bool:
    return subprocess.run(["iptables", "-w", action, *rule], capture_output=True).returncode == 0


def load_image(cluster: Cluster, archive: Path, daemons: Daemons) -> list[str]:
    """Put an image (OCI or docker save) on all nodes that are on, and keep it for later ones; their names."""
    if not archive.is_file():
        raise ClusterError(f"{archive}: no such file")
    kept = cluster.images / f"loaded-{archive.name.removesuffix('.tar')}.tar"
    part = kept.with_suffix(".part")
    shutil.copyfile(archive, part)
    part.replace(kept)
    done = []
    for index in range(1, MAX_NODES + 1):
        process = daemons.get(node_name(index))
        if process is not None and process.alive:
            if trouble := _import(process, nodeconfig.IMAGES / kept.name):
                kept.unlink()
                raise ClusterError(f"{node_name(index)} refuses {archive}: {trouble}")
            done.append(node_name(index))
    return done


def log(index: int) -> str:
    """Return the name of the log that says why a node is not Ready."""
    return f"{node_name(index)}.kubelet"


def _import(node: Process, archive: Path) -> str:
    """Import an image inside the node; what went wrong, if anything."""
    init = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()[0]
    ctr = [str(nodeconfig.BIN / "ctr"), "-n", "k8s.io", "images", "import", str(archive)]
    done = subprocess.run(["nsenter", "-t", init, "-m", "-n", *ctr], capture_output=True, text=True)
    return done.stderr.strip() or "no reason given" if done.returncode else ""


def _ip(*args: str, check: bool = True) -> bool:
    done = subprocess.run(["ip", *args], capture_output=True, text=True)
    if check and done.returncode:
        raise ClusterError(f"ip {' '.join(args)}: {done.stderr.strip()}")
    return done.returncode == 0


def _group(cluster: Cluster, index: int) -> str:
    return f"{cluster.network.bridge}/{node_name(index)}"


def _configure(cluster: Cluster, index: int) -> None:
    """Write the node's configuration and credentials into its folder."""
    etc = cluster.node_dir(index) / "etc"
    snapshots = nodeconfig.snapshotter(_filesystem(cluster.state))
    mounts = images.host_mounts(Path(cluster.venv))
    for name, text in nodeconfig.files(cluster.network, index, mounts, snapshots, sys.executable).items():
        path = etc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (etc / "oci-runtime").chmod(0o755)
    shutil.copyfile(oci_runtime.__file__, etc / "oci_runtime.py")
    # copy, not copyfile: these are readable by their owner only, and so are the copies.
    shutil.copy(cluster.pki / "ca.crt", etc / "ca.crt")
    shutil.copy(cluster.state / f"{node_name(index)}.kubeconfig", etc / "kubelet.kubeconfig")
    shutil.copy(cluster.state / "kube-proxy.kubeconfig", etc / "kube-proxy.kubeconfig")


def _filesystem(path: Path) -> str:
    done = subprocess.run(["stat", "-f", "-c", "%T", path], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _connect(network: Network, index: int, process: Process, daemons: Daemons) -> None:
    """Lay the cable: a veth from the bridge to the node's eth0, with routes to every other node's pods."""
    own, theirs = os.readlink("/proc/self/ns/net"), f"/proc/{process.pid}/ns/net"
    end = time.monotonic() + 20
    while process.alive and os.readlink(theirs) == own and time.monotonic() < end:
        time.sleep(0.02)
    if not process.alive or os.readlink(theirs) == own:
        raise ClusterError(f"{node_name(index)} did not start: {daemons.tail(node_name(index))}")
    veth = network.veth(index)
    _ip("link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", str(process.pid))
    _ip("link", "set", veth, "master", network.bridge, "up")
    lines = [
        "link set lo up",
        f"address add {network.node(index)}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {network.host}",
    ]
    others = (j for j in range(1, MAX_NODES + 1) if j != index)
    lines += [f"route add {network.pods(j)} via {network.node(j)}" for j in others]
    inside = ["nsenter", "-t", str(process.pid), "-n"]
    subprocess.run([*inside, "ip", "-batch", "-"], input="\n".join(lines), text=True, check=True)
    subprocess.run([*inside, "sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True)
