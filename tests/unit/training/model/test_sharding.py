"""A rank holds its share of a model while no pass computes, and one full layer while one does."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from rljob_api.spec.algorithm import LossAggregation
from rljob_runtime.training.batch.rows import Block, Ints, Sample, row_of
from rljob_runtime.training.model import attention
from rljob_runtime.training.model.memory import recomputes_activations
from rljob_runtime.training.model.optimizer import gather_full
from rljob_runtime.training.model.packing import MicroBatch, pack_row
from rljob_runtime.training.model.policy import Policy
from rljob_runtime.training.model.pretrained import load_model
from rljob_runtime.training.model.sharding import RankGroup
from tests.support.rows import slow
from tests.support.training.families import RIGHT, save_family, there_and_back
from tests.support.training.toys import save_tiny_model

LAYERS = 4
MATRICES = 7
"""Of a layer of Llama."""
PATIENCE = 120.0


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Executor]:
    """A process that has no process group yet: an engine of another test may have made the one that this process may
    have."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        yield executor


@contextmanager
def lone_rank() -> Iterator[RankGroup]:
    """A group of one rank, whose parameters are split all the same."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    group = RankGroup(store=HashStore())
    try:
        yield group
    finally:
        group.close()


def row() -> MicroBatch:
    samples = (Sample(tokens(8, 4), np.zeros(4), 1.0), Sample(tokens(12, 2), np.zeros(2), -1.0))
    return pack_row(row_of((Block(tokens(5, 3), samples),)), LossAggregation.TOKEN_MEAN)


def tokens(first: int, count: int) -> Ints:
    return np.arange(first, first + count, dtype=np.int32)


def all_are_shards(model: nn.Module) -> bool:
    return all(isinstance(parameter, DTensor) for parameter in model.parameters())


def test_parameters_are_shards_after_a_pass_that_no_backward_pass_follows(tmp_path: Path, elsewhere: Executor) -> None:
    """A reader of the model's parameters then, as the optimizer does after the model was verified on a long row,
    would else be given whole ones, which no gradient belongs to."""
    elsewhere.submit(parameters_stay_shards, tmp_path).result(PATIENCE)


def parameters_stay_shards(folder: Path) -> None:
    family, changes = RIGHT["mistral, window"]
    with lone_rank() as lone:
        model = load_model(save_family(folder / "model", family, **changes), longest=120, ranks=lone)
        assert all_are_shards(model)
        policy = Policy(model, temperature=1.0, autocast=False)
        before = policy.frozen_logprobs(row())
        assert all_are_shards(model), "whole parameters are left"
        for parameter in model.parameters():
            parameter.data.mul_(0.5)
        assert not torch.allclose(policy.frozen_logprobs(row()), before), "weights of before were still there"


@pytest.mark.parametrize("name", ["mixtral, window", *slow(*(name for name in RIGHT if name != "mixtral, window"))])
def test_a_family_that_is_split_is_computed_as_one_that_is_not(tmp_path: Path, elsewhere: Executor, name: str) -> None:
    elsewhere.submit(split_and_plain_are_one, tmp_path, name).result(PATIENCE)


def split_and_plain_are_one(folder: Path, name: str) -> None:
    family, changes = RIGHT[name]
    folder = save_family(folder / "model", family, **changes)
    with lone_rank() as lone:
        split, plain = (
            Policy(load_model(folder, longest=120, ranks=ranks), temperature=1.0, autocast=False)
            for ranks in (lone, None)
        )
        split.enable_checkpointing()
        found, wanted = (there_and_back(policy, row()) for policy in (split, plain))
        torch.testing.assert_close([gather_full(tensor) for tensor in found], wanted, rtol=1e-4, atol=1e-5)


class Casts(TorchDispatchMode):
    """Counts the matrices that were cast to bfloat16 and are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[weakref.ref[Tensor]] = []
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._to_copy.default and out.dtype == torch.bfloat16 and out.ndim == 2:
            self.made.append(weakref.ref(out))
            self.most = max(self.most, sum(cast() is not None for cast in self.made))
        return out


def test_narrow_copies_of_weights_live_no_longer_than_their_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch's own mask cannot be made while its calls are watched.
    monkeypatch.setattr(attention, "causal_lower_right", lambda q, k: torch.ones(q, k, dtype=torch.bool).tril(k - q))
    policy = Policy(load_model(save_tiny_model(tmp_path, num_hidden_layers=LAYERS)), temperature=1.0, autocast=True)
    policy.enable_checkpointing()
    with Casts() as casts:
        logprobs, _ = policy.logprobs(row())
        torch.autograd.backward(logprobs.sum())
    assert len(casts.made) >= 2 * LAYERS * MATRICES, "there and back"
    assert casts.most <= MATRICES + 1, "and what is outside of layers"


@pytest.mark.parametrize(("device", "ranks", "again"), [("cpu", 1, False), ("cpu", 2, True), ("cuda", 1, True)])
def test_layers_are_computed_again_where_memory_is_scarce(device: str, ranks: int, again: bool) -> None:
    assert recomputes_activations(device, ranks) is again
