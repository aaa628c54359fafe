"""Objects besides pods: what a job owns, what Kueue and gang schedulers read, Leases and events."""

from typing import Literal, NotRequired, TypedDict

from rljob_kube.manifests.metadata import LabelSelector, ObjectMeta, PlainMeta, TemplateMeta
from rljob_kube.manifests.pods import PodSpec, PodTemplateSpec, Toleration

# --- keys and rights --------------------------------------------------------------------------------------------------


class Secret(TypedDict):
    apiVersion: Literal["v1"]
    kind: Literal["Secret"]
    metadata: ObjectMeta
    type: str
    stringData: NotRequired[dict[str, str]]
    """The applier adds it: a plan holds no random data."""


class ServiceAccount(TypedDict):
    apiVersion: Literal["v1"]
    kind: Literal["ServiceAccount"]
    metadata: ObjectMeta
    automountServiceAccountToken: bool


class PolicyRule(TypedDict):
    apiGroups: list[str]
    resources: list[str]
    verbs: list[str]
    resourceNames: NotRequired[list[str]]


class Role(TypedDict):
    apiVersion: Literal["rbac.authorization.k8s.io/v1"]
    kind: Literal["Role"]
    metadata: ObjectMeta
    rules: list[PolicyRule]


class RoleRef(TypedDict):
    apiGroup: str
    kind: str
    name: str


class Subject(TypedDict):
    kind: str
    name: str
    namespace: str


class RoleBinding(TypedDict):
    apiVersion: Literal["rbac.authorization.k8s.io/v1"]
    kind: Literal["RoleBinding"]
    metadata: ObjectMeta
    roleRef: RoleRef
    subjects: list[Subject]


# --- network ----------------------------------------------------------------------------------------------------------


class ServicePort(TypedDict):
    name: str
    port: int
    protocol: str


class ServiceSpec(TypedDict):
    publishNotReadyAddresses: bool
    selector: dict[str, str]
    ports: list[ServicePort]


class Service(TypedDict):
    apiVersion: Literal["v1"]
    kind: Literal["Service"]
    metadata: ObjectMeta
    spec: ServiceSpec


class PeerSelector(TypedDict, total=False):
    """An empty one selects all."""

    matchLabels: dict[str, str]


IpBlock = TypedDict("IpBlock", {"cidr": str, "except": NotRequired[list[str]]})


class Peer(TypedDict, total=False):
    podSelector: PeerSelector
    namespaceSelector: PeerSelector
    ipBlock: IpBlock


class PolicyPort(TypedDict):
    port: int
    protocol: str


IngressRule = TypedDict("IngressRule", {"from": list[Peer], "ports": list[PolicyPort]}, total=False)
"""Absent `from`: any client. Absent `ports`: every port."""


class EgressRule(TypedDict, total=False):
    to: list[Peer]
    ports: list[PolicyPort]


class NetworkPolicySpec(TypedDict):
    podSelector: LabelSelector
    policyTypes: list[str]
    ingress: list[IngressRule]
    egress: NotRequired[list[EgressRule]]


class NetworkPolicy(TypedDict):
    apiVersion: Literal["networking.k8s.io/v1"]
    kind: Literal["NetworkPolicy"]
    metadata: ObjectMeta
    spec: NetworkPolicySpec


# --- pods together ----------------------------------------------------------------------------------------------------


class DisruptionBudgetSpec(TypedDict):
    minAvailable: int
    selector: LabelSelector


class DisruptionBudget(TypedDict):
    apiVersion: Literal["policy/v1"]
    kind: Literal["PodDisruptionBudget"]
    metadata: ObjectMeta
    spec: DisruptionBudgetSpec


class RollingUpdate(TypedDict):
    maxSurge: int
    maxUnavailable: str


class DeploymentStrategy(TypedDict):
    type: str
    rollingUpdate: RollingUpdate


class DeploymentShape(TypedDict):
    """The spec of a Deployment without its number of pods."""

    selector: LabelSelector
    strategy: DeploymentStrategy
    progressDeadlineSeconds: int
    revisionHistoryLimit: int
    template: PodTemplateSpec


class DeploymentSpec(DeploymentShape):
    replicas: int


class Deployment(TypedDict):
    apiVersion: Literal["apps/v1"]
    kind: Literal["Deployment"]
    metadata: ObjectMeta
    spec: DeploymentSpec


class Gang(TypedDict):
    minCount: int


class SchedulingPolicy(TypedDict):
    gang: Gang


class GangSize(TypedDict, total=False):
    """The size of a gang: Kubernetes' own API has a policy, and the other schedulers have a number."""

    schedulingPolicy: SchedulingPolicy
    minMember: int


class GangPlace(TypedDict, total=False):
    """Where a gang waits."""

    queue: str
    priorityClassName: str


class PodGroupSpec(GangSize, GangPlace):
    pass


class PodGroup(TypedDict):
    """The group of any scheduler: `apiVersion` names it."""

    apiVersion: str
    kind: Literal["PodGroup"]
    metadata: ObjectMeta
    spec: PodGroupSpec


class PodGroupSizePatch(TypedDict):
    spec: GangSize


# --- devices ----------------------------------------------------------------------------------------------------------


class ExactDevices(TypedDict):
    deviceClassName: str
    allocationMode: str
    count: int


class DeviceRequest(TypedDict):
    name: str
    exactly: ExactDevices


class DeviceRequests(TypedDict):
    requests: list[DeviceRequest]


class ResourceClaimSpec(TypedDict):
    devices: DeviceRequests


class ClaimTemplateSpec(TypedDict):
    metadata: TemplateMeta
    spec: ResourceClaimSpec


class ResourceClaimTemplate(TypedDict):
    apiVersion: str
    kind: Literal["ResourceClaimTemplate"]
    metadata: ObjectMeta
    spec: ClaimTemplateSpec


# --- Kueue ------------------------------------------------------------------------------------------------------------


class PodSetTemplate(TypedDict):
    spec: PodSpec


class PodSet(TypedDict):
    name: str
    count: int
    template: PodSetTemplate


class PriorityClassRef(TypedDict):
    group: str
    kind: str
    name: str


class WorkloadSpec(TypedDict):
    queueName: str
    active: bool
    podSets: list[PodSet]
    priority: int
    priorityClassRef: NotRequired[PriorityClassRef]


class Workload(TypedDict):
    apiVersion: str
    kind: Literal["Workload"]
    metadata: ObjectMeta
    spec: WorkloadSpec


class Condition(TypedDict, total=False):
    """A condition of a Workload. Kueue and the operator write them, each its own types."""

    type: str
    status: str
    reason: str
    message: str
    lastTransitionTime: str
    observedGeneration: int


class ReclaimablePods(TypedDict):
    name: str
    count: int


class WorkloadStatus(TypedDict, total=False):
    """A patch of a Workload's status."""

    admission: None
    """None returns the reservation."""
    conditions: list[Condition]
    reclaimablePods: list[ReclaimablePods]


class PodSetUpdate(TypedDict, total=False):
    """An addition of an admission check to the pods of a pod set."""

    name: str
    labels: dict[str, str]
    annotations: dict[str, str]
    nodeSelector: dict[str, str]
    tolerations: list[Toleration]


# --- Leases and events ------------------------------------------------------------------------------------------------


class LeaseSpec(TypedDict):
    leaseDurationSeconds: int
    leaseTransitions: int


class Lease(TypedDict):
    """The Lease of a job, before its coordinator takes it."""

    apiVersion: Literal["coordination.k8s.io/v1"]
    kind: Literal["Lease"]
    metadata: ObjectMeta
    spec: LeaseSpec


class HeldLeaseSpec(LeaseSpec):
    holderIdentity: str
    acquireTime: str | None
    renewTime: str


class HeldLease(TypedDict):
    """The Lease of the replica of the operator that leads."""

    apiVersion: Literal["coordination.k8s.io/v1"]
    kind: Literal["Lease"]
    metadata: PlainMeta
    spec: HeldLeaseSpec


class InvolvedObject(TypedDict):
    apiVersion: str
    kind: str
    name: str
    namespace: str
    uid: str


class EventSource(TypedDict):
    component: str


class Event(TypedDict):
    apiVersion: Literal["v1"]
    kind: Literal["Event"]
    metadata: PlainMeta
    involvedObject: InvolvedObject
    type: str
    reason: str
    message: str
    firstTimestamp: str
    lastTimestamp: str
    count: int
    source: EventSource
    reportingComponent: str
    reportingInstance: str


Child = (
    Secret
    | Service
    | ServiceAccount
    | Role
    | RoleBinding
    | Lease
    | DisruptionBudget
    | NetworkPolicy
    | ResourceClaimTemplate
    | PodGroup
)
"""An object that a job owns beside its pods and Deployments."""
