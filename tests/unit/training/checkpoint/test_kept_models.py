"""Models of evaluated rounds: the trainer writes each from its weights, keeps some, and exports the best."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rljob_runtime.protocols import Refused, VolumeFull
from rljob_runtime.training.checkpoint import export, kept_models, store
from rljob_runtime.training.checkpoint.kept_models import KeptModels
from rljob_runtime.training.config import TrainingConfig
from rljob_runtime.training.ranks.settings import TrainerSettings
from tests.support.training.toys import FakePublisher, LoneRank, make_groups


@pytest.fixture
def settings(model_folder: Path, tmp_path: Path) -> TrainerSettings:
    return TrainerSettings(
        training=TrainingConfig(dtype="bfloat16", learning_rate=1e-2, warmup_steps=0),
        model_source=str(model_folder),
        cache_folder=tmp_path / "cache",
        checkpoint_folder=tmp_path / "volume/checkpoints",
        export_folder=tmp_path / "volume/model",
    )


def loaded(folder: str | Path) -> dict[str, torch.Tensor]:
    return dict(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).named_parameters())


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def test_the_best_model_is_that_of_its_round_and_not_the_final_one(settings) -> None:
    rank = LoneRank(settings, FakePublisher)
    rank.start(1)
    exported: dict[int, dict[str, torch.Tensor]] = {}
    for step in (0, 1, 2):
        if step:
            rank.train(1, step, make_groups(step, 4))
        assert rank.save_model(1, step) == tuple(range(step + 1))
        exported[step] = loaded(rank.export(1))
    assert rank.save_model(1, 2) == (0, 1, 2), "a second time changes nothing"
    assert not same(exported[1], exported[2])
    assert rank.retain_models(1, (1, 2)) == (1, 2)
    for step in (2, 1, 1):
        best = rank.export_best(1, step)
        assert best == str(settings.export_folder.with_name("best"))
        assert same(loaded(best), exported[step])
    assert same(loaded(settings.export_folder), exported[2])
    assert rank.retain_models(1, ()) == ()
    assert same(loaded(settings.export_folder.with_name("best")), exported[1]), "its files are its own"
    found = sorted(path.name for path in settings.export_folder.parent.iterdir())
    assert found == ["best", "candidates", "model"]


def test_a_model_of_another_step_is_refused(settings) -> None:
    rank = LoneRank(settings, FakePublisher)
    rank.start(1)
    with pytest.raises(Refused, match="model of step 3: the trainer holds step 0"):
        rank.save_model(1, 3)
    with pytest.raises(Refused, match=r"the best model \(step 3\) cannot be exported to"):
        rank.export_best(1, 3)


def test_a_volume_without_room_is_told_from_other_refusals(settings, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = LoneRank(settings, FakePublisher)
    rank.start(1)
    usage = shutil._ntuple_diskusage(100, 99, 1)
    monkeypatch.setattr(store.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(VolumeFull, match="checkpoint of step 0 cannot be written"):
        rank.checkpoint(1, 0, "{}")
    monkeypatch.undo()
    for code, kind in ((errno.EDQUOT, VolumeFull), (errno.EROFS, Refused)):
        monkeypatch.setattr(export, "write_tensors", failing(OSError(code, "no")))
        with pytest.raises(Refused, match="the model cannot be exported to") as refused:
            rank.export(1)
        assert type(refused.value) is kind
    monkeypatch.undo()
    monkeypatch.setattr(KeptModels, "steps", failing(PermissionError(13, "no")))
    with pytest.raises(Refused, match="no"):
        rank.retain_models(1, None)


def failing(error: OSError):
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


@pytest.fixture
def models(tmp_path: Path) -> KeptModels:
    found = KeptModels(tmp_path / "candidates")
    for step in (0, 10, 20):
        found.folder(step).mkdir(parents=True)
        (found.folder(step) / "config.json").write_text(str(step))
    (tmp_path / "candidates/.partial-step-00000030").mkdir()
    return found


def test_models_are_deleted_except_those_to_keep(models: KeptModels) -> None:
    assert models.steps() == (0, 10, 20)
    assert models.retain(None) == (0, 10, 20)
    assert models.retain((0, 20, 30)) == (0, 20)
    assert models.retain(()) == ()


def test_a_volume_without_links_copies(models: KeptModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(source: str, target: str) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refused)
    models.export(10, tmp_path / "best")
    assert (tmp_path / "best/config.json").read_text() == "10"


def test_an_export_that_fails_leaves_the_earlier_one(
    models: KeptModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models.export(10, tmp_path / "best")

    def full(source: str, target: str) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept_models, "_link", full)
    with pytest.raises(kept_models.CheckpointError, match=r"the best model \(step 20\) cannot be exported to .*best"):
        models.export(20, tmp_path / "best")
    assert (tmp_path / "best/config.json").read_text() == "10"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "candidates"]


def test_an_export_that_was_cut_off_is_repeated(models: KeptModels, tmp_path: Path) -> None:
    models.export(10, tmp_path / "best")
    shutil.move(tmp_path / "best", tmp_path / ".old-best")
    (tmp_path / ".partial-best").mkdir()
    models.export(20, tmp_path / "best")
    assert (tmp_path / "best/config.json").read_text() == "20"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "candidates"]
