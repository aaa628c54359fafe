"""Toolbox: the tools of one episode, and the answers to a model's calls.

What a model's arguments cause is an observation for the model. What breaks without them is a failure of the tool's
server, and the attempt is tried again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rljob_env.episode import Json
from rljob_env.failures import Failed, Part
from rljob_env.foreign_code.worker_main import shortened
from rljob_env.foreign_code.workers import CallError, CallFailed, WorkerPool

ERROR = "error: "
"""Begin of an answer to wrong arguments."""


class ToolError(Exception):
    """A tool's answer to wrong arguments. The message is for the model."""


class ToolSource(Protocol):
    """Where tools come from: Python functions, or an MCP server."""

    async def tools(self) -> Sequence[Json]:
        """Return the tools: name, description, parameters. Raises `Failed`."""
        ...

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a tool's answer. Raises `ToolError` and `Failed`."""
        ...


class FunctionTools:
    """Python functions. `descriptions`: each with its full name. `places`: of the calls of all episodes of a runner."""

    def __init__(
        self, pool: WorkerPool, descriptions: Mapping[str, Json], seconds: float, places: asyncio.Semaphore
    ) -> None:
        self._pool = pool
        self._places = places
        self._descriptions = descriptions
        self._names = {described["name"]: name for name, described in descriptions.items()}
        self._seconds = seconds

    async def tools(self) -> Sequence[Json]:
        return list(self._descriptions.values())

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        try:
            async with self._places:
                return await self._pool.observe(self._names[name], arguments, self._seconds)
        except CallError as error:
            raise ToolError(str(error)) from error
        except CallFailed as error:
            raise Failed(Part.TOOL_SERVER, str(error)) from error
        except TimeoutError as error:
            raise ToolError(f"no answer within {self._seconds:g} s") from error


@dataclass
class ToolStats:
    """Totals of an episode."""

    calls: int = 0
    errors: int = 0
    """Calls that were answered with an error."""
    seconds: float = 0.0
    """Their seconds. Those of concurrent calls are added up."""


@dataclass(frozen=True)
class Observation:
    """What the model sees of a call, and the seconds that it took."""

    text: str
    seconds: float


class Toolbox:
    """The tools of one episode by their names."""

    def __init__(self) -> None:
        self.stats = ToolStats()
        self.descriptions: list[Json] = []
        self._sources: dict[str, ToolSource] = {}

    async def add(self, source: ToolSource) -> None:
        """Add the tools of a source. Raises `Failed` if two have one name."""
        for tool in await source.tools():
            if tool["name"] in self._sources:
                raise Failed(Part.ENVIRONMENT, f"two tools have the name {tool['name']!r}")
            self._sources[tool["name"]] = source
            self.descriptions.append({"type": "function", "function": tool})

    async def observation(self, call: Any) -> Observation:
        """Return what the model sees of a call. Raises `Failed`."""
        self.stats.calls += 1
        began = time.monotonic()
        try:
            text = shortened(await self._answer(call))
        except ToolError as error:
            self.stats.errors += 1
            text = shortened(f"{ERROR}{error}")
        finally:
            seconds = time.monotonic() - began
            self.stats.seconds += seconds
        return Observation(text, seconds)

    async def _answer(self, call: Any) -> str:
        name = call["function"]["name"]
        source = self._sources.get(name)
        if source is None:
            raise ToolError(f"there is no tool {name!r:.100}; {', '.join(self._sources) or 'none'} would be right")
        try:
            arguments = json.loads(call["function"]["arguments"] or "{}")
            # Servers are sent what JSON can say: no number beyond all numbers, and no half of a character.
            json.dumps(arguments, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError) as error:
            raise ToolError(f"the arguments are no JSON: {error}") from error
        if not isinstance(arguments, dict):
            raise ToolError("the arguments are no JSON object")
        return await source.call(name, arguments)
