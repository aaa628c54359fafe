"""Packages: what a kind of environment needs beside the runner. A runner without it says so before it leases."""

from __future__ import annotations

import importlib.util

from rljob_env.config import OPEN_ENV, VERIFIERS, BadConfig

NEEDED = {
    OPEN_ENV: ("websockets", "rljob-env[openenv]"),
    # Its pins disagree with the job's own packages: the image of its runners is another one.
    VERIFIERS: ("verifiers", "rljob-env[verifiers]"),
}
"""Kinds: the module that is imported, and what to install."""


def check_packages(kind: str) -> None:
    """Raise `BadConfig` if this Python lacks what a kind needs."""
    module, install = NEEDED.get(kind, (None, ""))
    if module is not None and importlib.util.find_spec(module) is None:
        raise BadConfig(f"kind {kind} needs the package {module}: pip install '{install}'")
