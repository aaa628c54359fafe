"""Toy caller: a tiny Llama that calls a calculator in every turn, so that an episode has as many turns as it may have.

Its next token depends on the last one only: attention and feed-forward layers add nothing at first, and the output
layer is a table of what may follow a token. A call asks for a random expression, e.g. `7*3+4`, so episodes differ.
Nothing is taught, so the folder is made in a second. It serves tests of long episodes; there is no task to learn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rljob_runtime.models import toy, toy_calculator
from rljob_runtime.models.cache import built_once
from rljob_runtime.models.toy import EOS, VOCABULARY, recipe, save_taught
from rljob_runtime.models.toy_calculator import CALL, CALL_END, ROLES, calculator_tokenizer

if TYPE_CHECKING:
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT = 4096
DIGITS, OPERATORS = "123456789", "+-*"
GOES_ON = 0.5
"""Share of numbers that an operator follows."""
CERTAINTY = 24.0
"""Logit of a token that may follow, over all others: together they have a share of 5e-9."""
SEED = 22


def toy_caller(cache_dir: Path) -> Path:
    """Return the Hugging Face folder, built below `cache_dir` if it is absent."""
    return built_once(cache_dir, caller_folder_name(), _build)


def caller_folder_name() -> str:
    """Name the folder below the cache."""
    sources = (__file__, toy_calculator.__file__, toy.__file__)
    return "-".join(["toy-caller", *(recipe(Path(source)) for source in sources)])


def followers(call: str = CALL, call_end: str = CALL_END) -> dict[str, Mapping[str, float]]:
    """Return the shares of the tokens that may follow a token, for each token at which the model speaks.

    `call`, `call_end`: tokens of the call, before and after its expression."""
    numbers = dict.fromkeys(DIGITS, 1 / len(DIGITS))
    after = {call_end: 1 - GOES_ON} | dict.fromkeys(OPERATORS, GOES_ON / len(OPERATORS))
    return {
        ROLES[2]: {call: 1.0},
        call: numbers,
        **dict.fromkeys(DIGITS, after),
        **dict.fromkeys(OPERATORS, numbers),
        call_end: {EOS: 1.0},
    }


def caller_config() -> LlamaConfig:
    """Return the model's config. Each token has a dimension of its own."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=VOCABULARY,
        intermediate_size=VOCABULARY,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )


def _build(target: Path) -> None:
    save_taught(target, SEED, lambda: written(calculator_tokenizer(), followers()))


def written(
    tokenizer: PreTrainedTokenizerFast, said: Mapping[str, Mapping[str, float]]
) -> tuple[PreTrainedTokenizerFast, LlamaForCausalLM]:
    """Write a table of `followers` into the output layer, and zeros where a layer adds its result."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM(caller_config())
    ids = tokenizer.get_vocab()
    table = torch.zeros(VOCABULARY, VOCABULARY)
    for token, shares in said.items():
        for follower, share in shares.items():
            table[ids[follower], ids[token]] = CERTAINTY + math.log(share)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(torch.eye(VOCABULARY))
        # The norm before it gives the one dimension of a token this length.
        model.lm_head.weight.copy_(table / math.sqrt(VOCABULARY))
    return tokenizer, model
