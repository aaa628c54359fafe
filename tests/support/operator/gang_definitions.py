"""Definitions of other schedulers' PodGroups: their own from their Go modules where these are served, else ours.

Ours have the fields of the documentation, so that a server refuses any other one.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hack.local_cluster.programs import go
from rljob_api.spec import Gang
from rljob_kube.errors import ApiError
from rljob_kube.resources import Resource
from rljob_operator.policies.gang import pod_groups
from rljob_operator.readers.owned_resources import POD_GROUPS
from tests.support.operator.harness import APPLY, Server, until

MODULES = {
    Gang.COSCHEDULING: "sigs.k8s.io/scheduler-plugins@v0.34.1-devel",
    Gang.VOLCANO: "volcano.sh/apis@v1.12.1",
    Gang.KAI: "github.com/NVIDIA/KAI-scheduler@v0.9.0",
}
CRD = Resource("CustomResourceDefinition", "apiextensions.k8s.io", "v1", "customresourcedefinitions")
HEADERS = {"Content-Type": "application/json"}
_COUNT = {"type": "integer", "format": "int32", "minimum": 1}
_TEXT = {"type": "string"}
_RESOURCES = {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}}
FIELDS: dict[Gang, dict[str, Any]] = {
    Gang.COSCHEDULING: {"minMember": _COUNT, "minResources": _RESOURCES, "scheduleTimeoutSeconds": _COUNT},
    Gang.VOLCANO: {
        "minMember": _COUNT,
        "minTaskMember": {"type": "object", "additionalProperties": _COUNT},
        "minResources": _RESOURCES,
        "priorityClassName": _TEXT,
        "queue": {**_TEXT, "default": "default"},
    },
    Gang.KAI: {
        "minMember": _COUNT,
        "priorityClassName": _TEXT,
        "preemptibility": {**_TEXT, "enum": ["preemptible", "non-preemptible"]},
        "queue": _TEXT,
    },
}


@cache
def module(kind: Gang) -> Path | None:
    """The folder of the scheduler's module, None where it is not served."""
    command = [go.command(lambda text: None), "mod", "download", "-json", MODULES[kind]]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=120, check=False)
    found = json.loads(done.stdout or "{}")
    return Path(found["Dir"]) if "Dir" in found else None


def definition(kind: Gang) -> dict[str, Any]:
    """The CustomResourceDefinition: the scheduler's own, or ours."""
    folder = module(kind)
    bases = [] if folder is None else sorted(folder.glob("config/crd/bases/*_podgroups.yaml"))
    if bases:
        own: dict[str, Any] = yaml.safe_load(bases[0].read_text())
        return own
    system = pod_groups.SYSTEMS[kind]
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "required": ["minMember"], "properties": FIELDS[kind]}},
    }
    version = {"name": system.version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": pod_groups.KIND, "listKind": "PodGroupList", "plural": pod_groups.PLURAL, "singular": "podgroup"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{pod_groups.PLURAL}.{system.group}"},
        "spec": {"group": system.group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def fields_of_source(source: str, struct: str) -> set[str]:
    """The names that a Go struct's fields have in JSON."""
    body = re.search(rf"^type {struct} struct {{\n(.*?)^}}", source, re.S | re.M)
    assert body is not None, struct
    return set(re.findall(r'json:"(\w+)', body[1]))


@asynccontextmanager
async def installed(server: Server, kind: Gang) -> AsyncIterator[None]:
    """The scheduler's definition, as long as the context lasts."""
    crd, api = definition(kind), POD_GROUPS[kind]
    name = crd["metadata"]["name"]
    path = CRD.path(None, name)
    params = {"fieldManager": "test", "force": "true"}
    await server.kube._send("PATCH", path, json.dumps(crd).encode(), params, {"Content-Type": APPLY})

    async def served() -> bool:
        try:
            await server.kube.list(api, server.namespace)
        except ApiError as error:
            if not error.not_found:
                raise
            return False
        return True

    async def removed() -> bool:
        if await server.kube.find(CRD, None, name) is not None:
            return False
        return not await server.kube.serves(api.group, api.version, api.plural)

    try:
        await until(served)
        yield
    finally:
        await server.kube._send("DELETE", path, b"{}", {}, HEADERS)
        # It goes after its objects, and the next test is to begin without it.
        await until(removed, told=lambda: f"{name} is still served")
