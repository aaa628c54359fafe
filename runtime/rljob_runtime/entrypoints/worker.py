"""Worker container of trainer and rollout pods: joins the coordinator's Ray and waits for actors.

The coordinator does everything else.
"""

from __future__ import annotations

import asyncio
import logging
import os

from prometheus_client import CollectorRegistry

from rljob_runtime.entrypoints.health import serve
from rljob_runtime.entrypoints.pod_env import Identity
from rljob_runtime.entrypoints.ray_node import RayNode, worker_command

log = logging.getLogger(__name__)

REJOIN_SECONDS = 2.0
"""Pause before joining again after the child ended: the head may be starting."""


async def run(identity: Identity) -> int:
    """Run until cancelled (SIGTERM).

    If the raylet ends, because the head was absent for too long or was replaced, the worker joins again. Its actors
    have ended then, and the coordinator makes new ones.
    """
    node = RayNode(worker_command(identity), os.environ)

    def why_not_ready() -> str | None:
        return None if node.joined else "ray has not joined the coordinator"

    async with serve(identity.pod_ip, why_not_ready, CollectorRegistry()):
        while True:
            code = await node.run()
            log.warning("ray ended with %d; joining again", code)
            await asyncio.sleep(REJOIN_SECONDS)
