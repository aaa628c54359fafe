"""Small random models of any family of transformers, as a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from rljob_runtime.training.model.packing import MicroBatch
from rljob_runtime.training.model.policy import Policy

VOCABULARY = 61
SPREAD = 0.4
"""Of the weights: far from the smooth region in which attention hardly matters."""

COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def save_family(folder: Path, family: str, **changes: Any) -> Path:
    """Write a model of that `model_type`; `changes` are fields of its config."""
    config = AutoConfig.for_model(family, **{**COMMON, "initializer_range": SPREAD, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            # Norms and biases begin as ones and zeros: give all of them something to be wrong about.
            for name, parameter in model.named_parameters():
                if "norm" in name or "ln_" in name:
                    parameter.add_(0.1 * torch.randn_like(parameter))
                elif parameter.ndim == 1:
                    parameter.normal_(0, 0.2)
    model.save_pretrained(folder)
    return folder


def rope(kind: str, **parameters: Any) -> dict[str, Any]:
    """A rotary embedding of this `rope_type`, as a field of the config."""
    return {"rope_parameters": {"rope_theta": 10_000.0, "rope_type": kind, **parameters}}


def longrope(original: int) -> dict[str, Any]:
    """Phi-3's: other frequencies for sequences of more than `original` tokens."""
    factors = {"short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 3.0, 4.0], "factor": 4.0}
    parameters = rope("longrope", original_max_position_embeddings=original, **factors)
    return {"max_position_embeddings": 4 * original, "original_max_position_embeddings": original, **parameters}


GPT = {"n_embd": 32, "n_head": 4, "n_layer": 2}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LATENT = {
    "q_lora_rank": 8,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "head_dim": 8,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}
HEADS_OF_8 = {"head_dim": 8}

WINDOWS: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral, window": ("mistral", {"sliding_window": 32}),
    "mixtral, window": ("mixtral", {"sliding_window": 32, **EXPERTS}),
    "phi3, window": ("phi3", {"sliding_window": 32}),
    "starcoder2, window": ("starcoder2", {"sliding_window": 32}),
    "qwen2, window in the second layer": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1},
    ),
    "olmo3, window": ("olmo3", {"sliding_window": 32}),
    "cohere2, window": ("cohere2", {"sliding_window": 32}),
    "gemma3, window": ("gemma3_text", {"sliding_window": 32, **HEADS_OF_8}),
}

RIGHT: dict[str, tuple[str, dict[str, Any]]] = {
    **WINDOWS,
    "llama": ("llama", {}),
    "llama, yarn": ("llama", rope("yarn", factor=4.0, original_max_position_embeddings=64)),
    "llama 3's rope": (
        "llama",
        rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64),
    ),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", HEADS_OF_8),
    "qwen2_moe": ("qwen2_moe", {**QWEN_EXPERTS, "shared_expert_intermediate_size": 16}),
    "qwen3_moe": ("qwen3_moe", {**QWEN_EXPERTS, **HEADS_OF_8}),
    "gemma": ("gemma", HEADS_OF_8),
    "phi": ("phi", {}),
    "phi3": ("phi3", {}),
    "phimoe": ("phimoe", EXPERTS),
    "gpt2": ("gpt2", GPT),
    "gpt_bigcode": ("gpt_bigcode", {**GPT, "n_positions": 512}),
    "gpt_neox": ("gpt_neox", {}),
    "opt": ("opt", {"ffn_dim": 64, "word_embed_proj_dim": 32}),
    "granite": ("granite", {}),
    "granitemoe": ("granitemoe", EXPERTS),
    "olmo": ("olmo", {}),
    "olmo2": ("olmo2", {}),
    "olmoe": ("olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
    "smollm3": ("smollm3", {}),
    "cohere": ("cohere", {}),
    "glm": ("glm", HEADS_OF_8),
    "glm4": ("glm4", HEADS_OF_8),
    "lfm2, attention alone": ("lfm2", {"layer_types": ["full_attention"] * 2}),
    "helium": ("helium", HEADS_OF_8),
    "ernie4_5": ("ernie4_5", HEADS_OF_8),
    "seed_oss": ("seed_oss", HEADS_OF_8),
    "apertus": ("apertus", {}),
    "arcee": ("arcee", {}),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", HEADS_OF_8),
    "exaone4": ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "deepseek_v3": ("deepseek_v3", LATENT),
    "jetmoe": ("jetmoe", {"kv_channels": 8, **EXPERTS}),
    "biogpt": ("biogpt", {}),
    "persimmon": ("persimmon", {}),
}
"""Computed as the model computes them."""

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama, dynamic rope": (
        "llama",
        {"max_position_embeddings": 64, **rope("dynamic", factor=4.0)},
        "rope_type 'dynamic'",
    ),
    "phi3, longrope": ("phi3", longrope(64), "rope_type 'longrope'.* at most 64 "),
    "bloom": ("bloom", {"n_head": 4, "n_layer": 2}, "bloom"),
    "mpt": ("mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 512}, "mpt"),
    "codegen": ("codegen", {**GPT, "rotary_dim": 4}, "codegen"),
    "gptj": ("gptj", {**GPT, "rotary_dim": 4}, "gptj"),
    "xglm": ("xglm", {"d_model": 32, "ffn_dim": 64, "attention_heads": 4, "num_layers": 2}, "xglm"),
    "gpt_neo": (
        "gpt_neo",
        {"num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 32},
        "gpt_neo",
    ),
    "recurrent_gemma": ("recurrent_gemma", {}, "recurrent_gemma"),
    "stablelm": ("stablelm", {}, "stablelm"),
    "nemotron": ("nemotron", {}, "nemotron"),
    "gemma2": ("gemma2", HEADS_OF_8, "attn_logit_softcapping"),
    "gpt_oss": ("gpt_oss", {**HEADS_OF_8, **EXPERTS, "sliding_window": 32}, "s_aux"),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention"]}, "layer_types conv"),
    "llama4": ("llama4_text", {**HEADS_OF_8, **EXPERTS, "attention_chunk_size": 32}, "chunked_attention"),
    "minimax": ("minimax", {**HEADS_OF_8, **EXPERTS}, "layer_types"),
}
"""With what the refusal says."""


def there_and_back(policy: Policy, row: MicroBatch) -> list[Tensor]:
    """Log-probabilities, and the gradient of their sum."""
    logprobs, _ = policy.logprobs(row)
    torch.autograd.backward(logprobs.sum())
    found = [logprobs.detach(), *(weight.grad for weight in policy.model.parameters() if weight.grad is not None)]
    policy.model.zero_grad(set_to_none=True)
    return found
