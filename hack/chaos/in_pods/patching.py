"""Patching: has processes of a chaos job replace parts of the product's modules when they import them.

A ConfigMap mounts this file as `sitecustomize.py`, beside the files that have the replacements. Every Python process of
such a container reads it, so it imports nothing of the product before the process does.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Patch(importlib.abc.MetaPathFinder):
    """Calls `change` on the module of this name after its import."""

    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        self._name = name
        self._change = change

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the module, which is changed when it is executed; None for others."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def patched(module: ModuleType) -> None:
            execute(module)
            self._change(module)

        spec.loader.exec_module = patched  # type: ignore[method-assign]
        return spec


if __name__ == "sitecustomize":
    import alternate  # type: ignore[import-not-found]
    import failing_engines  # type: ignore[import-not-found]

    for patches in (alternate.PATCHES, failing_engines.PATCHES):
        for module_name, change in patches.items():
            sys.meta_path.insert(0, Patch(module_name, change))
