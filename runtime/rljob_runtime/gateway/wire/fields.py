"""Fields: checks of a request's JSON that both protocols share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from rljob_runtime.gateway.errors import bad

Json = dict[str, Any]

MOST_DEPTH = 128
"""Most levels of lists and objects. Templates and renderers walk values by recursion, deeper than a parser does."""
MOST_VALUES = 1 << 21
"""Most signs that separate values in a body. Millions of empty lists are a few bytes each, and much more as objects."""
MOST_TEXTS = 1 << 17
"""Most texts in a body, names of values included: to read and to sort a million of them holds all threads for seconds.
A conversation of ten thousand messages has half of that."""
MOST_STOPS = 16
MOST_STOP_CHARACTERS = 256


def parse_body(body: bytes, most_texts: int = MOST_TEXTS) -> Json:
    """Return a body's object. Raises `GatewayError`."""
    if sum(map(body.count, (b",", b"[", b"{"))) > MOST_VALUES:
        raise bad(f"the body has more than {MOST_VALUES} values", code="invalid_json")
    if (body.count(b'"') - body.count(b'\\"')) // 2 > most_texts:  # quotes inside of a text are escaped
        raise bad(f"the body has more than {most_texts} texts", code="invalid_json")
    try:
        found = json.loads(body, parse_constant=_no_constant)
        canonical(found)  # a lone half of a character passes JSON, and no tokenizer
    except (ValueError, RecursionError) as error:
        raise bad(f"the body is no JSON: {str(error)[:200]}", code="invalid_json") from error
    if not isinstance(found, dict):
        raise bad("the body is no JSON object", code="invalid_json")
    if is_deep(found):
        raise bad(f"the body is nested deeper than {MOST_DEPTH} levels", code="invalid_json")
    return found


def is_deep(value: Json) -> bool:
    """Return whether an object is nested deeper than `MOST_DEPTH`."""
    level: list[Any] = [value]
    for _ in range(MOST_DEPTH):
        inside = (one.values() if isinstance(one, dict) else one for one in level)
        level = [inner for one in inside for inner in one if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def canonical(value: Any) -> bytes:
    """Return one text for equal JSON values. Raises `ValueError` for half characters, and for numbers that are none.

    JSON's 1e999 is a number to its parser alone.
    """
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def parse_object(text: str) -> Json | None:
    """Return the object in a text that a model or a client wrote; None if it is not one that can be carried on."""
    try:
        found = json.loads(text, parse_constant=_no_constant)
        canonical(found)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and not is_deep(found) else None


def digest(route: str, body: Json) -> str:
    """Return what identifies a request within an attempt."""
    return hashlib.blake2b(canonical([route, body]), digest_size=16).hexdigest()


def refuse_unknown(given: Mapping[str, Any], known: Collection[str], where: str = "") -> None:
    """Refuse names that are not known. None counts as absent: typed clients send every field."""
    for name, value in given.items():
        if name not in known and value is not None:
            raise bad(f"unknown parameter {where}{name!r:.100}", f"{where}{name}"[:100], "unknown_parameter")


def refuse_several(n: Any, param: str) -> None:
    """Refuse several answers to one request: the job decides how often a prompt is sampled."""
    if n is not None and (isinstance(n, bool) or n != 1):
        raise bad(f"{param} is {str(n)[:20]}, and only 1 is possible: the job samples a prompt several times", param)


def whole(value: Any, param: str, least: int = 1) -> int | None:
    """Return a whole number, or None where there is none."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return value
    raise bad(f"{param} is {str(value)[:20]!r}; a whole number from {least} on would be right", param)


def flag(value: Any, param: str) -> bool:
    """Return a truth value; None counts as false."""
    if value is not None and not isinstance(value, bool):
        raise bad(f"{param} is {str(value)[:20]!r}; true or false would be right", param)
    return bool(value)


def call_id(node: int, place: int) -> str:
    """Return the id of a call of a tool, which is unique within the episode: the turn that asks for it, and its place.

    >>> call_id(3, 0)
    'call_3_0'
    """
    return f"call_{node}_{place}"


def stop_strings(value: Any, param: str = "stop") -> tuple[str, ...]:
    """Return the strings that end a turn."""
    given = [] if value is None else [value] if isinstance(value, str) else value
    right = isinstance(given, list) and len(given) <= MOST_STOPS
    if not right or not all(isinstance(one, str) and 0 < len(one) <= MOST_STOP_CHARACTERS for one in given):
        raise bad(f"{param}: at most {MOST_STOPS} strings of 1 to {MOST_STOP_CHARACTERS} characters are right", param)
    return tuple(given)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")
