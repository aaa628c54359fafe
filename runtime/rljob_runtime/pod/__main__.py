"""`python -m rljob_runtime.pod coordinator|worker|rewards`: the command of every container that the operator makes."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

from rljob_api.constants import REWARDS_SOCKET, STATE_DIR
from rljob_runtime.coordinator.lease import LeaseLost
from rljob_runtime.coordinator.protocols import StaleTerm
from rljob_runtime.coordinator.store_file import StoreUnusable
from rljob_runtime.pod.health import PortTaken
from rljob_runtime.pod.identity import RAY_TOKEN, Identity, NotAPod
from rljob_runtime.pod.ray_node import NodeEnded, environment
from rljob_runtime.pod.reaper import run_reaped
from rljob_runtime.rewards import RewardsEnded
from rljob_runtime.rewards.host import serve


def main() -> int:
    """Run the role until it ends; SIGTERM ends it cleanly."""
    parser = argparse.ArgumentParser(prog="python -m rljob_runtime.pod", description=__doc__)
    parser.add_argument("role", choices=("coordinator", "worker", "rewards"))
    role = parser.parse_args().role
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        if role == "rewards":
            return run_reaped(_rewards)
        identity = Identity.of(os.environ)
        return asyncio.run(_run(role, identity))
    except LeaseLost as error:
        print(f"{role}: {error}; it starts over, and stands by until the API server answers", file=sys.stderr)
        # In this pod: it costs none, and none is at fault. A new program: Ray cannot have two heads in one.
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    except (NotAPod, NodeEnded, PortTaken, RewardsEnded, StoreUnusable, StaleTerm) as error:
        print(f"{role}: {error}", file=sys.stderr)
        return 2


def _rewards() -> int:
    asyncio.run(serve(Path(REWARDS_SOCKET)))
    return 0


async def _run(role: str, identity: Identity) -> int:
    # The role is imported here: Ray takes seconds, a wrong environment is told at once, and Ray reads its settings
    # when it is imported.
    os.environ.update(environment(RAY_TOKEN, storage=Path(STATE_DIR) / "ray" if role == "coordinator" else None))
    if role == "coordinator":
        from rljob_runtime.pod.coordinator import run
    else:
        from rljob_runtime.pod.worker import run
    task = asyncio.create_task(run(identity))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        return 0


if __name__ == "__main__":
    sys.exit(main())
