"""Plain text: the words of messages, encoded so that none of them becomes a token of the template.

A tool's output may contain `<|im_end|>`. Encoded as it stands it would end the tool's turn, and the rest of it could
speak as the user. So a mark is set into every such place of a message before the template is rendered. Text is encoded
piece by piece between the marks: each token of the template is whole, and none of a message is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ANSWER = "\ue0f5answer\ue0f6"
"""A marked answer, after which the text of new messages begins."""
MARK = "\ue0f7"
_PRIVATE = str.maketrans(dict.fromkeys((ANSWER[0], ANSWER[-1], MARK)))
"""Characters for private use. Messages lose them: they have no meaning there."""


class PlainText:
    """The encoding of one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        names = sorted((name for name in tokenizer.get_added_vocab() if len(name) > 1), key=len, reverse=True)
        self._added = re.compile("|".join(map(re.escape, names))) if names else None

    def guarded(self, value: Any) -> Any:
        """Return a JSON value in which no text has an added token."""
        return _mapped(value, self._marked)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a rendered text."""
        found: list[int] = []
        for piece in text.split(MARK):
            if piece:
                found += self._tokenizer.encode(piece, add_special_tokens=False)
        return found

    def _marked(self, text: str) -> str:
        """Set a mark after the first character of each added token. They may overlap."""
        text = text.translate(_PRIVATE)
        if self._added is None:
            return text
        pieces, place, begin = [], 0, 0
        while found := self._added.search(text, place):
            place = found.start() + 1
            pieces.append(text[begin:place])
            begin = place
        return MARK.join((*pieces, text[begin:]))


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with each text changed, names of fields too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {change(name): _mapped(one, change) for name, one in value.items()}
    return [_mapped(one, change) for one in value] if isinstance(value, list | tuple) else value
