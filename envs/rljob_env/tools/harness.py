"""Tools harness: the loop of an environment without code. The model calls tools until it answers.

It ends at the first answer without calls, at the most turns, at the episode's limits, or at its deadline. Each of these
is the policy's doing, and the reward says what it is worth.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import httpx

from rljob_env.config import EnvironmentConfig
from rljob_env.episode import Assignment, Json, Limit, Report
from rljob_env.failures import Failed, Part
from rljob_env.foreign_code.guard import Guard
from rljob_env.foreign_code.workers import CallFailed, WorkerPool, WorkerSettings
from rljob_env.model import LimitReached, Model
from rljob_env.scoring import Scorer
from rljob_env.tools.call_limits import CallLimits
from rljob_env.tools.calls import Calls
from rljob_env.tools.mcp_client import McpClient
from rljob_env.tools.toolbox import FunctionTools, Toolbox


class ToolsHarness:
    """The built-in loop. Functions of tools and the reward run in processes of their own."""

    def __init__(
        self,
        gateway: httpx.AsyncClient,
        servers: httpx.AsyncClient,
        config: EnvironmentConfig,
        root: Path,
        guard: Guard,
    ) -> None:
        self._gateway_http = gateway
        self._servers_http = servers
        self._config = config
        self._functions = tuple(tool.function for tool in config.tools if tool.function is not None)
        self._servers = tuple(tool.mcp_url for tool in config.tools if tool.mcp_url is not None)
        settings = WorkerSettings(root, self._functions, config.variables, Part.TOOL_SERVER, guard)
        self.tool_workers = WorkerPool(settings)
        # Each call has a process of its own, and the memory of a pod is that of its episodes.
        self._places = asyncio.Semaphore(config.episodes)
        self._limits = {url: CallLimits(config.tool_seconds) for url in self._servers}
        self.scorer = Scorer(config, root, guard)
        self._descriptions: dict[str, Json] | None = None

    async def run(self, assignment: Assignment) -> Report:
        """Run an episode."""
        async with AsyncExitStack() as stack:
            model, toolbox = Model(self._gateway_http, assignment), Toolbox()
            calls = Calls(assignment, toolbox)
            request = assignment.resume.request if assignment.resume is not None else None
            messages: list[Json] = [dict(message) for message in assignment.messages]
            if request is not None:
                messages = json.loads(request)["messages"]
            answers = [one for one in messages[len(assignment.messages) :] if one["role"] == "assistant"]
            limit: Limit | None = None
            try:
                async with asyncio.timeout(assignment.seconds_left()):
                    await self._open(stack, toolbox, assignment.stateless)
                    await calls.go_on()
                    limit = await self._converse(model, calls, request, messages, answers)
            except TimeoutError as error:
                if model.away or calls.waiting:
                    raise Failed(Part.ENVIRONMENT, "the gateway did not answer until the deadline") from error
                limit = Limit.SECONDS
            except LimitReached:
                pass  # The answers so far are the episode, and the coordinator knows which limit it is.
            tools = toolbox.stats
            metrics = {
                "turns": float(len(answers)),
                "tool_calls": float(tools.calls),
                "tool_errors": float(tools.errors),
                "tool_seconds": tools.seconds,
            }
        if not answers:  # No turn: the coordinator says what that means.
            return Report(metrics=metrics, limit=limit)
        reward, more = await self.scorer.score(assignment, messages, answers[-1].get("content") or "")
        return Report(reward, metrics | more, limit=limit)

    async def close(self) -> None:
        """End the processes."""
        await self.tool_workers.close()
        await self.scorer.close()

    async def _open(self, stack: AsyncExitStack, toolbox: Toolbox, concurrently: bool) -> None:
        """Add all tools. Each episode has a session of its own with an MCP server."""
        seconds = self._config.tool_seconds
        if self._functions:
            await toolbox.add(FunctionTools(self.tool_workers, await self._described(), seconds, self._places))
        for url in self._servers:
            client = McpClient(self._servers_http, url, seconds, self._limits[url] if concurrently else None)
            stack.push_async_callback(client.close)
            await toolbox.add(client)

    async def _described(self) -> dict[str, Json]:
        """Return the functions as tools. They are asked once."""
        async with self._places:
            if self._descriptions is None:
                try:
                    self._descriptions = {name: await self.tool_workers.describe(name) for name in self._functions}
                except CallFailed as error:
                    raise Failed(Part.TOOL_SERVER, str(error)) from error
            return self._descriptions

    async def _converse(
        self, model: Model, calls: Calls, request: str | None, messages: list[Json], answers: list[Json]
    ) -> Limit | None:
        """Ask for turns until one calls no tool; return the limit that ends it before.

        `request`: the newest one of another runner, asked for first."""
        for _ in range(len(answers), self._config.max_turns):
            if request is not None:
                message, request = await model.answer_again(request), None
            else:
                message = await model.answer(messages, calls.descriptions)
            messages.append(message)
            answers.append(message)
            if not message.get("tool_calls"):
                return None
            asked = message["tool_calls"]
            for call, content in zip(asked, await calls.observations(asked), strict=True):
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        return Limit.TURNS
