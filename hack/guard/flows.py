"""Flows: the string constants that can reach a parameter, found in syntax trees without running anything.

An argument may be a constant, a choice between constants, a variable, a constant of another module, the name of a
caught exception's class, or a parameter of the function around the call; that one is followed to its own callers.
Callables are matched by name, so the answer may hold more than can happen, and a computed text is not in it.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Generic, TypeVar

from .sources import Function, Source

Definition = Function | ast.ClassDef


Node = TypeVar("Node", bound=ast.expr, covariant=True)


@dataclass(frozen=True)
class _Place(Generic[Node]):
    """An expression and its module."""

    source: Source
    node: Node


class Flows:
    """An index of definitions, calls and constants of some modules."""

    def __init__(self, sources: Collection[Source]) -> None:
        self._parameters: defaultdict[str, list[list[str]]] = defaultdict(list)
        self._calls: defaultdict[str, list[_Place[ast.Call]]] = defaultdict(list)
        self._constants: defaultdict[str, list[_Place[ast.expr]]] = defaultdict(list)
        self._bound: dict[Function, dict[str, list[ast.expr]]] = {}
        self._given_by_calls: dict[tuple[str, str], list[_Place[ast.expr]]] = {}
        for source in sources:
            for node in source.nodes:
                self._add(source, node)

    def _add(self, source: Source, node: ast.AST) -> None:
        if isinstance(node, Definition):
            self._parameters[node.name].append(_takes(node))
        elif isinstance(node, ast.Call) and (name := _called(node)) is not None:
            self._calls[name].append(_Place(source, node))
        elif isinstance(node, _BINDS) and source.function_of(node) is None:
            for name, value in _bindings(node):
                self._constants[name].append(_Place(source, value))

    def takers(self, parameter: str) -> set[str]:
        """Name the functions and classes with such a parameter or field, but none that has the name of a builtin."""
        own = {name: found for name, found in self._parameters.items() if not hasattr(builtins, name)}
        return {name for name, found in own.items() if any(parameter in names for names in found)}

    def reaching(self, callables: Iterable[str], parameter: str) -> set[str]:
        """Find the constants that calls of these names give to the parameter."""
        return self._constants_at(place for name in callables for place in self._arguments(name, parameter))

    def pairs(self, callable_: str, first: str, second: str) -> set[tuple[str, str]]:
        """Find the constants that a call of this name gives to two parameters, each of one with each of the other."""
        found: set[tuple[str, str]] = set()
        for call in self._calls[callable_]:
            one, other = (self._constants_at(self._given(call, parameter)) for parameter in (first, second))
            found |= set(product(one, other))
        return found

    def _constants_at(self, places: Iterable[_Place[ast.expr]]) -> set[str]:
        """Find the constants that the values of these expressions may come from."""
        found: set[str] = set()
        seen: set[int] = set()
        todo = [*places]
        while todo:
            place = todo.pop()
            if id(place.node) in seen:
                continue
            seen.add(id(place.node))
            match place.node:
                case ast.Constant(value=str(text)):
                    found.add(text)
                case ast.Attribute(value=ast.Call(func=ast.Name(id="type"), args=[ast.Name(id=name)]), attr="__name__"):
                    found |= _caught(place.source, place.node, name)
                case _:
                    todo += self._origins(place)
        return found

    def _arguments(self, callable_: str, parameter: str) -> list[_Place[ast.expr]]:
        """Return what calls of this name give to the parameter; each use of a parameter asks for it."""
        key = callable_, parameter
        if key not in self._given_by_calls:
            calls = self._calls[callable_]
            self._given_by_calls[key] = [place for call in calls for place in self._given(call, parameter)]
        return self._given_by_calls[key]

    def _given(self, call: _Place[ast.Call], parameter: str) -> Iterator[_Place[ast.expr]]:
        """Yield what a call gives to the parameter."""
        takers = self._parameters[_called(call.node) or ""]
        positions = {names.index(parameter) for names in takers if parameter in names}
        named = [one.value for one in call.node.keywords if one.arg == parameter]
        placed = [call.node.args[place] for place in positions if place < len(call.node.args)]
        yield from (_Place(call.source, one) for one in named or placed)

    def _origins(self, place: _Place[ast.expr]) -> Iterator[_Place[ast.expr]]:
        """Where the value of an expression may come from."""
        match place.node:
            case ast.Name(id=name):
                yield from self._of_variable(place, name)
            case ast.Attribute(value=ast.Name(), attr=name) if name.isupper():
                yield from self._of_constant(place.source, name)
            case node:
                yield from (_Place(place.source, part) for part in _parts(node))

    def _of_variable(self, place: _Place[ast.expr], name: str) -> Iterator[_Place[ast.expr]]:
        found = False
        function = place.source.function_of(place.node)
        while function is not None:
            for value in self._bound_in(function).get(name, ()):
                found = True
                yield _Place(place.source, value)
            if name in _takes(function):
                yield from self._arguments(function.name, name)
                return
            function = place.source.function_of(function)
        if not found:
            yield from self._of_constant(place.source, name)

    def _bound_in(self, function: Function) -> dict[str, list[ast.expr]]:
        """Return what each variable of a function is bound to; many names are looked up in each function."""
        if function not in self._bound:
            bound: defaultdict[str, list[ast.expr]] = defaultdict(list)
            for node in ast.walk(function):
                for name, value in _bindings(node):
                    bound[name].append(value)
            self._bound[function] = dict(bound)
        return self._bound[function]

    def _of_constant(self, source: Source, name: str) -> list[_Place[ast.expr]]:
        """Of the module itself, else of any module that has such a constant."""
        own = [value for value in self._constants[name] if value.source is source]
        return own or self._constants[name]


def _called(node: ast.Call) -> str | None:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return None


def _takes(definition: Definition) -> list[str]:
    """Return the parameters of a function, or the fields of a class, in the order of arguments."""
    if isinstance(definition, ast.ClassDef):
        for one in definition.body:
            if isinstance(one, Function) and one.name == "__init__":
                return _takes(one)
        fields = [one.target for one in definition.body if isinstance(one, ast.AnnAssign)]
        return [field.id for field in fields if isinstance(field, ast.Name)]
    arguments = definition.args
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    return [*names[names[:1] in (["self"], ["cls"]) :], *(one.arg for one in arguments.kwonlyargs)]


def _parts(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the expressions that the value of another one may come from."""
    match node:
        case ast.IfExp(body=one, orelse=other):
            yield from (one, other)
        case ast.BoolOp(values=several) | ast.Tuple(elts=several) | ast.List(elts=several) | ast.Set(elts=several):
            yield from several
        case ast.Dict(values=several):
            yield from several
        case (
            ast.Starred(value=inner)
            | ast.NamedExpr(value=inner)
            | ast.Subscript(value=inner)
            | ast.Attribute(value=inner, attr="value")
        ):
            yield inner
        case ast.Call(func=ast.Attribute(value=inner, attr="get" | "items" | "values"), args=others):
            yield from (inner, *others[1:])


_BINDS = ast.Assign | ast.AnnAssign | ast.For | ast.comprehension


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the variables that a statement assigns or iterates with, each with where its value comes from."""
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _paired(target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _paired(target, value)
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            yield from ((name, value) for name in _names(target))


def _paired(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for one, other in zip(target.elts, value.elts, strict=True):
            yield from _paired(one, other)
    else:
        yield from ((name, value) for name in _names(target))


def _names(target: ast.expr) -> list[str]:
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]


def _caught(source: Source, node: ast.AST, name: str) -> set[str]:
    """Return the classes that the handler around a node catches under this name."""
    above: ast.AST | None = node
    while above is not None:
        if isinstance(above, ast.ExceptHandler) and above.name == name and above.type is not None:
            kinds = above.type.elts if isinstance(above.type, ast.Tuple) else [above.type]
            return {kind.id if isinstance(kind, ast.Name) else ast.unparse(kind) for kind in kinds}
        above = source.enclosing.get(above)
    return set()
