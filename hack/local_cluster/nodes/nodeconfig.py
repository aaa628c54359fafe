"""Node configuration: a real node's files and command lines, rendered as text. Nothing here touches the machine.

Paths are those inside the node, where its own folder is /run/rljob/node (see :mod:`node_init`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hack.local_cluster.settings import DOMAIN, PAUSE_IMAGE, Network, node_name

from .images import MARKER

RUN = Path("/run/rljob")
HOME = RUN / "node"
BIN = RUN / "bin"
VOLUMES = RUN / "volumes"
IMAGES = RUN / "images"
SOCKET = "/run/containerd/containerd.sock"

# Bind mounts that give the node's own folder the places where daemons insist on writing.
BINDS = {
    HOME / "containerd": "/var/lib/containerd",
    HOME / "kubelet": "/var/lib/kubelet",
    HOME / "cni": "/var/lib/cni",
    HOME / "pods": "/var/log/pods",
    HOME / "containers": "/var/log/containers",
}

# kubelet sets these machine-wide; it is shown files that already hold what it wants.
SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def kubelet(network: Network, index: int) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": network.node(index),
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(HOME / "etc/ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": "/",
        "failSwapOn": False,
        # Kubernetes 1.35 and later refuse cgroup v1 unless told.
        "failCgroupV1": False,
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "clusterDNS": [network.host],
        "clusterDomain": DOMAIN,
        "resolvConf": str(HOME / "etc/resolv.conf"),
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "nodefs.inodesFree": "1%"},
        "nodeStatusUpdateFrequency": "2s",
        "nodeLeaseDurationSeconds": 8,
        # After a power cut no container event comes for pods that died with it; this bounds how long they linger.
        "syncFrequency": "3s",
        "maxPods": 60,
    }


def cni(network: Network, index: int) -> dict[str, Any]:
    """Pods by routed point-to-point links.

    Not a bridge: packets between two pods on one bridge skip the address translation of Services unless a kernel
    module is loaded.
    """
    ipam = {"type": "host-local", "ranges": [[{"subnet": network.pods(index)}]], "routes": [{"dst": "0.0.0.0/0"}]}
    return {"cniVersion": "0.4.0", "name": "rljob", "plugins": [{"type": "ptp", "ipMasq": False, "ipam": ipam}]}


def snapshotter(state_filesystem: str) -> str:
    """Return the snapshotter: inside another container files are copied, since an overlay cannot be on an overlay."""
    return "native" if state_filesystem in ("overlay", "overlayfs", "fuse.fuse-overlayfs") else "overlayfs"


def containerd(snapshots: str) -> str:
    disabled = json.dumps(["io.containerd.internal.v1.opt", "io.containerd.tracing.processor.v1.otlp"])
    runc = 'plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc'
    return f"""version = 3
disabled_plugins = {disabled}
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "{snapshots}"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
  # Where this process may not lower oom_score_adj, containers must not ask for less than it has.
  restrict_oom_score_adj = true
  disable_apparmor = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{BIN}/cni"]
  conf_dir = "{HOME}/etc/cni"
[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "runc"
[{runc}]
  runtime_type = "io.containerd.runc.v2"
[{runc}.options]
  BinaryName = "{HOME}/etc/oci-runtime"
"""


def oci_runtime(python: str) -> str:
    """Return the script containerd calls as runc. Only `create` needs Python; the rest goes straight through."""
    return f"""#!/bin/sh
for word; do
  if [ "$word" = create ]; then exec {python} -I -S {HOME}/etc/oci_runtime.py "$@"; fi
done
exec {BIN}/runc "$@"
"""


def oci_runtime_settings(mounts: Sequence[Path]) -> dict[str, Any]:
    return {"runc": str(BIN / "runc"), "marker": MARKER, "mounts": [str(m) for m in mounts]}


def daemons(network: Network, index: int) -> dict[str, list[str]]:
    """Name → command of what runs on a node, in the order in which they start."""
    name = node_name(index)
    return {
        "containerd": [f"{BIN}/containerd", "--config", f"{HOME}/etc/containerd.toml"],
        "kubelet": [
            f"{BIN}/kubelet",
            *(f"--config={HOME}/etc/kubelet.json", f"--kubeconfig={HOME}/etc/kubelet.kubeconfig"),
            *(f"--hostname-override={name}", f"--node-ip={network.node(index)}"),
            f"--volume-plugin-dir={HOME}/volume-plugins",
            f"--node-labels=topology.kubernetes.io/zone=zone-{index}",
        ],
        "kube-proxy": [
            f"{BIN}/kube-proxy",
            *(f"--kubeconfig={HOME}/etc/kube-proxy.kubeconfig", f"--hostname-override={name}"),
            *("--proxy-mode=iptables", f"--cluster-cidr={network.cidr}"),
            # Connection tracking limits are the machine's: leave them as they are.
            *("--conntrack-max-per-core=0", "--conntrack-min=0"),
            *("--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"),
        ],
    }


def files(network: Network, index: int, mounts: Sequence[Path], snapshots: str, python: str) -> dict[str, str]:
    """Everything in the node's ``etc`` but its credentials: name → text."""
    return {
        "kubelet.json": json.dumps(kubelet(network, index), indent=1),
        "cni/10-rljob.conflist": json.dumps(cni(network, index), indent=1),
        "containerd.toml": containerd(snapshots),
        "oci-runtime": oci_runtime(python),
        "oci-runtime.json": json.dumps(oci_runtime_settings(mounts)),
        "resolv.conf": "",
        "daemons.json": json.dumps(daemons(network, index), indent=1),
    }
