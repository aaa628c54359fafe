"""Command `rljob-env`: a runner of environments. `rljob-env [CONFIG]`, see `config`."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import signal
import socket
import sys
from contextlib import AsyncExitStack

import httpx

from rljob_env.agents.harness import AgentHarness
from rljob_env.config import OPEN_ENV, TOOLS, VERIFIERS, BadConfig, Config, load_config, read_key
from rljob_env.episode import Harness
from rljob_env.failures import GatewayAway, GatewayRefused
from rljob_env.foreign_code.guard import Guard
from rljob_env.foreign_code.scratch import scratch_root
from rljob_env.gateway_client import GatewayClient
from rljob_env.log_lines import log_to_stderr
from rljob_env.one_episode import USED, MarkingHarness, PodMark
from rljob_env.openenv.harness import OpenEnvHarness
from rljob_env.packages import check_packages
from rljob_env.runner import Runner, RunnerSettings
from rljob_env.tools.harness import ToolsHarness
from rljob_env.verifiers.harness import VerifiersHarness

log = logging.getLogger("rljob_env")


def main() -> None:
    """Run until SIGTERM, or for one episode.

    Status 2: the settings are wrong; 1: the gateway is away, or refuses; `USED`: the pod has had its episode.
    """
    log_to_stderr()
    try:
        config = load_config(sys.argv[1] if len(sys.argv) > 1 else None, os.environ)
        key = read_key(config.key_file)
        check_packages(config.environment.kind)
    except BadConfig as error:
        print(f"rljob-env: {error}", file=sys.stderr)
        sys.exit(2)
    mark = PodMark(config.pod_folder) if config.pod_folder is not None else None
    if mark is not None and mark.is_set:
        log.info("this pod has had its episode, and is replaced")
        sys.exit(USED)
    try:
        asyncio.run(run(config, key, mark))
    except BadConfig as error:
        print(f"rljob-env: {error}", file=sys.stderr)
        sys.exit(2)
    except (GatewayAway, GatewayRefused) as error:
        print(f"rljob-env: {error}", file=sys.stderr)
        sys.exit(1)
    if mark is not None and mark.is_set:
        sys.exit(USED)


async def run(config: Config, key: str, mark: PodMark | None = None) -> None:
    """Run episodes until a signal ends the runner. A second signal ends it without reports.

    `mark`: it runs one episode, and sets the mark before. Raises `BadConfig`, `GatewayAway` and `GatewayRefused`.
    """
    end = asyncio.Event()
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def on_signal() -> None:
        if end.is_set():
            task.cancel()
        end.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    async with AsyncExitStack() as stack:
        stack.enter_context(scratch_root())
        guard = Guard()
        stack.callback(guard.close)
        # The gateway is reached directly, whatever proxy leads to tools.
        direct = await stack.enter_async_context(_http(trust_env=False))
        outside = await stack.enter_async_context(_http(trust_env=True))
        harness = _harness(config, direct, outside, guard)
        if mark is not None:
            harness = MarkingHarness(harness, mark)
        name = runner_name()
        gateway = GatewayClient(direct, config.url, key, name, config.wait_seconds, config.patience_seconds)
        settings = RunnerSettings.of(config, once=mark is not None)
        log.info("runner %s of %s asks %s", name, config.environment.name, config.url)
        runner = Runner(gateway, harness, settings)
        try:
            await runner.run(end)
        finally:
            log.info("%s", runner.stats)


def _harness(config: Config, direct: httpx.AsyncClient, outside: httpx.AsyncClient, guard: Guard) -> Harness:
    """Return the harness of a kind. `direct` reaches the gateway, `outside` what else there is."""
    if config.environment.kind == TOOLS:
        return ToolsHarness(direct, outside, config.environment, config.root, guard)
    if config.environment.kind == OPEN_ENV:
        return OpenEnvHarness(direct, outside, config.environment, config.root, guard)
    if config.environment.kind == VERIFIERS:
        return VerifiersHarness(direct, config.environment, config.root, guard)
    return AgentHarness(direct, config.environment, config.root, guard)


def runner_name() -> str:
    """Return a name that no other process has: attempts are leased by it."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64]
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"


def _http(trust_env: bool) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    return httpx.AsyncClient(limits=limits, trust_env=trust_env)


if __name__ == "__main__":
    main()
