"""Final checks: what must hold of a run's outputs when its job has ended."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rljob_api.status import RuntimeStatus
from rljob_runtime.audit.lineage import audit_episodes
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.simulator.invariants.best_model import best_model_faults
from rljob_runtime.simulator.invariants.common import Invariants
from rljob_runtime.simulator.peers.trainer import TrainerDisk
from rljob_runtime.simulator.sample_writing import written_sample_faults
from rljob_runtime.simulator.scenario import Scenario


@dataclass(frozen=True)
class Outputs:
    """What a job has left: its store, its trainer's disk and its last report. `path`: of the store."""

    path: Path
    job: str
    store_lost: bool
    disk: TrainerDisk
    last_report: RuntimeStatus | None


def final_faults(
    scenario: Scenario, settings: Settings, outputs: Outputs, invariants: Invariants
) -> Iterator[tuple[str, str]]:
    """Yield the invariant and the fault of each output that differs from the store's history."""
    if scenario.episodes is not None:
        yield from _episode_faults(outputs.path, scenario.experience is not None)
    if not scenario.samples and settings.keep_best is None:
        return
    store = Store(outputs.path, outputs.job)
    try:
        if scenario.samples:
            yield from written_sample_faults(outputs.path.parent, store, outputs.store_lost)
        rule = settings.keep_best
        if rule is not None and outputs.last_report is not None:
            for fault in best_model_faults(rule, outputs.disk, store, invariants.history, outputs.last_report):
                yield "the best model is exported", fault
    finally:
        store.close()


def _episode_faults(path: Path, asynchronous: bool) -> Iterator[tuple[str, str]]:
    """Audit the lineage of every trained token that the store still has."""
    with closing(sqlite3.connect(path)) as db:
        lineage = audit_episodes(db, asynchronous)
    for finding in lineage.findings if lineage is not None else ():
        yield "lineage", str(finding)
