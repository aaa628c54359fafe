"""Tool server of a chaos job: the objects with which its environment has the calculator as a server of MCP."""

from __future__ import annotations

import os
from typing import Any

from hack.local_cluster.settings import RUNTIME_IMAGE

NAME, PORT = "tools", 8000
LABELS = {"app": NAME}
PROGRAM = "tool_server.py"
"""File of the server, beside the calculator."""
URL = f"http://{NAME}:{PORT}/mcp"
COMMAND = ("python", f"/code/{PROGRAM}")
AGAIN = f"while true; do {' '.join(COMMAND)}; done"
"""The container starts its server again by itself. The kubelet waits longer after each death, up to five minutes."""


def objects(code: str, selector: dict[str, str]) -> list[dict[str, Any]]:
    """Return a Deployment of one server, and its Service. `code`: the ConfigMap of its files. `selector`: of nodes."""
    container = {
        "name": "main",
        "image": os.environ.get("RLJOB_RUNTIME_IMAGE", RUNTIME_IMAGE),
        "command": ["sh", "-c", AGAIN],
        "volumeMounts": [{"name": code, "mountPath": "/code"}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": PORT}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
    }
    pod = {
        "containers": [container],
        "nodeSelector": selector,
        "volumes": [{"name": code, "configMap": {"name": code}}],
        # With a shared process namespace, the server is not the first process, which no signal from within stops.
        "shareProcessNamespace": True,
        "terminationGracePeriodSeconds": 0,
    }
    template = {"metadata": {"labels": LABELS}, "spec": pod}
    spec = {"replicas": 1, "selector": {"matchLabels": LABELS}, "template": template}
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": NAME}, "spec": spec}
    # An address also while it is not ready: a server that hangs must be found.
    ports = {"selector": LABELS, "ports": [{"port": PORT}], "publishNotReadyAddresses": True}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME}, "spec": ports}
    return [deployment, service]
