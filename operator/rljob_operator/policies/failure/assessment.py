"""Failure assessment: which losses to act on now, and what is remembered of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from rljob_api.spec import RLJob
from rljob_api.status import Replacements, Role
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.decisions import NORMAL, Event
from rljob_operator.policies.base.observation import Observed
from rljob_operator.policies.failure import losses as machine_losses
from rljob_operator.policies.failure import mass_failure_hold, nodes


@dataclass(frozen=True)
class FailureAssessment:
    """Result of an assessment."""

    losses: tuple[machine_losses.MachineLoss, ...]
    """Losses to act on and to count now."""
    replacements: Replacements
    """The history with these losses in it."""
    blocked: frozenset[str]
    """Rollout machines with an exhausted budget."""
    moments: tuple[datetime | None, ...]
    """Moments at which time alone may change the assessment."""
    events: tuple[Event, ...] = ()

    @property
    def avoided(self) -> tuple[str, ...]:
        """Name the nodes on which no pod is placed."""
        return tuple(node.name for node in self.replacements.avoided_nodes)


def assess(
    job: RLJob, observed: Observed, placed: Mapping[str, Role], now: datetime, config: Config
) -> FailureAssessment:
    """Assess the `placed` machines of a running job."""
    before, spec = job.status.replacements, job.spec
    policy = spec.failure_policy.node_failure
    rollout = [machine for machine, role in placed.items() if role is Role.ROLLOUT]
    failed = nodes.not_ready(before, observed, now)
    found = machine_losses.find_losses(placed, observed, job.status, nodes.dead(failed, policy, now))
    losses, paused = mass_failure_hold.evaluate(found, rollout, observed, job.status, policy, now)
    avoided, forgiven = nodes.forgive(nodes.avoid(before, losses, policy, now), observed, config, now)
    remembered = machine_losses.update_history(before, losses, placed, spec.failure_policy.backoff, now)
    memory = machine_losses.settle(remembered, observed.nodes, now).model_copy(
        update={"not_ready_nodes": failed, "avoided_nodes": avoided, **mass_failure_hold.still_held(paused)}
    )
    moments = (
        *(entry.until for entry in memory.backoff.values()),
        *(machine_losses.settled_at(entry) for entry in memory.backoff.values()),
        *(node.until for node in avoided),
        *nodes.graces(failed, policy),
        paused.until if paused is not None else None,
    )
    return FailureAssessment(
        tuple(losses), memory, machine_losses.budget_exhausted(memory, spec, rollout), moments, _forgiveness(forgiven)
    )


def _forgiveness(forgiven: str | None) -> tuple[Event, ...]:
    if forgiven is None:
        return ()
    return (Event(NORMAL, "NodeForgiven", f"{forgiven} is used again: a pod finds no other node"),)
