"""Bringing store and trainer to one step when either of them comes back from the past."""

from __future__ import annotations

import logging

from rljob_api.spec_training import Mode
from rljob_api.status import RuntimeTotals
from rljob_runtime.coordinator.store.records import Boundary, Pool
from rljob_runtime.coordinator.store.snapshot import CoordinatorSnapshot, SnapshotError
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.protocols import PromptSource, TrainerState
from rljob_runtime.protocols.trajectory import Cursor

log = logging.getLogger(__name__)


class NoHistory(Exception):
    """Nobody knows what led to the trainer's step: neither the store nor its checkpoint, which is of an earlier one."""


def agree(
    store: Store,
    trainer: TrainerState,
    prompts: PromptSource,
    prompts_per_round: int,
    mode: Mode = Mode.ON_POLICY,
) -> Boundary:
    """The boundary from which to go on, given where the trainer stands.

    The trainer decides. One step ahead of the store is the update whose answer was lost: its ids are assigned (of the
    round, which is still open, or groups), and to train it again brings the same answer. Behind: the store is rewound.
    Unknown to the store (a new job, or a store that was lost): a history begins there, with what the checkpoint holds
    of the former one.
    Raises `NoHistory` when the checkpoint is of an earlier step: only a trainer that begins there anew can go on.
    """
    step, boundary = trainer.step, store.boundary()
    if boundary is not None and step == boundary.step + 1:
        opened = store.round_under_way()
        if (opened is not None and opened.assigned) or store.experience.assigned(step):
            return boundary
    lost = store.tokens_after(step)
    if boundary is not None and step < boundary.step and store.rewind(step):
        told = "the trainer is at step %d: the store is rewound from %d, which costs %d tokens"
        log.warning(told, step, boundary.step, lost)
        rewound = store.boundary()
        assert rewound is not None
        return rewound
    if boundary is not None and boundary.step == step:
        # The open round may have been trained on and published by a trainer that is gone.
        store.lose_versions_after(step)
        return boundary
    if step != trainer.kept:
        raise NoHistory(f"the store knows nothing of step {step}, and the newest checkpoint is of step {trainer.kept}")
    if step > 0:
        log.warning("the store knows nothing of step %d: a new history begins there", step)
    standing = _standing_of(trainer) or _as_plain_rounds(step, prompts, prompts_per_round)
    pool = Pool(standing.cursor, standing.queue) if mode is Mode.ASYNCHRONOUS else None
    fresh = Boundary(step, standing.cursor, standing.totals, queue=standing.queue if pool is None else ())
    store.start_at(fresh, standing.anchors, standing.version, pool)
    return fresh


def standing_at(store: Store, step: int) -> CoordinatorSnapshot | None:
    """What a checkpoint of `step` keeps of the store; None while the round that leads there is not closed."""
    boundary = store.boundary()
    if boundary is None or boundary.step != step:
        return None
    version = store.versions().next_version() - 1
    cursor, queue = boundary.cursor, boundary.queue
    if store.experience.in_use():
        # What is under way is drawn again by a new history.
        cursor, queue = store.experience.cursor(), store.experience.unsettled()
    return CoordinatorSnapshot(step, cursor, queue, boundary.totals, store.anchors(), version)


def _standing_of(trainer: TrainerState) -> CoordinatorSnapshot | None:
    """What the trainer's newest checkpoint keeps of the store. None, with an error in the log, where it is unusable."""
    if trainer.standing is None:
        return None
    try:
        return CoordinatorSnapshot.from_json(trainer.standing, trainer.kept)
    except SnapshotError as error:
        log.error("coordinator.json in the checkpoint of step %d is not used: %s", trainer.kept, error)
        return None


def _as_plain_rounds(step: int, prompts: PromptSource, prompts_per_round: int) -> CoordinatorSnapshot:
    """Where plain rounds would have led, for a checkpoint that does not say."""
    if step > 0:
        log.warning(
            "the checkpoint does not say which prompts were drawn: %d a round are taken for it. After short rounds "
            "or with dynamic sampling, some prompts of this epoch come again, and others do not come",
            prompts_per_round,
        )
    _, cursor = prompts.draw(Cursor(), step * prompts_per_round)
    return CoordinatorSnapshot(step, cursor, totals=RuntimeTotals(skipped_prompts=prompts.skipped))
