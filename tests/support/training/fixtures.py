"""Fixtures of the training tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rljob_runtime.rollout.engines.rank_processes import ForkServer, RankProcesses
from tests.support.paths import ROOT
from tests.support.training import precise_rank
from tests.support.training.toys import keep_norms_precise, save_tiny_model, save_tokenizer


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


@pytest.fixture(scope="session")
def unit_fork_server() -> Iterator[ForkServer]:
    """Forks the ranks of gradient units. To import torch takes seconds, so it is one for all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        fork_server = ForkServer(precise_rank.PEER)
        RankProcesses(fork_server, 1, grace=0.0).kill()  # it has imported all that it is to import
    yield fork_server
    fork_server.close()


@pytest.fixture
def norms_in_full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_norms_precise(monkeypatch)
