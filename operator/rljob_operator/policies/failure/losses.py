"""Losses: which pods are newly lost, whether they count, and when their machine may get a new pod.

All memory is in the status. A loss is new while the lost incarnation is a member in the status, or is above every
incarnation in the status. The status write that counts a loss also removes the member. So each loss counts exactly
once, wherever the operator dies.
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
"""The node controller takes up to 50 s to detect a lost node."""
WITNESSES = 2
"""Witnesses in the data plane that it takes to replace a machine that looks alive to Kubernetes."""

Suspicions = Mapping[tuple[str, int], Sequence[Suspect]]
"""The coordinator's reports by machine and incarnation."""


@dataclass(frozen=True)
class MachineLoss:
    """A lost incarnation of a machine."""

    machine: str
    role: Role
    incarnation: int
    reason: str
    message: str
    pod: Pod | None
    counts: bool
    """It counts against the machine's budget: the program failed, not the cluster."""
    slows: bool
    """It lengthens the backoff."""
    doubted: bool = False
    """The pod looks alive to Kubernetes: its machine may be dead, or only unreachable."""
    unsettled: bool = False
    """Whether it counts is decided later, in `settle`."""

    @property
    def must_delete(self) -> bool:
        """Tell whether the pod looks alive to Kubernetes."""
        return self.pod is not None and self.pod.live


def find_losses(
    placed: Mapping[str, Role], observed: Observed, status: RLJobStatus, dead: Collection[str] = ()
) -> list[MachineLoss]:
    """Find losses among the `placed` machines that the status has not counted yet.

    `dead`: nodes that count as lost.
    """
    known = {member.machine: member.incarnation for member in status.members}
    said = suspicions(status)
    losses = []
    for machine, role in placed.items():
        pods = observed.of_machine(machine)
        for pod in reversed(pods):
            fresh = pod.incarnation > status.incarnations.get(machine, 0) or pod.incarnation == known.get(machine)
            if fresh and not pod.live:
                losses.append(_ended(pod))
        member = known.get(machine)
        if member is not None and all(pod.incarnation != member for pod in pods):
            losses.append(MachineLoss(machine, role, member, "PodDeleted", "its pod was deleted", None, False, False))
        losses += _believed_in([pod for pod in pods if pod.live], member, observed, said, dead)
    return losses


def update_history(
    before: Replacements | None,
    losses: Sequence[MachineLoss],
    placed: Iterable[str],
    policy: ReplacementBackOff,
    now: datetime,
) -> Replacements:
    """Add losses to the history. Machines that are no longer placed are dropped."""
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
    """Decide which losses of silent coordinators count.

    If the node was lost too, the cluster failed. If the node is healthy after the time in which its loss would show,
    the program failed, and the loss counts.
    """
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
    """Return when it is decided whether a failure counts; None where it is decided."""
    return deadline(entry.last_failure_time, SETTLED_SECONDS) if entry.unsettled else None


def pause_seconds(failures: int, policy: ReplacementBackOff) -> float:
    """Return the pause after the n-th failure in a row: none after the first, then doubling up to the limit."""
    if failures <= 1:
        return 0.0
    return min(policy.max_seconds, policy.initial_seconds * 2.0 ** min(failures - 2, 64))


def budget_exhausted(replacements: Replacements, spec: RLJobSpec, rollout: Iterable[str]) -> frozenset[str]:
    """Find the rollout machines with an exhausted budget. They stay empty until the limit is raised."""
    limit = spec.failure_policy.max_replacements_per_machine
    return frozenset(machine for machine in rollout if replacements.by_machine.get(machine, 0) > limit)


def backoff_limit_exceeded(replacements: Replacements, spec: RLJobSpec) -> str | None:
    """Explain why the job cannot be repaired any more; None where it can.

    The coordinator or the trainer group has failed too often in a row.
    """
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
    return loss("PodExited", "its main container ended before the job", counts=True, slows=True)


def suspicions(status: RLJobStatus) -> Suspicions:
    """Arrange the coordinator's reports, once a plan: all machines may be suspected, and each is looked at."""
    found: dict[tuple[str, int], list[Suspect]] = {}
    for suspect in status.runtime.suspects if status.runtime is not None else ():
        found.setdefault((suspect.machine, suspect.incarnation), []).append(suspect)
    return found


def suspected(pod: Pod, observed: Observed, said: Suspicions) -> tuple[Suspect, frozenset[str]] | None:
    """Return the report and the witnesses that make a pod count as dead; None with too few witnesses.

    Witnesses are those of the data plane, and the silent kubelet of the pod's node.
    """
    kubelet = {f"the kubelet of {pod.node}"} if pod.node in observed.silent_nodes else set[str]()
    reports = ((suspect, kubelet.union(suspect.witnesses)) for suspect in _about(pod, said))
    return next(((suspect, frozenset(who)) for suspect, who in reports if len(who) >= WITNESSES), None)


def suspected_nodes(pods: Iterable[Pod], status: RLJobStatus) -> frozenset[str]:
    """Name the nodes of pods that any witness suspects."""
    said = suspicions(status)
    return frozenset(pod.node for pod in pods if pod.live and pod.node is not None and _about(pod, said))


def _about(pod: Pod, said: Suspicions) -> Sequence[Suspect]:
    """Return the reports of exactly this incarnation."""
    return said.get((pod.machine, pod.incarnation), ())


def _believed_in(
    live: Sequence[Pod], member: int | None, observed: Observed, said: Suspicions, dead: Collection[str]
) -> Iterator[MachineLoss]:
    """Find losses among one machine's `live` pods, newest first.

    Both the newest pod and the member are checked. A member that is not the newest was lost before: its successor
    exists, and the status that would have counted the loss was not written. So it counts now, even if the cause has
    passed.
    """
    for pod in live:
        if pod is live[0] or pod.incarnation == member:
            loss = _wedged(pod, observed, said, dead) or _superseded(pod, live[0])
            if loss is not None:
                yield loss


def _superseded(pod: Pod, newest: Pod) -> MachineLoss | None:
    """Return the loss of a pod that the `newest` has replaced.

    A pod that never started was outdated, which is no loss.
    """
    if pod is newest or pod.phase == "Pending":
        return None
    message = f"replaced by incarnation {newest.incarnation}"
    return MachineLoss(pod.machine, pod.role, pod.incarnation, "Superseded", message, pod, counts=False, slows=False)


def _wedged(pod: Pod, observed: Observed, said: Suspicions, dead: Collection[str]) -> MachineLoss | None:
    """Return the loss of a pod that looks alive to Kubernetes and does not work for the job."""

    def loss(
        reason: str, message: str, counts: bool = True, doubted: bool = False, unsettled: bool = False
    ) -> MachineLoss:
        return MachineLoss(
            pod.machine, pod.role, pod.incarnation, reason, message, pod, counts, True, doubted, unsettled
        )

    silence = observed.silence
    if pod.role is Role.COORDINATOR:
        if silence is not None and silence.holder.partition("_")[0] == pod.name:
            message = f"its Lease expired {silence.seconds:.0f} s ago"
            return loss(SILENT, message, counts=False, unsettled=True)
    elif any(suspect.reason == KEEPS_FAILING for suspect in _about(pod, said)):
        return loss(KEEPS_FAILING, "failed again after it was restarted in place")
    elif (found := suspected(pod, observed, said)) is not None:
        suspect, witnesses = found
        return loss(suspect.reason or "Suspect", f"suspected by {', '.join(sorted(witnesses))}", doubted=True)
    if pod.node is not None and pod.node in dead:
        state = "gone" if pod.node in observed.nodes and observed.nodes[pod.node].gone else "not ready"
        return loss(NODE_NOT_READY, f"its node {pod.node} is {state}", counts=False, doubted=True)
    return None
