"""Loading: imports a function that the spec names as module:function."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from rljob_runtime.user_functions.tracebacks import Tracebacks


class FunctionNotLoaded(Exception):
    """There is no such function. The message names the module, and the place where its import failed."""


def load_function(path: str, label: str) -> Callable[..., Any]:
    """Import module:function. Raises `FunctionNotLoaded`.

    The traceback of an import that fails goes to stderr, under `label`.
    """
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        said = Tracebacks().print_once(label, error)
        raise FunctionNotLoaded(f"module {module_name!r} cannot be imported: {said}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise FunctionNotLoaded(f"module {module_name!r} has no function {name!r}")
    return function  # type: ignore[no-any-return]
