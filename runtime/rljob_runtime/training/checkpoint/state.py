"""What a checkpoint of the trainer holds, and how a group of ranks writes and reads it.

Tensors are stored whole, so a checkpoint of four ranks can be read by one. Writing and reading are collective: every
rank walks through all tensors in one order, and rank 0 alone has the files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from rljob_runtime.protocols import TrainReport
from rljob_runtime.training.checkpoint import rng_state
from rljob_runtime.training.checkpoint.model_fingerprint import ModelIdentity
from rljob_runtime.training.checkpoint.store import Checkpoint, CheckpointError, CheckpointStore
from rljob_runtime.training.model.optimizer import MasterOptimizer
from rljob_runtime.training.model.sharding import RankGroup, drain, gathered


@dataclass(frozen=True)
class Position:
    """Where training stands: `step` steps are done, and `report` is the last one's (None before the first)."""

    step: int
    report: TrainReport | None = None


def flat_state(optimizer: MasterOptimizer) -> dict[str, Tensor]:
    """`master/<name>`, `exp_avg/<name>`, `exp_avg_sq/<name>` -> tensor, sharded as it is."""
    return {f"{kind}/{name}": t for kind, named in optimizer.state().items() for name, t in named.items()}


@dataclass(frozen=True)
class Restored:
    """What a rank begins with. `name`: of the checkpoint, None without one. `standing`: the coordinator's document in
    it, known to rank 0, which answers for all."""

    position: Position
    name: str | None = None
    standing: str | None = None


@dataclass(frozen=True)
class Snapshot:
    """Everything of this step, ready to be written."""

    step: int
    state: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    def write(self, store: CheckpointStore, standing: str) -> str:
        """Checkpoint it with the coordinator's document (rank 0; the others walk through the tensors); its name. Raises
        `CheckpointError`."""
        shapes = {name: tensor.shape for name, tensor in self.tensors.items()}
        dtype = next(iter(self.tensors.values())).dtype
        walk = gathered(self.tensors.items())
        try:
            return store.save(self.step, self.state, shapes, dtype, walk, standing)
        finally:
            drain(walk)  # the other ranks walk through all of it whatever happens here


def take(ranks: RankGroup, optimizer: MasterOptimizer, identity: ModelIdentity, position: Position) -> Snapshot:
    """What a checkpoint now would hold. Tensors are not copied: write it before the next update."""
    state = {
        "identity": identity.to_dict(),
        "updates": optimizer.updates,
        "report": asdict(position.report) if position.report else None,
        "rngs": [rng.decode() for rng in ranks.gather_bytes(rng_state.capture().encode())],
    }
    return Snapshot(position.step, state, flat_state(optimizer))


def read(store: CheckpointStore, ranks: RankGroup, optimizer: MasterOptimizer, identity: ModelIdentity) -> Restored:
    """Restore the newest whole checkpoint into `optimizer` and its model. Without one: step 0. Raises `CheckpointError`
    on all ranks when it is of another model or none can be read."""
    found, failure = None, None
    if ranks.leads:
        try:
            found = store.newest()
            check_identity(found, identity)
        except CheckpointError as error:
            failure = str(error)
    message = {
        "failure": failure,
        "name": found.folder.name if found else None,
        "state": found.state if found else None,
    }
    told = json.loads(ranks.broadcast_bytes(json.dumps(message).encode()))
    if told["failure"]:
        raise CheckpointError(told["failure"])
    if told["name"] is None:
        return Restored(Position(0))
    state = told["state"]
    if state["updates"]:
        optimizer.restore(state["updates"])
    place(found, ranks, flat_state(optimizer))
    optimizer.round_into_model()
    if ranks.rank < len(state["rngs"]):
        rng_state.restore(state["rngs"][ranks.rank])
    report = TrainReport(**state["report"]) if state["report"] else None
    return Restored(Position(state["step"], report), told["name"], found.standing if found else None)


def check_identity(found: Checkpoint | None, identity: ModelIdentity) -> None:
    """Raise `CheckpointError` when a checkpoint is not of this model."""
    if found is None:
        return
    theirs = ModelIdentity.from_dict(found.state["identity"])
    if difference := identity.difference(theirs):
        raise CheckpointError(
            f"checkpoint {found.folder} is of another model, {theirs.source}: {difference} ({identity.source}). "
            "Use the model it was made with as spec.model.source, or another checkpoint volume"
        )


def place(found: Checkpoint | None, ranks: RankGroup, targets: dict[str, Tensor]) -> None:
    """Copy the checkpoint's tensors (on rank 0) into `targets` on every rank."""
    if found is None:
        for target in targets.values():
            ranks.place(target, None)
        return
    with found.tensors() as stored:
        for name, target in targets.items():
            ranks.place(target, stored[name])
