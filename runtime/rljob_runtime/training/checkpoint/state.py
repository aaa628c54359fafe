"""Checkpoint state: captures, writes and restores the state of all trainer ranks.

Tensors are stored in full, so one rank can read a checkpoint of four. Writing and reading are collective: every rank
iterates over all tensors in one order, and only rank 0 has the files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from rljob_runtime.protocols import TrainReport
from rljob_runtime.training.checkpoint import rng_state
from rljob_runtime.training.checkpoint.model_fingerprint import ModelFingerprint
from rljob_runtime.training.checkpoint.store import Checkpoint, CheckpointError, CheckpointStore
from rljob_runtime.training.model.optimizer import MasterOptimizer
from rljob_runtime.training.model.sharding import RankGroup, finish_gather, gather_in_order


@dataclass(frozen=True)
class TrainerPosition:
    """Progress of training.

    `step` steps are done. `report` is that of the last step, or None before the first.
    """

    step: int
    report: TrainReport | None = None


def flat_state(optimizer: MasterOptimizer) -> dict[str, Tensor]:
    """Return `master/<name>`, `exp_avg/<name>` and `exp_avg_sq/<name>` with their tensors, sharded as they are."""
    return {f"{kind}/{name}": t for kind, named in optimizer.state().items() for name, t in named.items()}


@dataclass(frozen=True)
class Restored:
    """The state in which a rank starts.

    `name` is the checkpoint's, or None without one. Only rank 0, which answers for all, has its
    `coordinator_snapshot`.
    """

    position: TrainerPosition
    name: str | None = None
    coordinator_snapshot: str | None = None


@dataclass(frozen=True)
class Snapshot:
    """The complete state after a step, ready to be written."""

    step: int
    state: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def write(self, store: CheckpointStore, coordinator_snapshot: str) -> str:
        """Write a checkpoint with the coordinator's snapshot and return its name.

        Rank 0 only; the other ranks join the gather. Raises `CheckpointError`.
        """
        shapes = {name: tensor.shape for name, tensor in self.tensors.items()}
        dtype = next(iter(self.tensors.values())).dtype
        walk = gather_in_order(self.tensors.items())
        try:
            return store.save(self.step, self.state, shapes, dtype, walk, coordinator_snapshot)
        finally:
            finish_gather(walk)  # the other ranks gather all tensors in any case


def capture(
    ranks: RankGroup, optimizer: MasterOptimizer, fingerprint: ModelFingerprint, position: TrainerPosition
) -> Snapshot:
    """Capture the current state.

    Tensors are not copied: write the snapshot before the next update.
    """
    state = {
        "identity": fingerprint.to_dict(),
        "updates": optimizer.updates,
        "report": asdict(position.report) if position.report else None,
        "rngs": [rng.decode() for rng in ranks.gather_bytes(rng_state.capture().encode())],
    }
    return Snapshot(position.step, state, flat_state(optimizer))


def restore(
    store: CheckpointStore, ranks: RankGroup, optimizer: MasterOptimizer, fingerprint: ModelFingerprint
) -> Restored:
    """Restore the newest complete checkpoint into `optimizer` and its model.

    Without a checkpoint, training starts at step 0. Raises `CheckpointError` on all ranks when the checkpoint is of
    another model or none can be read.
    """
    found, failure = None, None
    if ranks.leads:
        try:
            found = store.newest()
            check_fingerprint(found, fingerprint)
        except CheckpointError as error:
            failure = str(error)
    message = {
        "failure": failure,
        "name": found.folder.name if found else None,
        "state": found.state if found else None,
    }
    shared = json.loads(ranks.broadcast_bytes(json.dumps(message).encode()))
    if shared["failure"]:
        raise CheckpointError(shared["failure"])
    if shared["name"] is None:
        return Restored(TrainerPosition(0))
    state = shared["state"]
    if state["updates"]:
        optimizer.restore(state["updates"])
    restore_into(found, ranks, flat_state(optimizer))
    optimizer.round_into_model()
    if ranks.rank < len(state["rngs"]):
        rng_state.restore(state["rngs"][ranks.rank])
    report = TrainReport(**state["report"]) if state["report"] else None
    return Restored(
        TrainerPosition(state["step"], report), shared["name"], found.coordinator_snapshot if found else None
    )


def check_fingerprint(found: Checkpoint | None, fingerprint: ModelFingerprint) -> None:
    """Raise `CheckpointError` when a checkpoint is of another model."""
    if found is None:
        return
    theirs = ModelFingerprint.from_dict(found.state["identity"])
    if difference := fingerprint.difference(theirs):
        raise CheckpointError(
            f"checkpoint {found.folder} is of another model, {theirs.source}: {difference} ({fingerprint.source}). "
            "Use the model it was made with as spec.model.source, or another checkpoint volume"
        )


def restore_into(found: Checkpoint | None, ranks: RankGroup, targets: dict[str, Tensor]) -> None:
    """Copy the checkpoint's tensors from rank 0 into `targets` on every rank."""
    if found is None:
        for target in targets.values():
            ranks.scatter_into(target, None)
        return
    with found.tensors() as stored:
        for name, target in targets.items():
            ranks.scatter_into(target, stored[name])
