"""Owned resources: where the API server keeps each kind of object that the operator creates.

Pod groups of all schedulers have the same kind and different API groups, so their `apiVersion` decides.
"""

from __future__ import annotations

from collections.abc import Mapping

from rljob_api.spec import Gang
from rljob_kube.manifests.objects import Child
from rljob_kube.resources import (
    CLAIM_TEMPLATE,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    EVENT,
    LEASE,
    NETWORK_POLICY,
    POD,
    RLJOB,
    ROLE,
    ROLE_BINDING,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    Resource,
)
from rljob_operator.policies.gang import pod_groups

RESOURCES: Mapping[str, Resource] = {
    resource.kind: resource
    for resource in (
        RLJOB,
        POD,
        DEPLOYMENT,
        SERVICE,
        SECRET,
        SERVICE_ACCOUNT,
        EVENT,
        ROLE,
        ROLE_BINDING,
        LEASE,
        NETWORK_POLICY,
        DISRUPTION_BUDGET,
        CLAIM_TEMPLATE,
    )
}
"""By kind, as in manifests."""


POD_GROUPS: Mapping[Gang, Resource] = {
    kind: Resource(pod_groups.KIND, system.group, system.version, pod_groups.PLURAL)
    for kind, system in pod_groups.SYSTEMS.items()
}
"""By scheduler: they share a kind, and each has its own API group."""


def resource_of(manifest: Child) -> Resource:
    """Return the resource of an object that the operator owns."""
    groups = {resource.api_version: resource for resource in POD_GROUPS.values()}
    return groups[manifest["apiVersion"]] if manifest["kind"] == pod_groups.KIND else RESOURCES[manifest["kind"]]
