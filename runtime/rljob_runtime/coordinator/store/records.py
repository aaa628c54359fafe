"""Store records: values that go in and out of the state store, and the boundary row of both modes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from rljob_api.status import RoundReport, RuntimeTotals
from rljob_runtime.protocols.rewards import terms_of
from rljob_runtime.protocols.trajectory import Cursor, FinishReason, PromptKey, TrajectoryKey
from rljob_runtime.scheduling.layouts.fleet_layout import RoundLayout
from rljob_runtime.scheduling.partial_responses import Partial
from rljob_runtime.scheduling.round_plan import RestoredSample, RoundPlan
from rljob_runtime.scheduling.round_planner.plans import DEFAULT_PLAN, SelectedPlan


@dataclass(frozen=True)
class Boundary:
    """State after `step` updates.

    `queue`: long prompts that wait for a round, oldest first; empty in `mode: Asynchronous`, where the pool has its own
    rows."""

    step: int
    cursor: Cursor
    totals: RuntimeTotals = field(default_factory=RuntimeTotals)
    report: RoundReport | None = None
    queue: tuple[PromptKey, ...] = ()


@dataclass(frozen=True)
class Pool:
    """Draw state of an asynchronous job: cursor of fresh prompts, and requeued prompts."""

    cursor: Cursor = field(default_factory=Cursor)
    queue: tuple[PromptKey, ...] = ()


@dataclass(frozen=True)
class OpenRound:
    """An open round of a former coordinator."""

    plan: RoundPlan
    cursor: Cursor
    saved: dict[TrajectoryKey, RestoredSample]
    partials: dict[TrajectoryKey, Partial]
    finish_reasons: dict[TrajectoryKey, FinishReason]
    assigned: bool
    chosen: SelectedPlan = DEFAULT_PLAN
    layout: RoundLayout | None = None
    """None before its generation began."""


@dataclass(frozen=True)
class Tokens:
    """New tokens of one response, to append at `start`."""

    key: TrajectoryKey
    start: int
    token_ids: Sequence[int]
    logprobs: Sequence[float]


def terms_text(reward: float) -> str | None:
    """Return the values of a reward's rules as the store holds them."""
    terms = terms_of(reward)
    return json.dumps(dict(terms)) if terms else None
