"""NetworkPolicies that are enforced: kube-network-policies on every node.

The program decides about the first packet of each connection; netfilter hands it over in a queue. The program asks for
these packets by an nftables expression (CONFIG_NFT_QUEUE) that kernels of small virtual machines lack, and goes on
without. So the rules that fill the queue are made here, by iptables (CONFIG_NETFILTER_XT_TARGET_NFQUEUE). Every verdict
is the program's.

A node that is switched off loses the rules: enforce again.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hack.local_cluster import kube
from hack.local_cluster.process import Daemons, Process
from hack.local_cluster.programs import build
from hack.local_cluster.settings import MAX_NODES, Cluster, ClusterError, node_name

from . import images, nodes

IMAGE = "rljob.local/kube-network-policies:dev"
PROGRAM = "kube-network-policies"
NAMESPACE = "kube-system"
QUEUE = 98
_SECONDS = 60.0
_CHAIN = "RLJOB-POLICIES"
_NRI = "/var/run/nri"
"""Where containerd tells of a pod's address, before the API server knows it."""
_NETNS = "/var/run/netns"


def enforce(cluster: Cluster, daemons: Daemons) -> list[str]:
    """Begin to enforce NetworkPolicies on the nodes that are on; their names."""
    program = build.binaries((PROGRAM,)) / PROGRAM
    archive = cluster.state / f"{PROGRAM}.tar"
    write_image(archive, program)
    nodes.load_image(cluster, archive, daemons)
    api = kube.Api(cluster.kubeconfig)
    for path, item in objects():
        api.apply(path, item)
    powered = dict(_powered(daemons))
    for name, node in powered.items():
        kube.wait(f"{PROGRAM} on {name}", _SECONDS, lambda node=node: _listens(node))
    for node in powered.values():
        for rule in (["-N", _CHAIN], *rules(cluster), ["-I", "POSTROUTING", "-j", _CHAIN]):
            _iptables(node, *rule)
    return sorted(powered)


def ignore(cluster: Cluster, daemons: Daemons) -> list[str]:
    """Enforce no NetworkPolicy any more on the nodes that are on; their names."""
    powered = dict(_powered(daemons))
    for node in powered.values():
        for rule in (["-D", "POSTROUTING", "-j", _CHAIN], ["-F", _CHAIN], ["-X", _CHAIN]):
            _iptables(node, *rule)
    api = kube.Api(cluster.kubeconfig)
    for path, _ in reversed(objects()):
        api.call("DELETE", path)
    return sorted(powered)


def write_image(archive: Path, program: Path) -> None:
    """Write an image of the program alone, which is linked statically."""
    layer = images.Layer()
    layer.file("netpol", program.read_bytes(), 0o755)
    images.write_archive(archive, {IMAGE: {"Entrypoint": ["/netpol"]}}, layer.bytes())


def objects() -> list[tuple[str, dict[str, Any]]]:
    """Path and content of what the program needs: an account with rights, and a pod on every node."""
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    rules = [
        {"apiGroups": [""], "resources": ["pods", "namespaces"], "verbs": ["list", "watch"]},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["list", "watch"]},
    ]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": PROGRAM}
    account = {"kind": "ServiceAccount", "name": PROGRAM, "namespace": NAMESPACE}
    return [
        (f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{PROGRAM}", _object("v1", "ServiceAccount")),
        (
            f"{rbac}/clusterroles/{PROGRAM}",
            _object("rbac.authorization.k8s.io/v1", "ClusterRole", rules=rules),
        ),
        (
            f"{rbac}/clusterrolebindings/{PROGRAM}",
            _object("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", roleRef=role, subjects=[account]),
        ),
        (
            f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{PROGRAM}",
            _object("apps/v1", "DaemonSet", spec=_daemon_set()),
        ),
    ]


def _daemon_set() -> dict[str, Any]:
    labels = {"app": PROGRAM}
    container = {
        "name": PROGRAM,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "args": ["--hostname-override=$(NODE)", f"--nfqueue-id={QUEUE}", "--netfilter-bug-1766-fix=false", "--v=2"],
        "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "securityContext": {"privileged": True},
        "volumeMounts": [
            {"name": "nri", "mountPath": _NRI},
            {"name": "netns", "mountPath": _NETNS, "mountPropagation": "HostToContainer"},
        ],
    }
    pod = {
        "hostNetwork": True,
        "serviceAccountName": PROGRAM,
        "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
        "volumes": [
            {"name": "nri", "hostPath": {"path": _NRI}},
            {"name": "netns", "hostPath": {"path": _NETNS}},
        ],
    }
    return {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}


def _object(api_version: str, kind: str, **content: Any) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": PROGRAM}, **content}


def rules(cluster: Cluster) -> Iterator[list[str]]:
    """Yield the rules, as the program's own are.

    They select neither what the node itself sends, kubelet's probes among it, nor what belongs to an open connection.
    """
    yield ["-A", _CHAIN, "-m", "owner", "--uid-owner", "0", "-j", "RETURN"]
    yield ["-A", _CHAIN, "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "RETURN"]
    for index in range(1, MAX_NODES + 1):
        for end in ("-s", "-d"):
            pods = cluster.network.pods(index)
            yield ["-A", _CHAIN, end, pods, "-j", "NFQUEUE", "--queue-num", str(QUEUE)]


def _powered(daemons: Daemons) -> Iterator[tuple[str, Process]]:
    for index in range(1, MAX_NODES + 1):
        node = daemons.get(node_name(index))
        if node is not None and node.alive:
            yield node_name(index), node


def _listens(node: Process) -> bool:
    """Return whether a process takes packets from the queue on this node."""
    queues = _inside(node, ["cat", "/proc/net/netfilter/nfnetlink_queue"])
    return any(line.split()[0] == str(QUEUE) for line in queues.splitlines())


def _iptables(node: Process, *rule: str) -> None:
    _inside(node, ["iptables", "-w", "-t", "mangle", *rule])


def _inside(node: Process, command: Sequence[str]) -> str:
    """Run a command in the node's network; its output. Raises ClusterError when it fails."""
    done = subprocess.run(["nsenter", "-t", str(node.pid), "-n", *command], capture_output=True, text=True)
    if done.returncode:
        raise ClusterError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
