"""Many machines dead at once: more likely our own network than all of them, so nobody is replaced for a moment.

As the node controller does when a large share of nodes falls silent. What happens on one node is one failure, however
many machines it takes. The pause ends when the machines come back; if they do not, they are replaced one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from rljob_api.spec import NodeFailure
from rljob_api.status import BackOff, ReplacementPause, Replacements, RLJobStatus
from rljob_operator.policies.base.deadlines import deadline, is_past
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.failure.losses import MachineLoss, suspected

WINDOW_SECONDS = 30.0
"""A machine that was replaced so short a time ago, and has not come up since, is of the same event."""
GRACES = 4.0
"""The pause, in times of nodeFailure.graceSeconds."""
SHORTEST_SECONDS = 30.0
"""The shortest pause."""
STEP_SECONDS = 10.0
"""After the pause a machine is replaced so often, or once in a grace if that is longer."""


def evaluate(
    losses: Sequence[MachineLoss],
    rollout: Collection[str],
    observed: Observed,
    before: RLJobStatus,
    policy: NodeFailure,
    now: datetime,
) -> tuple[list[MachineLoss], ReplacementPause | None]:
    """(the losses to act on now, the pause that the others wait for). Only machines in which Kubernetes still believes
    wait, and which have no successor yet: what has ended has ended."""
    doubtful = [loss for loss in losses if loss.doubted and loss.pod is observed.current(loss.machine)]
    waiting = {id(loss) for loss in doubtful}
    if not doubtful or not _many(rollout, losses, observed, before, now):
        return list(losses), None
    pause = before.replacements.pause if before.replacements is not None else None
    if pause is None:
        seconds = max(SHORTEST_SECONDS, GRACES * policy.grace_seconds)
        pause = ReplacementPause(since=now, until=now + timedelta(seconds=seconds))
    certain = [loss for loss in losses if id(loss) not in waiting]
    if not is_past(pause.until, now):
        return certain, pause
    step = timedelta(seconds=max(STEP_SECONDS, policy.grace_seconds))
    return [*certain, doubtful[0]], pause.model_copy(update={"until": now + step})


def still_held(pause: ReplacementPause | None) -> dict[str, datetime | None]:
    """The fields of `Replacements` that remember it."""
    return {"paused_since": pause.since if pause else None, "paused_until": pause.until if pause else None}


def _many(
    rollout: Collection[str], losses: Sequence[MachineLoss], observed: Observed, before: RLJobStatus, now: datetime
) -> bool:
    """Whether more than half of the rollout machines, on two nodes or more, are in doubt."""
    places = {**_doubted(rollout, observed, before, now), **_lost(rollout, losses)}
    return 2 * len(places) > len(rollout) and len(set(places.values())) >= 2


def _doubted(rollout: Collection[str], observed: Observed, before: RLJobStatus, now: datetime) -> Mapping[str, str]:
    """The machines in doubt, each with its node, or with itself where that is not known: two witnesses speak against
    it, its node is not ready, or it was replaced for such a reason just now and has not come up again; its node is the
    former one then."""
    found = {}
    for machine in rollout:
        current = observed.current(machine)
        if current is None:
            continue
        node = observed.nodes.get(current.node) if current.node is not None else None
        if (node is not None and not node.ready) or suspected(current, observed, before):
            found[machine] = current.node or machine
        elif not current.ready and (lost := _just_now(machine, before.replacements, now)) is not None:
            found[machine] = lost.node or machine
    return found


def _lost(rollout: Collection[str], losses: Sequence[MachineLoss]) -> Mapping[str, str]:
    """The machines whose member is lost in doubt, each with its node. The member may have a successor already, of which
    the status does not know yet."""
    pods = [loss.pod for loss in losses if loss.doubted and loss.pod is not None]
    return {pod.machine: pod.node or pod.machine for pod in pods if pod.machine in rollout}


def _just_now(machine: str, memory: Replacements | None, now: datetime) -> BackOff | None:
    """How the machine was lost that was replaced in doubt a moment ago."""
    entry = memory.backoff.get(machine) if memory is not None else None
    if entry is None or not entry.doubted:
        return None
    return None if is_past(deadline(entry.last_failure_time, WINDOW_SECONDS), now) else entry
