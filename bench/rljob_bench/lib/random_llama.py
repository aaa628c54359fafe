"""Random Llama: a model of some 400 million parameters whose heads can be split, with random weights.

It has the toy's tokenizer. Nothing is learned from its texts; steps of it take as long as those of a trained model. A
step of one response reads all weights, so it is bound by memory, and two cores share it. A model of 91 million
parameters is too small for that: what two cores save there is less than a switch has to save. SmolLM2 has nine heads,
which no even tensor parallel size divides.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rljob_runtime.models.cache import built_once
from rljob_runtime.models.toy import recipe, save_taught, toy_tokenizer

SEED = 0
CONTEXT = 2048


@dataclass(frozen=True)
class LlamaShape:
    """Sizes of a Llama with tied embeddings. Query heads and KV heads divide by two, and a head has 64 elements."""

    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int

    @property
    def parameters(self) -> int:
        """Number of parameters.

        >>> SHAPE.parameters
        396412416
        """
        attention = 2 * self.hidden * self.hidden * (1 + self.kv_heads / self.heads)
        layer = round(attention) + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.vocabulary * self.hidden + self.layers * layer + self.hidden


SHAPE = LlamaShape(vocabulary=4096, hidden=1536, intermediate=4096, layers=16, heads=24, kv_heads=4)


def random_llama(cache_dir: Path, shape: LlamaShape = SHAPE) -> Path:
    """Return the Hugging Face folder, built below `cache_dir` if it is absent."""
    name = f"random-llama-{shape.parameters}-{recipe(Path(__file__))}"
    return built_once(cache_dir, name, lambda target: _build(target, shape))


def _build(target: Path, shape: LlamaShape) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
    )
    save_taught(target, SEED, lambda: (toy_tokenizer(), LlamaForCausalLM(config).bfloat16()))
