"""Lost pods: which losses are new, what they count against, and when the machine may be filled again.

All memory is in the status. A loss is new while the lost incarnation is a member in the status (or above any
incarnation the status knows); the same status write that counts it removes it from the members, so each loss is counted
exactly once, wherever the operator dies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from rljob_api.constants import KEEPS_FAILING, ROLE_COORDINATOR, ROLE_TRAINER
from rljob_api.spec import ReplacementBackOff, RLJobSpec
from rljob_api.status import BackOff, Replacements, RLJobStatus, Role, Suspect
from rljob_operator.policies.base.deadlines import deadline, is_past
from rljob_operator.policies.base.observation import Node, Observed, Pod

SILENT, NODE_NOT_READY = "CoordinatorSilent", "NodeNotReady"
SETTLED_SECONDS = 60.0
"""The node controller takes up to 50 s to notice that a node is away."""
WITNESSES = 2
"""A machine that looks alive to Kubernetes is replaced when so many in the data plane believe it dead."""


@dataclass(frozen=True)
class MachineLoss:
    """One incarnation of a machine that will do no more work."""

    machine: str
    role: Role
    incarnation: int
    reason: str
    message: str
    pod: Pod | None
    counts: bool
    """Against the machine's budget: the program's failure, not the cluster's."""
    slows: bool
    """Lengthens the back-off."""
    doubted: bool = False
    """Kubernetes still believes in the pod; whether its machine is dead, or cut off, nobody here can know."""
    unsettled: bool = False
    """Whether it counts is known in a while: see `settle`."""

    @property
    def must_delete(self) -> bool:
        """Kubernetes still believes in this pod."""
        return self.pod is not None and self.pod.live


def find_losses(
    placed: Mapping[str, Role], observed: Observed, status: RLJobStatus, dead: Collection[str] = ()
) -> list[MachineLoss]:
    """Losses among the `placed` machines that the status has not counted yet. `dead`: nodes given up."""
    known = {member.machine: member.incarnation for member in status.members}
    losses = []
    for machine, role in placed.items():
        pods = observed.of_machine(machine)
        for pod in reversed(pods):
            fresh = pod.incarnation > status.incarnations.get(machine, 0) or pod.incarnation == known.get(machine)
            if fresh and not pod.live:
                losses.append(_ended(pod))
        member = known.get(machine)
        if member is not None and all(pod.incarnation != member for pod in pods):
            losses.append(MachineLoss(machine, role, member, "PodDeleted", "its pod is gone", None, False, False))
        losses += _believed_in([pod for pod in pods if pod.live], member, observed, status, dead)
    return losses


def update_history(
    before: Replacements | None,
    losses: Sequence[MachineLoss],
    placed: Iterable[str],
    policy: ReplacementBackOff,
    now: datetime,
) -> Replacements:
    """The memory with these losses in it; machines that are no longer placed are forgotten."""
    old = before or Replacements()
    there = set(placed)
    counted = {m: n for m, n in old.by_machine.items() if m in there}
    backoff = {m: entry for m, entry in old.backoff.items() if m in there}
    for loss in losses:
        entry = backoff.get(loss.machine, BackOff())
        if entry.unsettled:
            counted[loss.machine] = counted.get(loss.machine, 0) + 1
        if is_past(_stable_at(entry, policy), now):
            entry = BackOff()
            counted.pop(loss.machine, None)
        if loss.counts:
            counted[loss.machine] = counted.get(loss.machine, 0) + 1
        if loss.slows:
            failures = entry.failures + 1
            until = now + timedelta(seconds=pause_seconds(failures, policy))
            backoff[loss.machine] = BackOff(
                failures=failures,
                until=until,
                last_failure_time=now,
                reason=loss.reason,
                doubted=loss.doubted or None,
                unsettled=loss.unsettled or None,
                node=loss.pod.node if (loss.doubted or loss.unsettled) and loss.pod is not None else None,
            )
    return Replacements(total=old.total + len(losses), by_machine=counted, backoff=backoff)


def settle(memory: Replacements, nodes: Mapping[str, Node], now: datetime) -> Replacements:
    """The memory with silent coordinators judged: one whose node was lost too is the cluster's failure, one whose node
    is well when all would have noticed its loss is the program's, and counts."""
    counted, backoff = dict(memory.by_machine), dict(memory.backoff)
    for machine, entry in memory.backoff.items():
        if not entry.unsettled:
            continue
        node = nodes.get(entry.node) if entry.node is not None else None
        if node is not None and not node.ready:
            backoff[machine] = entry.model_copy(update={"unsettled": None, "reason": NODE_NOT_READY})
        elif is_past(settled_at(entry), now):
            backoff[machine] = entry.model_copy(update={"unsettled": None})
            counted[machine] = counted.get(machine, 0) + 1
    return memory.model_copy(update={"by_machine": counted, "backoff": backoff})


def settled_at(entry: BackOff) -> datetime | None:
    """When it is clear whether a failure counts; None where that is clear already."""
    return deadline(entry.last_failure_time, SETTLED_SECONDS) if entry.unsettled else None


def pause_seconds(failures: int, policy: ReplacementBackOff) -> float:
    """Wait after the n-th failure in a row: none after the first, then doubling up to the longest."""
    if failures <= 1:
        return 0.0
    return min(policy.max_seconds, policy.initial_seconds * 2.0 ** min(failures - 2, 64))


def budget_exhausted(replacements: Replacements, spec: RLJobSpec, rollout: Iterable[str]) -> frozenset[str]:
    """Rollout machines that have used up their budget: they stay empty until the limit is raised."""
    limit = spec.failure_policy.max_replacements_per_machine
    return frozenset(machine for machine in rollout if replacements.by_machine.get(machine, 0) > limit)


def backoff_limit_exceeded(replacements: Replacements, spec: RLJobSpec) -> str | None:
    """Why the job cannot be repaired any more, or None: the coordinator or the trainer group failed too often in a
    row."""
    limit = spec.run_policy.backoff_limit
    for role in (ROLE_COORDINATOR, ROLE_TRAINER):
        machines = [m for m in replacements.by_machine if m.startswith(f"{role}-")]
        failures = sum(replacements.by_machine[m] for m in machines)
        if failures > limit:
            last = "; ".join(
                f"{m}: {replacements.backoff[m].reason}" for m in sorted(machines) if m in replacements.backoff
            )
            return f"the {role} failed {failures} times in a row, spec.runPolicy.backoffLimit is {limit} ({last})"
    return None


def _stable_at(entry: BackOff, policy: ReplacementBackOff) -> datetime | None:
    if entry.last_failure_time is None:
        return None
    return entry.last_failure_time + timedelta(seconds=policy.reset_after_seconds)


def _ended(pod: Pod) -> MachineLoss:
    def loss(reason: str, message: str, counts: bool, slows: bool) -> MachineLoss:
        return MachineLoss(pod.machine, pod.role, pod.incarnation, reason, message, pod, counts, slows)

    if pod.deleting:  # whatever its end was like: it was asked to go
        return loss("PodDeleted", "its pod was deleted", counts=False, slows=False)
    if pod.phase == "Failed":
        if pod.disrupted:
            return loss("Disrupted", pod.exit or "the cluster ended its pod", counts=False, slows=True)
        return loss("PodFailed", pod.exit or "its pod failed", counts=True, slows=True)
    return loss("PodExited", "its main container ended though the job has not", counts=True, slows=True)


def suspected(pod: Pod, observed: Observed, status: RLJobStatus) -> tuple[Suspect, frozenset[str]] | None:
    """The report by which enough believe this pod dead, and who does: those in the data plane that say so, and the
    kubelet of its node by its silence."""
    kubelet = {f"the kubelet of {pod.node}"} if pod.node in observed.silent_nodes else set[str]()
    told = ((suspect, kubelet.union(suspect.witnesses)) for suspect in _suspects(pod, status))
    return next(((suspect, frozenset(who)) for suspect, who in told if len(who) >= WITNESSES), None)


def suspected_nodes(pods: Iterable[Pod], status: RLJobStatus) -> frozenset[str]:
    """Where pods are that anybody believes dead."""
    return frozenset(pod.node for pod in pods if pod.live and pod.node is not None and _suspects(pod, status))


def _suspects(pod: Pod, status: RLJobStatus) -> list[Suspect]:
    """What the coordinator reports of this very incarnation."""
    said = status.runtime.suspects if status.runtime is not None else ()
    machine, incarnation = pod.machine, pod.incarnation
    return [suspect for suspect in said if suspect.machine == machine and suspect.incarnation == incarnation]


def _believed_in(
    live: Sequence[Pod], member: int | None, observed: Observed, status: RLJobStatus, dead: Collection[str]
) -> Iterator[MachineLoss]:
    """Losses among one machine's `live` pods, newest first: of the newest, and of the member when it is not that one.
    Such a member was lost before: its successor was created, and the status that would have counted it not written. So
    it is counted now, whatever has become of the reason."""
    for pod in live:
        if pod is live[0] or pod.incarnation == member:
            loss = _wedged(pod, observed, status, dead) or _superseded(pod, live[0])
            if loss is not None:
                yield loss


def _superseded(pod: Pod, newest: Pod) -> MachineLoss | None:
    """A pod that gave its place to the `newest`. One that never started may have been outdated, which is no loss."""
    if pod is newest or pod.phase == "Pending":
        return None
    message = f"incarnation {newest.incarnation} has its place"
    return MachineLoss(pod.machine, pod.role, pod.incarnation, "Superseded", message, pod, counts=False, slows=False)


def _wedged(pod: Pod, observed: Observed, status: RLJobStatus, dead: Collection[str]) -> MachineLoss | None:
    """A pod that Kubernetes believes in and the job does not."""

    def loss(
        reason: str, message: str, counts: bool = True, doubted: bool = False, unsettled: bool = False
    ) -> MachineLoss:
        return MachineLoss(
            pod.machine, pod.role, pod.incarnation, reason, message, pod, counts, True, doubted, unsettled
        )

    silence = observed.silence
    if pod.role is Role.COORDINATOR:
        if silence is not None and silence.holder.partition("_")[0] == pod.name:
            told = f"its Lease expired {silence.seconds:.0f} s ago"
            return loss(SILENT, told, counts=False, unsettled=True)
    elif any(suspect.reason == KEEPS_FAILING for suspect in _suspects(pod, status)):
        return loss(KEEPS_FAILING, "failed again after it was restarted in place")
    elif (found := suspected(pod, observed, status)) is not None:
        suspect, witnesses = found
        return loss(suspect.reason or "Suspect", f"believed dead by {', '.join(sorted(witnesses))}", doubted=True)
    if pod.node is not None and pod.node in dead:
        state = "gone" if pod.node in observed.nodes and observed.nodes[pod.node].gone else "not ready"
        return loss(NODE_NOT_READY, f"its node {pod.node} is {state}", counts=False, doubted=True)
    return None
