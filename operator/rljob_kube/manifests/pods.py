"""Pods: containers, volumes and the spec, as types.

The operator lays a user's template over its own part. So most fields may be absent.
"""

from typing import Literal, NotRequired, TypedDict

from rljob_kube.manifests.metadata import LabelSelector, Named, ObjectMeta, SharedMeta, TemplateMeta
from rljob_kube.resources import Json

Quantities = dict[str, str | int | float]
"""Amounts by resource. The operator writes text, and a user's template may hold numbers."""


# --- containers -------------------------------------------------------------------------------------------------------


class FieldRef(TypedDict):
    apiVersion: NotRequired[str]
    fieldPath: str


class SecretKeyRef(TypedDict):
    name: str
    key: str


class EnvVarSource(TypedDict, total=False):
    fieldRef: FieldRef
    secretKeyRef: SecretKeyRef


class EnvVar(TypedDict):
    name: str
    value: NotRequired[str]
    valueFrom: NotRequired[EnvVarSource]


class ContainerPort(TypedDict):
    name: str
    containerPort: int


class VolumeMount(TypedDict):
    name: str
    mountPath: str
    subPath: NotRequired[str]
    readOnly: NotRequired[bool]


class HttpGet(TypedDict):
    path: str
    port: int


class Probe(TypedDict):
    httpGet: HttpGet
    periodSeconds: int
    timeoutSeconds: int
    failureThreshold: int


class ExecAction(TypedDict):
    command: list[str]


class LifecycleHandler(TypedDict):
    exec: ExecAction


class Lifecycle(TypedDict):
    preStop: LifecycleHandler


class Capabilities(TypedDict):
    drop: list[str]


class ContainerSecurity(TypedDict, total=False):
    allowPrivilegeEscalation: bool
    readOnlyRootFilesystem: bool
    capabilities: Capabilities
    runAsUser: int
    runAsGroup: int
    runAsNonRoot: bool
    seLinuxOptions: Json


class Resources(TypedDict, total=False):
    limits: Quantities
    requests: Quantities
    claims: list[Named]


class ContainerFields(TypedDict, total=False):
    """A container without its name: the user's part of one may be empty."""

    image: str
    imagePullPolicy: str
    command: list[str]
    args: list[str]
    env: list[EnvVar]
    ports: list[ContainerPort]
    resources: Resources
    volumeMounts: list[VolumeMount]
    readinessProbe: Probe
    lifecycle: Lifecycle
    terminationMessagePolicy: str
    securityContext: ContainerSecurity
    restartPolicy: str
    """`Always` makes a sidecar of an init container."""


class Container(ContainerFields):
    name: str


# --- volumes ----------------------------------------------------------------------------------------------------------


class EmptyDir(TypedDict, total=False):
    medium: str
    sizeLimit: str


class KeyToPath(TypedDict):
    key: str
    path: str


class SecretVolume(TypedDict):
    secretName: str
    defaultMode: int
    items: NotRequired[list[KeyToPath]]


class ClaimVolume(TypedDict):
    claimName: str
    readOnly: NotRequired[bool]


class TokenProjection(TypedDict):
    path: str
    expirationSeconds: int


class NamedProjection(TypedDict):
    """Keys of a Secret or a ConfigMap."""

    name: str
    items: list[KeyToPath]


class DownwardField(TypedDict):
    path: str
    fieldRef: FieldRef


class DownwardProjection(TypedDict):
    items: list[DownwardField]


class Projection(TypedDict, total=False):
    serviceAccountToken: TokenProjection
    configMap: NamedProjection
    secret: NamedProjection
    downwardAPI: DownwardProjection


class ProjectedVolume(TypedDict):
    defaultMode: int
    sources: list[Projection]


class VolumeSource(TypedDict, total=False):
    """What a volume is: exactly one of these."""

    emptyDir: EmptyDir
    secret: SecretVolume
    projected: ProjectedVolume
    persistentVolumeClaim: ClaimVolume


class Volume(VolumeSource):
    name: str


# --- pods -------------------------------------------------------------------------------------------------------------


class SeccompProfile(TypedDict):
    type: str


class PodSecurity(TypedDict, total=False):
    runAsUser: int
    runAsGroup: int
    runAsNonRoot: bool
    fsGroup: int
    fsGroupChangePolicy: str
    seccompProfile: SeccompProfile


class Toleration(TypedDict, total=False):
    key: str
    operator: str
    value: str
    effect: str
    tolerationSeconds: int


class TopologySpread(TypedDict):
    maxSkew: int
    topologyKey: str
    whenUnsatisfiable: str
    labelSelector: LabelSelector


class PodResourceClaim(TypedDict):
    name: str
    resourceClaimTemplateName: str


class SchedulingGroup(TypedDict):
    podGroupName: str


class PodSpec(TypedDict, total=False):
    """The spec of a pod, or a part of one: a user's template, or what a quota counts."""

    affinity: Json
    automountServiceAccountToken: bool
    containers: list[Container]
    enableServiceLinks: bool
    initContainers: list[Container]
    nodeSelector: dict[str, str]
    overhead: Quantities
    priorityClassName: str
    resourceClaims: list[PodResourceClaim]
    restartPolicy: str
    runtimeClassName: str
    schedulerName: str
    schedulingGroup: SchedulingGroup
    securityContext: PodSecurity
    serviceAccountName: str
    terminationGracePeriodSeconds: int
    tolerations: list[Toleration]
    topologySpreadConstraints: list[TopologySpread]
    volumes: list[Volume]


class PodTemplateSpec(TypedDict):
    metadata: TemplateMeta
    spec: PodSpec


class SharedPod(TypedDict):
    """The part of a manifest that all pods of a role share."""

    apiVersion: Literal["v1"]
    kind: Literal["Pod"]
    metadata: SharedMeta
    spec: PodSpec


class Pod(TypedDict):
    apiVersion: Literal["v1"]
    kind: Literal["Pod"]
    metadata: ObjectMeta
    spec: PodSpec
