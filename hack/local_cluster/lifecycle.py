"""A cluster's life: up, down, and what lies between."""

from __future__ import annotations

import secrets
import shutil
import sys
import urllib.parse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hack.kind import engine

from . import kind, kube, process, settings
from .control_plane import pki
from .control_plane.control_plane import ControlPlane, Stopwatch, start_apiserver, start_controllers
from .nodes import network_policies as policies
from .nodes import nodes, volumes
from .process import Daemons
from .programs import apt, build, recipe
from .settings import MAX_NODES, Cluster, ClusterError, Network, load, node_name, state_dir

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


def daemons_of(cluster: Cluster) -> Daemons:
    return Daemons(cluster.pids, cluster.logs)


@contextmanager
def _exclusively(name: str) -> Iterator[None]:
    """One command at a time changes a cluster."""
    with settings.locked(f"cluster-{name}", 900, "another command works on this cluster; waiting for it"):
        yield


def up(name: str, count: int, kubernetes: str | None = None) -> Cluster:
    """Bring a cluster up and wait until every node is Ready. One that is up as asked is left as it is.

    ``kubernetes`` is the minor, by default ``$KUBERNETES`` or the newest. On any failure, Ctrl-C included, what was
    started is taken down again; the logs are kept.
    """
    if not 1 <= count <= MAX_NODES:
        raise ClusterError(f"--nodes {count}: 1 to {MAX_NODES} are possible")
    nodes.require()
    watch = Stopwatch()
    release = recipe.release(kubernetes)
    binaries = build.binaries(release=release)
    apt.ensure_commands(nodes.COMMANDS, watch.say)

    def make() -> Cluster:
        return _claim(name, count, release.minor)

    wanted = ("real", count, release.minor)
    return _up(name, wanted, make, lambda cluster: _start(cluster, binaries, watch), watch)


def up_kind(name: str, kubernetes: str | None = None) -> Cluster:
    """Start the same by kind, with its fixed number of workers."""
    kind.require()
    minor = recipe.release(kubernetes).minor

    def make() -> Cluster:
        cluster = kind.plan(name, minor)
        cluster.save()
        return cluster

    return _up(name, ("kind", kind.WORKERS, minor), make, kind.create, Stopwatch())


def _up(
    name: str,
    wanted: tuple[str, int, str],
    make: Callable[[], Cluster],
    start: Callable[[Cluster], None],
    watch: Stopwatch,
) -> Cluster:
    """``wanted``: the kind of nodes, their number and the Kubernetes minor."""
    with _exclusively(name):
        if (present := load(name)) is not None and is_up(present):
            if (found := (present.kind, present.nodes, present.kubernetes)) != wanted:
                how = f"hack/local_cluster/cluster --name {name} down"
                raise ClusterError(f"cluster {name} is up with {_told(*found)}, not {_told(*wanted)}; first: {how}")
            watch.say(f"cluster {name} is up already")
            return present
        if _down(name):
            watch.say(f"cluster {name} was left half up and was taken down first")
        cluster = make()
        try:
            start(cluster)
        except BaseException:
            kept = _keep_logs(cluster)
            _down(name)
            print(f"the cluster did not come up and was taken down; its logs are in {kept}", file=sys.stderr)
            raise
    watch.say(f"cluster {name} is up: {_told(*wanted)} Ready")
    return cluster


def _told(node_kind: str, count: int, kubernetes: str) -> str:
    """Return what a cluster consists of, for people."""
    return f"{count} {node_kind} nodes{f' of Kubernetes {kubernetes}' if kubernetes else ''}"


def _claim(name: str, count: int, kubernetes: str) -> Cluster:
    """Pick a free network, take it, and record it."""
    taken = {c.network.octet for c in settings.existing()}
    while True:
        network = Network(settings.free_octet(taken, settings.routes()))
        # The kernel decides between two that pick the same: one of them is told that it exists.
        if nodes.claim(network):
            # Written down only now: `down` gives back the network of a cluster that is written down.
            identity = secrets.token_hex(8)
            cluster = Cluster(name, "real", count, network, identity, str(settings.venv_dir()), kubernetes)
            cluster.save()
            return cluster
        taken.add(network.octet)


def control_plane(cluster: Cluster, binaries: Path) -> ControlPlane:
    """Return a control plane on free ports."""
    # The bridge's end on this machine: only this machine and the nodes reach it.
    address = cluster.network.host
    etcd, peer = process.free_ports(2)
    port = process.free_ports(1, address)[0]
    return ControlPlane(binaries, cluster.state, address, port, etcd, peer, cluster.network.service_cidr)


def _start(cluster: Cluster, binaries: Path, watch: Stopwatch) -> None:
    plane = control_plane(cluster, binaries)
    daemons = daemons_of(cluster)
    indices = range(1, cluster.nodes + 1)
    pki.create(cluster.pki, [plane.address, "127.0.0.1", cluster.network.service_api])
    users = [pki.ADMIN, pki.CONTROLLER_MANAGER, pki.SCHEDULER, pki.PROXY]
    # Tokens for all nodes there may ever be: the API server reads them once.
    users += [pki.node_user(node_name(i)) for i in range(1, MAX_NODES + 1)]
    pki.write_users(cluster.pki, cluster.state, plane.server, users)
    volumes.prepare(cluster)
    nodes.prepare(cluster, binaries)
    for index in indices:  # they come up while the API server does
        nodes.start(cluster, binaries, index, daemons)
    watch.say(f"{cluster.nodes} nodes switched on")
    api = start_apiserver(plane, daemons)
    watch.say(f"API server of Kubernetes {recipe.release(cluster.kubernetes).version} ready at {plane.server}")
    start_controllers(plane, daemons, api)
    nodes.serve(cluster, daemons)
    volumes.publish(api)
    for index in indices:
        _wait_ready(api, cluster, index)


def _wait_ready(api: kube.Api, cluster: Cluster, index: int, timeout: float = 120) -> None:
    name, daemons = node_name(index), daemons_of(cluster)

    def ready() -> bool:
        running = daemons.get(name)
        if running is None or not running.alive:
            raise ClusterError(f"{name} ended: {daemons.tail(name)}")
        found = api.find(f"/api/v1/nodes/{name}")
        return found is not None and kube.node_ready(found)

    kube.wait(f"{name} Ready", timeout, ready, lambda: daemons.tail(nodes.log(index)))


def is_up(cluster: Cluster) -> bool:
    """Whether the control plane runs (nodes may be off on purpose)."""
    if cluster.kind == "kind":
        return cluster.kubeconfig.exists()
    daemons = daemons_of(cluster)
    return all((p := daemons.get(n)) is not None and p.alive for n in CONTROL_PLANE)


def down(name: str) -> bool:
    """Take the cluster down and leave nothing of it. Returns whether there was one; again and again is fine."""
    with _exclusively(name):
        return _down(name)


def _down(name: str) -> bool:
    cluster = load(name)
    if cluster is None:
        shutil.rmtree(state_dir(name), ignore_errors=True)
        return False
    if cluster.kind == "kind":
        kind.delete(cluster)
    else:
        daemons = daemons_of(cluster)
        # All there may be, not just those asked for at first: nodes can be added later.
        nodes.power_off(cluster, range(1, MAX_NODES + 1), daemons)
        daemons.stop(daemons.names())
        nodes.release(cluster)
    shutil.rmtree(cluster.state)
    return True


def _keep_logs(cluster: Cluster) -> Path:
    kept = settings.cache_dir() / "last-failure"
    shutil.rmtree(kept, ignore_errors=True)
    if cluster.logs.is_dir():
        shutil.copytree(cluster.logs, kept)
    return kept


def require(name: str) -> Cluster:
    """Return the cluster of that name. Raises ClusterError unless it is up."""
    cluster = load(name)
    if cluster is None or not is_up(cluster):
        raise ClusterError(f"cluster {name} is not up: run `cluster up` (make cluster-up)")
    return cluster


def node_command(name: str, action: str, index: int, wait: bool = True, kubernetes: str | None = None) -> None:
    """Run a command on a node.

    ``kill`` pulls the plug, ``up`` switches (or adds) the node on, ``cut`` and ``join`` are for its cable, ``deafen``
    and ``hear`` for its connection to the API server alone.

    ``kubernetes`` is the minor of the node's programs for ``up``, by default the cluster's own.
    """
    if not 1 <= index <= MAX_NODES:
        raise ClusterError(f"node {index}: 1 to {MAX_NODES} are possible")
    if kubernetes is not None and action != "up":
        raise ClusterError(f"--kubernetes {kubernetes}: a node gets its programs by `up`, not by `{action}`")
    with _exclusively(name):
        cluster = require(name)
        if cluster.kind == "kind":
            if kubernetes is not None:
                raise ClusterError(f"--kubernetes {kubernetes}: kind's nodes keep the programs of their image")
            _kind_node_command(cluster, action, index, wait)
            return
        daemons = daemons_of(cluster)
        match action:
            case "cut" | "join":
                nodes.cable(cluster, index, joined=action == "join")
            case "deafen" | "hear":
                port = urllib.parse.urlsplit(kube.Api(cluster.kubeconfig).server).port
                assert port is not None, "kube.Api has looked"
                nodes.way_to_server(cluster, index, port, open=action == "hear")
            case "kill":
                nodes.power_off(cluster, [index], daemons)
            case "up":
                if (running := daemons.get(node_name(index))) and running.alive:
                    raise ClusterError(f"{node_name(index)} is on already")
                programs = build.binaries(recipe.NODES, recipe.node_release(cluster.kubernetes, kubernetes))
                nodes.start(cluster, programs, index, daemons)
                if wait:
                    _wait_ready(kube.Api(cluster.kubeconfig), cluster, index)


def _kind_node_command(cluster: Cluster, action: str, index: int, wait: bool) -> None:
    if index > cluster.nodes:
        raise ClusterError(f"node {index}: cluster {cluster.name} has {cluster.nodes} workers, and kind adds none")
    engine.use()
    match action:
        case "cut" | "join":
            kind.cable(cluster, index, joined=action == "join")
        case "deafen" | "hear":
            raise ClusterError(f"node {index}: kind's nodes cannot be cut off from the API server alone")
        case "kill":
            kind.kill(cluster, index)
        case "up":
            kind.start(cluster, index)
            if wait:
                api, node = kube.Api(cluster.kubeconfig), f"/api/v1/nodes/{cluster.node(index)}"
                kube.wait(f"{cluster.node(index)} Ready", 120, lambda: kube.node_ready(api.get(node)))


def load_image(name: str, archive: Path) -> list[str]:
    """Put an image archive on every node; the nodes' names."""
    with _exclusively(name):
        cluster = require(name)
        if cluster.kind == "kind":
            engine.use()
            return kind.load_image(cluster, archive)
        return nodes.load_image(cluster, archive, daemons_of(cluster))


def network_policies(name: str, enforced: bool) -> list[str]:
    """Enforce NetworkPolicies on the nodes that are on, or do so no more; the nodes' names."""
    with _exclusively(name):
        cluster = require(name)
        if cluster.kind == "kind":
            raise ClusterError("network-policies: on kind it is the nodes' network plug-in that enforces them")
        change = policies.enforce if enforced else policies.ignore
        return change(cluster, daemons_of(cluster))


def status(name: str) -> str:
    """Return what there is and how it does, for people."""
    cluster = load(name)
    if cluster is None:
        return f"cluster {name}: down"
    state = "up" if is_up(cluster) else "half up"
    lines = [
        f"cluster {name}: {state}, {_told(cluster.kind, cluster.nodes, cluster.kubernetes)}",
        f"kubeconfig: {cluster.kubeconfig}",
    ]
    if cluster.kind == "kind":
        return "\n".join(lines)
    daemons = daemons_of(cluster)
    ready: dict[str, bool] = {}
    if is_up(cluster):
        found = kube.Api(cluster.kubeconfig).get("/api/v1/nodes")
        ready = {n["metadata"]["name"]: kube.node_ready(n) for n in found["items"]}
    for entry in sorted({*daemons.names(), *ready}):
        running = daemons.get(entry)
        power = f"runs as {running.pid}" if running and running.alive else "off"
        health = (", Ready" if ready[entry] else ", NotReady") if entry in ready else ""
        lines.append(f"  {entry:<24} {power}{health}")
    return "\n".join(lines)


def environment(cluster: Cluster, tools: Path) -> str:
    """Lines for a shell to evaluate."""
    exports = {"KUBECONFIG": cluster.kubeconfig, "KUBECACHEDIR": cluster.state / "kubecache"}
    return "\n".join([*(f"export {n}='{v}'" for n, v in exports.items()), f"export PATH='{tools}':\"$PATH\""])
