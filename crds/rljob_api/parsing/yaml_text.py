"""YAML text: read as kubectl reads it, so that a file means the same on a laptop and in a cluster.

PyYAML alone takes the last of two equal keys, reads `1.0e3` as a text and `2:30` as 150. Every refusal names a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator
from datetime import date
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.error import MarkedYAMLError
from yaml.reader import ReaderError

from rljob_api.errors import ABSENT, FieldError, InvalidSpec

_BOOL, _INT, _FLOAT = (f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float"))
_SHORT_BOOL = re.compile(r"[yYnN]\Z")
_WHOLE = re.compile(r"[-+]?(0[bB][01_]+|0[oO]?[0-7_]+|0[xX][0-9a-fA-F_]+|0|[1-9][0-9_]*)\Z")
_NUMBER = re.compile(
    r"([-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z"
)
_EXACT = 1e21
"""Below it, kubectl's JSON writes a whole number without point or exponent."""
_LEVELS = 100
"""Levels of nesting, far more than an RLJob has. The interpreter's own limit differs from process to process."""


def documents(text: str) -> list[Any]:
    """Parse the documents of a text. Raises `InvalidSpec` that names the line."""
    try:
        return list(yaml.load_all(text, Loader=_Loader))
    except yaml.YAMLError as error:
        raise InvalidSpec([_mistake(error, text)]) from None


def _mistake(error: yaml.YAMLError, text: str) -> FieldError:
    """Describe where `text` is no YAML: the line, what it holds, and what was expected."""
    problem, line = str(error), 1
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        problem, line = error.problem or problem, error.problem_mark.line + 1
    elif isinstance(error, ReaderError):
        problem, line = error.reason, text.count("\n", 0, error.position) + 1
    # A text that ends too early has its mistake in the line after its last.
    content = "\n".join(text.split("\n")[line - 1 : line]).strip()
    return FieldError(f"line {line}", content or ABSENT, f"must be YAML or JSON: {problem}")


class _Loader(yaml.SafeLoader):
    """PyYAML with the scalars of kubectl's reader, without duplicate keys, and with a bound on nesting."""

    _level = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self._level == _LEVELS:
            start = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise ComposerError(None, None, f"at most {_LEVELS} levels of nesting", start)
        self._level += 1
        node = super().compose_node(parent, index)
        self._level -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except ValueError as error:  # a date with a 13th month, a number of 5,000 digits
            raise ConstructorError(None, None, str(error), node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        self._check_keys(node)  # before `<<` brings in others, which a key of its own may replace
        return super().construct_mapping(node, deep)

    def _check_keys(self, node: yaml.MappingNode) -> None:
        lines: dict[str, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, date | bytes):
                raise ConstructorError(None, None, f"the key {key_node.value} needs quotes", key_node.start_mark)
            name = key if isinstance(key, str) else json.dumps(key, default=str)
            if name in lines:
                problem = f"the key {name} appears twice, first in line {lines[name]}"
                raise ConstructorError(None, None, problem, key_node.start_mark)
            lines[name] = key_node.start_mark.line + 1

    def construct_yaml_bool(self, node: yaml.ScalarNode) -> bool:
        value = self.construct_scalar(node)
        return value.lower() == "y" if _SHORT_BOOL.match(value) else super().construct_yaml_bool(node)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        text = self.construct_scalar(node).replace("_", "")
        octal = re.fullmatch(r"([-+]?)0([0-7]+)", text)
        return int(f"{octal[1]}0o{octal[2]}" if octal else text, 0)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        text = self.construct_scalar(node).replace("_", "").lower()
        value = float(text.replace(".inf", "inf").replace(".nan", "nan"))
        return int(value) if value.is_integer() and abs(value) < _EXACT else value


def _resolvers() -> Iterator[tuple[str, list[tuple[str, re.Pattern[str]]]]]:
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items():
        yield first, [(tag, pattern) for tag, pattern in known if tag not in (_INT, _FLOAT)]


_Loader.yaml_implicit_resolvers = dict(_resolvers())
_Loader.add_implicit_resolver(_BOOL, _SHORT_BOOL, list("yYnN"))
_Loader.add_implicit_resolver(_INT, _WHOLE, list("-+0123456789"))
_Loader.add_implicit_resolver(_FLOAT, _NUMBER, list("-+0123456789."))
_Loader.add_constructor(_BOOL, _Loader.construct_yaml_bool)
_Loader.add_constructor(_INT, _Loader.construct_yaml_int)
_Loader.add_constructor(_FLOAT, _Loader.construct_yaml_float)
