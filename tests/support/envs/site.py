"""A real gateway server with a scripted model and a stand-in coordinator, and a runner of an environment against it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from rljob_api.keys.runner_key import mint_runner_key, runners_key
from rljob_env.agents.harness import AgentHarness
from rljob_env.config import OPEN_ENV, TOOLS, VERIFIERS, EnvironmentConfig, Tool, VerifiersConfig
from rljob_env.episode import Harness
from rljob_env.foreign_code.guard import Guard
from rljob_env.gateway_client import GatewayClient
from rljob_env.openenv.harness import OpenEnvHarness
from rljob_env.openenv.session import STEP_SECONDS
from rljob_env.runner import Runner, RunnerSettings
from rljob_env.tools.harness import ToolsHarness
from rljob_env.verifiers.harness import VerifiersHarness
from rljob_runtime.gateway.capability import gateway_key
from rljob_runtime.gateway.environment_routes import EnvironmentRoutes, RunnerAccess
from rljob_runtime.gateway.gateway import Gateway, GatewaySettings
from rljob_runtime.gateway.server import serve
from rljob_runtime.gateway.text.suffix_text import SuffixText
from rljob_runtime.protocols.environments import Assignment, EpisodeReport
from rljob_runtime.protocols.turns import EpisodeAttempt
from rljob_runtime.scheduling.episodes.episode import EpisodeRules
from rljob_runtime.scheduling.episodes.limits import Limits
from tests.support.gateway.light_tokenizer import WITH_TOOLS, light_tokenizer, render_of
from tests.support.gateway.stand_in_coordinator import RecordingEngine, Script, StandInCoordinator, attempt_of
from tests.support.gateway.stand_in_environments import StandInEnvironments

SECRET = b"the job's secret"
TOKENIZER = light_tokenizer()
RUNNER_KEY = mint_runner_key(runners_key(SECRET), "calc")
RECORD = {"prompt": "2+3", "answer": 5}
MESSAGES = [{"role": "user", "content": "2+3"}]
LEASE_SECONDS = 0.2
"""How long a request for work waits. A runner that ends waits for its last one, so each test does."""
SETTINGS = RunnerSettings(episodes=4, heartbeat_seconds=0.05, grace_seconds=20.0)


@dataclass
class Site:
    """A gateway with its stand-ins."""

    coordinator: StandInCoordinator
    environments: StandInEnvironments
    routes: EnvironmentRoutes
    http: httpx.AsyncClient
    stack: AsyncExitStack
    guard: Guard
    gateway: Gateway
    url: str = ""
    runners: list[Runner] = field(default_factory=list)

    async def put(
        self,
        index: int = 0,
        seconds: float = 60.0,
        record: Mapping[str, Any] = RECORD,
        traceparent: str | None = None,
    ) -> EpisodeAttempt:
        """Let a runner lease an episode."""
        episode = attempt_of(index)
        self.coordinator.start(episode)
        await self.environments.put(
            Assignment(episode, "calc", record, MESSAGES, time.time() + seconds, None, traceparent)
        )
        return episode

    async def run(self, harness: Harness, settings: RunnerSettings = SETTINGS, **client: Any) -> Runner:
        """Start a runner; it ends with the site."""
        runner = Runner(self.client(**client), harness, settings)
        self.runners.append(runner)
        end = asyncio.Event()
        task = asyncio.create_task(runner.run(end))

        async def close() -> None:
            end.set()
            await task

        self.stack.push_async_callback(close)
        return runner

    def client(self, http: httpx.AsyncClient | None = None, patience: float = 30.0) -> GatewayClient:
        return GatewayClient(http or self.http, self.url, RUNNER_KEY, "r1", LEASE_SECONDS, patience)

    async def report_of(self, harness: Harness, **episode: Any) -> EpisodeReport:
        """Run one episode with a runner; return its report."""
        await self.run(harness)
        return await self.environments.reported(await self.put(**episode))

    def tools(self, root: Path, *functions: str, servers: tuple[str, ...] = (), **options: Any) -> ToolsHarness:
        tools = (*(Tool(function=name) for name in functions), *(Tool(mcp_url=url) for url in servers))
        config = EnvironmentConfig("calc", TOOLS, tools, **options)
        return ToolsHarness(self.http, self.http, config, root, self.guard)

    def agent(self, root: Path, *command: str, **options: Any) -> AgentHarness:
        config = EnvironmentConfig("calc", "Agent", command=command, **options)
        return AgentHarness(self.http, config, root, self.guard)

    def open_env(self, root: Path, url: str, step_seconds: float = STEP_SECONDS, **options: Any) -> OpenEnvHarness:
        config = EnvironmentConfig("calc", OPEN_ENV, open_env_url=url, **options)
        return OpenEnvHarness(self.http, self.http, config, root, self.guard, step_seconds)

    def verifiers(self, root: Path, id: str = "sums", fault: str = "", **options: Any) -> VerifiersHarness:
        args = {"taskset": {"fault": fault}}
        config = EnvironmentConfig("calc", VERIFIERS, verifiers=VerifiersConfig(id, args), **options)
        return VerifiersHarness(self.http, config, root, self.guard)

    def prompts(self) -> list[str]:
        """Return the prompt of each turn, as text."""
        return [TOKENIZER.decode(prompt) for prompt, _, _ in self.coordinator.engine.emitted]

    def loss_tokens(self) -> list[Any]:
        """Return what would be trained on, as the recording engine notes what it emits."""
        return [one for episode in self.coordinator.episodes for one in self.coordinator.loss_tokens(episode)]

    def assert_trained_tokens_are_the_engines(self, turns: int) -> None:
        """Compare ids and logprobs of each turn: no token was encoded again, and no turn has forked."""
        assert len(self.coordinator.engine.emitted) == turns
        assert self.loss_tokens() == self.coordinator.engine.emitted
        stats = self.gateway.stats
        assert (stats.turns, stats.forks, stats.rewritten, stats.reencoded_tokens) == (turns, 0, 0, 0)


def scripted(*turns: str) -> Script:
    """Return a model that says these texts, turn by turn of an episode, and then the last again."""
    return lambda prompt, turn: turns[min(prompt.count("<|im_start|>assistant") - 1, len(turns) - 1)]


def call(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


@contextlib.asynccontextmanager
async def open_site(
    script: Script | None = None,
    limits: Limits = Limits(),  # noqa: B008, a frozen value
    now: Callable[[], float] = time.time,
    context: int = 8192,
) -> AsyncIterator[Site]:
    """Open a site; its model says what the script says, in a context of so many tokens."""
    async with AsyncExitStack() as stack:
        engine = RecordingEngine(TOKENIZER, script or scripted("5"))
        coordinator = StandInCoordinator(engine, EpisodeRules(limits))
        environments = StandInEnvironments()
        capabilities = gateway_key(SECRET)
        routes = EnvironmentRoutes(environments, RunnerAccess(runners_key(SECRET), capabilities, "policy"), now)
        text = SuffixText(TOKENIZER, render_of(WITH_TOOLS), [TOKENIZER.end])  # type: ignore[arg-type]
        settings = GatewaySettings("policy", context, TOKENIZER.size, 1024)
        gateway = Gateway(coordinator, text, settings, stack.enter_context(ThreadPoolExecutor(2)), now)
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False))
        port = await stack.enter_async_context(
            serve(gateway, capabilities, now, "127.0.0.1", 0, environments=routes)
        )  # fmt: skip
        guard = Guard()
        stack.callback(guard.close)
        async with AsyncExitStack() as runners:
            yield Site(coordinator, environments, routes, http, runners, guard, gateway, f"http://127.0.0.1:{port}")
