"""Kinds of nodes: what a cluster needs of them, and the process nodes' part."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from . import process, recipe
from .process import Daemons
from .real import RealNodes
from .settings import Cluster, ClusterError, Network, node_name

CLUSTER_VARIABLE = "RLJOB_CLUSTER_ID"
"""In the environment of everything a process node runs: the cluster's identity."""
NODE_VARIABLE = "RLJOB_CLUSTER_NODE"
"""Likewise: ``<identity>/<node>``."""


class Nodes(Protocol):
    """A kind of nodes. Everything raises ClusterError with a reason."""

    commands: Mapping[str, str]
    """Commands that have to be installed → their packages."""
    proxied: bool
    """Whether Services' addresses work on the nodes."""

    def require(self) -> None:
        """Raise unless this kind is possible here."""

    def network(self, octet: int) -> Network: ...

    def claim(self, network: Network) -> bool:
        """Take the network; False, and nothing done, when another cluster has it."""

    def release(self, cluster: Cluster) -> None:
        """Give the network back, and whatever else is left once all nodes are off. Fine when nothing is."""

    def api_address(self, network: Network) -> str:
        """Where the API server is to listen."""

    def prepare(self, cluster: Cluster, binaries: Path) -> None:
        """What all nodes share, before the first starts."""

    def start(self, cluster: Cluster, binaries: Path, index: int, daemons: Daemons) -> None:
        """Switch a node on, before or after the API server."""

    def serve(self, cluster: Cluster, daemons: Daemons) -> None:
        """Start what the nodes need besides, once the API server is ready."""

    def power_off(self, cluster: Cluster, indices: Sequence[int], daemons: Daemons) -> None:
        """Pull the plug: every process of the nodes is killed, and nobody is told. Fine when they are off."""

    def cable(self, cluster: Cluster, index: int, *, joined: bool) -> None:
        """Cut or join the node's network cable."""

    def load_image(self, cluster: Cluster, archive: Path, daemons: Daemons) -> list[str]:
        """Put an image (OCI or docker save) on all nodes that are on, and keep it for later ones; their names."""

    def log(self, index: int) -> str:
        """The name of the log that tells why a node is not Ready."""


class ProcessNodes:
    """Nodes that run pods as processes of this machine (:mod:`process_node`).

    With root, a local route makes a whole /16 the machine's own. Without, pods live in 127.0.0.0/8, which needs no
    route; but the API server refuses loopback addresses in Endpoints, so Services have none there.
    """

    commands: Mapping[str, str] = recipe.RUN_COMMANDS
    proxied = False

    def require(self) -> None:
        pass

    def network(self, octet: int) -> Network:
        return Network(octet, 10 if os.geteuid() == 0 else 127)

    def claim(self, network: Network) -> bool:
        if network.first == 127:
            return True
        done = subprocess.run(["ip", "route", "add", *_local(network)], capture_output=True, text=True)
        if done.returncode and "File exists" not in done.stderr:
            raise ClusterError(f"ip route add {network.cidr}: {done.stderr.strip()}")
        return done.returncode == 0

    def release(self, cluster: Cluster) -> None:
        process.sweep(CLUSTER_VARIABLE, cluster.identity)
        if cluster.network.first != 127:
            subprocess.run(["ip", "route", "delete", *_local(cluster.network)], capture_output=True)

    def api_address(self, network: Network) -> str:
        return "127.0.0.1"

    def prepare(self, cluster: Cluster, binaries: Path) -> None:
        pass

    def start(self, cluster: Cluster, binaries: Path, index: int, daemons: Daemons) -> None:
        name, network = node_name(index), cluster.network
        arguments: list[str | Path] = ["--kubeconfig", cluster.state / f"{name}.kubeconfig"]
        arguments += ["--node", name, "--index", str(index), "--state", cluster.node_dir(index)]
        arguments += ["--prefix", f"{network.first}.{network.octet}"]
        environment = {
            CLUSTER_VARIABLE: cluster.identity,
            NODE_VARIABLE: f"{cluster.identity}/{name}",
            "RLJOB_POD_PATH": f"{cluster.venv}/bin:{os.environ.get('PATH', '/usr/bin:/bin')}",
        }
        daemons.start(name, [sys.executable, "-m", "hack.cluster.process_node", *arguments], environment)

    def serve(self, cluster: Cluster, daemons: Daemons) -> None:
        pass

    def power_off(self, cluster: Cluster, indices: Sequence[int], daemons: Daemons) -> None:
        for index in indices:
            if running := daemons.get(node_name(index)):
                running.signal(9)
                process.sweep(NODE_VARIABLE, f"{cluster.identity}/{node_name(index)}")
                daemons.forget(node_name(index))

    def cable(self, cluster: Cluster, index: int, *, joined: bool) -> None:
        raise ClusterError("process nodes share the machine's network: they have no cable")

    def load_image(self, cluster: Cluster, archive: Path, daemons: Daemons) -> list[str]:
        raise ClusterError("process nodes have no images: they run a pod's command on this machine")

    def log(self, index: int) -> str:
        return node_name(index)


def _local(network: Network) -> list[str]:
    return ["local", network.cidr, "dev", "lo"]


KINDS: Mapping[str, Nodes] = {"real": RealNodes(), "process": ProcessNodes()}
