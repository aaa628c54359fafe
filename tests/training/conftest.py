"""Fixtures of the training tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from training_toys import keep_norms_precise, save_tiny_model, save_tokenizer


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny matrices: a second thread on a busy machine costs more than all of the work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")
    save_tokenizer(folder)
    return folder


@pytest.fixture
def norms_in_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_norms_precise(monkeypatch)
