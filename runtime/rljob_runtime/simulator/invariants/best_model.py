"""Best model: the exported one has the weights after the best evaluated round whose model was kept.

It is checked when the job has ended. A model is not kept if the volume had no room for it, or it gave way to a
checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from rljob_api.spec.resources import KeepBest
from rljob_api.status import RuntimeStatus
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.evaluation.history import best_of, of_name
from rljob_runtime.simulator.peers.trainer import History, TrainerDisk


def best_model_faults(
    rule: KeepBest, disk: TrainerDisk, store: Store, history: History, status: RuntimeStatus
) -> Iterator[str]:
    """Yield what is wrong with the exported model. `history`: of the final weights."""
    results = [one for one in of_name(store.evaluations.results(), rule.evaluation) if one.round not in disk.not_kept]
    best = best_of(results, rule.metric)
    if best is None:
        if disk.best is not None:
            yield f"the model of round {disk.best[0]} is exported, and no evaluated round has one"
        return
    if disk.best is None or disk.best[0] != best.round:
        exported = "none" if disk.best is None else f"that of round {disk.best[0]}"
        yield f"the best model is that of round {best.round}; {exported} is exported"
    elif disk.best[1] != history[: best.round]:
        yield f"the exported model of round {best.round} has other weights than the final ones began with"
    told = status.best_model.round if status.best_model is not None else None
    if told != best.round:
        yield f"the best model is that of round {best.round}; the status says {told}"
    if left := _others(disk.models, best.round):
        yield f"models of rounds {left} are left beside the best"


def _others(models: Collection[int], best: int) -> list[int]:
    return sorted(step for step in models if step != best)
