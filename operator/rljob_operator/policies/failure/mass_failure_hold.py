"""Mass-failure hold: delays replacement when many machines are lost at the same time.

Then the network is the likely cause. The node controller does the same when a large share of nodes becomes silent. All
failures on one node count as one. The hold ends when the machines return. If they do not, they are replaced one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta

from rljob_api.spec import NodeFailure
from rljob_api.status import BackOff, ReplacementPause, Replacements, RLJobStatus
from rljob_operator.policies.base.deadlines import deadline, is_past
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.failure.losses import MachineLoss, suspected, suspicions

WINDOW_SECONDS = 30.0
"""A machine that was replaced so recently, and is not ready again, belongs to the same mass failure."""
GRACES = 4.0
"""Length of the hold, in multiples of nodeFailure.graceSeconds."""
SHORTEST_SECONDS = 30.0
"""Shortest hold."""
STEP_SECONDS = 10.0
"""Seconds between replacements after the hold (at least one grace period)."""


def evaluate(
    losses: Sequence[MachineLoss],
    rollout: Collection[str],
    observed: Observed,
    before: RLJobStatus,
    policy: NodeFailure,
    now: datetime,
) -> tuple[list[MachineLoss], ReplacementPause | None]:
    """Return the losses to act on now, and the hold that delays the others.

    A loss is delayed only while its pod looks alive to Kubernetes and has no successor.
    """
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
    """Return the fields of `Replacements` that hold the pause."""
    return {"paused_since": pause.since if pause else None, "paused_until": pause.until if pause else None}


def _many(
    rollout: Collection[str], losses: Sequence[MachineLoss], observed: Observed, before: RLJobStatus, now: datetime
) -> bool:
    """Tell whether more than half of the rollout machines, on at least two nodes, are doubted."""
    places = {**_doubted(rollout, observed, before, now), **_lost(rollout, losses)}
    return 2 * len(places) > len(rollout) and len(set(places.values())) >= 2


def _doubted(rollout: Collection[str], observed: Observed, before: RLJobStatus, now: datetime) -> Mapping[str, str]:
    """Map each doubted machine to its node, or to itself where the node is unknown.

    A machine is doubted if two witnesses suspect it, if its node is not ready, or if it was replaced recently for such
    a reason and is not ready again. In the last case the node is the former one.
    """
    found, said = {}, suspicions(before)
    for machine in rollout:
        current = observed.current(machine)
        if current is None:
            continue
        node = observed.nodes.get(current.node) if current.node is not None else None
        if (node is not None and not node.ready) or suspected(current, observed, said):
            found[machine] = current.node or machine
        elif not current.ready and (lost := _just_now(machine, before.replacements, now)) is not None:
            found[machine] = lost.node or machine
    return found


def _lost(rollout: Collection[str], losses: Sequence[MachineLoss]) -> Mapping[str, str]:
    """Map each machine with a doubted loss to its node.

    Its member may have a successor that the status does not know yet.
    """
    pods = [loss.pod for loss in losses if loss.doubted and loss.pod is not None]
    return {pod.machine: pod.node or pod.machine for pod in pods if pod.machine in rollout}


def _just_now(machine: str, memory: Replacements | None, now: datetime) -> BackOff | None:
    """Return how a machine was lost that was replaced in doubt recently."""
    entry = memory.backoff.get(machine) if memory is not None else None
    if entry is None or not entry.doubted:
        return None
    return None if is_past(deadline(entry.last_failure_time, WINDOW_SECONDS), now) else entry
