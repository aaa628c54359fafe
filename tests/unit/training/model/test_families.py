"""Every family that the trainer takes is computed as the model computes it, whatever else lies in the row and however
long a response is; every other one is refused at start."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rljob_api.spec.algorithm import LossAggregation
from rljob_runtime.rollout.engines.reference.transformer import supported
from rljob_runtime.training.batch.rows import Block, Sample, row_of
from rljob_runtime.training.model.attention import UnsupportedModel
from rljob_runtime.training.model.packing import pack_row
from rljob_runtime.training.model.policy import Policy
from rljob_runtime.training.model.pretrained import load_model
from rljob_runtime.training.model.verification import LIMIT, layers_to_check, length_to_check
from tests.support.rows import slow
from tests.support.training.families import (
    REFUSED,
    RIGHT,
    VOCABULARY,
    WINDOWS,
    longrope,
    rope,
    save_family,
    there_and_back,
)

LONGEST = 120
ROWS = {"short": [(10, (3, 15))], "long": [(10, (90,))], "mixed": [(10, (15, 90, 1)), (40, (70, 2)), (3, (20, 117))]}
"""Prompts' tokens, and their responses', in one row."""


def blocks_of(shape: list[tuple[int, tuple[int, ...]]]) -> list[Block]:
    rng = random.Random(str(shape))

    def draw(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(3, VOCABULARY) for _ in range(count))

    return [
        Block(draw(prompt), tuple(Sample(draw(n), (0.0,) * n, 1.0) for n in responses)) for prompt, responses in shape
    ]


@torch.no_grad()
def largest_difference(folder: Path, longest: int = LONGEST) -> float:
    """Between rows of all kinds, in every order, and the plain model on one sequence at a time."""
    policy = Policy(load_model(folder, longest=longest), temperature=1.0, autocast=False)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    worst = 0.0
    for blocks in map(blocks_of, ROWS.values()):
        for order in (blocks, blocks[::-1]):
            found = policy.frozen_logprobs(pack_row(row_of(order), LossAggregation.TOKEN_MEAN))
            at = 0
            for block in order:
                for sample in block.samples:
                    tokens, start = [*block.prompt_token_ids, *sample.token_ids], len(block.prompt_token_ids)
                    logits = plain(torch.tensor([tokens])).logits[0, start - 1 : -1]
                    wanted = torch.log_softmax(logits, -1).gather(-1, torch.tensor(tokens[start:])[:, None])[:, 0]
                    worst = max(worst, float((found[at : at + len(wanted)] - wanted).abs().max()))
                    at += len(wanted)
    return worst


STAND_FOR_ALL = ["mistral, window", "qwen2, window in the second layer", "llama 3's rope"]


@pytest.mark.parametrize("name", [*STAND_FOR_ALL, *slow(*(name for name in RIGHT if name not in STAND_FOR_ALL))])
def test_a_family_is_computed_as_its_model_computes_it(tmp_path, name) -> None:
    family, changes = RIGHT[name]
    assert largest_difference(save_family(tmp_path / "model", family, **changes)) <= LIMIT


AGAIN_FOR_ALL = ["mixtral, window", "opt", "seed_oss", "phimoe"]
"""The last three draw random numbers in training mode, each in its own way."""


@pytest.mark.parametrize("name", [*AGAIN_FOR_ALL, *slow(*(name for name in RIGHT if name not in AGAIN_FOR_ALL))])
def test_layers_that_are_computed_again_give_the_same(tmp_path, name) -> None:
    """As on accelerators, and with several ranks."""
    family, changes = RIGHT[name]
    policy = Policy(
        load_model(save_family(tmp_path / "model", family, **changes), longest=LONGEST), temperature=1.0, autocast=False
    )
    row = pack_row(row_of(blocks_of(ROWS["mixed"])), LossAggregation.TOKEN_MEAN)
    wanted = there_and_back(policy, row)
    policy.enable_checkpointing()
    torch.testing.assert_close(there_and_back(policy, row), wanted)


REFUSED_FOR_ALL = ["bloom", "phi3, longrope", "gpt_oss"]


@pytest.mark.parametrize("name", [*REFUSED_FOR_ALL, *slow(*(name for name in REFUSED if name not in REFUSED_FOR_ALL))])
def test_a_family_that_rows_do_not_give_is_refused_by_name(tmp_path, name) -> None:
    family, changes, says = REFUSED[name]
    folder = save_family(tmp_path / "model", family, **changes)
    with pytest.raises(UnsupportedModel, match=says):
        load_model(folder, longest=LONGEST)


def test_dynamic_rope_is_right_up_to_the_original_context(tmp_path) -> None:
    folder = save_family(tmp_path / "model", "phi3", **longrope(LONGEST))
    assert largest_difference(folder) <= LIMIT
    for longest in (LONGEST + 1, None):
        with pytest.raises(UnsupportedModel, match=f"rope_parameters.rope_type 'longrope'.* at most {LONGEST}"):
            load_model(folder, longest=longest)


def test_the_reference_engine_too_refuses_a_rope_that_follows_the_length() -> None:
    """It would take the longest of a batch, as transformers does."""
    config = AutoConfig.for_model(
        "llama", architectures=["LlamaForCausalLM"], max_position_embeddings=64, **rope("dynamic", factor=4.0)
    )
    assert supported(config, 64) == "LlamaForCausalLM"
    with pytest.raises(ValueError, match=r"rope_type 'dynamic'.* at most 64 "):
        supported(config, 65)


@pytest.mark.parametrize("width", [1, 2, 31, 33, 119, 120, 121])
def test_a_window_of_any_width_is_that_of_the_model(tmp_path, width) -> None:
    folder = save_family(tmp_path / "model", "mistral", sliding_window=width)
    assert largest_difference(folder) <= LIMIT


@pytest.mark.parametrize("name", ["mistral, window", *slow(*(name for name in WINDOWS if name != "mistral, window"))])
def test_a_window_that_is_forgotten_is_measured(tmp_path, monkeypatch, name) -> None:
    family, changes = WINDOWS[name]
    folder = save_family(tmp_path / "model", family, **changes)
    through_window = "rljob_runtime.training.model.attention._windowed_attention"

    def forget(query, key, value, window, scaling):
        from rljob_runtime.training.model import attention

        mask = attention.causal_lower_right(query.shape[2], key.shape[2])
        return [attention._attend(query, key, value, mask, scaling)]

    monkeypatch.setattr(through_window, forget)
    with pytest.raises(UnsupportedModel, match=r"differ by .* sliding_window=32"):
        load_model(folder, longest=LONGEST)
    load_model(folder, longest=32)  # no sequence of this job sees a window


def test_a_sequence_beyond_every_length_of_the_config_is_measured() -> None:
    config = AutoConfig.for_model("mistral", sliding_window=4096, hidden_size=5120)
    assert [length_to_check(config, n) for n in (4096, 4100, 100_000)] == [None, 4100, 5120]
    assert length_to_check(AutoConfig.for_model("llama", hidden_size=64), 2048) is None


def test_the_first_layers_of_each_kind_are_measured(tmp_path) -> None:
    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    changes = {"num_hidden_layers": 8, "layer_types": kinds * 2, "sliding_window": 32, "head_dim": 8}
    model = AutoModelForCausalLM.from_pretrained(save_family(tmp_path / "model", "gemma3_text", **changes))
    assert layers_to_check(model.config, list(model.model.layers)) == 4
    plain = AutoModelForCausalLM.from_pretrained(save_family(tmp_path / "plain", "llama", num_hidden_layers=5))
    assert layers_to_check(plain.config, list(plain.model.layers)) == 2
