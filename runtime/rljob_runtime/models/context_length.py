"""Context length: the longest sequence whose rotary embedding does not depend on the sequence's own length.

With `rope_type` dynamic or longrope, the frequencies follow the length: every token's probability changes when the
sequence grows beyond the original context. Programs disagree there. transformers uses the longest sequence of the
batch, vLLM the longest that it accepts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FOLLOWS_LENGTH = ("dynamic", "longrope")


@dataclass(frozen=True)
class LengthLimit:
    """Longest sequence that all programs compute alike.

    `field` and `value` are those of config.json.
    """

    tokens: int
    field: str
    value: str

    def refusal(self, longest: int | None) -> str | None:
        """Return why sequences of `longest` tokens cannot be used, or None.

        `longest` is None for any length.
        """
        if longest is not None and longest <= self.tokens:
            return None
        asked = "sequences of any length" if longest is None else f"sequences of {longest} tokens"
        return (
            f"config.json has {self.field} {self.value!r}, whose frequencies follow a sequence's length beyond "
            f"{self.tokens} tokens, and {asked} are asked for; spec.data.maxPromptTokens + maxResponseTokens of at "
            f"most {self.tokens} would be right"
        )


def length_refusal(config: PretrainedConfig, longest: int | None) -> str | None:
    """Return why sequences of `longest` tokens cannot be used with this config, or None.

    `longest` is None for any length.
    """
    limit = _length_limit(config)
    return None if limit is None else limit.refusal(longest)


def _length_limit(config: PretrainedConfig) -> LengthLimit | None:
    """Return the smallest limit of the config's rotary embeddings, or None."""
    limits = [
        LengthLimit(_original(config, rope), f"{path}.rope_type", rope["rope_type"])
        for path, rope in _ropes("rope_parameters", getattr(config, "rope_parameters", None))
        if rope["rope_type"] in FOLLOWS_LENGTH
    ]
    return min(limits, key=lambda limit: limit.tokens, default=None)


def _ropes(path: str, found: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the embedding's parameters, for all layers or for each kind of layers."""
    if not isinstance(found, Mapping):
        return
    if "rope_type" in found:
        yield path, found
        return
    for kind, inner in found.items():
        yield from _ropes(f"{path}.{kind}", inner)


def _original(config: PretrainedConfig, rope: Mapping[str, Any]) -> int:
    found = (
        rope.get("original_max_position_embeddings"),
        getattr(config, "original_max_position_embeddings", None),
        config.max_position_embeddings,
    )
    return min(int(length) for length in found if length)
