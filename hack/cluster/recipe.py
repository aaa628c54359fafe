"""What is built, from what, and how: data only. Its hash is the key of the cache."""

from __future__ import annotations

import hashlib
import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

VERSION = "1.20.2"
"""The Kubernetes release in Debian 12's source package."""

SUITE = "bookworm"
COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")

# Debian packages that are unpacked into the cache, not installed: nothing on the machine changes (the package
# containerd, for one, would replace Docker's). Package → files taken from it, and where in the cache they go.
UNPACKED: dict[str, dict[str, str]] = {
    "etcd-server": {"usr/bin/etcd": "etcd"},
    "containerd": {
        "usr/bin/containerd": "containerd",
        "usr/bin/containerd-shim-runc-v2": "containerd-shim-runc-v2",
        "usr/bin/ctr": "ctr",
    },
    "runc": {"usr/sbin/runc": "runc"},
    "containernetworking-plugins": {f"usr/lib/cni/{name}": f"cni/{name}" for name in ("ptp", "host-local", "loopback")},
}
TOOLCHAIN = ("golang-1.19-go", "golang-1.19-src")
REFLECT2 = "golang-github-modern-go-reflect2-dev"

# Command → package, installed by apt when missing. They are small and conflict with nothing.
BUILD_COMMANDS = {"make": "make", "rsync": "rsync"}
RUN_COMMANDS = {"openssl": "openssl", "setpriv": "util-linux"}
NODE_COMMANDS = {"ip": "iproute2", "iptables": "iptables", "nsenter": "util-linux", "sysctl": "procps"}


@dataclass(frozen=True)
class Patch:
    """``old`` occurs exactly once in ``file`` (below the source's root) and becomes ``new``."""

    file: str
    old: str
    new: str
    why: str


PATCHES = (
    Patch(
        "pkg/kubelet/status/status_manager.go",
        "const syncPeriod = 10 * time.Second",
        "const syncPeriod = 1 * time.Second",
        "a deleted pod's object goes a second after its containers, not at the next ten-second tick (as since 1.22)",
    ),
    Patch(
        "vendor/github.com/google/cadvisor/container/docker/factory.go",
        "const rootDirRetries = 5",
        "const rootDirRetries = 0",
        "kubelet does not spend its first five seconds looking for Docker",
    ),
)


def binaries() -> list[str]:
    """Every file a finished cache folder holds."""
    return [*COMPONENTS, "pause", *(target for files in UNPACKED.values() for target in files.values())]


def key(pause_source: str, patches: tuple[Patch, ...] = PATCHES) -> str:
    """The cache folder's name: the version, the machine, and a hash of all that goes into the binaries."""
    parts = [VERSION, SUITE, COMPONENTS, UNPACKED, TOOLCHAIN, [asdict(p) for p in patches], pause_source]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:10]
    return f"{VERSION}-{platform.machine()}-{digest}"


def own_key() -> str:
    return key(pause_source().read_text())


def pause_source() -> Path:
    return Path(__file__).with_name("pause.go")


def link_flags(version: str = VERSION) -> str:
    """Linker flags that stamp the version into ``kubectl version`` and the User-Agent."""
    major, minor, _ = version.split(".")
    values = {
        "gitVersion": f"v{version}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitCommit": "debian",
        "gitTreeState": "clean",
        "buildDate": "2021-01-13T00:00:00Z",
    }
    packages = ("component-base/version", "client-go/pkg/version")
    stamps = [f"-X k8s.io/kubernetes/vendor/k8s.io/{p}.{k}={v}" for p in packages for k, v in values.items()]
    return " ".join(["-s", "-w", *stamps])
