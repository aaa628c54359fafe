"""Differences: where two records differ, a line each."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

ABSENT = "(absent)"
_SHOWN = 160
_IDENTITIES = ("name", "rule", "type")
"""Fields by which an object of a list is known, in place of its position."""


@dataclass(frozen=True)
class Difference:
    """`old` and `new` are JSON, or a text without quotes."""

    place: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.place}: {_short(self.old)} -> {_short(self.new)}"


def compare(old: Any, new: Any, place: tuple[str, ...] = ()) -> Iterator[Difference]:
    """Compare two values of JSON."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from _mappings(old, new, place)
    elif isinstance(old, list) and isinstance(new, list) and (keyed := _keyed(old, new)) is not None:
        yield from _mappings(*keyed, place)
        before, after = map(list, keyed)
        if before != after and sorted(before) == sorted(after):
            yield Difference("/".join((*place, "(order)")), _text(before), _text(after))
    elif type(old) is not type(new) or old != new:
        yield Difference("/".join(place), _text(old), _text(new))


def fewer(old: Mapping[str, int], new: Mapping[str, int], place: str) -> Iterator[Difference]:
    """Compare counts that may only rise."""
    for name, count in old.items():
        if new.get(name, 0) < count:
            yield Difference(f"{place}/{name}", _text(count), _text(new.get(name, 0)))


def _mappings(old: Mapping[str, Any], new: Mapping[str, Any], place: tuple[str, ...]) -> Iterator[Difference]:
    renamed = dict(_renamed(old, new))
    for name, other in renamed.items():
        yield Difference("/".join((*place, "(key)")), name, other)
    for name in sorted({*old, *new} - {*renamed, *renamed.values()}):
        if name not in new:
            yield Difference("/".join((*place, name)), _text(old[name]), ABSENT)
        elif name not in old:
            yield Difference("/".join((*place, name)), ABSENT, _text(new[name]))
        else:
            yield from compare(old[name], new[name], (*place, name))


def _renamed(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Keys that went while another key came with the very same contents, if the contents say something."""
    gone = {name: _text(old[name]) for name in old if name not in new and _says_something(old[name])}
    came = {name: _text(new[name]) for name in new if name not in old}
    for name, content in gone.items():
        others = [other for other, its in came.items() if its == content]
        if len(others) == 1 and list(gone.values()).count(content) == 1:
            yield name, others[0]


def _says_something(value: Any) -> bool:
    return isinstance(value, Mapping | list) and len(value) > 0


def _keyed(old: list[Any], new: list[Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Two lists of objects as mappings; None for lists of anything else, which are compared as a whole."""
    if not all(isinstance(one, Mapping) for one in (*old, *new)):
        return None
    for identity in _IDENTITIES:
        named = [[one.get(identity) for one in several] for several in (old, new)]
        if all(isinstance(name, str) for names in named for name in names) and all(
            len(set(names)) == len(names) for names in named
        ):
            return _numbered(named[0], old), _numbered(named[1], new)
    return _numbered(range(len(old)), old), _numbered(range(len(new)), new)


def _numbered(names: Sequence[object], several: list[Any]) -> dict[str, Any]:
    return {str(name): one for name, one in zip(names, several, strict=True)}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"
