"""An API server that keeps one Role and one status."""

from __future__ import annotations

import copy
from typing import Any

from rljob_kube.errors import ApiError
from rljob_kube.resources import Resource

Json = dict[str, Any]
UID = "u-1"


class Roles:
    """The part of a client that seals need, with one Role behind it."""

    def __init__(self, annotations: Json | None = None, *, exists: bool = True) -> None:
        self.role: Json | None = None
        self.requests: list[str] = []
        if exists:
            self.make(annotations or {})

    def make(self, annotations: Json) -> Json:
        self.role = {
            "metadata": {"resourceVersion": "1", "annotations": annotations, "ownerReferences": [{"uid": UID}]}
        }
        return copy.deepcopy(self.role)

    async def find(self, resource: Resource, namespace: str, name: str) -> Json | None:
        assert (resource.plural, namespace, name) == ("roles", "ns", "demo-coordinator")
        self.requests.append("GET")
        return copy.deepcopy(self.role)

    async def merge(self, resource: Resource, namespace: str, name: str, body: Json) -> Json:
        self.requests.append("PATCH")
        assert self.role is not None
        meta = self.role["metadata"]
        if body["metadata"]["resourceVersion"] != meta["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        meta["annotations"] |= body["metadata"]["annotations"]
        meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)
        return copy.deepcopy(self.role)
