"""Bringing store and trainer to one step when either of them comes back from the past."""

from __future__ import annotations

import logging

from rljob_api.status import RuntimeTotals
from rljob_runtime.coordinator.protocols import PromptSource
from rljob_runtime.coordinator.store import Boundary, Store
from rljob_runtime.scheduling.trajectory import Cursor

log = logging.getLogger(__name__)


def agree(store: Store, step: int, prompts: PromptSource, prompts_per_round: int) -> Boundary:
    """The boundary from which to go on, given that the trainer stands at `step`.

    The trainer decides. One step ahead of the store is the update whose answer was lost: the round is still open, its
    ids are assigned, and to train it again brings the same answer. Behind: the store is rewound. Unknown to the store
    (a new job, or a store that was lost): a history begins there, with the prompts of the former rounds counted as
    drawn.
    """
    boundary = store.boundary()
    if boundary is not None and step == boundary.step + 1:
        opened = store.round_under_way()
        if opened is not None and opened.assigned:
            return boundary
    if boundary is not None and step < boundary.step and store.rewind(step):
        log.warning("the trainer is at step %d: the store is rewound from %d", step, boundary.step)
        rewound = store.boundary()
        assert rewound is not None
        return rewound
    if boundary is not None and boundary.step == step:
        # The open round may have been trained on and published by a trainer that is gone.
        store.lose_versions_after(step)
        return boundary
    if step > 0:
        log.warning("the store knows nothing of step %d: a new history begins there", step)
    _, cursor = prompts.draw(Cursor(), step * prompts_per_round)
    fresh = Boundary(step, cursor, RuntimeTotals(skipped_prompts=prompts.skipped))
    store.start_at(fresh)
    return fresh
