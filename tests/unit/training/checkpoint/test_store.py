"""Checkpoints: whole or not there, never of another model, never lost to a full disk."""

from __future__ import annotations

import dataclasses
import errno
import json
import shutil
from pathlib import Path

import pytest
import torch

from rljob_runtime.protocols import Refused
from rljob_runtime.training.checkpoint import safetensors_writer
from rljob_runtime.training.checkpoint import store as checkpoint_store
from rljob_runtime.training.checkpoint.store import MARKER, SNAPSHOT, STATE, TENSORS, CheckpointError, CheckpointStore
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.ranks.settings import TrainerSettings
from tests.support.training.toys import FakePublisher, LoneRank, make_groups, save_tiny_model, save_tokenizer

WEIGHT = torch.arange(12.0).reshape(3, 4)


def save(store: CheckpointStore, step: int, scale: float = 1.0, coordinator_snapshot: str | None = None) -> str:
    tensors = {"master/a": WEIGHT * scale}
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    return store.save(step, {"note": step}, shapes, torch.float32, tensors.items(), coordinator_snapshot)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", keep=2)


def names(store: CheckpointStore) -> list[str]:
    return sorted(path.name for path in store.root.iterdir())


def test_the_newest_comes_back_and_old_ones_go(store) -> None:
    assert store.newest() is None
    for step in (1, 2, 3):
        save(store, step, scale=step)
    assert names(store) == ["step-00000002", "step-00000003"]
    found = store.newest()
    assert (found.step, found.state["note"]) == (3, 3)
    with found.tensors() as tensors:
        assert torch.equal(tensors["master/a"], WEIGHT * 3)


DAMAGE = {
    "tensors cut": lambda folder: (folder / TENSORS).write_bytes((folder / TENSORS).read_bytes()[:-1]),
    "a bit flipped": lambda folder: (folder / TENSORS).write_bytes(
        (folder / TENSORS).read_bytes()[:-1] + bytes([(folder / TENSORS).read_bytes()[-1] ^ 1])
    ),
    "state changed": lambda folder: (folder / STATE).write_text((folder / STATE).read_text().replace("2", "7")),
    "tensors gone": lambda folder: (folder / TENSORS).unlink(),
    "marker empty": lambda folder: (folder / MARKER).write_text(""),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_one_is_passed_over_and_can_be_written_again(store, damage) -> None:
    save(store, 1)
    save(store, 2)
    damage(store.root / "step-00000002")
    assert store.newest().step == 1
    save(store, 2, scale=5)
    with store.newest().tensors() as tensors:
        assert torch.equal(tensors["master/a"], WEIGHT * 5)
    for name in names(store):
        DAMAGE["tensors gone"](store.root / name)
    with pytest.raises(CheckpointError, match=r"no usable checkpoint .* empty the folder to start from the model"):
        store.newest()


def test_the_coordinators_document_is_a_part_of_it(store) -> None:
    """Those of before have none. A damaged one is a damaged checkpoint, whatever else is whole."""
    save(store, 1)
    assert store.newest().coordinator_snapshot is None
    save(store, 2, coordinator_snapshot='{"longQueue": ["0.4"]}')
    assert (
        store.newest().coordinator_snapshot
        == (store.root / "step-00000002" / SNAPSHOT).read_text()
        == '{"longQueue": ["0.4"]}'
    )
    (store.root / "step-00000002" / SNAPSHOT).write_text('{"longQueue": ["0.5"]}')
    assert (store.newest().step, store.newest().coordinator_snapshot) == (1, None)


def test_an_unfinished_one_does_not_count(store) -> None:
    save(store, 1)
    save(store, 2)
    (store.root / "step-00000002" / MARKER).unlink()
    shutil.copytree(store.root / "step-00000001", store.root / ".partial-step-00000003")
    assert store.newest().step == 1
    save(store, 3)
    # The newest two whole ones stay.
    assert names(store) == ["step-00000001", "step-00000002", "step-00000003"]
    assert store.newest().step == 3


def test_an_unfinished_one_alone_is_no_reason_to_stop(store) -> None:
    save(store, 1)
    (store.root / "step-00000001" / MARKER).unlink()
    assert store.newest() is None


def test_a_format_of_the_future_is_refused(store, monkeypatch) -> None:
    monkeypatch.setattr(checkpoint_store, "FORMAT", 2)
    save(store, 1)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="has format 2; this version reads format 1"):
        store.newest()


@pytest.mark.parametrize("where", ["room", "tensors", "state"])
def test_a_full_disk_leaves_the_previous_one_untouched(store, monkeypatch, where) -> None:
    save(store, 1)
    before = {path.name: path.read_bytes() for path in (store.root / "step-00000001").iterdir()}
    full = OSError(errno.ENOSPC, "No space left on device")

    def fail(*_: object) -> None:
        raise full

    if where == "room":
        usage = shutil._ntuple_diskusage(100, 99, 1)
        monkeypatch.setattr(checkpoint_store.shutil, "disk_usage", lambda _: usage)
    elif where == "tensors":
        monkeypatch.setattr(safetensors_writer.os, "fsync", fail)
    else:
        monkeypatch.setattr(checkpoint_store, "write_text", fail)
    with pytest.raises(CheckpointError, match=r"step 2 cannot be written .*keep\. step-00000001 is untouched"):
        save(store, 2)
    monkeypatch.undo()
    assert names(store) == ["step-00000001"]
    assert {path.name: path.read_bytes() for path in (store.root / "step-00000001").iterdir()} == before
    assert store.newest().step == 1


OTHERS = {
    "other shape": ({"intermediate_size": 32}, r"its model.layers.0.mlp.gate_proj.weight is \[24, 16\]"),
    "more layers": ({"num_hidden_layers": 3}, "it lacks model.layers.2"),
    "untied head": ({"tie_word_embeddings": False}, "it lacks lm_head.weight"),
    "other weights": ({"seed": 1}, "its weights began with other values"),
}


@pytest.mark.parametrize(("changes", "message"), OTHERS.values(), ids=OTHERS.keys())
def test_a_checkpoint_of_another_model_is_refused(model_folder, tmp_path, changes, message) -> None:
    settings = TrainerSettings(
        training=TrainingConfig(dtype="float32"),
        model_source=str(model_folder),
        cache_folder=tmp_path / "cache",
        checkpoint_folder=tmp_path / "checkpoints",
        export_folder=tmp_path / "model",
    )
    rank = LoneRank(settings, FakePublisher)
    rank.start(1)
    rank.train(1, 1, make_groups(1, 2))
    rank.checkpoint(1, 1, "{}")
    other = save_tiny_model(tmp_path / "other", **changes)
    save_tokenizer(other)
    with pytest.raises(Refused, match=f"is of another model, .*{message}.*another checkpoint volume"):
        LoneRank(dataclasses.replace(settings, model_source=str(other)), FakePublisher).start(1)
    moved = shutil.copytree(model_folder, tmp_path / "moved")
    assert LoneRank(dataclasses.replace(settings, model_source=str(moved)), FakePublisher).start(1).step == 1
    assert json.loads((tmp_path / "checkpoints" / "step-00000001" / STATE).read_text())["step"] == 1
