"""Response text: a response as rewards receive it, and as stop strings are sought in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TokenizerText:
    """The text of tokens by a model's tokenizer, without special tokens."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def open(cls, folder: Path) -> TokenizerText:
        """Open the tokenizer in a model's folder."""
        from transformers import AutoTokenizer

        return cls(AutoTokenizer.from_pretrained(folder))

    def decode(self, token_ids: Sequence[int]) -> str:
        """Decode a response."""
        text: Any = self._tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return str(text)
