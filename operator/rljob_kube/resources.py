"""Resources: the kinds that this project reads or writes, with their REST paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rljob_api.constants import GROUP, KIND, PLURAL, VERSION

Json = dict[str, Any]
"""Free-form JSON: what users write, and answers of servers before they are parsed."""


@dataclass(frozen=True)
class Resource:
    """A kind and its REST path."""

    kind: str
    group: str
    version: str
    plural: str
    page: int = 500
    """Number of objects in a page of a list. Small where a user's templates make the objects large."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the URL path of a collection, an object or its subresource. `namespace` None: all namespaces."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part is not None]
        return "/".join(parts)


RLJOB = Resource(KIND, GROUP, VERSION, PLURAL, page=25)
NAMESPACE = Resource("Namespace", "", "v1", "namespaces")
NODE = Resource("Node", "", "v1", "nodes", page=200)
POD = Resource("Pod", "", "v1", "pods", page=200)
DEPLOYMENT = Resource("Deployment", "apps", "v1", "deployments", page=50)
SERVICE = Resource("Service", "", "v1", "services")
SECRET = Resource("Secret", "", "v1", "secrets")
SERVICE_ACCOUNT = Resource("ServiceAccount", "", "v1", "serviceaccounts")
EVENT = Resource("Event", "", "v1", "events")
ROLE = Resource("Role", "rbac.authorization.k8s.io", "v1", "roles")
ROLE_BINDING = Resource("RoleBinding", "rbac.authorization.k8s.io", "v1", "rolebindings")
LEASE = Resource("Lease", "coordination.k8s.io", "v1", "leases")
NETWORK_POLICY = Resource("NetworkPolicy", "networking.k8s.io", "v1", "networkpolicies")
DISRUPTION_BUDGET = Resource("PodDisruptionBudget", "policy", "v1", "poddisruptionbudgets")
CLAIM_TEMPLATE = Resource("ResourceClaimTemplate", "resource.k8s.io", "v1", "resourceclaimtemplates")
WORKLOAD = Resource("Workload", "kueue.x-k8s.io", "v1beta2", "workloads", page=100)
RESOURCE_FLAVOR = Resource("ResourceFlavor", "kueue.x-k8s.io", "v1beta2", "resourceflavors")
WORKLOAD_PRIORITY_CLASS = Resource("WorkloadPriorityClass", "kueue.x-k8s.io", "v1beta2", "workloadpriorityclasses")
PRIORITY_CLASS = Resource("PriorityClass", "scheduling.k8s.io", "v1", "priorityclasses")
