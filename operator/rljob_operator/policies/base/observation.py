"""Observation: the job's pods, nodes and Lease as values.

Parsing is total: odd objects become odd values, never exceptions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rljob_api.constants import (
    GATEWAY_CONTAINER,
    GROUP,
    LABEL_EPOCH,
    LABEL_INCARNATION,
    LABEL_MACHINE,
    LABEL_ROLE,
    LABEL_SHAPE,
    MAIN_CONTAINER,
    REWARDS_CONTAINER,
)
from rljob_api.status import RLJobStatus, Role
from rljob_kube.resources import Json
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.runners import Runners

if TYPE_CHECKING:
    from rljob_operator.policies.base.kueue_objects import Kueue

# Container states that the kubelet retries, but that hardly end without a person.
IMAGE_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
CONFIG_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})

# Failures by the cluster: `status.reason` of a pod that the kubelet or a controller ended.
_DISRUPTIONS = frozenset({"Evicted", "Preempting", "Preempted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated"})
_DISRUPTIONS_OF_ADMISSION = frozenset(
    {"NodeAffinity", "OutOfcpu", "OutOfmemory", "OutOfpods", "UnexpectedAdmissionError"}
)


OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_SHUTDOWN = "node is shutting down"
"""Text in the node's condition Ready during a graceful shutdown. Kubelets give it no reason of its own."""
AVOIDS = f"{GROUP}/avoids"
"""Annotation: nodes that the pod avoids, as in its affinity."""


@dataclass(frozen=True)
class Pod:
    """One pod of the job."""

    name: str
    uid: str
    role: Role
    machine: str
    incarnation: int
    epoch: int = 0
    shape: str = ""
    phase: str = "Pending"
    ready: bool = False
    deleting: bool = False
    disrupted: bool = False
    """It failed because the cluster ended it, not because its program failed."""
    ip: str | None = None
    created: datetime | None = None
    unschedulable: str | None = None
    """The scheduler's message when no node fits."""
    waiting: ConditionReason | None = None
    """Why a container cannot start, when a person must act."""
    lingering: bool = False
    """An essential container has ended and another one still runs."""
    ending: bool = False
    """An essential container has ended, and the kubelet has not ended the pod yet."""
    condemned: bool = False
    """The status does not count it as a member any more, and its deletion is still due."""
    node: str | None = None
    """Node that it runs on or is assigned to."""
    avoids: tuple[str, ...] = ()
    """Nodes that it avoids."""
    deletion: datetime | None = None
    """Time at which a deleted pod should be gone."""
    staying: bool = False
    """It is being deleted, and remains a member until it has saved its state."""
    exit: str = ""
    """How the main container ended, for messages, e.g. `OOMKilled, exit code 137`."""

    @property
    def terminal(self) -> bool:
        """Tell whether its containers have ended for good."""
        return self.phase in ("Failed", "Succeeded")

    @property
    def occupies(self) -> bool:
        """Tell whether it holds its resources: they are free once the API server shows a final phase."""
        return self.ending or not self.terminal

    @property
    def live(self) -> bool:
        """Tell whether it runs or may still run, and remains a member."""
        return (self.staying or not self.deleting) and not self.terminal and not self.condemned

    @property
    def available(self) -> bool:
        """Tell whether it is ready to work."""
        return self.live and self.ready


@dataclass(frozen=True)
class Node:
    """A node that runs pods of the job, or may run them."""

    name: str
    ready: bool = True
    gone: bool = False
    """The Node is deleted."""
    fenced: bool = False
    """The Node has the out-of-service taint."""
    shutting_down: bool = False
    """The machine is about to be switched off: its kubelet ends the pods in order, and deletes none of them."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels, which contain its location."""
    allocatable: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Resources that it offers to pods. Pods that run there already do not depend on them, nor on taints."""
    taints: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Silence:
    """An expired Lease."""

    holder: str
    """The holder's identity: the name of the coordinator's pod, and an optional part after an underscore."""
    seconds: float
    """Seconds beyond the Lease's duration, by this operator's clock."""


@dataclass(frozen=True)
class Devices:
    """What the API server has for pods that claim devices."""

    served: bool = True
    """The API of claims is served."""
    templates: frozenset[str] = frozenset()
    """Existing ones of the ResourceClaimTemplates that the job's pods name."""


@dataclass(frozen=True)
class Observed:
    """Input of a decision besides the job itself."""

    pods: tuple[Pod, ...] = ()
    """Pods that this job owns."""
    foreign: tuple[Pod, ...] = ()
    """Pods with the job's label that another object owns, e.g. an earlier job of the same name."""
    silence: Silence | None = None
    """Set when the job's Lease has expired; None while it is fresh or was never taken."""
    children_present: bool = False
    """Service, Secret, Role and the other children were created or checked recently."""
    addressed: int | None = None
    """Incarnation of the coordinator that its Service selects; None where this operator has not checked."""
    nodes: Mapping[str, Node] = field(default_factory=dict)
    """Nodes of the pods, and avoided nodes, by name. Empty where the operator may not list nodes."""
    silent_nodes: frozenset[str] = frozenset()
    """Nodes of suspects whose kubelets have stopped renewing their Leases."""
    devices: Devices = Devices()
    """Read only where the job's pods claim devices."""
    kueue: Kueue | None = None
    """Kueue's view of the job; None for a job without a queue."""
    gang_served: bool | None = None
    """Whether the API server has the PodGroups of the job's gang; None where the job needs none now."""
    cluster: tuple[Node, ...] | None = None
    """All nodes, read only for a gang that is to be placed; None where the operator may not list nodes."""
    forged: str | None = None
    """Report about a status that another client wrote recently, and that was restored."""
    runners: Mapping[str, Runners] = field(default_factory=dict)
    """The Deployments of runners that this job owns, by environment. Read only for a job with environments."""
    proxy: Runners | None = None
    """The Deployment of its egress proxy."""

    @property
    def highest_epoch(self) -> int:
        """Return the highest relay epoch on any pod's label."""
        return max([0, *(pod.epoch for pod in (*self.pods, *self.foreign))])

    @property
    def runner_pods(self) -> int:
        """Return the number of pods of runners and of the egress proxy that may exist."""
        proxy = self.proxy.possible_pods if self.proxy is not None else 0
        return proxy + sum(one.possible_pods for one in self.runners.values())

    def of_machine(self, machine: str) -> Sequence[Pod]:
        """Return the pods of a machine, the newest incarnation first."""
        return self._by_machine.get(machine, ())

    def current(self, machine: str) -> Pod | None:
        """Return the live pod of a machine; of several, the newest."""
        return next((pod for pod in self.of_machine(machine) if pod.live), None)

    def highest_incarnation(self, machine: str) -> int:
        """Return the highest incarnation on any pod's label, foreign ones included."""
        return self._highest.get(machine, 0)

    @cached_property
    def _by_machine(self) -> Mapping[str, Sequence[Pod]]:
        found = defaultdict[str, list[Pod]](list)
        for pod in sorted(self.pods, key=_incarnation, reverse=True):
            found[pod.machine].append(pod)
        return dict(found)

    @cached_property
    def _highest(self) -> Mapping[str, int]:
        return {pod.machine: pod.incarnation for pod in sorted((*self.pods, *self.foreign), key=_incarnation)}

    def with_condemned(self, status: RLJobStatus) -> Observed:
        """Mark the pods that the status knows and does not count as members.

        The status write that counted their loss succeeded, and their deletion did not.
        """
        members = {member.machine: member.incarnation for member in status.members}

        def given_up(pod: Pod) -> bool:
            known = status.incarnations.get(pod.machine, 0)
            return pod.incarnation <= known and members.get(pod.machine) != pod.incarnation

        return replace(self, pods=tuple(replace(pod, condemned=given_up(pod)) for pod in self.pods))


def _incarnation(pod: Pod) -> int:
    return pod.incarnation


def sort_pods(uid: str, items: Iterable[Mapping[str, Any]]) -> tuple[tuple[Pod, ...], tuple[Pod, ...]]:
    """Split API objects into pods of the job with this uid, and foreign ones. Others are left out."""
    owned: list[Pod] = []
    foreign: list[Pod] = []
    for item in items:
        pod = parse_pod(item)
        if pod is None:
            continue
        references = item["metadata"].get("ownerReferences") or []
        mine = any(reference.get("uid") == uid for reference in references)
        (owned if mine else foreign).append(pod)
    return tuple(owned), tuple(foreign)


def relevant_part(item: Mapping[str, Any]) -> Json:
    """Reduce a pod to what decisions need, without containers and managed fields.

    Containers may hold a user's whole template.
    """
    meta = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    node = (item.get("spec") or {}).get("nodeName")
    return {"metadata": meta, "spec": {"nodeName": node}, "status": item.get("status")}


def parse_pod(item: Mapping[str, Any]) -> Pod | None:
    """Parse a pod from its API object; None when its labels name no machine."""
    meta: Mapping[str, Any] = item["metadata"]
    status: Mapping[str, Any] = item.get("status") or {}
    labels: Mapping[str, str] = meta.get("labels") or {}
    role = _ROLES.get(labels.get(LABEL_ROLE, ""))
    machine = labels.get(LABEL_MACHINE)
    incarnation = _number(labels.get(LABEL_INCARNATION))
    if role is None or not machine or incarnation is None:
        return None
    conditions = {c.get("type"): c for c in status.get("conditions") or []}
    scheduled = conditions.get("PodScheduled") or {}
    containers = status.get("containerStatuses") or []
    inits = status.get("initContainerStatuses") or []
    phase = status.get("phase") or "Pending"
    ended = _ended_phase(role, containers) if phase not in ("Failed", "Succeeded") else None
    return Pod(
        name=meta["name"],
        uid=meta.get("uid", ""),
        role=role,
        machine=machine,
        incarnation=incarnation,
        epoch=_number(labels.get(LABEL_EPOCH)) or 0,
        shape=labels.get(LABEL_SHAPE, ""),
        phase=ended or phase,
        # The kubelet ends sidecars (init containers) once all other containers have ended.
        lingering=ended is not None and any(_exit_code(container) is None for container in containers),
        ending=ended is not None,
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        deleting=bool(meta.get("deletionTimestamp")),
        disrupted=_disrupted(status, conditions),
        ip=status.get("podIP") or None,
        created=parse_time(meta.get("creationTimestamp")),
        unschedulable=scheduled.get("message", "") if scheduled.get("reason") == "Unschedulable" else None,
        waiting=_waiting([*inits, *containers]),
        node=(item.get("spec") or {}).get("nodeName") or None,
        avoids=tuple(name for name in ((meta.get("annotations") or {}).get(AVOIDS) or "").split(",") if name),
        deletion=parse_time(meta.get("deletionTimestamp")),
        exit=_exit(status, [*containers, *inits]),
    )


def parse_node(item: Mapping[str, Any]) -> Node:
    """Parse a node from its API object."""
    conditions = (item.get("status") or {}).get("conditions") or []
    taints = (item.get("spec") or {}).get("taints") or []
    ready: Mapping[str, Any] = next((c for c in conditions if c.get("type") == "Ready"), {})
    return Node(
        name=item["metadata"]["name"],
        ready=ready.get("status") == "True",
        fenced=any(taint.get("key") == OUT_OF_SERVICE for taint in taints),
        shutting_down=ready.get("status") == "False" and _SHUTDOWN in (ready.get("message") or ""),
        labels=item["metadata"].get("labels") or {},
        allocatable=(item.get("status") or {}).get("allocatable") or {},
        taints=tuple(taints),
    )


_ROLES = {role.value.lower(): role for role in Role}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) < 10 else None


def parse_time(text: str | None) -> datetime | None:
    """Parse a time of an API object."""
    return datetime.fromisoformat(text) if text else None


def _disrupted(status: Mapping[str, Any], conditions: Mapping[str, Any]) -> bool:
    reason = status.get("reason")
    target = (conditions.get("DisruptionTarget") or {}).get("status") == "True"
    return target or reason in _DISRUPTIONS or reason in _DISRUPTIONS_OF_ADMISSION


def _ended_phase(role: Role, containers: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the phase that the pod has without its sidecars, once an essential container has ended.

    The main container, or a failed container beside the coordinator's, is not restarted. Those end well only after the
    coordinator.
    """
    codes = {container.get("name"): code for container in containers if (code := _exit_code(container)) is not None}
    if MAIN_CONTAINER in codes:
        return "Failed" if codes[MAIN_CONTAINER] != 0 else "Succeeded"
    failed = any(codes.get(name, 0) != 0 for name in (REWARDS_CONTAINER, GATEWAY_CONTAINER))
    return "Failed" if role is Role.COORDINATOR and failed else None


def _exit_code(container: Mapping[str, Any]) -> int | None:
    ended = (container.get("state") or {}).get("terminated")
    return None if ended is None else int(ended.get("exitCode", 0))


def _waiting(containers: Iterable[Mapping[str, Any]]) -> ConditionReason | None:
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in IMAGE_REASONS | CONFIG_REASONS:
            message = waiting.get("message") or waiting["reason"]
            image = container.get("image", "")
            return ConditionReason(waiting["reason"], f"container {container.get('name')}, image {image}: {message}")
    return None


def _exit(status: Mapping[str, Any], containers: Iterable[Mapping[str, Any]]) -> str:
    for container in containers:
        ended = (container.get("state") or {}).get("terminated") or {}
        if ended and ended.get("exitCode", 0) != 0:
            text = f"{container.get('name')}: {ended.get('reason') or 'Error'}, exit code {ended.get('exitCode')}"
            last_words = (ended.get("message") or "").strip()
            return f"{text}: {last_words[-300:]}" if last_words else text
    reason, message = status.get("reason"), status.get("message")
    return ": ".join(str(part) for part in (reason, message) if part)
