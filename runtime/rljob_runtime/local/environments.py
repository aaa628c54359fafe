"""Local environments: the gateway and the environments' runners as processes of `rljob run`.

Both face foreign code, so neither runs in the coordinator's process. The gateway reaches the coordinator by a socket,
and runners reach the gateway on loopback, each with a key of its own. Keys, settings and logs are in the run folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import os
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from rljob_api import RLJob
from rljob_api.gateway_bounds import bounds_of
from rljob_api.keys.runner_key import mint_runner_key, runners_key
from rljob_api.spec.environments import Environment, EpisodeReset
from rljob_api.status import RoundReport, StatusWarning
from rljob_runtime.gateway.capability import gateway_key
from rljob_runtime.gateway.config import GatewayConfig
from rljob_runtime.gateway.kept_process import Command, KeptProcess, ProcessFailed, last_words
from rljob_runtime.gateway.link.connection import LinkSettings
from rljob_runtime.gateway.link.server import serve_link
from rljob_runtime.local.run_folder import write_private
from rljob_runtime.protocols import TrainReport
from rljob_runtime.protocols.environments import Environments
from rljob_runtime.protocols.turns import Turns

log = logging.getLogger(__name__)

RUNNER = "rljob_env"
"""The package of runners."""
RUNNER_PYTHON = "RLJOB_ENV_PYTHON"
"""Names the Python of the runners, where environments need packages whose pins disagree with the runtime's."""
START_SECONDS = 300.0
"""Longest time until the gateway answers: it imports the tokenizer's library on shared processors."""
LOOK_SECONDS = 0.05
SECRET_BYTES = 32
PROCESS_RESTARTED = "EnvironmentProcessRestarted"
GATEWAY_VARIABLES = frozenset(
    {"HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PATH", "PYTHONHOME", "PYTHONPATH", "TMPDIR", "VIRTUAL_ENV"}
)
"""What the gateway inherits: it needs no credentials of the user."""


@dataclass(frozen=True)
class EnvironmentFolders:
    """Folders of a run: its own; that of the model's tokenizer and config; and the manifest's, where commands begin."""

    run: Path
    model: Path
    manifest: Path


class LocalEnvironments:
    """The processes of a job's environments. `runner`: the command of a runner, without its settings.

    `metrics_port`: of the gateway's `/metrics` on loopback; absent: none.
    """

    def __init__(
        self,
        job: RLJob,
        folders: EnvironmentFolders,
        runner: Sequence[str] | None = None,
        metrics_port: int | None = None,
    ) -> None:
        self.restarts = 0
        self.url = ""
        """Where runners and agents reach the gateway."""
        self._job = job
        self._folders = folders
        self._runner = runner
        self._metrics_port = metrics_port
        self._tasks: dict[str, asyncio.Task[NoReturn]] = {}
        self._last_restart = ""
        self._failed: asyncio.Future[ProcessFailed] | None = None

    @contextlib.asynccontextmanager
    async def serve(self, turns: Turns, environments: Environments) -> AsyncIterator[None]:
        """Run the processes while the context is open. `turns` and `environments`: the coordinator.

        Raises `ProcessFailed` if the gateway or the runners' package cannot be used.
        """
        folder = self._folders.run / "environments"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        secret = secrets.token_bytes(SECRET_BYTES)
        runner = self._runner_command()
        # A socket's path has 107 bytes at most, and a run folder's may be longer.
        with tempfile.TemporaryDirectory(prefix="rljob-") as short:
            socket = Path(short) / "link.sock"
            link = LinkSettings(calls=bounds_of(self._job.spec).calls)
            async with serve_link(socket, turns, environments, link):
                try:
                    await self._start_gateway(folder, socket, secret)
                    for environment in self._job.spec.environments:
                        self._start_runners(folder, environment, secret, runner)
                    yield
                finally:
                    await self._end()

    async def failed(self) -> NoReturn:
        """Wait until a process cannot work any more. Raises its `ProcessFailed`."""
        self._failed = self._failed or asyncio.get_running_loop().create_future()
        raise await asyncio.shield(self._failed)

    def observe(self, report: RoundReport, trained: TrainReport) -> StatusWarning | None:
        """Return a warning if processes died and were started again. It is a round observer."""
        if not self.restarts:
            return None
        message = f"{self._last_restart}. It was started again; {self.restarts} restarts so far. See its log"
        return StatusWarning(reason=PROCESS_RESTARTED, message=message[:2048])

    # --- processes ---

    async def _start_gateway(self, folder: Path, socket: Path, secret: bytes) -> None:
        """Start the gateway and wait until it answers. A further one takes the same port."""
        port_file, file = folder / "gateway-port", folder / "gateway.json"
        port_file.unlink(missing_ok=True)
        config = _gateway_config(self._job, self._folders, folder, socket, secret)
        config = config.model_copy(update={"metrics_port": self._metrics_port})
        _write_config(file, config)
        line = (sys.executable, "-m", "rljob_runtime.entrypoints", "gateway", "--config", str(file))
        logs = self._folders.run / "gateway.log"
        task = self._start(Command("the gateway", line, logs, gateway_environment()))
        try:
            async with asyncio.timeout(START_SECONDS):
                while not port_file.exists() and not task.done():  # noqa: ASYNC110, another process writes it
                    await asyncio.sleep(LOOK_SECONDS)
        except TimeoutError:
            raise ProcessFailed(f"the gateway does not answer after {START_SECONDS:g} s; {last_words(logs)}") from None
        if task.done():
            task.result()
        port = int(port_file.read_text())
        _write_config(file, config.model_copy(update={"port": port}))
        self.url = f"http://{config.host}:{port}"

    def _start_runners(self, folder: Path, environment: Environment, secret: bytes, runner: Sequence[str]) -> None:
        key = folder / f"runner-key-{environment.name}"
        write_private(key, mint_runner_key(runners_key(secret), environment.name))
        settings = {
            "url": self.url,
            "keyFile": str(key.absolute()),
            "root": str(self._folders.manifest.absolute()),
            "environment": _local_options(environment),
        }
        file = folder / f"{environment.name}.json"
        write_private(file, json.dumps(settings, indent=1))
        for index in range(environment.runners):
            logs = self._folders.run / f"environment-{environment.name}-{index}.log"
            self._start(Command(f"runner {index} of environment {environment.name}", (*runner, str(file)), logs))

    def _runner_command(self) -> Sequence[str]:
        if self._runner is not None:
            return self._runner
        if RUNNER_PYTHON in os.environ:
            return (os.environ[RUNNER_PYTHON], "-m", RUNNER)
        if importlib.util.find_spec(RUNNER) is None:
            raise ProcessFailed("the runner of environments is not installed; pip install rljob-env")
        return (sys.executable, "-m", RUNNER)

    def _start(self, command: Command) -> asyncio.Task[NoReturn]:
        task = asyncio.create_task(KeptProcess(command, self._restarted).run(), name=command.name)
        self._tasks[command.name] = task
        task.add_done_callback(self._ended)
        return task

    def _restarted(self, why: str) -> None:
        self.restarts += 1
        self._last_restart = why

    def _ended(self, task: asyncio.Task[NoReturn]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        log.error("a process of the environments is not started again: %s", error)
        failure = error if isinstance(error, ProcessFailed) else ProcessFailed(f"{task.get_name()}: {error!r}")
        self._failed = self._failed or asyncio.get_running_loop().create_future()
        if not self._failed.done():
            self._failed.set_result(failure)

    async def _end(self) -> None:
        """End the runners, and then the gateway, to which they report."""
        tasks = list(self._tasks.values())
        for group in (tasks[1:], tasks[:1]):
            for task in group:
                task.cancel()
            await asyncio.gather(*group, return_exceptions=True)
        self._tasks.clear()


def gateway_environment() -> dict[str, str]:
    """Return the variables of the gateway's process."""
    environment = {name: value for name, value in os.environ.items() if name in GATEWAY_VARIABLES}
    # The tokenizer's library must neither ask the hub nor take the engines' processors.
    return environment | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


def _local_options(environment: Environment) -> dict[str, object]:
    """Return the settings of a runner without a pod: what a pod gives an episode, it has not."""
    options = environment.runner_options()
    return options | {"reset": EpisodeReset.PROCESS} if environment.reset is EpisodeReset.POD else options


def _gateway_config(
    job: RLJob, folders: EnvironmentFolders, folder: Path, socket: Path, secret: bytes
) -> GatewayConfig:
    capability, runners = folder / "capability-key", folder / "runners-key"
    write_private(capability, gateway_key(secret).hex())
    write_private(runners, runners_key(secret).hex())
    config = GatewayConfig.of(job, socket, capability.absolute(), runners.absolute(), folders.model.absolute())
    return config.model_copy(update={"port_file": (folder / "gateway-port").absolute(), "parent": os.getpid()})


def _write_config(file: Path, config: GatewayConfig) -> None:
    write_private(file, json.dumps(config.to_dict(), indent=1))
