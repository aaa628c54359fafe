"""Planner memory: what the operator remembers between decisions about size and number of replicas."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rljob_api.fields import Count, StatusModel, Timestamp


class PreemptionHistory(StatusModel):
    """The parallelism planner's memory of the rounds of one kind."""

    preemptions: Count | None = None
    """Preemptions of the round counted last."""
    quiet: Count = 0
    """Rounds in a row without preemptions, since the last decision about such rounds."""
    quiet_tokens: Count | None = None
    """Most tokens of one of them."""
    stepped_down: bool = False
    """Whether a step down led to the present size."""
    floor: Annotated[int | None, Field(ge=1)] = None
    """Size below which a step brought preemptions back, or engines did not start."""
    floor_tokens: Count | None = None
    """Tokens of that round: the floor holds until rounds are clearly smaller."""
    ceiling: Annotated[int | None, Field(ge=1)] = None
    """Size in which engines did not start."""
    ceiling_round: Count | None = None
    """Round that showed it. The size is tried again after a while."""
    faster: Annotated[int | None, Field(ge=1)] = None
    """Size that the last rounds were predicted to be fastest in, if not the present one."""
    faster_rounds: Count = 0
    """Such rounds in a row. A size that is only slightly faster is chosen after some of them."""


class ParallelismHistory(StatusModel):
    """The parallelism planner's memory, so that a restarted operator decides the same."""

    round: Count = 0
    """Last round that it has counted."""
    start: Annotated[int, Field(ge=1)]
    """The spec's tensorParallelSize. Another one resets the planner."""
    machines: Count
    """Rollout machines of the remembered rounds."""
    heard: Count | None = None
    """Last round when the coordinator first reported the present sizes as applied. Later rounds ran with them."""
    short: PreemptionHistory = PreemptionHistory()
    """Short rounds."""
    long: PreemptionHistory = PreemptionHistory()
    """Long and plain rounds."""


class RunnerPool(StatusModel):
    """Memory of the number of an environment's runners, where the operator chooses it."""

    runners: Annotated[int, Field(ge=1)]
    """The number chosen last."""
    start: Annotated[int, Field(ge=1)]
    """The spec's `runners` at the last decision. If the spec's value changes, the pool restarts with the new one."""
    round: Count = 0
    """Last update, or round, that it has counted."""
    open: tuple[Count, ...] = Field(default=(), max_length=4)
    """Most episodes of training that were open at a time in each of the last rounds."""


class ElasticityHistory(StatusModel):
    """The autoscaler's memory, where the operator chooses the number of rollout machines."""

    machines: Annotated[int, Field(ge=1)]
    """The number chosen last."""
    start: Annotated[int, Field(ge=1)]
    """The spec's `rollout.machines`. Another value resets the number to it."""
    round: Count = 0
    """Last update, or round, that it has counted."""
    starving: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(default=(), max_length=16)
    """Share of each of the last updates that the trainer waited, since the number changed."""
    flooding: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(default=(), max_length=16)
    """Share of each of them for which replicas were paused because the buffer was full."""
    brought: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(default=(), max_length=16)
    """Mode OnPolicy: what the last machine contributed to each of the last rounds, relative to its share of the
    work."""
    would_bring: tuple[Annotated[float, Field(ge=0, le=1)], ...] = Field(default=(), max_length=16)
    """The predicted contribution of one more machine to each of them, relative to its share."""
    changed: Timestamp | None = None
    """When the number last changed."""
    direction: Annotated[int, Field(ge=-1, le=1)] = 0
    """Last step of the operator: 1 for one machine more, -1 for one less."""
