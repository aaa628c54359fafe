"""Pod set: which pods to create and to delete, so that every machine has exactly one live incarnation."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from rljob_api.constants import ROLE_COORDINATOR, ROLE_TRAINER, machine_name
from rljob_api.spec import RLJobSpec
from rljob_api.status import Member, Replacements, Role
from rljob_operator.policies.base.deadlines import is_past
from rljob_operator.policies.base.decisions import NewPod, Removal
from rljob_operator.policies.base.names import machine_index
from rljob_operator.policies.base.observation import Observed, Pod
from rljob_operator.policies.failure.losses import MachineLoss

_ORDER = {Role.COORDINATOR: 0, Role.TRAINER: 1, Role.ROLLOUT: 2}


def placed_machines(spec: RLJobSpec, rollout: Sequence[str]) -> dict[str, Role]:
    """Return every machine that the job should have now, in the order of creation."""
    placed = {machine_name(ROLE_COORDINATOR, 0): Role.COORDINATOR}
    placed |= {machine_name(ROLE_TRAINER, index): Role.TRAINER for index in range(spec.trainer.replicas)}
    return placed | dict.fromkeys(rollout, Role.ROLLOUT)


def to_create(
    placed: Mapping[str, Role],
    observed: Observed,
    losses: Sequence[MachineLoss],
    outdated: Sequence[Removal],
    incarnations: Mapping[str, int],
    replacements: Replacements,
    blocked: Collection[str],
    now: datetime,
) -> list[NewPod]:
    """Return pods for machines that have none, unless they are `blocked` or in backoff.

    An incarnation is above every observed and every remembered one, so that a pod stuck on a dead node blocks nothing.
    """
    going = {loss.pod.uid for loss in losses if loss.pod is not None} | {removal.pod.uid for removal in outdated}
    created = []
    for machine, role in placed.items():
        current = observed.current(machine)
        if current is not None and current.uid not in going:
            continue
        entry = replacements.backoff.get(machine)
        resting = entry is not None and entry.until is not None and not is_past(entry.until, now)
        if machine in blocked or resting:
            continue
        number = max(observed.highest_incarnation(machine), incarnations.get(machine, 0)) + 1
        created.append(NewPod(machine, role, number))
    return created


def outdated_pods(
    placed: Mapping[str, Role], observed: Observed, shapes: Mapping[Role, str], avoided: Collection[str]
) -> list[Removal]:
    """Return pods that never started and do not match the request any more.

    The name of an image was corrected, or they find no node and avoid one that is no longer `avoided`. A running pod is
    left alone: a changed template reaches it when it is replaced, or by suspending and resuming.
    """
    removals = []
    for pod in (observed.current(machine) for machine in placed):
        if pod is None or pod.phase != "Pending":
            continue
        if pod.shape != shapes[pod.role]:
            removals.append(Removal(pod, "TemplateChanged"))
        elif pod.unschedulable is not None and not set(pod.avoids) <= set(avoided):
            removals.append(Removal(pod, "NodeNotAvoided"))
    return removals


def to_remove(
    placed: Mapping[str, Role],
    observed: Observed,
    losses: Sequence[MachineLoss],
    outdated: Sequence[Removal],
    drained: Collection[str],
) -> list[Removal]:
    """Return the pods to delete.

    These are wedged, outdated and superseded pods, leaving machines that are `drained`, and ended pods except the last
    of each machine, whose log may be useful.
    """
    removals = [Removal(loss.pod, loss.reason) for loss in losses if loss.pod is not None and loss.must_delete]
    removals += outdated
    chosen = {removal.pod.uid for removal in removals}
    for pod in observed.pods:
        if pod.deleting or pod.uid in chosen:
            continue
        siblings = observed.of_machine(pod.machine)
        if pod.machine not in placed:
            if pod.role is not Role.ROLLOUT or pod.terminal or pod.machine in drained:
                removals.append(Removal(pod, "ScaledDown"))
        elif pod.condemned and not pod.terminal:
            removals.append(Removal(pod, "Superseded"))
        elif pod.lingering:
            removals.append(Removal(pod, "ContainerEnded"))
        elif pod.live and any(other.live and other.incarnation > pod.incarnation for other in siblings):
            removals.append(Removal(pod, "Superseded"))
        elif pod.terminal and any(other.terminal and other.incarnation > pod.incarnation for other in siblings):
            removals.append(Removal(pod, "Ended"))
    return removals


def leaving(placed: Mapping[str, Role], observed: Observed, removals: Sequence[Removal]) -> list[Pod]:
    """Return rollout pods outside the target that may not be deleted yet."""
    removed = {removal.pod.uid for removal in removals}
    unwanted = [pod for pod in observed.pods if pod.live and pod.role is Role.ROLLOUT and pod.machine not in placed]
    return [pod for pod in unwanted if pod.uid not in removed]


def idle(observed: Observed, created: Sequence[NewPod]) -> tuple[Removal, ...]:
    """Return the pods that are idle until the coordinator is created, and may have to be deleted.

    None while a former coordinator's pod still exists.
    """
    waited_for = any(new.role is Role.COORDINATOR for new in created)
    if not waited_for or any(pod.role is Role.COORDINATOR and not pod.terminal for pod in observed.pods):
        return ()
    return tuple(Removal(pod, "NoCoordinator") for pod in observed.pods if pod.live)


def members(
    observed: Observed,
    created: Sequence[NewPod],
    removals: Sequence[Removal],
    departing: Sequence[Pod] = (),
    shut_down: Collection[str] = (),
) -> tuple[Member, ...]:
    """Return the members after this plan: one a machine, the coordinator first.

    A `departing` pod still is one. The uids of `shut_down` are leaving without being deleted.
    """
    gone = {removal.pod.uid for removal in removals}
    found: dict[str, Member] = {}
    for pod in sorted(observed.pods, key=lambda p: p.incarnation):
        if (pod.live or pod in departing) and pod.uid not in gone:
            found[pod.machine] = Member(
                machine=pod.machine,
                incarnation=pod.incarnation,
                pod_uid=pod.uid,
                ip=pod.ip,
                role=pod.role,
                leaving=pod.deleting or pod.uid in shut_down or None,
            )
    for new in created:
        found[new.machine] = Member(machine=new.machine, incarnation=new.incarnation, role=new.role)
    return tuple(sorted(found.values(), key=lambda m: (_ORDER[m.role], machine_index(m.machine))))
