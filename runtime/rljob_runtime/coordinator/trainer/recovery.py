"""Recovery: brings store and trainer to the same step after either of them was restored from an earlier one."""

from __future__ import annotations

import logging

from rljob_api.spec.training import Mode
from rljob_api.status import RuntimeTotals
from rljob_runtime.coordinator.store.records import Boundary, Pool
from rljob_runtime.coordinator.store.snapshot import CoordinatorSnapshot, SnapshotError
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.protocols import PromptSource, TrainerState
from rljob_runtime.protocols.trajectory import Cursor
from rljob_runtime.scheduling.shares import ONE_SOURCE, Shares, allot, by_source

log = logging.getLogger(__name__)


class NoHistory(Exception):
    """Neither the store nor the checkpoint contains the trainer's step."""


def reconcile_store_and_trainer(
    store: Store,
    trainer: TrainerState,
    prompts: PromptSource,
    prompts_per_round: int,
    mode: Mode = Mode.ON_POLICY,
    shares: Shares = ONE_SOURCE,
) -> Boundary:
    """Return the boundary from which the job continues. The trainer's step decides.

    - One step ahead of the store: the answer of that update was lost. Its ids are assigned, and training it again gives
      the same answer.
    - Behind the store: the store is rewound.
    - Unknown to the store (a new job, or a lost store): a history starts there, from the checkpoint's snapshot. Raises
      `NoHistory` if the checkpoint is of an earlier step: then only a new trainer can continue.
    """
    step, boundary = trainer.step, store.boundaries.newest()
    if boundary is not None and step == boundary.step + 1:
        opened = store.rounds.under_way()
        if (opened is not None and opened.assigned) or store.experience.assigned(step):
            return boundary
    lost = store.trajectories.tokens_after(step)
    if boundary is not None and step < boundary.step and store.rewind(step):
        message = "the trainer is at step %d: the store is rewound from %d, which costs %d tokens"
        log.warning(message, step, boundary.step, lost)
        rewound = store.boundaries.newest()
        assert rewound is not None
        return rewound
    if boundary is not None and boundary.step == step:
        # A trainer that was lost may have trained on the open round and published it.
        store.versions.abandon_after(step)
        return boundary
    if step != trainer.kept:
        raise NoHistory(f"the store does not know step {step}, and the newest checkpoint is of step {trainer.kept}")
    if step > 0:
        log.warning("the store does not know step %d: a new history starts there", step)
    snapshot = _snapshot_of(trainer) or _as_plain_rounds(step, prompts, prompts_per_round, shares)
    pool = Pool(snapshot.cursor, snapshot.queue) if mode is Mode.ASYNCHRONOUS else None
    fresh = Boundary(step, snapshot.cursor, snapshot.totals, queue=snapshot.queue if pool is None else ())
    store.start_at(fresh, snapshot.anchors, snapshot.version, pool)
    return fresh


def snapshot_at(store: Store, step: int) -> CoordinatorSnapshot | None:
    """Return the snapshot for a checkpoint of `step`; None while the round before it is not closed."""
    boundary = store.boundaries.newest()
    if boundary is None or boundary.step != step:
        return None
    version = store.versions.used().next_version() - 1
    cursor, queue = boundary.cursor, boundary.queue
    if store.experience.in_use():
        # A new history draws the open groups again.
        cursor, queue = store.experience.cursor(), store.experience.unsettled()
    return CoordinatorSnapshot(step, cursor, queue, boundary.totals, store.boundaries.anchors(), version)


def _snapshot_of(trainer: TrainerState) -> CoordinatorSnapshot | None:
    """Return the snapshot in the trainer's newest checkpoint; None if it has none, or one that is unusable."""
    if trainer.coordinator_snapshot is None:
        return None
    try:
        return CoordinatorSnapshot.from_json(trainer.coordinator_snapshot, trainer.kept)
    except SnapshotError as error:
        log.error("coordinator.json in the checkpoint of step %d is not used: %s", trainer.kept, error)
        return None


def _as_plain_rounds(step: int, prompts: PromptSource, prompts_per_round: int, shares: Shares) -> CoordinatorSnapshot:
    """Return the snapshot that plain rounds lead to, for a checkpoint without one."""
    if step > 0:
        log.warning(
            "the checkpoint does not say which prompts were drawn: %d a round are assumed. After short rounds or with "
            "dynamic sampling, some prompts of this epoch are drawn again, and others are not drawn",
            prompts_per_round,
        )
    names, cursor = allot(shares, Cursor(), step * prompts_per_round)
    for source, count in by_source(names).items():
        _, cursor = prompts.draw(cursor, count, source)
    return CoordinatorSnapshot(step, cursor, totals=RuntimeTotals(skipped_prompts=prompts.skipped))
