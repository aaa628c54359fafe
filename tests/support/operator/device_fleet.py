"""Devices without a driver: tests publish them, and claims are allocated by the real scheduler."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

from hack.local_cluster import kube
from rljob_operator.policies.pods import devices

API = f"/apis/{'/'.join(devices.API)}"


@dataclass
class Fleet:
    """Devices of a driver of this test's own, and the claims for them."""

    api: kube.Api
    name: str
    namespace: str

    def publish(self, node: str, count: int) -> None:
        """What the node's driver would: so many devices."""
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec: dict[str, object] = {"nodeName": node, "driver": self.name, "pool": pool}
        spec["devices"] = [{"name": f"gpu-{number}"} for number in range(count)]
        self._post(
            "resourceslices", {"kind": "ResourceSlice", "metadata": {"name": f"{node}-{self.name}"}, "spec": spec}
        )

    def make_class(self, resource: str | None = None) -> None:
        """`resource`: the extended resource that the class serves, too."""
        selector = {"cel": {"expression": f"device.driver == '{self.name}'"}}
        spec: dict[str, Any] = {"selectors": [selector]}
        spec |= {"extendedResourceName": resource} if resource else {}
        self._post("deviceclasses", {"kind": "DeviceClass", "metadata": {"name": self.name}, "spec": spec})

    def make_template(self, namespace: str, name: str, count: int, mode: str = "ExactCount") -> None:
        exactly: dict[str, Any] = {"deviceClassName": self.name, "allocationMode": mode}
        exactly |= {"count": count} if mode == "ExactCount" else {}
        spec = {"spec": {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}}
        body = {"kind": "ResourceClaimTemplate", "metadata": {"name": name, "namespace": namespace}, "spec": spec}
        self._post(f"namespaces/{namespace}/resourceclaimtemplates", body)

    def claims(self) -> dict[str, list[str]]:
        """Pod → the devices that its claim holds, of every claim in the namespace."""
        found = {}
        for claim in self.api.get(f"{API}/namespaces/{self.namespace}/resourceclaims")["items"]:
            (owner,) = claim["metadata"]["ownerReferences"]
            allocation = (claim.get("status") or {}).get("allocation") or {"devices": {"results": []}}
            results = allocation["devices"]["results"]
            found[owner["name"]] = sorted(f"{one['pool']}/{one['device']}" for one in results)
        return found

    def clear(self) -> None:
        for one in self.api.get(f"{API}/resourceslices")["items"]:
            if one["spec"]["driver"] == self.name:
                self.api.call("DELETE", f"{API}/resourceslices/{one['metadata']['name']}")
        with contextlib.suppress(kube.ApiError):
            self.api.call("DELETE", f"{API}/deviceclasses/{self.name}")

    def _post(self, collection: str, body: dict[str, Any]) -> None:
        self.api.call("POST", f"{API}/{collection}", {"apiVersion": "/".join(devices.API), **body})
