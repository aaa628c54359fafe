"""Container commands of the operator's pods: `… -m rljob_runtime.entrypoints coordinator|gateway|head|rewards|worker`.

`gateway` keeps the gateway of agents alive in its container. `gateway --config FILE` is that process, which `rljob run`
starts itself. With `--check` it only checks the model and its chat template.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, NoReturn

from rljob_api.constants import ENV_POD_IP, GATEWAY_DIR, RAY_TABLES, REWARDS_SOCKET, STATE_DIR
from rljob_runtime.coordinator.control_plane.lease import LeaseLost
from rljob_runtime.coordinator.store.connection import StoreUnusable
from rljob_runtime.entrypoints import ray_head
from rljob_runtime.entrypoints.health import PortTaken
from rljob_runtime.entrypoints.init_process import run_reaped
from rljob_runtime.entrypoints.pod_env import RAY_TOKEN, Identity, NotAPod
from rljob_runtime.entrypoints.ray_node import NodeEnded, environment
from rljob_runtime.protocols import StaleTerm
from rljob_runtime.rewards import RewardsEnded
from rljob_runtime.rewards.remote_server import serve


def main() -> int:
    """Run the role until it ends; SIGTERM ends it cleanly."""
    parser = argparse.ArgumentParser(prog="python -m rljob_runtime.entrypoints", description=__doc__)
    parser.add_argument("role", choices=("coordinator", "gateway", "head", "worker", "rewards"))
    parser.add_argument("--config", type=Path, metavar="FILE", help="of one gateway: its settings as JSON")
    parser.add_argument("--check", action="store_true", help="with --config: check the chat template, serve nothing")
    given = parser.parse_args()
    role = given.role
    if given.config is not None and role != "gateway":
        parser.error("--config is for the gateway")
    if given.check and given.config is None:
        parser.error("--check needs --config")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        if role == "rewards":
            return run_reaped(_rewards)
        if role == "gateway":
            return _check(given.config) if given.check else asyncio.run(_gateway(given.config))
        if role == "head":
            if not os.environ.get(ENV_POD_IP):
                raise NotAPod(f"this command is for pods of the operator; the environment lacks {ENV_POD_IP}")
            return run_reaped(_head)
        identity = Identity.of(os.environ)
        return asyncio.run(_run(role, identity))
    except LeaseLost as error:
        print(f"{role}: {error}; it restarts and waits until the API server answers", file=sys.stderr)
        # A new program in the same pod: no pod failed, and nothing of this program remains in use.
        _start_over()
    except NodeEnded as error:
        print(f"{role}: {error}", file=sys.stderr)
        if role == "coordinator":
            _exit_without_goodbye()
        return 2
    except (NotAPod, PortTaken, RewardsEnded, StoreUnusable, StaleTerm) as error:
        print(f"{role}: {error}", file=sys.stderr)
        return 2


def _exit_without_goodbye() -> NoReturn:
    """Exit before Ray's exit handler, which waits some seconds for the head that has ended."""
    sys.stderr.flush()
    os._exit(2)


def _start_over() -> NoReturn:
    """Restart the program in this process, with all connections closed.

    The process itself continues, so Ray's raylet would take an open connection for a living driver.
    """
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            if int(name) > 2:
                os.set_inheritable(int(name), False)
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _rewards() -> int:
    asyncio.run(serve(Path(REWARDS_SOCKET)))
    return 0


async def _gateway(config: Path | None) -> int:
    # Imported here: transformers takes seconds to import, and other roles do not need it.
    from rljob_runtime.entrypoints import gateway, gateway_container

    if config is None:
        return await gateway_container.run(Path(GATEWAY_DIR))
    gateway.leave_out_torch()
    return await _until_asked_to_end(gateway.run(config))


def _check(config: Path) -> int:
    # Imported here, as in `_gateway`.
    from rljob_runtime.entrypoints import gateway

    gateway.leave_out_torch()
    return gateway.check(config)


def _head() -> int:
    os.environ.update(environment(RAY_TOKEN, storage=Path(STATE_DIR) / RAY_TABLES))
    try:
        return asyncio.run(_until_asked_to_end(ray_head.run(os.environ[ENV_POD_IP])))
    except NodeEnded as error:
        print(f"head: {error}", file=sys.stderr)
        return 2


async def _run(role: str, identity: Identity) -> int:
    # The role is imported here: Ray takes seconds to import, and reads its settings then. A wrong environment is
    # reported before.
    os.environ.update(environment(RAY_TOKEN, storage=None))
    if role == "coordinator":
        from rljob_runtime.entrypoints.coordinator import run
    else:
        from rljob_runtime.entrypoints.worker import run
    return await _until_asked_to_end(run(identity))


async def _until_asked_to_end(work: Coroutine[Any, Any, int]) -> int:
    task = asyncio.create_task(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
