"""Two ranks over gloo give what one rank gives: the same report, weights, and checkpoints that either can read."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from safetensors.torch import load_file

from rljob_api.spec.algorithm import LossAggregation
from rljob_runtime.protocols import Chain, Refused, TrainReport
from rljob_runtime.training.ranks.settings import TrainerSettings
from tests.support.rows import slow
from tests.support.training.families import EXPERTS, save_family
from tests.support.training.rank_groups import settings_of, stored, trainer
from tests.support.training.toys import VOCABULARY, figures, make_groups, save_tokenizer

pytestmark = pytest.mark.engine

CHAIN = Chain(epoch=1, revision=0, members=())


async def run(settings: TrainerSettings, size: int, steps: list[int]) -> list[TrainReport]:
    """Start or resume, train, publish, checkpoint, export."""
    async with trainer(settings, size) as group:
        assert (await group.start(1)).step == steps[0] - 1
        reports = [await group.train(1, step, make_groups(step, 3)) for step in steps]
        for _ in range(2):  # the second is shipped from the buffer: no rank may gather for it
            assert (await group.publish(1, steps[-1], steps[-1], CHAIN)).version == steps[-1]
        assert await group.checkpoint(1, steps[-1], "{}") == f"step-{steps[-1]:08d}"
        assert await group.export(1) == str(settings.export_folder)
    return reports


def exported(settings: TrainerSettings) -> dict[str, torch.Tensor]:
    return load_file(settings.export_folder / "model.safetensors")


def largest_error(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    assert found.keys() == wanted.keys()
    return max(float((found[n] - wanted[n]).abs().max() / wanted[n].abs().max().clamp(min=1e-30)) for n in wanted)


TOLERANCE = {"float32": 1e-3, "float64": 1e-5, "bfloat16": 0.1}


@pytest.mark.parametrize("dtype", ["float32", *slow("float64", "bfloat16")])
async def test_two_ranks_are_one(model_folder, tmp_path, dtype) -> None:
    # The moments in a checkpoint show a wrong scale of the gradient, which AdamW's update hides.
    tolerance = TOLERANCE[dtype]
    config = {
        "dtype": dtype,
        "aggregation": LossAggregation.TOKEN_MEAN,
        "kl_coefficient": 0.02,
        "max_tokens_per_microbatch": 60,
    }
    one, two = (settings_of(model_folder, tmp_path / name, **config) for name in ("one", "two"))
    alone, together = await run(one, 1, [1]), await run(two, 2, [1])
    for mine, theirs in zip(alone, together, strict=True):
        wanted = figures(mine) | {"seconds": theirs.seconds}
        assert figures(theirs) == pytest.approx(wanted, rel=tolerance / 10, abs=1e-6)
    assert largest_error(stored(two, 1), stored(one, 1)) < tolerance
    assert largest_error(exported(two), exported(one)) < tolerance
    # Each goes on from the checkpoint of the other kind of group.
    await run(one, 2, [2])
    await run(two, 1, [2])
    assert largest_error(stored(two, 2), stored(one, 2)) < tolerance


async def test_ranks_read_the_slices_of_files_that_transformers_puts_together(tmp_path) -> None:
    """Mixtral's file has a tensor for each expert's matrix, and its model one for all of them."""
    folder = save_family(tmp_path / "model", "mixtral", vocab_size=VOCABULARY, sliding_window=8, **EXPERTS)
    save_tokenizer(folder)
    one, two = (settings_of(folder, tmp_path / name, dtype="float32", learning_rate=1e-3) for name in ("one", "two"))
    for settings, size in ((one, 1), (two, 2)):
        async with trainer(settings, size) as group:
            await group.start(1)
            await group.export(1)
    kept, loaded = load_file(folder / "model.safetensors"), exported(two)
    assert {name for name in loaded if "experts" in name}.isdisjoint(kept)
    assert largest_error(loaded, exported(one)) == 0
    await run(one, 1, [1])
    await run(two, 2, [1])
    assert largest_error(exported(two), exported(one)) < TOLERANCE["float32"]


async def test_two_ranks_keep_the_logprobs_of_the_steps_start(model_folder, tmp_path) -> None:
    config = {"importance_cap": 2.0, "minibatches": 3, "max_tokens_per_microbatch": 60, "clip_low": 0.01}
    one, two = (settings_of(model_folder, tmp_path / name, **config) for name in ("one", "two"))
    (alone,), (together,) = await run(one, 1, [1]), await run(two, 2, [1])
    assert figures(together) == pytest.approx(figures(alone) | {"seconds": together.seconds}, rel=1e-6)
    assert alone.capped_fraction > 0
    assert largest_error(stored(two, 1), stored(one, 1)) < 1e-5


async def test_two_ranks_add_the_metrics_of_an_own_loss(model_folder, tmp_path) -> None:
    """One of them has no row, and learns the names of the metrics from the other."""
    own = "tests.support.training.own_functions"
    config = {"loss_function": f"{own}:counted", "advantage_function": f"{own}:longer_is_better"}
    one, two = (settings_of(model_folder, tmp_path / name, dtype="float32", **config) for name in ("one", "two"))
    group = make_groups(1, 1)[0]
    lonely = [dataclasses.replace(group, responses=(group.responses[0],))]
    reports = []
    for settings, size in ((one, 1), (two, 2)):
        async with trainer(settings, size) as ranks:
            await ranks.start(1)
            reports.append([await ranks.train(1, 1, lonely), await ranks.train(1, 2, make_groups(2, 3))])
    for alone, together in zip(*reports, strict=True):
        assert together.metrics.keys() == {"surprise", "long"}
        assert figures(together) == pytest.approx({**figures(alone), "seconds": together.seconds}, rel=1e-4, abs=1e-6)


async def test_a_refusal_on_all_ranks_leaves_them_working(model_folder, tmp_path) -> None:
    settings = settings_of(model_folder, tmp_path, aggregation=LossAggregation.SEQUENCE_MEAN)
    async with trainer(settings, 2) as group:
        await group.start(1)
        with pytest.raises(Refused, match="no groups"):
            await group.train(1, 1, [])
        # One group of one response: a rank of the two has nothing to do, and still takes part.
        lonely = dataclasses.replace(make_groups(1, 1)[0], responses=make_groups(1, 1)[0].responses[:1])
        assert (await group.train(1, 1, [lonely])).step == 1
