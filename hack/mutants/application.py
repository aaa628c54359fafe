"""Application: a mutant's fragment is found in its target and replaced in the source."""

from __future__ import annotations

import ast

from .fragments import Place, places, text_places
from .mutant import BadMutant, Mutant
from .targets import find


def apply(mutant: Mutant, source: str) -> str:
    """Return the source with the mutant in it. Raises `BadMutant`."""
    try:
        return _apply(mutant, source)
    except BadMutant as error:
        raise BadMutant(f"mutant {mutant.name!r}: {mutant.target}: {error}") from None


def _apply(mutant: Mutant, source: str) -> str:
    tree = ast.parse(source)
    place = _only(mutant, _places(mutant, source, tree))
    changed = _splice(source, place)
    try:
        got = ast.parse(changed)
    except SyntaxError as error:
        raise BadMutant(f"with {mutant.after!r} it is no Python: {error.msg}") from None
    if _same(got, tree):
        raise BadMutant(f"{mutant.after!r} changes nothing")
    place.replace()
    if not mutant.text and not _same(got, tree):
        raise BadMutant(f"{mutant.after!r} does not fit in the place of {mutant.before!r}: take a larger fragment")
    return changed


def _places(mutant: Mutant, source: str, tree: ast.Module) -> list[Place]:
    scopes = find(tree, mutant.definition)
    if not mutant.text:
        found = [place for scope in scopes for place in places(scope, mutant.before, mutant.after)]
    elif mutant.nth is None:
        found = [place for scope in scopes for place in text_places(scope, source, mutant.before, mutant.after)]
    else:
        raise BadMutant("nth chooses among fragments of code: a longer text would be right")
    return sorted(found, key=lambda place: place.begin)


def _only(mutant: Mutant, found: list[Place]) -> Place:
    lines = ", ".join(str(place.begin[0]) for place in found)
    if not found:
        raise BadMutant(f"it does not have {mutant.before!r}")
    if mutant.nth is None and len(found) == 1:
        return found[0]
    if mutant.nth is None:
        advice = "take a longer text" if mutant.text else "take a larger fragment, or set nth"
        raise BadMutant(f"it has {mutant.before!r} {len(found)} times, in lines {lines}: {advice}")
    if len(found) == 1 or not 1 <= mutant.nth <= len(found):
        wanted = "no nth" if len(found) == 1 else f"1 to {len(found)}"
        raise BadMutant(f"nth is {mutant.nth}, but lines {lines} have {mutant.before!r}: {wanted} would be right")
    return found[mutant.nth - 1]


def _splice(source: str, place: Place) -> str:
    data = source.encode()
    begins = [0]
    for line in data.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    begin, end = (begins[line - 1] + column for line, column in (place.begin, place.end))
    rest = data[end:]
    if place.removed and rest.lstrip().startswith(b","):
        rest = rest.lstrip()[1:]
    return (data[:begin] + place.text.encode() + rest).decode()


def _same(one: ast.AST, other: ast.AST) -> bool:
    """Compare what `ast.dump` writes of two trees, in a fraction of the time that it takes to write them."""
    left: list[tuple[object, object]] = [(one, other)]
    while left:
        first, second = left.pop()
        if type(first) is not type(second):
            return False
        if isinstance(first, ast.AST):
            left += [(getattr(first, name, None), getattr(second, name, None)) for name in first._fields]
        elif isinstance(first, list) and isinstance(second, list):
            if len(first) != len(second):
                return False
            left += zip(first, second, strict=True)
        elif repr(first) != repr(second):
            return False
    return True
