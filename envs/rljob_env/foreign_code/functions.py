"""Functions: foreign Python code by its name, and how a model is told of it.

A name is `path.py:function`, relative to a root folder, or `module:function`.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

Json = dict[str, Any]
Function = Callable[..., Any]

PLAIN: dict[Any, tuple[str, tuple[type, ...]]] = {
    int: ("integer", (int,)),
    float: ("number", (int, float)),
    str: ("string", (str,)),
    bool: ("boolean", (bool,)),
    list: ("array", (list,)),
    dict: ("object", (dict,)),
}
"""Python's types: their names in JSON schema, and what JSON values are of them."""


class CannotLoad(Exception):
    """There is no such function. The message says why."""


def load_function(root: Path, name: str) -> Function:
    """Return a function. Raises `CannotLoad`."""
    where, _, attribute = name.rpartition(":")
    if not where or not attribute:
        raise CannotLoad(f"{name!r}: 'path.py:function' or 'module:function' would be right")
    try:
        module = _module_of_file(root / where) if where.endswith(".py") else _module(root, where)
        found: Any = module
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise CannotLoad(f"{name!r}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise CannotLoad(f"{name!r} is no function")
    function: Function = found
    return function


def _module(root: Path, name: str) -> types.ModuleType:
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return importlib.import_module(name)


def _module_of_file(path: Path) -> types.ModuleType:
    """Import a file. Its neighbours can be imported by it."""
    path = path.resolve()
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = f"rljob_env_file_{path.stem}_{abs(hash(str(path)))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def called(function: Function, *given: Any, **named: Any) -> Any:
    """Return what a function returns; a coroutine is run to its end."""
    result = function(*given, **named)
    if inspect.iscoroutine(result):
        return asyncio.run(result)
    return result


def described(function: Function) -> Json:
    """Return a function as a tool of OpenAI's protocol. Raises `CannotLoad` if a model cannot call it."""
    name = getattr(function, "__name__", type(function).__name__)
    properties: Json = {}
    required = []
    for parameter in _parameters(function, name):
        properties[parameter.name] = _schema(parameter.annotation)
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        else:
            properties[parameter.name] |= {"default": parameter.default} if _is_plain(parameter.default) else {}
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return {"name": name, "description": inspect.getdoc(function) or "", "parameters": schema}


def wrong_arguments(function: Function, arguments: Mapping[str, Any]) -> str | None:
    """Return what is wrong with arguments that a model wrote; None if the function takes them."""
    known = {parameter.name: parameter for parameter in _parameters(function, "")}
    for name, value in arguments.items():
        if name not in known:
            return f"there is no argument {name!r:.100}; {', '.join(known) or 'none'} would be right"
        expected = _schema(known[name].annotation)
        if not _fits(value, expected):
            return f"{name} is {value!r:.100}; {_words(expected)} would be right"
    missing = [one.name for one in known.values() if one.default is one.empty and one.name not in arguments]
    return f"missing arguments: {', '.join(missing)}" if missing else None


def _parameters(function: Function, name: str) -> list[inspect.Parameter]:
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception:
        # Names of types that only a type checker knows: the parameters are then of any type.
        hints = {}
    found = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise CannotLoad(f"{name}: a model names its arguments, so {parameter} cannot be one")
        found.append(parameter.replace(annotation=hints.get(parameter.name, Any)))
    return found


def _schema(annotation: Any) -> Json:
    """Return the JSON schema of an annotation; that of any value if it says nothing that JSON knows."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        words = [one for one in arguments[1:] if isinstance(one, str)]
        return _schema(arguments[0]) | ({"description": words[0]} if words else {})
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        schemas = [_schema(one) for one in arguments if one is not type(None)]
        null = [{"type": "null"}] if type(None) in arguments else []
        return {"anyOf": [*schemas, *null]}
    if origin is list and arguments:
        return {"type": "array", "items": _schema(arguments[0])}
    plain = origin or annotation
    return {"type": PLAIN[plain][0]} if plain in PLAIN else {}


def _fits(value: Any, schema: Json) -> bool:
    """Say whether a JSON value is of a schema that `_schema` makes."""
    if "enum" in schema:
        return any(value == one and type(value) is type(one) for one in schema["enum"])
    if "anyOf" in schema:
        return any(_fits(value, one) for one in schema["anyOf"])
    kind = schema.get("type")
    if kind == "null":
        return value is None
    if kind == "array" and "items" in schema:
        return isinstance(value, list) and all(_fits(one, schema["items"]) for one in value)
    types_of = next((right for name, right in PLAIN.values() if name == kind), None)
    if types_of is None:
        return True
    return isinstance(value, types_of) and (bool in types_of or not isinstance(value, bool))


def _words(schema: Json) -> str:
    if "enum" in schema:
        return " or ".join(repr(one) for one in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_words(one) for one in schema["anyOf"])
    return f"a value of type {schema.get('type', 'any')}"


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))
