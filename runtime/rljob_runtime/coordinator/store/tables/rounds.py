"""Rounds: how each round of `mode: OnPolicy` was opened, its prompts and layouts, and its close."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from rljob_api.status import RoundKind
from rljob_runtime.audit.stored_keys import columns_of, cursor_of, prompt_of, sources_text, training_columns_of
from rljob_runtime.coordinator.store.connection import attempts_before, transaction
from rljob_runtime.coordinator.store.records import Boundary, OpenRound
from rljob_runtime.coordinator.store.tables import attempts
from rljob_runtime.coordinator.store.tables.boundaries import insert_boundary
from rljob_runtime.coordinator.store.tables.kept_samples import KeptSamples
from rljob_runtime.coordinator.store.tables.trajectories import Trajectories
from rljob_runtime.perf_model.observed_speed import Speed
from rljob_runtime.protocols.rewards import Anchors
from rljob_runtime.protocols.trajectory import Cursor, Lease, PromptKey, TrajectoryKey
from rljob_runtime.scheduling.adaptive_tp.switch_costs import SwitchCosts
from rljob_runtime.scheduling.layouts.fleet_layout import RoundLayout, SwitchCount
from rljob_runtime.scheduling.lending.gain import LoanMeasurements
from rljob_runtime.scheduling.partial_responses import Partial
from rljob_runtime.scheduling.round_plan import (
    RACE_LOST,
    RestoredSample,
    RoundOutcome,
    RoundPlan,
    RoundRules,
    RoundShape,
    SourceShape,
)
from rljob_runtime.scheduling.round_planner.plans import DEFAULT_PLAN, SelectedPlan

log = logging.getLogger(__name__)

T = TypeVar("T")

SWITCH_COSTS, LOAN_RATES = "switchCosts", "loanRates"
"""Names of measurements at a boundary."""


class Rounds:
    """The tables `rounds`, `decisions`, `prompts`, `layouts` and `speeds`, on the store's connection."""

    def __init__(self, db: sqlite3.Connection, trajectories: Trajectories, kept: KeptSamples) -> None:
        self._db = db
        self._trajectories = trajectories
        self._kept_samples = kept

    def open(
        self, plan: RoundPlan, cursor: Cursor, chosen: SelectedPlan = DEFAULT_PLAN
    ) -> dict[TrajectoryKey, RestoredSample]:
        """Open a round with its prompts; `cursor` is the one after the draw.

        Returns the records of prompts that earlier rounds requeued: attempts keep rising."""
        shape, rules = plan.shape, plan.rules
        with transaction(self._db):
            self._db.execute(
                "INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)",
                (
                    *(plan.step, plan.version),
                    *(shape.kind.value, shape.prompts, shape.responses, shape.groups, shape.group_size),
                    *(rules.max_failures, rules.drop_equal, rules.max_prompts),
                    *(cursor.epoch, cursor.position, sources_text(cursor)),
                    json.dumps([[one.name, one.prompts, one.groups] for one in shape.sources]),
                ),
            )
            self._db.execute("INSERT INTO decisions (step, chosen) VALUES (?, ?)", (plan.step, chosen.to_json()))
            return self._draw(plan, plan.prompts)

    def extend(
        self, plan: RoundPlan, prompts: Sequence[PromptKey], cursor: Cursor
    ) -> dict[TrajectoryKey, RestoredSample]:
        """Add drawn prompts to the open round. Returns as `open` does."""
        with transaction(self._db):
            self._db.execute(
                "UPDATE rounds SET epoch = ?, position = ?, sources = ? WHERE step = ?",
                (cursor.epoch, cursor.position, sources_text(cursor), plan.step),
            )
            return self._draw(plan, prompts)

    def begin_generation(self, step: int, tensor_parallel: int) -> None:
        """Record the layout in which a round begins to generate."""
        with transaction(self._db):
            self._db.execute("UPDATE rounds SET tensor_parallel = ? WHERE step = ?", (tensor_parallel, step))
            self._db.execute("DELETE FROM layouts WHERE step = ?", (step,))
            self._db.execute("DELETE FROM layout_switches WHERE step = ?", (step,))

    def change_layouts(
        self, step: int, changes: Iterable[tuple[str, int]], switches: Mapping[str, SwitchCount]
    ) -> None:
        """Record machines of the open round that have another tensor parallel size from now on.

        `switches`: those that have ended so far, of each machine that ended one."""
        with transaction(self._db):
            self._db.executemany(
                "INSERT INTO layouts VALUES"
                " (?1, (SELECT COALESCE(MAX(number), 0) + 1 FROM layouts WHERE step = ?1), ?2, ?3)",
                [(step, *change) for change in changes],
            )
            self._db.executemany(
                "INSERT OR REPLACE INTO layout_switches VALUES (?, ?, ?, ?)",
                [(step, machine, count.made, count.failed) for machine, count in switches.items()],
            )

    def close(
        self,
        settlement: RoundOutcome,
        boundary: Boundary,
        risen: Anchors = MappingProxyType({}),
        speeds: Mapping[int, Speed] = MappingProxyType({}),
        measured: Mapping[str, str] = MappingProxyType({}),
        trained: Mapping[TrajectoryKey, bytes] = MappingProxyType({}),
    ) -> None:
        """Close the round in one transaction: outcomes, long-prompt queue, raised anchors and boundary.

        Of tokens only their number is kept. `speeds`: observed speeds of the engines, by tensor parallel size.
        `measured`: what `to_json` of `SwitchCosts` and `LoanMeasurements` returns, by its name. `trained`: digests of
        its episodes, see `trained_digests`."""
        step = boundary.step
        with transaction(self._db):
            self._trajectories.count_tokens(step)
            self._db.executemany(
                "INSERT INTO speeds VALUES (?, ?, ?)", [(step, size, speed.to_json()) for size, speed in speeds.items()]
            )
            self._settle(step, settlement)
            attempts.keep_trained(self._db, step, trained)
            self._kept_samples.close_round(step)
            attempts.set_aside(self._db, settlement.outcomes)
            insert_boundary(self._db, boundary, risen)
            self._db.executemany(
                "UPDATE boundaries SET planner = json_set(planner, ?, json(?)) WHERE step = ?",
                [(f"$.{name}", text, step) for name, text in measured.items()],
            )
            self._trajectories.drop_tokens(step)

    def switch_costs(self, engines: str) -> SwitchCosts:
        """Return the costs of switches of such engines, as measured until the newest boundary.

        None are known where another version wrote them in another form."""
        return self._measured(SWITCH_COSTS, lambda text: SwitchCosts.from_json(text, engines)) or SwitchCosts()

    def loan_measurements(self, workers_per_trainer: float, machines: str) -> LoanMeasurements:
        """Return the rates of such machines, as measured until the newest boundary; the lengths are not among them."""
        made = self._measured(LOAN_RATES, lambda text: LoanMeasurements.from_json(text, workers_per_trainer, machines))
        return made or LoanMeasurements(workers_per_trainer)

    def is_open(self) -> bool:
        """Whether there is a round without a boundary."""
        row = self._db.execute(
            "SELECT 1 FROM rounds WHERE step > (SELECT COALESCE(MAX(step), 0) FROM boundaries) LIMIT 1"
        ).fetchone()
        return row is not None

    def open_layout(self) -> RoundLayout | None:
        """Return the layout of the open round; None without one, and before its generation began."""
        row = self._db.execute(
            "SELECT step, tensor_parallel FROM rounds WHERE step > (SELECT COALESCE(MAX(step), 0) FROM boundaries)"
            " AND tensor_parallel IS NOT NULL ORDER BY step LIMIT 1"
        ).fetchone()
        return self._layout(*row) if row is not None else None

    def under_way(self) -> OpenRound | None:
        """Return the open round with all its records; None without one."""
        row = self._db.execute(
            "SELECT * FROM rounds WHERE step > (SELECT COALESCE(MAX(step), 0) FROM boundaries) ORDER BY step LIMIT 1"
        ).fetchone()
        if row is None:
            return None
        step, version, *shape, failures, drop_equal, most, epoch, position, sources, races, size = row
        rules = RoundRules(failures, bool(drop_equal), most)
        plan = RoundPlan(step, version, _shape(races, *shape), self._prompts(step), rules)
        cursor = epoch, position, sources
        chosen = self._db.execute("SELECT chosen FROM decisions WHERE step = ?", (step,)).fetchone()[0]
        assigned = self._trajectories.is_assigned(step)
        layout = self._layout(step, size) if size is not None else None
        found = OpenRound(plan, cursor_of(*cursor), {}, {}, {}, assigned, SelectedPlan.from_json(chosen), layout)
        for one in self._trajectories.open(step):
            failure = attempts.failure_of(self._db, one.key)
            found.saved[one.key] = RestoredSample(
                one.attempt, one.failures, one.finish is not None, one.reward, failure
            )
            if one.finish is not None:
                found.finish_reasons[one.key] = one.finish
            tokens, logprobs = self._trajectories.tokens(step, one.key)
            if tokens or one.finish is not None:
                found.partials[one.key] = Partial(Lease(one.replica or "", one.attempt), version, tokens, logprobs)
        return found

    # --- within the transactions of the store ---

    def forget_after(self, step: int) -> None:
        """Delete later rounds with their prompts and responses."""
        self._db.execute("DELETE FROM rounds WHERE step > ?", (step,))

    # --- details ---

    def _measured(self, name: str, parse: Callable[[str], T]) -> T | None:
        """Return what the newest boundary has under this name; None if that cannot be read."""
        row = self._db.execute(
            "SELECT json_extract(planner, ?) FROM boundaries ORDER BY step DESC LIMIT 1", (f"$.{name}",)
        ).fetchone()
        if row is None or row[0] is None:
            return None
        try:
            return parse(row[0])
        except (ValueError, KeyError, TypeError) as error:
            log.warning("the stored %s cannot be read, and are measured again: %r", name, error)
            return None

    def _prompts(self, step: int) -> tuple[PromptKey, ...]:
        rows = self._db.execute("SELECT epoch, idx FROM prompts WHERE step = ? ORDER BY ordinal", (step,)).fetchall()
        return tuple(prompt_of(self._db, *row) for row in rows)

    def _layout(self, step: int, size: int) -> RoundLayout:
        rows = self._db.execute("SELECT machine, tensor_parallel FROM layouts WHERE step = ? ORDER BY number", (step,))
        counts = self._db.execute("SELECT machine, made, failed FROM layout_switches WHERE step = ?", (step,))
        switches = {machine: SwitchCount(*count) for machine, *count in counts}
        return RoundLayout(size, switches=switches).changed(rows.fetchall())

    def _draw(self, plan: RoundPlan, prompts: Sequence[PromptKey]) -> dict[TrajectoryKey, RestoredSample]:
        attempts = {key: attempt for prompt in prompts for key, attempt in self._trajectories.attempts(prompt).items()}
        keys = [key for prompt in prompts for key in plan.responses_of(prompt)]
        if (first := attempts_before(self._db)) > 0:
            attempts |= {key: first for key in keys if key not in attempts}
        drawn = self._db.execute("SELECT COUNT(*) FROM prompts WHERE step = ?", (plan.step,)).fetchone()[0]
        self._db.executemany(
            "INSERT INTO prompts (step, epoch, idx, ordinal) VALUES (?, ?, ?, ?)",
            [
                (plan.step, *training_columns_of(self._db, prompt), ordinal)
                for ordinal, prompt in enumerate(prompts, drawn)
            ],
        )
        self._trajectories.draw(plan.step, keys, attempts)
        return {key: RestoredSample(attempt) for key, attempt in attempts.items()}

    def _settle(self, step: int, settlement: RoundOutcome) -> None:
        self._trajectories.end_trained(step, settlement.kept)
        for prompt, outcome in settlement.outcomes.items():
            reason = settlement.reasons.get(prompt)
            self._db.execute(
                "UPDATE prompts SET fate = ?, reason = ? WHERE step = ? AND epoch = ? AND idx = ?",
                (outcome.value, reason, step, *columns_of(self._db, prompt)),
            )
            self._trajectories.end_discarded(step, prompt, reason or RACE_LOST)


def _shape(races: str, kind: str, prompts: int, responses: int, groups: int, group_size: int) -> RoundShape:
    sources = tuple(SourceShape(*one) for one in json.loads(races))
    return RoundShape(RoundKind(kind), prompts, responses, groups, group_size, sources)
