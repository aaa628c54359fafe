"""OpenEnv harness: the loop of an environment behind a server. Each answer of the model is an action there.

The episode ends when the environment is done, at the most turns, at the episode's limits, or at its deadline. Its
reward is the sum of the environment's. A failure of the environment is a failure of ours, and no zero.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from rljob_env.config import EnvironmentConfig
from rljob_env.episode import Assignment, Json, Limit, Report
from rljob_env.failures import Failed, Part
from rljob_env.foreign_code.guard import Guard
from rljob_env.foreign_code.worker_main import shortened
from rljob_env.model import LimitReached, Model
from rljob_env.openenv.actions import (
    LIST_TOOLS,
    ActionRefused,
    action_of,
    call_action,
    instruction,
    observation_text,
    result_text,
    takes_tools,
    tool_of,
)
from rljob_env.openenv.session import STEP_SECONDS, ServerFull, Session, connected
from rljob_env.retrying import delay
from rljob_env.scoring import Scorer
from rljob_env.tools.toolbox import Toolbox, ToolError


@dataclass
class OpenEnvStats:
    """Totals of a harness."""

    refused_actions: int = 0
    """Answers that are no action. The model sees why."""
    server_full: int = 0
    """Sessions that a server had no place for. They are asked for again until the deadline."""


@dataclass
class _Episode:
    """One episode. `session`: None until the environment has begun it."""

    messages: list[Json]
    answers: list[Json] = field(default_factory=list)
    toolbox: Toolbox = field(default_factory=Toolbox)
    session: Session | None = None
    refused: int = 0
    limit: Limit | None = None
    """What ended it before the environment or the model did."""


class OpenEnvHarness:
    """Plays episodes of one server. `step_seconds`: the longest time of its answers."""

    def __init__(
        self,
        gateway: httpx.AsyncClient,
        servers: httpx.AsyncClient,
        config: EnvironmentConfig,
        root: Path,
        guard: Guard,
        step_seconds: float = STEP_SECONDS,
    ) -> None:
        assert config.open_env_url is not None
        self.stats = OpenEnvStats()
        self._gateway_http = gateway
        self._servers_http = servers
        self._config = config
        self._url = config.open_env_url
        self._step_seconds = step_seconds
        self._schema: Json | None = None
        self.scorer = Scorer(config, root, guard)

    async def run(self, assignment: Assignment) -> Report:
        """Run an episode."""
        episode = _Episode([dict(message) for message in assignment.messages])
        model = Model(self._gateway_http, assignment)
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(assignment.seconds_left()):
                    schema = await self._described()
                    session = await self._begin(stack, episode, reset_arguments(assignment.record), schema)
                    episode.limit = await self._play(model, session, episode, schema)
            except TimeoutError as error:
                self._blame(model, episode, error)
                episode.limit = Limit.SECONDS
            except LimitReached:
                pass  # The rewards so far are the episode's, and the coordinator knows which limit it is.
        self.stats.refused_actions += episode.refused
        return await self._report(assignment, episode)

    async def close(self) -> None:
        """End the processes of rewards."""
        await self.scorer.close()

    def _blame(self, model: Model, episode: _Episode, error: TimeoutError) -> None:
        """Return if the policy used its time up. Raises `Failed` if the gateway or the environment did."""
        if model.away:
            raise Failed(Part.ENVIRONMENT, "the gateway did not answer until the deadline") from error
        if episode.session is None or episode.session.waiting:
            text = f"the OpenEnv server {self._url} did not answer until the deadline"
            raise Failed(Part.ENVIRONMENT, text) from error

    async def _report(self, assignment: Assignment, episode: _Episode) -> Report:
        session = episode.session
        assert session is not None
        metrics = {
            "turns": float(len(episode.answers)),
            "env_steps": float(session.steps),
            "env_seconds": session.step_seconds,
            "refused_actions": float(episode.refused),
            "done": float(session.done),
        }
        if not episode.answers:  # No turn: the coordinator says what that means.
            return Report(metrics=metrics, limit=episode.limit)
        if session.reward is not None:
            return Report(session.reward, metrics, limit=episode.limit)
        answer = episode.answers[-1].get("content") or ""
        reward, more = await self.scorer.score(assignment, episode.messages, answer)
        return Report(reward, metrics | more, limit=episode.limit)

    async def _described(self) -> Json:
        """Return the schema of the server's actions. It is asked once."""
        if self._schema is None:
            try:
                response = await self._servers_http.get(f"{self._url.rstrip('/')}/schema", timeout=STEP_SECONDS)
                self._schema = dict(response.raise_for_status().json()["action"])
            except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
                text = f"the OpenEnv server {self._url} does not describe its actions: {error!r}"
                raise Failed(Part.ENVIRONMENT, text) from error
        return self._schema

    async def _begin(self, stack: AsyncExitStack, episode: _Episode, arguments: Json, schema: Json) -> Session:
        """Begin the episode; wait for a place at the server."""
        tries = 0
        while True:
            session = await connected(self._url, self._step_seconds)
            stack.push_async_callback(session.close)
            try:
                observation = await session.reset(arguments)
                break
            except ServerFull:
                tries += 1
                self.stats.server_full += 1
            await session.close()
            await asyncio.sleep(delay(tries))
        texts = [observation_text(observation), instruction(schema)]
        _add_to_prompt(episode.messages, [shortened(text) for text in texts if text])
        if takes_tools(schema):
            await episode.toolbox.add(_ServerTools(session, [tool_of(one) for one in await session.tools(LIST_TOOLS)]))
        episode.session = session
        return session

    async def _play(self, model: Model, session: Session, episode: _Episode, schema: Json) -> Limit | None:
        """Play until the environment is done, or the model calls no tool; return the limit that ends it before."""
        for _ in range(self._config.max_turns):
            if session.done:
                return None
            message = await model.answer(episode.messages, episode.toolbox.descriptions)
            episode.messages.append(message)
            episode.answers.append(message)
            calls = message.get("tool_calls") or ()
            if takes_tools(schema):
                if not calls:
                    return None
                await self._call(session, episode, calls)
            else:
                await self._act(session, episode, action=message.get("content") or "", schema=schema)
        return None if session.done else Limit.TURNS

    async def _act(self, session: Session, episode: _Episode, action: str, schema: Json) -> None:
        """Take an answer as an action; the next message says what it caused."""
        try:
            seen = observation_text(await session.step(action_of(action, schema)))
        except ActionRefused as error:
            episode.refused += 1
            seen = f"error: {error}"
        episode.messages.append({"role": "user", "content": shortened(seen)})

    async def _call(self, session: Session, episode: _Episode, calls: Sequence[Json]) -> None:
        """Take each call of a tool as an action. Those after the environment's end are not taken."""
        for call in calls:
            if session.done:
                return
            seen = (await episode.toolbox.observation(call)).text
            episode.messages.append({"role": "tool", "tool_call_id": call["id"], "content": seen})


class _ServerTools:
    """The tools of a server's environment, in one session."""

    def __init__(self, session: Session, tools: Sequence[Json]) -> None:
        self._session = session
        self._tools = tools

    async def tools(self) -> Sequence[Json]:
        return self._tools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        try:
            observation = await self._session.step(call_action(name, arguments))
        except ActionRefused as error:
            raise ToolError(str(error)) from error
        return result_text(observation)


def reset_arguments(record: Mapping[str, Any]) -> Json:
    """Return what begins the episode of a record: its field `reset`, and a seed if that has none.

    The seed follows from the record: all responses of a prompt play the same task. Raises `Failed`.
    """
    given = record.get("reset") or {}
    if not isinstance(given, Mapping):
        text = f"the record's field reset is {given!r:.100}; an object of arguments would be right"
        raise Failed(Part.ENVIRONMENT, text)
    content = json.dumps(dict(record), sort_keys=True, default=str).encode()
    return {"seed": int.from_bytes(hashlib.sha256(content).digest()[:4], "big") >> 1, **given}


def _add_to_prompt(messages: list[Json], texts: Sequence[str]) -> None:
    """Add texts to the last message of the user: some templates take no two in a row."""
    if not texts:
        return
    if messages and messages[-1].get("role") == "user":
        messages[-1] = {**messages[-1], "content": "\n\n".join([messages[-1].get("content") or "", *texts]).strip()}
    else:
        messages.append({"role": "user", "content": "\n\n".join(texts)})
