"""Stand-in for `verifiers.v1`: an environment that asks the model until it is right, and faults on request.

`taskset.fault` of the arguments says what goes wrong; with `loads for N` its tasks load for so many seconds. The
metrics say with which settings the environment was made.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx

loads = 0
"""How often tasks were loaded in this process."""


@dataclass
class AgentConfig:
    """An agent of an environment, as its author declares it."""

    runtime: Any = field(default_factory=lambda: SimpleNamespace(type="prime"))
    harness: Any = None
    max_turns: int | None = None


@dataclass(frozen=True)
class EvalClientConfig:
    """Where the model answers."""

    base_url: str
    api_key_var: str


@dataclass(frozen=True)
class ModelContext:
    """The model of an episode."""

    model: str
    client: EvalClientConfig


@dataclass
class Trace:
    """What the environment has seen of one agent."""

    agent: Any = field(default_factory=lambda: SimpleNamespace(name="agent", trainable=True))
    rewards: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float | None] = field(default_factory=dict)
    calls: list[Any] = field(default_factory=list)
    errors: list[Any] = field(default_factory=list)
    is_timeout: bool = False
    stop_condition: str | None = None


@dataclass(frozen=True)
class Taskset:
    """Two sums. `seconds`: so long they load."""

    seconds: float = 0.0

    def __iter__(self) -> Iterator[tuple[str, str]]:
        global loads
        loads += 1
        time.sleep(self.seconds)
        return iter((("2+3", "5"), ("4+5", "9")))


class Environment:
    """An environment. `settings`: its resolved configuration."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.taskset = Taskset(float(settings["taskset"].get("fault", "").partition("loads for ")[2] or 0))

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Hold what episodes need."""
        yield

    async def run_episode(self, task: tuple[str, str], context: ModelContext) -> Any:
        """Play one task."""
        fault, trace = self.settings["taskset"].get("fault", ""), Trace()
        episode = SimpleNamespace(traces=[trace], errors=[])
        if fault == "raises":
            raise OSError("the data are gone")
        if fault == "sleeps":
            await asyncio.sleep(3600)
        agent = self.settings["agent"]
        trace.metrics = {
            "max_turns": float(agent["max_turns"]),
            "seconds": agent["timeout"]["rollout"],
            "here": float(agent["runtime"]["type"] == "subprocess"),
            "without_shell": float(agent["harness"]["id"] == "null"),
            "loads": float(loads),
            "not_scored": None,
        }
        answer = await self._ask(task[0], trace, context)
        if "times out" in fault:
            await asyncio.sleep(agent["timeout"]["rollout"])
            trace.is_timeout = True
        if fault == "error":
            trace.errors.append(SimpleNamespace(type="SandboxError", message="no space", status_code=None))
        if fault == "infinite":
            trace.rewards["right"] = SimpleNamespace(value=float("inf"))
        elif fault == "unscored":
            trace.rewards["right"] = None
        elif fault != "no reward":
            trace.rewards["right"] = SimpleNamespace(value=float(answer == task[1]))
        if fault == "loses a call":
            trace.calls.pop()
        return episode

    async def _ask(self, prompt: str, trace: Trace, context: ModelContext) -> str:
        """Ask until the model stops saying `again`, or has had all of its turns."""
        most = self.settings["agent"]["max_turns"]
        messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
        headers = {"Authorization": f"Bearer {os.environ[context.client.api_key_var]}"}
        async with httpx.AsyncClient(trust_env=False, headers=headers, timeout=60.0) as http:
            while len(trace.calls) < most:
                body = {"model": context.model, "messages": messages}
                response = await http.post(f"{context.client.base_url}/chat/completions", json=body)
                if response.status_code != 200:
                    text = f"upstream {response.status_code}: {response.text}"
                    trace.errors.append(
                        SimpleNamespace(type="ProviderError", message=text, status_code=response.status_code)
                    )
                    return ""
                answer = response.json()
                message = answer["choices"][0]["message"]
                usage = SimpleNamespace(completion_tokens=answer["usage"]["completion_tokens"])
                trace.calls.append(SimpleNamespace(error=None, usage=usage))
                if message["content"] != "again":
                    return str(message["content"])
                messages += [message, {"role": "user", "content": "wrong"}]
        trace.stop_condition = "max_turns"
        return ""
