"""Ray's actor table: the state of an actor beyond its name. It is a private API: check it with every Ray release."""

from __future__ import annotations

from typing import Any

import ray
from ray._private import state

_REGISTERED = "DEPENDENCIES_UNREADY"
"""Ray's state of an actor with a name whose driver has not requested its process yet."""


def is_abandoned(handle: Any) -> bool:
    """Return whether the driver that registered an actor ended before it requested the process. Raises `RayError`.

    Ray never starts such an actor, and calls to it wait forever. A coordinator that is cut off from all machines leaves
    them behind: it marks the machines lost, and registers their actors again.
    """
    found = state.actors(handle._actor_id.hex())
    return bool(found.get("State") == _REGISTERED and found.get("JobID") != ray.get_runtime_context().get_job_id())
