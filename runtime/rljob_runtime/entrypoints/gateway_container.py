"""Gateway container: keeps a gateway alive beside the coordinator, from its config to the coordinator's end.

A gateway that dies is started again here, in about a second: clients repeat their requests, and nothing of an episode
is in its memory alone. Only one that cannot live ends the container, and with it the pod.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rljob_runtime.entrypoints.gateway import FAILED, REFUSED
from rljob_runtime.entrypoints.pod_gateway import config_file
from rljob_runtime.gateway.config import BadConfig, read_config
from rljob_runtime.gateway.kept_process import Command, KeptProcess, ProcessFailed
from rljob_runtime.scheduling.fault_detection.process_restarts import ProcessRestarts

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
END_SECONDS = 5.0
"""Time in which a gateway ends after SIGTERM."""
COMMAND = (sys.executable, "-m", "rljob_runtime.entrypoints", "gateway", "--config")


async def run(folder: Path, command: Sequence[str] = COMMAND) -> int:
    """Keep the gateway of the config in `folder` alive; return the container's exit status.

    It ends well when the coordinator has ended well, or, after SIGTERM, when the coordinator has gone.
    """
    asked = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked.set)
    container = GatewayContainer(config_file(folder), command, asked)
    return await container.run()


class GatewayContainer:
    """The container's one process. `asked` is set when it is to end with the coordinator."""

    def __init__(
        self, config: Path, command: Sequence[str], asked: asyncio.Event, restarts: ProcessRestarts | None = None
    ) -> None:
        gateway = Command("the gateway", (*command, str(config)), end_seconds=END_SECONDS)
        self.process = KeptProcess(gateway, restarts=restarts)
        self._config = config
        self._asked = asked

    async def run(self) -> int:
        """See `run`."""
        while not self._config.exists():
            if self._asked.is_set():
                return 0
            await asyncio.sleep(LOOK_SECONDS)
        try:
            socket = read_config(self._config).socket
        except BadConfig as error:
            log.error("%s", error)
            return REFUSED
        ended, kept = asyncio.create_task(self._coordinator_ended(socket)), asyncio.create_task(self.process.run())
        try:
            await asyncio.wait({ended, kept}, return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                kept.result()
            ended.result()  # a wait that failed is no end of the coordinator: the container fails
        except ProcessFailed as error:
            log.error("%s", error)
            return REFUSED if error.refused else FAILED
        finally:
            for task in (ended, kept):
                task.cancel()
            await asyncio.gather(ended, kept, return_exceptions=True)
        return 0

    async def _coordinator_ended(self, socket: Path) -> None:
        """Return when the config is gone, or, after SIGTERM, when the link has no listener either."""
        while self._config.exists():
            if self._asked.is_set() and not await _answered(socket):
                return
            await asyncio.sleep(LOOK_SECONDS)


async def _answered(socket: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(socket)
    except OSError:
        return False
    writer.close()
    return True
