"""Stand-ins for kubelets, by kwok: nodes and pods that are objects only, beside a real API server.

    with api_server(controllers=True) as server, fake_nodes(server, 64) as nodes:
        nodes.fail_pod("default", "demo-trainer-0-1", exit_code=137)
        nodes.hang("fake-3")

The scheduler and the controllers are real; no container runs. kwok renews the nodes' Leases, makes bound pods Running
and Ready, and removes deleted ones. Annotations of a pod and a label of a node say what goes wrong.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hack.local_cluster import kube
from hack.local_cluster.process import Daemons
from hack.local_cluster.programs import build

from .apiserver import Server

LABEL = "kwok.rljob.dev/kubelet"
"""On a node: kwok stands in for its kubelet. Without it the node is silent, as one without power."""
EXIT_CODE = "kwok.rljob.dev/exit-code"
"""On a pod: its containers end with that code."""
HANGS = "kwok.rljob.dev/hangs"
"""On a pod: it is not Ready, from its start or from now on, until the annotation goes."""
IGNORES_SIGTERM = "kwok.rljob.dev/ignores-sigterm"
"""On a pod: after its deletion it lasts through its grace period."""

_POD_NETWORK = "198.18.0.1/15"
"""For benchmarks (RFC 2544). Addresses are text here: nothing has them."""
_NODE_ADDRESS = "198.19.255.254"

_NODE_STATUS = """
{{ $now := Now }}
conditions:
{{ range NodeConditions }}
- type: {{ .type }}
  status: {{ .status | Quote }}
  reason: {{ .reason }}
  message: {{ .message | Quote }}
  lastHeartbeatTime: {{ $now | Quote }}
  lastTransitionTime: {{ $now | Quote }}
{{ end }}
addresses:
- {type: InternalIP, address: {{ NodeIP | Quote }}}
- {type: Hostname, address: {{ .metadata.name | Quote }}}
"""

_POD_STATUS = """
{{ $now := Now }}
{{ $start := or .status.startTime $now }}
{{ $annotations := or .metadata.annotations dict }}
{{ $code := index $annotations "EXIT_CODE" }}
{{ $ready := not (or $code (index $annotations "HANGS")) }}
{{ $word := ternary "True" "False" $ready | Quote }}
phase: {{ if not $code }}Running{{ else if eq $code "0" }}Succeeded{{ else }}Failed{{ end }}
startTime: {{ $start | Quote }}
hostIP: {{ NodeIPWith .spec.nodeName | Quote }}
{{ if not .status.podIP }}
podIP: {{ PodIPWith .spec.nodeName false .metadata.uid .metadata.name .metadata.namespace | Quote }}
{{ end }}
conditions:
- {type: Initialized, status: "True", lastTransitionTime: {{ $start | Quote }}}
- {type: Ready, status: {{ $word }}, lastTransitionTime: {{ $now | Quote }}}
- {type: ContainersReady, status: {{ $word }}, lastTransitionTime: {{ $now | Quote }}}
containerStatuses:
{{ range .spec.containers }}
- name: {{ .name | Quote }}
  image: {{ .image | Quote }}
  imageID: ""
  restartCount: 0
  ready: {{ $ready }}
  started: {{ not $code }}
  state:
  {{ if $code }}
    terminated:
      exitCode: {{ $code }}
      reason: {{ if eq $code "0" }}Completed{{ else }}Error{{ end }}
      startedAt: {{ $start | Quote }}
      finishedAt: {{ $now | Quote }}
  {{ else }}
    running:
      startedAt: {{ $start | Quote }}
  {{ end }}
{{ end }}
""".replace("EXIT_CODE", EXIT_CODE).replace("HANGS", HANGS)

_PHASE = ".status.phase"
_READY = '.status.conditions.[] | select( .type == "Ready" ) | .status'
_DELETED = ".metadata.deletionTimestamp"


def _annotation(name: str) -> str:
    return f'.metadata.annotations["{name}"]'


def _is(key: str, *values: str) -> dict[str, Any]:
    return {"jq": {"key": key, "operator": "In", "values": list(values)}}


def _is_not(key: str, *values: str) -> dict[str, Any]:
    return {"jq": {"key": key, "operator": "NotIn", "values": list(values)}}


def _has(key: str) -> dict[str, Any]:
    return {"jq": {"key": key, "operator": "Exists"}}


def _lacks(key: str) -> dict[str, Any]:
    return {"jq": {"key": key, "operator": "DoesNotExist"}}


def _stage(
    name: str, kind: str, when: Sequence[Mapping[str, Any]], step: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    spec = {"resourceRef": {"apiGroup": "v1", "kind": kind}, "selector": {"matchExpressions": list(when)}}
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {**spec, "steps": [step], **more},
    }


def _status(template: str) -> dict[str, Any]:
    return {"patch": {"subresource": "status", "root": "status", "template": template}}


def stages() -> list[dict[str, Any]]:
    """Return what kwok does to nodes and pods. No two stages apply to an object at a time: kwok would throw a die."""
    lives, running = _lacks(_DELETED), _is(_PHASE, "Running")
    lasting, ending = _lacks(_annotation(EXIT_CODE)), _has(_annotation(EXIT_CODE))
    healthy, hanging = _lacks(_annotation(HANGS)), _has(_annotation(HANGS))
    pod = _status(_POD_STATUS)
    until_the_end = {"delay": {"durationFrom": {"jq": {"expression": _DELETED}}}}
    return [
        _stage("node-ready", "Node", [_is_not(_READY, "True")], _status(_NODE_STATUS)),
        _stage("pod-started", "Pod", [lives, lasting, _is(_PHASE, "Pending")], pod),
        _stage("pod-hangs", "Pod", [lives, lasting, running, hanging, _is(_READY, "True")], pod),
        _stage("pod-recovers", "Pod", [lives, lasting, running, healthy, _is(_READY, "False")], pod),
        _stage("pod-ended", "Pod", [lives, ending, _is(_PHASE, "Pending", "Running")], pod),
        _stage("pod-gone", "Pod", [_has(_DELETED), _lacks(_annotation(IGNORES_SIGTERM))], {"delete": True}),
        _stage(
            "pod-gone-late",
            "Pod",
            [_has(_DELETED), _has(_annotation(IGNORES_SIGTERM))],
            {"delete": True},
            **until_the_end,
        ),
    ]


class FakeNodes:
    """The nodes of one server, and what goes wrong on them."""

    def __init__(self, server: Server, names: Sequence[str]) -> None:
        self.server = server
        self.names = tuple(names)
        self._api = server.client()

    def hang(self, node: str) -> None:
        """Silence a node: no Lease, no report, no deletion of its pods. The node controller finds out."""
        self._merge(f"/api/v1/nodes/{node}", {"labels": {LABEL: None}})

    def recover(self, node: str) -> None:
        """End a node's silence."""
        self._merge(f"/api/v1/nodes/{node}", {"labels": {LABEL: "kwok"}})

    def fail_pod(self, namespace: str, pod: str, exit_code: int = 1) -> None:
        """End a pod's containers with that code; 0 is success."""
        self.annotate_pod(namespace, pod, {EXIT_CODE: str(exit_code)})

    def hang_pod(self, namespace: str, pod: str) -> None:
        """Make a running pod not Ready."""
        self.annotate_pod(namespace, pod, {HANGS: "true"})

    def recover_pod(self, namespace: str, pod: str) -> None:
        """Make a pod that hangs Ready."""
        self.annotate_pod(namespace, pod, {HANGS: None})

    def annotate_pod(self, namespace: str, pod: str, annotations: Mapping[str, str | None]) -> None:
        self._merge(f"/api/v1/namespaces/{namespace}/pods/{pod}", {"annotations": dict(annotations)})

    def _merge(self, path: str, metadata: Mapping[str, Any]) -> None:
        self._api.call("PATCH", path, {"metadata": metadata}, kube.MERGE)


@contextlib.contextmanager
def fake_nodes(server: Server, count: int, resources: Mapping[str, str] | None = None) -> Iterator[FakeNodes]:
    """``count`` nodes that kwok keeps Ready, from ``fake-1`` on; kwok and the nodes go with the context.

    ``server`` is one with controllers, and without other such nodes. ``resources`` come on top of a node's processors,
    memory and places for pods, or replace them. Raises ClusterError when kwok is not built, or a node not Ready.
    """
    program = build.binaries(("kwok",)) / "kwok"
    api = server.client()
    daemons = Daemons(server.folder / "kwok", server.folder / "logs", tied=True)
    config = server.folder / "kwok.yaml"
    config.write_text("\n---\n".join(map(json.dumps, stages())))
    names = [f"fake-{number}" for number in range(1, count + 1)]
    try:
        # No address to serve on: no client asks kwok for logs.
        selected = ["--manage-all-nodes=false", f"--manage-nodes-with-label-selector={LABEL}=kwok"]
        addresses = [f"--cidr={_POD_NETWORK}", f"--node-ip={_NODE_ADDRESS}"]
        # kwok renews a Lease four times in its duration.
        lease = f"--node-lease-duration-seconds={server.node_grace_seconds}"
        command: list[str | Path] = [
            program,
            f"--kubeconfig={server.kubeconfig}",
            f"--config={config}",
            *selected,
            *addresses,
            lease,
        ]
        daemons.start("kwok", command)
        for name in names:
            api.call("POST", "/api/v1/nodes", _node(name, resources or {}))
        _until_ready(api, daemons, names)
        yield FakeNodes(server, names)
    finally:
        daemons.stop(daemons.names())
        for name in names:
            with contextlib.suppress(kube.ApiError):  # the server may be gone, or the node was never made
                api.call("DELETE", f"/api/v1/nodes/{name}")


def _node(name: str, resources: Mapping[str, str]) -> dict[str, Any]:
    number = int(name.rpartition("-")[2])
    has = {"cpu": "64", "memory": "1Ti", "ephemeral-storage": "1Ti", "pods": "110", **resources}
    labels = {
        LABEL: "kwok",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "topology.kubernetes.io/zone": f"zone-{number % 3}",
    }
    status = {"capacity": has, "allocatable": has}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def _until_ready(api: kube.Api, daemons: Daemons, names: Sequence[str]) -> None:
    def ready() -> bool:
        found = api.get("/api/v1/nodes")["items"]
        return set(names) <= {node["metadata"]["name"] for node in found if kube.node_ready(node)}

    kube.wait(f"{len(names)} fake nodes Ready", 60, ready, lambda: daemons.tail("kwok"))
