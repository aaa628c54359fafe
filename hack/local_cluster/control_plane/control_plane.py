"""The control plane's processes: their command lines, and bringing them up in order."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hack.local_cluster import kube, process
from hack.local_cluster.control_plane.pki import FRONT_PROXY
from hack.local_cluster.settings import ClusterError


@dataclass(frozen=True)
class ControlPlane:
    """An etcd and a kube-apiserver on ``address``, with everything they need under ``state``."""

    binaries: Path
    state: Path
    address: str
    port: int
    etcd_port: int
    peer_port: int
    service_cidr: str
    proxied: bool = True
    """Whether nodes forward the Service `kubernetes` (kube-proxy); where not, its endpoints are left out."""
    node_grace_seconds: int = 8
    """A node that is silent for so long is not Ready."""
    features: Mapping[str, bool] = field(default_factory=dict)
    """Feature gates of all programs, where they differ from the defaults."""
    apis: tuple[str, ...] = ()
    """Versions of API groups that are off by default, and served."""

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def server(self) -> str:
        return f"https://{self.address}:{self.port}"

    def etcd(self) -> list[str | Path]:
        client, peer = (f"http://127.0.0.1:{port}" for port in (self.etcd_port, self.peer_port))
        return [
            self.binaries / "etcd",
            *("--name=rljob", f"--data-dir={self.state / 'etcd'}", "--logger=zap", "--log-level=warn"),
            *(f"--listen-client-urls={client}", f"--advertise-client-urls={client}"),
            *(f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=rljob={peer}"),
        ]

    def apiserver(self) -> list[str | Path]:
        pki = self.pki
        return [
            self.binaries / "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            *(f"--bind-address={self.address}", f"--secure-port={self.port}"),
            *([f"--advertise-address={self.address}"] if self.proxied else ["--endpoint-reconciler-type=none"]),
            *(f"--tls-cert-file={pki / 'apiserver.crt'}", f"--tls-private-key-file={pki / 'apiserver.key'}"),
            *(f"--client-ca-file={pki / 'ca.crt'}", f"--token-auth-file={pki / 'tokens.csv'}"),
            *("--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction"),
            "--allow-privileged=true",
            # kube-proxy runs on the nodes alone: calls of webhooks and aggregated APIs go to a pod's own address.
            "--enable-aggregator-routing=true",
            # An aggregated API that cannot know its caller is not available, and no namespace ends then.
            f"--proxy-client-cert-file={pki / f'{FRONT_PROXY}.crt'}",
            f"--proxy-client-key-file={pki / f'{FRONT_PROXY}.key'}",
            *(f"--requestheader-client-ca-file={pki / 'ca.crt'}", f"--requestheader-allowed-names={FRONT_PROXY}"),
            *("--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group"),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--service-cluster-ip-range={self.service_cidr}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki / 'sa.pub'}",
            f"--service-account-signing-key-file={pki / 'sa.key'}",
            f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
            f"--kubelet-client-key={pki / 'kubelet-client.key'}",
            "--kubelet-preferred-address-types=InternalIP",
            # A dead node's pods are to be replaced within seconds here, not after the usual five minutes.
            "--default-not-ready-toleration-seconds=3",
            "--default-unreachable-toleration-seconds=3",
            *([f"--runtime-config={','.join(f'{api}=true' for api in self.apis)}"] if self.apis else []),
            *self._gates(),
        ]

    def controller_manager(self) -> list[str | Path]:
        pki = self.pki
        return [
            self.binaries / "kube-controller-manager",
            f"--kubeconfig={self.state / 'controller-manager.kubeconfig'}",
            # No listener at all: two clusters on one machine must not meet on a port.
            *("--secure-port=0", "--leader-elect=false"),
            *("--kube-api-qps=200", "--kube-api-burst=400"),
            *("--use-service-account-credentials=true", f"--root-ca-file={pki / 'ca.crt'}"),
            f"--service-account-private-key-file={pki / 'sa.key'}",
            *("--node-monitor-period=1s", f"--node-monitor-grace-period={self.node_grace_seconds}s"),
            f"--pv-recycler-pod-template-filepath-hostpath={self.state / 'recycler.json'}",
            *self._gates(),
        ]

    def scheduler(self) -> list[str | Path]:
        return [
            self.binaries / "kube-scheduler",
            f"--kubeconfig={self.state / 'scheduler.kubeconfig'}",
            *("--secure-port=0", "--leader-elect=false", "--kube-api-qps=200", "--kube-api-burst=400"),
            *self._gates(),
        ]

    def _gates(self) -> list[str]:
        given = ",".join(f"{name}={str(on).lower()}" for name, on in sorted(self.features.items()))
        return [f"--feature-gates={given}"] if given else []


def start_apiserver(plane: ControlPlane, daemons: process.Daemons, timeout: float = 90) -> kube.Api:
    """Start etcd and the API server; return a client of it once it is ready, as the admin.

    Raises ClusterError with the log's end when either dies or readiness takes longer than ``timeout`` seconds.
    """
    daemons.start("etcd", plane.etcd())
    # Everything that the server calls is on this machine: a proxy would only be in between.
    daemons.start("kube-apiserver", plane.apiserver(), {"NO_PROXY": "*", "no_proxy": "*"})
    api = kube.Api(plane.state / "admin.kubeconfig")

    def ready() -> bool:
        for name in ("etcd", "kube-apiserver"):
            running = daemons.get(name)
            if running is None or not running.alive:
                raise ClusterError(f"{name} ended: {daemons.tail(name)}")
        return api.text("GET", "/readyz") == "ok"

    kube.wait("the API server's readiness", timeout, ready, lambda: daemons.tail("kube-apiserver"))
    return api


def start_controllers(plane: ControlPlane, daemons: process.Daemons, api: kube.Api, timeout: float = 60) -> None:
    """Start the controller manager and the scheduler and wait until namespaces get their service accounts.

    Only after the API server is ready: earlier they would end, or wait long before they try again.
    """
    daemons.start("kube-controller-manager", plane.controller_manager())
    daemons.start("kube-scheduler", plane.scheduler())

    def served() -> bool:
        return api.find("/api/v1/namespaces/default/serviceaccounts/default") is not None

    kube.wait("the default service account", timeout, served, lambda: daemons.tail("kube-controller-manager"))


def missing(binaries: Path, names: Sequence[str]) -> list[str]:
    return [name for name in names if not os.access(binaries / name, os.X_OK)]


class Stopwatch:
    """Prints what was done, each line with the seconds since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def say(self, text: str) -> None:
        print(f"[{self.seconds:6.1f}s] {text}", flush=True)
