"""Random Llama: a model of 91 million parameters whose heads can be split, with random weights and the toy's tokenizer.

Nothing is learned from its texts; steps of it take as long as those of a trained model. SmolLM2 has nine heads, which
no even tensor parallel size divides.
"""

from __future__ import annotations

from pathlib import Path

from rljob_runtime.models.cache import built_once
from rljob_runtime.models.toy import recipe, save_taught, toy_tokenizer

SEED = 0
VOCABULARY = 4096


def random_llama(cache_dir: Path) -> Path:
    """Return the Hugging Face folder, built below `cache_dir` if it is absent."""
    return built_once(cache_dir, f"random-llama-{recipe(Path(__file__))}", _build)


def _build(target: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=14,
        num_attention_heads=12,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    save_taught(target, SEED, lambda: (toy_tokenizer(), LlamaForCausalLM(config).bfloat16()))
