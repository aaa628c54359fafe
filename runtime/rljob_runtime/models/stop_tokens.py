"""Stop tokens: the tokens that end a response, from the tokenizer and both configs.

Each of the three may be the only one that names the end of a turn. Chat models end a turn with a tokenizer token that
the config may not name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rljob_runtime.models.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CONFIG = "config.json"
GENERATION_CONFIG = "generation_config.json"


def eos_token_ids(model_files: Mapping[str, bytes]) -> frozenset[int]:
    """Return the ids that end a response according to the configs.

    Empty when neither names one. Raises `ModelError`.
    """
    return frozenset(_named(model_files))


def stop_token_ids(
    model_files: Mapping[str, bytes], tokenizer: PreTrainedTokenizerBase, stop_strings: Sequence[str] = ()
) -> tuple[int, ...]:
    """Return those ids, the tokenizer's, and those of stop strings that are special tokens, in order.

    Raises `ModelError` for an id outside of the vocabulary, and for a stop string that has a special token and other
    text: neither would ever occur, and every response would run to its limit.
    """
    named = _named(model_files) | _special_stops(tokenizer, stop_strings)
    if tokenizer.eos_token_id is not None:
        named.setdefault(_checked(tokenizer.eos_token_id, "the tokenizer"), "the tokenizer")
    size = _read(CONFIG, model_files).get("vocab_size") or len(tokenizer)
    for token, where in named.items():
        if not 0 <= token < size:
            raise ModelError(
                f"{where} says that token {token} ends a response (eos_token_id), but the vocabulary has {size} tokens;"
                f" one of 0..{size - 1} would be right"
            )
    return tuple(sorted(named))


def _special_stops(tokenizer: PreTrainedTokenizerBase, stop_strings: Sequence[str]) -> dict[int, str]:
    """Return the stop strings that are special tokens, by their ids. The decoded text has no special token."""
    special = {str(token): id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    found: dict[int, str] = {}
    for index, string in enumerate(stop_strings):
        field = f"spec.data.stopStrings[{index}]"
        if string in special:
            found[special[string]] = field
        elif inside := [token for token in special if token in string]:
            raise ModelError(
                f"{field}: {string!r} has the special token {inside[0]!r}, which the decoded text leaves out; "
                f"{inside[0]!r} alone would be right"
            )
    return found


def _named(model_files: Mapping[str, bytes]) -> dict[int, str]:
    """Return the first config that names each id."""
    named: dict[int, str] = {}
    for where in (GENERATION_CONFIG, CONFIG):
        listed: Any = _read(where, model_files).get("eos_token_id")
        for token in [] if listed is None else listed if isinstance(listed, list) else [listed]:
            named.setdefault(_checked(token, where), where)
    return named


def _read(name: str, model_files: Mapping[str, bytes]) -> dict[str, Any]:
    try:
        found = json.loads(model_files.get(name, b"{}"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{name} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"{name} is no JSON object")
    return found


def _checked(token: Any, where: str) -> int:
    if isinstance(token, bool) or not isinstance(token, int):
        raise ModelError(f"{where}: eos_token_id has {token!r:.80}; the number of a token would be right")
    return int(token)
