"""Kueue, the real one: its manager as a process beside a private API server.

    with api_server(controllers=True) as server, kueue.manager(server):
        ...  # ResourceFlavors, ClusterQueues and LocalQueues may be made now

Definitions and webhooks are those of the manager's own module. The API server reaches the webhooks by a URL instead
of a Service, so they need no pod. Only Kueue's own kinds are served: no integration looks at pods or Jobs.

On a cluster with real nodes its own chart (`source`) installs it, with an image of the same program (`image`).
"""

from __future__ import annotations

import base64
import contextlib
import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hack.local_cluster import kube, process
from hack.local_cluster.control_plane import pki
from hack.local_cluster.nodes import images
from hack.local_cluster.process import Daemons
from hack.local_cluster.programs import build, go, recipe
from hack.local_cluster.settings import ClusterError

from .apiserver import Server

GROUP = "kueue.x-k8s.io"
NAMESPACE = "kueue-system"

_SECRET = "kueue-webhook-server-cert"
_CONVERTED = ("clusterqueues", "cohorts", "localqueues", "multikueueclusters", "workloads")
"""Kinds of two served versions: the manager converts between them."""
_GATES = {"VisibilityOnDemand": False}
_SECONDS = 180.0
"""Of a busy machine. A quiet one needs five."""


class Manager:
    """The running manager, which may be stopped and started again as in an upgrade."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._folder = server.folder / "kueue"
        self._daemons = Daemons(self._folder / "pids", server.folder / "logs", tied=True)
        self._api = server.client()
        self._port = process.free_ports(1)[0]

    def install(self) -> None:
        """Make the definitions and the webhooks, and start the manager; return once it admits."""
        sources = source()
        authority = _certificates(self._folder)
        client = {"url": f"https://127.0.0.1:{self._port}", "caBundle": authority}
        for definition in self._read(sources / "config/components/crd/bases"):
            name = definition["metadata"]["name"]
            if name.partition(".")[0] in _CONVERTED:
                definition["spec"]["conversion"] = _conversion(client)
            self._apply("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        self._make_namespace()
        for hooks in self._read(sources / "config/components/webhook/manifests.yaml"):
            hooks["metadata"]["name"] = f"kueue-{hooks['metadata']['name']}"
            hooks["webhooks"] = [_called(hook, client) for hook in hooks["webhooks"] if _own(hook)]
            plural = f"{hooks['kind'].lower()}s"
            self._apply(f"/apis/admissionregistration.k8s.io/v1/{plural}", hooks)
        self.start()

    def start(self, devices: Mapping[str, Sequence[str]] | None = None) -> None:
        """Start the manager on the definitions that are there; return once its webhooks answer.

        With ``devices``, the names of DeviceClasses by the resource that quotas are given for, it counts claimed
        devices: an alpha feature, off by default.
        """
        program = build.binaries(("kueue",)) / "kueue"
        config = self._folder / "config.json"
        counting = _counting(devices) if devices is not None else {}
        config.write_text(json.dumps({**_configuration(self._folder, self._port), **counting}))
        command: list[str | Path] = [program, f"--config={config}", "--zap-log-level=2"]
        self._daemons.start("kueue", command, {"KUBECONFIG": str(self.server.kubeconfig)})
        kube.wait("Kueue's webhooks", _SECONDS, self._answers, lambda: self._daemons.tail("kueue"))

    def stop(self) -> None:
        """Stop the manager; definitions, webhooks and objects stay."""
        self._daemons.stop(["kueue"])

    def remove(self) -> None:
        """Stop the manager and delete webhooks and definitions, and with these every Workload."""
        self.stop()
        hooks = "/apis/admissionregistration.k8s.io/v1"
        for kind in ("mutating", "validating"):
            self._delete(f"{hooks}/{kind}webhookconfigurations/kueue-{kind}-webhook-configuration")
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        names = [d["metadata"]["name"] for d in self._api.get(definitions)["items"] if d["spec"]["group"] == GROUP]
        for name in names:
            plural = name.partition(".")[0]
            self._release(plural)
            self._delete(f"{definitions}/{name}")
        gone = f"{GROUP}'s definitions to go"
        kube.wait(gone, _SECONDS, lambda: not any(self._api.find(f"{definitions}/{name}") for name in names))

    def _release(self, plural: str) -> None:
        """Take the manager's finalizers off the objects of a kind, for it does so no more itself."""
        for item in (self._api.find(f"/apis/{GROUP}/v1beta2/{plural}") or {"items": []})["items"]:
            meta = item["metadata"]
            if meta.get("finalizers"):
                where = f"namespaces/{meta['namespace']}/" if "namespace" in meta else ""
                path = f"/apis/{GROUP}/v1beta2/{where}{plural}/{meta['name']}"
                self._api.call("PATCH", path, {"metadata": {"finalizers": None}}, kube.MERGE)

    def _delete(self, path: str) -> None:
        with contextlib.suppress(kube.ApiError):  # gone already
            self._api.call("DELETE", path)

    def _make_namespace(self) -> None:
        self._apply("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        files = {name: base64.b64encode((self._folder / name).read_bytes()).decode() for name in _FILES}
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": _SECRET}, "data": files}
        self._apply(f"/api/v1/namespaces/{NAMESPACE}/secrets", secret)

    def _apply(self, collection: str, body: dict[str, Any]) -> None:
        self._api.apply(f"{collection}/{body['metadata']['name']}", body)

    def _read(self, path: Path) -> list[dict[str, Any]]:
        """Return the objects of a file, or of all files of a folder, as kubectl reads them."""
        kubectl = build.binaries(("kubectl",)) / "kubectl"
        command = [str(kubectl), f"--kubeconfig={self.server.kubeconfig}", "create", "--dry-run=client", "-o=json"]
        done = subprocess.run([*command, "-f", str(path)], capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"{path}: {done.stderr.strip()}")
        return [_bare(one) for one in _documents(done.stdout)]

    def _answers(self) -> bool:
        running = self._daemons.get("kueue")
        if running is None or not running.alive:
            raise ClusterError(f"Kueue's manager ended: {self._daemons.tail('kueue')}")
        flavor = {"apiVersion": f"{GROUP}/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "probe"}}
        self._api.call("POST", f"/apis/{GROUP}/v1beta2/resourceflavors?dryRun=All", flavor)
        return True


@contextlib.contextmanager
def manager(server: Server) -> Iterator[Manager]:
    """Kueue on ``server``, ready to admit; its process ends with the context. Raises ClusterError when it fails."""
    made = Manager(server)
    try:
        made.install()
        yield made
    finally:
        made.stop()


def source() -> Path:
    """Return the folder of the module that the manager is built from.

    It is downloaded where it is absent, as ``go.sum`` pins it.
    """
    module = recipe.KUEUE
    command = [go.command(print), "mod", "download", "-json", module.main]
    done = subprocess.run(command, cwd=module.folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"{module.main}: {done.stderr.strip() or done.stdout.strip()}")
    return Path(json.loads(done.stdout)["Dir"])


def image(path: Path) -> str:
    """Write an image archive of the manager, for clusters with real nodes; return the image's name."""
    layer = images.Layer()
    layer.file("manager", (build.binaries(("kueue",)) / "kueue").read_bytes(), 0o755)
    name = f"docker.io/rljob/kueue:v{recipe.KUEUE.version()}"
    config = {"Entrypoint": ["/manager"], "User": str(images.USER)}
    images.write_archive(path, {name: config}, layer.bytes())
    return name


_FILES = ("ca.crt", "ca.key", "tls.crt", "tls.key")


def _certificates(folder: Path) -> str:
    """Write the webhooks' certificates where the manager reads them, as a kubelet would; return their authority.

    The manager keeps a Secret's certificates if they are good for its Service's name, and makes others if not.
    """
    pki.authority(folder, "kueue-ca")
    names = [f"DNS:kueue-webhook-service.{NAMESPACE}.svc", "IP:127.0.0.1"]
    pki.server_certificate(folder, "tls", names)
    return base64.b64encode((folder / "ca.crt").read_bytes()).decode()


def _configuration(folder: Path, port: int) -> dict[str, Any]:
    """No listener but the webhooks': two managers on one machine must not meet on a port."""
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": NAMESPACE,
        "health": {"healthProbeBindAddress": "0"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(folder)},
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"qps": 100, "burst": 200},
        "featureGates": _GATES,
        "waitForPodsReady": {"timeout": "10m"},
    }


def _counting(devices: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    classes = [{"name": name, "deviceClassNames": list(names)} for name, names in devices.items()]
    gates = {**_GATES, "DynamicResourceAllocation": True, "DRAExtendedResources": True}
    return {"featureGates": gates, "resources": {"deviceClassMappings": classes}}


def _own(hook: dict[str, Any]) -> bool:
    return all(rule["apiGroups"] == [GROUP] for rule in hook["rules"])


def _called(hook: dict[str, Any], client: dict[str, str]) -> dict[str, Any]:
    path = hook["clientConfig"]["service"]["path"]
    return {**hook, "clientConfig": {**client, "url": client["url"] + path}}


def _conversion(client: dict[str, str]) -> dict[str, Any]:
    called = {**client, "url": f"{client['url']}/convert"}
    return {"strategy": "Webhook", "webhook": {"clientConfig": called, "conversionReviewVersions": ["v1"]}}


def _documents(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON documents of a text, of which lists are taken apart."""
    decoder, at = json.JSONDecoder(), 0
    while (at := at + len(text[at:]) - len(text[at:].lstrip())) < len(text):
        document, at = decoder.raw_decode(text, at)
        yield from document["items"] if document["kind"] == "List" else [document]


def _bare(document: dict[str, Any]) -> dict[str, Any]:
    meta = document["metadata"]
    kept = {key: meta[key] for key in ("name", "annotations", "labels") if key in meta}
    return {**{key: value for key, value in document.items() if key != "status"}, "metadata": kept}
