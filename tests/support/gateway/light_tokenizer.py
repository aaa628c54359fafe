"""Light tokenizer: a byte-level BPE with the interface of transformers' that the gateway uses, and chat templates.

It is made in milliseconds. A text has many forms in its tokens, so tokens that were encoded again are seen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEXT_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
"""Added tokens that are no special ones: decoders write them."""
CORPUS = ["system user assistant tool the answer is a question, what is the result of this call?"] * 4

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WITH_TOOLS = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTENTS = "{% for message in messages %}{{ message.content }}{% endfor %}"
"""The toy model's: no token ends a turn."""
STRIPS_THINKING = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{{ message.content.split('</think>')[-1] if message.role == 'assistant' else message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MOVES_TOOLS = (
    "{% for message in messages %}{% if loop.last and tools %}{{ tools | tojson }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ALTERNATES = (
    "{% for message in messages %}{% if message.role not in ('user', 'assistant') %}"
    "{{ raise_exception('only user and assistant') }}{% endif %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class LightTokenizer:
    """The part of a tokenizer of transformers that the gateway uses."""

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend
        self.eos_token_id = backend.token_to_id("<|im_end|>")
        self.unk_token_id = None
        self.name_or_path = "light"

    def get_added_vocab(self) -> dict[str, int]:
        return {token.content: id for id, token in self.backend.get_added_tokens_decoder().items()}

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens, "a template writes them itself"
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Any, skip_special_tokens: bool = False) -> str:
        return str(self.backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def convert_tokens_to_ids(self, token: str) -> int | None:
        found: int | None = self.backend.token_to_id(token)
        return found

    def spelled(self, text: str) -> list[int]:
        """Return a text as one token a byte: what an engine may emit, and no encoder writes."""
        return [self._id(_byte_names()[byte]) for byte in text.encode()]

    @property
    def end(self) -> int:
        """The token that ends a turn."""
        return self._id("<|im_end|>")

    def _id(self, token: str) -> int:
        found = self.backend.token_to_id(token)
        assert found is not None, f"no token {token!r}"
        return found

    @property
    def size(self) -> int:
        return int(self.backend.get_vocab_size())


@cache
def light_tokenizer() -> LightTokenizer:
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=340, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, special_tokens=[]
    )
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in TEXT_TOKENS])
    return LightTokenizer(backend)


class AnyNameTokenizer(LightTokenizer):
    """A tokenizer with every added token that is asked for: each renderer wants those of its own model."""

    def convert_tokens_to_ids(self, token: str) -> int | None:
        if self.backend.token_to_id(token) is None:
            self.backend.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        return super().convert_tokens_to_ids(token)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        if _DEEPSEEKS.fullmatch(text):
            self.convert_tokens_to_ids(text)
        return super().encode(text, add_special_tokens)

    def get_vocab(self) -> dict[str, int]:
        return dict(self.backend.get_vocab())


_DEEPSEEKS = re.compile(r"<?｜[^<>]*｜>?")
"""Tokens that renderers find by encoding their names."""


def any_name_tokenizer() -> AnyNameTokenizer:
    return AnyNameTokenizer(Tokenizer.from_str(light_tokenizer().backend.to_str()))


@cache
def _byte_names() -> dict[int, str]:
    """Return the characters by which byte-level tokenizers name the bytes."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in own]
    return {byte: chr(byte) for byte in own} | {byte: chr(256 + index) for index, byte in enumerate(others)}


def render_of(template: str) -> Callable[..., str]:
    """Return a chat template as transformers would render it."""

    def raise_exception(message: str) -> None:
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = raise_exception
    compiled = environment.from_string(template)

    def render(messages: Sequence[Any], tools: Sequence[Any] = (), generation_prompt: bool = True) -> str:
        return compiled.render(messages=messages, tools=list(tools), add_generation_prompt=generation_prompt)

    return render
