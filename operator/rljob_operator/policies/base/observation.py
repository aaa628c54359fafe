"""What the operator saw: the job's pods as values. Parsing is total: odd objects become odd values, never
exceptions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rljob_api.constants import (
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
from rljob_operator.policies.base.condition_reason import ConditionReason

if TYPE_CHECKING:
    from rljob_operator.policies.base.kueue_objects import Kueue

# Container states that the kubelet retries but that hardly heal without a human.
IMAGE_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
CONFIG_REASONS = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})

# Failures that are the cluster's doing: `status.reason` of a pod that the kubelet or a controller ended.
_DISRUPTIONS = frozenset({"Evicted", "Preempting", "Preempted", "NodeLost", "NodeShutdown", "Shutdown", "Terminated"})
_DISRUPTIONS_OF_ADMISSION = frozenset(
    {"NodeAffinity", "OutOfcpu", "OutOfmemory", "OutOfpods", "UnexpectedAdmissionError"}
)


OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
_SHUTDOWN = "node is shutting down"
"""What a kubelet says of its node's condition Ready while it shuts down gracefully. There is no reason of its own."""
AVOIDS = f"{GROUP}/avoids"
"""Annotation: the nodes that a pod was told to stay away from, as its affinity says too."""


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
    """It failed because the cluster ended it, not because its program did."""
    ip: str | None = None
    created: datetime | None = None
    unschedulable: str | None = None
    """The scheduler's message, when no node fits."""
    waiting: ConditionReason | None = None
    """Why a container cannot start, when that wants a human."""
    lingering: bool = False
    """A container that it is nothing without has ended and another has not."""
    condemned: bool = False
    """The status has given it up already: it only waits to be deleted."""
    node: str | None = None
    """Where it runs or is to run."""
    avoids: tuple[str, ...] = ()
    """Nodes that it was told to stay away from."""
    deletion: datetime | None = None
    """When it should be gone, once somebody has asked it to go."""
    staying: bool = False
    """It was asked to go, and keeps its place until it has handed over what it holds."""
    exit: str = ""
    """How the main container ended, for messages, e.g. `OOMKilled, exit code 137`."""

    @property
    def terminal(self) -> bool:
        """Its containers have ended for good."""
        return self.phase in ("Failed", "Succeeded")

    @property
    def live(self) -> bool:
        """It runs or may still run, and keeps its place."""
        return (self.staying or not self.deleting) and not self.terminal and not self.condemned

    @property
    def available(self) -> bool:
        """Ready to work."""
        return self.live and self.ready


@dataclass(frozen=True)
class Node:
    """A node that pods of the job run on, or may run on, as far as it matters to them."""

    name: str
    ready: bool = True
    gone: bool = False
    """It is deleted."""
    fenced: bool = False
    """Somebody says that nothing runs there any more."""
    shutting_down: bool = False
    """The machine is about to be switched off: its kubelet ends the pods in order, and deletes none of them."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """They say where it is."""
    allocatable: Mapping[str, str] = field(default_factory=dict, compare=False)
    """What it offers to pods. It does not matter to those that are there, and nor do its taints."""
    taints: tuple[Mapping[str, Any], ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Silence:
    """A Lease that its holder has stopped to renew."""

    holder: str
    """The holder's identity: the name of the coordinator's pod, and perhaps more after an underscore."""
    seconds: float
    """How long beyond the Lease's duration, on this operator's own clock."""


@dataclass(frozen=True)
class Devices:
    """What the API server has for pods that claim devices."""

    served: bool = True
    """Whether it has the API of claims at all."""
    templates: frozenset[str] = frozenset()
    """Of the ResourceClaimTemplates that the job's pods name those that exist."""


@dataclass(frozen=True)
class Observed:
    """Everything a decision rests on besides the job itself."""

    pods: tuple[Pod, ...] = ()
    """Pods that this job owns."""
    foreign: tuple[Pod, ...] = ()
    """Pods that carry its label but belong to another object, e.g. an earlier job of the same name."""
    silence: Silence | None = None
    """Set when the job's Lease has expired; None while it is fresh or was never taken."""
    children_present: bool = False
    """Service, Secret, Role and the rest were made or checked lately."""
    addressed: int | None = None
    """The incarnation of the coordinator that its Service selects; None where this operator has not made sure of it."""
    nodes: Mapping[str, Node] = field(default_factory=dict)
    """By name, those of the pods and those that are avoided. Empty where the operator may not see nodes."""
    silent_nodes: frozenset[str] = frozenset()
    """Of the nodes of suspects those whose kubelets have stopped to renew their Leases."""
    devices: Devices = Devices()
    """Looked at only where the job's pods claim devices."""
    kueue: Kueue | None = None
    """What Kueue says of the job; None for one that asks for no quota."""
    gang_served: bool | None = None
    """Whether the API server has the PodGroups of the job's gang; None where the job needs none now."""
    cluster: tuple[Node, ...] | None = None
    """All nodes, looked at only for a gang that is to be placed; None where the operator may not see nodes."""
    forged: str | None = None
    """What there is to tell of a status that somebody else wrote lately; it was undone."""

    @property
    def highest_epoch(self) -> int:
        """The highest relay epoch on any pod's label."""
        return max([0, *(pod.epoch for pod in (*self.pods, *self.foreign))])

    def of_machine(self, machine: str) -> Sequence[Pod]:
        """Pods of a machine, the newest incarnation first."""
        return self._by_machine.get(machine, ())

    def current(self, machine: str) -> Pod | None:
        """The live pod of a machine (of several, the newest)."""
        return next((pod for pod in self.of_machine(machine) if pod.live), None)

    def highest_incarnation(self, machine: str) -> int:
        """The highest incarnation on any pod's label, foreign ones included."""
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
        """With the pods marked that the status does not count as members though it knows of their time: the write that
        gave them up came through, their deletion did not."""
        members = {member.machine: member.incarnation for member in status.members}

        def given_up(pod: Pod) -> bool:
            known = status.incarnations.get(pod.machine, 0)
            return pod.incarnation <= known and members.get(pod.machine) != pod.incarnation

        return replace(self, pods=tuple(replace(pod, condemned=given_up(pod)) for pod in self.pods))


def _incarnation(pod: Pod) -> int:
    return pod.incarnation


def sort_pods(uid: str, items: Iterable[Mapping[str, Any]]) -> tuple[tuple[Pod, ...], tuple[Pod, ...]]:
    """(owned by the job with this uid, foreign) among API objects; what is no machine's pod is left out."""
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


def relevant_part(item: Mapping[str, Any]) -> dict[str, Any]:
    """What of a pod is looked at: neither its containers, which may have a user's templates, nor who manages what."""
    meta = {key: value for key, value in item["metadata"].items() if key != "managedFields"}
    node = (item.get("spec") or {}).get("nodeName")
    return {"metadata": meta, "spec": {"nodeName": node}, "status": item.get("status")}


def parse_pod(item: Mapping[str, Any]) -> Pod | None:
    """A pod from its API object; None when its labels do not name a machine."""
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
        # Sidecars that are init containers are ended by the kubelet, once all of the others have ended.
        lingering=ended is not None and any(_exit_code(container) is None for container in containers),
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        deleting=bool(meta.get("deletionTimestamp")),
        disrupted=_disrupted(status, conditions),
        ip=status.get("podIP") or None,
        created=_time(meta.get("creationTimestamp")),
        unschedulable=scheduled.get("message", "") if scheduled.get("reason") == "Unschedulable" else None,
        waiting=_waiting([*inits, *containers]),
        node=(item.get("spec") or {}).get("nodeName") or None,
        avoids=tuple(name for name in ((meta.get("annotations") or {}).get(AVOIDS) or "").split(",") if name),
        deletion=_time(meta.get("deletionTimestamp")),
        exit=_exit(status, [*containers, *inits]),
    )


def parse_node(item: Mapping[str, Any]) -> Node:
    """A node from its API object."""
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


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _disrupted(status: Mapping[str, Any], conditions: Mapping[str, Any]) -> bool:
    reason = status.get("reason")
    target = (conditions.get("DisruptionTarget") or {}).get("status") == "True"
    return target or reason in _DISRUPTIONS or reason in _DISRUPTIONS_OF_ADMISSION


def _ended_phase(role: Role, containers: Iterable[Mapping[str, Any]]) -> str | None:
    """The phase that the pod would have without its sidecars, when the main container has ended, or the rewards' has
    failed: it is not started again, and the coordinator would wait for it. It ends well only after the coordinator."""
    codes = {container.get("name"): code for container in containers if (code := _exit_code(container)) is not None}
    if MAIN_CONTAINER in codes:
        return "Failed" if codes[MAIN_CONTAINER] != 0 else "Succeeded"
    return "Failed" if role is Role.COORDINATOR and codes.get(REWARDS_CONTAINER, 0) != 0 else None


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
