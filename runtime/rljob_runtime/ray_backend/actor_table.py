"""What Ray's tables say of an actor beyond its name. The way to it is private to Ray: look at it again with every
release."""

from __future__ import annotations

from typing import Any

import ray
from ray._private import state

_REGISTERED = "DEPENDENCIES_UNREADY"
"""Ray's word for an actor that has a name, and whose driver has not asked for its process yet."""


def is_abandoned(handle: Any) -> bool:
    """Whether the driver that registered an actor ended before it asked for the process. Ray never makes it then, and
    whoever calls it waits for ever. A coordinator that is cut off from the machines leaves such names behind: it takes
    them for lost, and begins to make their actors anew. Raises `RayError`."""
    found = state.actors(handle._actor_id.hex())
    return found.get("State") == _REGISTERED and found.get("JobID") != ray.get_runtime_context().get_job_id()
