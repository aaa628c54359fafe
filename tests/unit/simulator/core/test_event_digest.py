"""The digest of a run: it covers every value of every event with its time, and no name."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

import pytest

from rljob_runtime.protocols.trajectory import Group, PromptKey
from rljob_runtime.simulator.core.event_digest import PLACES, EventDigest, Places
from rljob_runtime.simulator.core.events import Committed, Event, FaultBegan, ProcessEnded, ProcessStarted, Row

KINDS: tuple[type, ...] = typing.get_args(Event)
FIELDS = [(kind, field.name) for kind in KINDS for field in dataclasses.fields(kind)]


def classes_in(hint: Any) -> Iterator[type]:
    """The dataclasses that a type hint names."""
    if dataclasses.is_dataclass(hint):
        yield typing.cast(type, hint)
    for argument in typing.get_args(hint):
        yield from classes_in(argument)


def lacking(kinds: Iterable[type], places: Places = PLACES) -> list[str]:
    """Classes and fields that have no place, or have it twice; reached from `kinds` through covered fields."""
    found, todo, seen = [], list(kinds), set(kinds)
    while todo:
        kind = todo.pop()
        covered = places.kinds[kind][1] if kind in places.kinds else places.values.get(kind)
        if covered is None:
            found.append(kind.__name__)
            continue
        told = [*covered, *places.left_out.get(kind, ())]
        names = [field.name for field in dataclasses.fields(kind)]
        found += [f"{kind.__name__}.{name}" for name in {*names, *told} if (names + told).count(name) != 2]
        hints = typing.get_type_hints(kind)
        for inner in {inner for name in covered for inner in classes_in(hints[name])} - seen:
            seen.add(inner)
            todo.append(inner)
    return sorted(found)


def sample(hint: Any, number: int) -> Any:
    """A value of the type, in which no two fields are equal; another number gives another value."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return sample(arguments[0], number)
    if origin is tuple:
        inner = arguments[:1] if arguments[-1] is Ellipsis else arguments
        return tuple(sample(one, number + place) for place, one in enumerate(inner))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        hints = typing.get_type_hints(hint)
        names = [field.name for field in dataclasses.fields(hint)]
        return hint(**{name: sample(hints[name], 20 * number + place) for place, name in enumerate(names)})
    return {str: f"text {number}", int: number, float: number / 2}.get(hint)


def digest_of(*events: tuple[float, object], places: Places = PLACES) -> str:
    found = EventDigest(places)
    for seconds, event in events:
        found.add(seconds, event)
    return found.text()


def one_of_each(number: int = 1) -> list[tuple[float, object]]:
    return [(place / 4, sample(kind, number)) for place, kind in enumerate(KINDS)]


# --- the table -------------------------------------------------------------------------------------------------------


def test_every_kind_of_event_and_every_field_has_its_place() -> None:
    assert lacking(KINDS) == []
    assert set(PLACES.kinds) == set(KINDS)


def test_tags_are_unique() -> None:
    assert len({tag for tag, _ in PLACES.kinds.values()}) == len(PLACES.kinds)


def test_a_new_field_a_new_kind_and_a_new_class_in_a_field_lack_a_place() -> None:
    more = dataclasses.make_dataclass("More", [("process", str), ("boot", int), ("node", str)])
    holder = dataclasses.make_dataclass("Holder", [("group", Group)])
    places = Places({more: PLACES.kinds[ProcessStarted], holder: (99, ("group",))}, {})
    assert lacking([more], places) == ["More.node"]
    assert lacking([holder], places) == ["Group"]
    assert lacking([ProcessStarted], places) == ["ProcessStarted"]


# --- what a digest does not depend on --------------------------------------------------------------------------------


def renamed(places: Places) -> tuple[Places, Mapping[type, type]]:
    """The same table for classes with other names, whose fields have other names."""
    tables: dict[type, tuple[str, ...]] = {kind: fields for kind, (_, fields) in places.kinds.items()}
    twins = {
        kind: dataclasses.make_dataclass(f"Twin{number}", [f"field_{name}" for name in fields], frozen=True)
        for number, (kind, fields) in enumerate({**tables, **places.values}.items())
    }

    def fields(kind: type) -> tuple[str, ...]:
        return tuple(field.name for field in dataclasses.fields(twins[kind]))

    kinds = {twins[kind]: (tag, fields(kind)) for kind, (tag, _) in places.kinds.items()}
    return Places(kinds, {twins[kind]: fields(kind) for kind in places.values}), twins


def twin_of(value: Any, twins: Mapping[type, type]) -> Any:
    """The value as an object of the renamed classes."""
    if isinstance(value, tuple):
        return tuple(twin_of(one, twins) for one in value)
    if type(value) not in twins:
        return value
    kind = type(value)
    covered = PLACES.kinds[kind][1] if kind in PLACES.kinds else PLACES.values[kind]
    return twins[kind](*(twin_of(getattr(value, name), twins) for name in covered))


def test_other_names_of_classes_and_fields_give_the_same_digest() -> None:
    events = one_of_each()
    places, twins = renamed(PLACES)
    others = [(seconds, twin_of(event, twins)) for seconds, event in events]
    assert all("Twin" in repr(other) and "field_" in repr(other) for _, other in others if dataclasses.fields(other))
    assert digest_of(*others, places=places) == digest_of(*events)


def test_the_places_are_fixed() -> None:
    """Another order of fields or another tag would give other digests, and no record could be compared."""
    assert digest_of(*one_of_each()) == "3def89bea95e91b6"


# --- what it does depend on ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=[f"{kind.__name__}.{name}" for kind, name in FIELDS])
def test_another_value_of_a_field_gives_another_digest(kind: type, name: str) -> None:
    event: Any = sample(kind, 1)
    other = dataclasses.replace(event, **{name: sample(typing.get_type_hints(kind)[name], 2)})
    same = digest_of((1.0, event)) == digest_of((1.0, other))
    assert same == (name in PLACES.left_out.get(kind, ()))


def test_another_kind_of_event_with_the_same_values_gives_another_digest() -> None:
    assert digest_of((1.0, ProcessEnded("trainer"))) != digest_of((1.0, FaultBegan("trainer")))


def test_another_time_or_order_gives_another_digest() -> None:
    first, second = ProcessEnded("trainer"), ProcessEnded("rollout-0")
    known = digest_of((1.0, first), (1.0, second))
    assert known == digest_of((1.0, first), (1.0, second))
    assert known != digest_of((1.0, second), (1.0, first))
    assert known != digest_of((1.0, first), (1.0 + 1e-15, second))
    assert known != digest_of((1.0, first))


def test_values_of_equal_look_differ_by_type_and_by_nesting() -> None:
    rows: list[tuple[int | float | str | None, ...]] = [(1, 2), ("1", 2), (1.0, 2), (None, 2), ("1, 2",)]
    found = {digest_of((0.0, Committed((Row("groups", (1,), values),)))) for values in rows}
    assert len(found) == len(rows)


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize("value", [Colour.RED, {"a": 1}, (PromptKey(0, 1), Colour.RED), object()])
def test_a_value_that_would_bring_a_name_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"has no place for .* would be right"):
        EventDigest().add(0.0, ProcessEnded(value))
