"""Gateway cost: the same turns, asked directly of an engine and through the gateway, by as many clients at a time.

Behind the gateway is the engine itself: no book, no store and no runner. So the difference is the gateway, its link,
and HTTP of client and gateway. Turns take times of their own, drawn from a seed and equal in both ways: real turns do
not end together.
"""

from __future__ import annotations

import asyncio
import random
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from rljob_bench.lib.episodes.episode_peers import QUESTION, RESULT, VERSION, Words
from rljob_runtime.gateway.capability import Capability, mint
from rljob_runtime.models.toy_calculator import PHRASING, TOOL
from rljob_runtime.protocols.trajectory import FinishReason, PromptKey, TrajectoryKey
from rljob_runtime.protocols.turns import EpisodeAttempt, RecordedTurn, StoredTurn, TurnBounds, TurnCall, Turns

EPOCH = 1 << 20
"""Episodes of this epoch and later ones are played by these clients."""
SPREAD = 0.5
"""Turns take this share less or more than their mean, each time equally likely."""
FAR_SECONDS = 3600.0
OWN = "rljob_gateway_own_seconds"
TURNS = 2
TOOLS = [{"type": "function", "function": {"name": TOOL, "parameters": {"type": "object", "properties": {}}}}]

Buckets = Sequence[tuple[str, float]]
Client = Callable[[EpisodeAttempt], Awaitable[list[float]]]
"""Plays an episode; returns the seconds of each turn beyond the engine's."""


class PacedTurns:
    """An engine as the gateway and the direct clients ask it. It implements `Turns`. `seconds`: mean of a turn."""

    def __init__(self, words: Words, seconds: float, seed: int) -> None:
        self._words = words
        self._seconds = seconds
        self._seed = seed
        self._answered: dict[EpisodeAttempt, int] = {}

    def seconds_of(self, episode: EpisodeAttempt, turn: int) -> float:
        """Return the time of a turn: the same for all attempts of an episode."""
        drawn = random.Random(f"{self._seed} {episode.key} {turn}").uniform(1 - SPREAD, 1 + SPREAD)
        return drawn * self._seconds

    async def turn(self, call: TurnCall) -> RecordedTurn:
        """See `Turns`."""
        number = self._answered.get(call.episode, 0)
        self._answered[call.episode] = number + 1
        await asyncio.sleep(self.seconds_of(call.episode, number))
        tokens = self._words.said(call.token_ids)
        logprobs = [-0.5] * len(tokens)
        return RecordedTurn(number, tokens, logprobs, VERSION, FinishReason.STOP, time.time())

    async def history(self, episode: EpisodeAttempt, newest: bool = False) -> Sequence[StoredTurn]:
        """See `Turns`. Nothing is stored."""
        return ()


class Routed:
    """The coordinator of a gateway: the engine for episodes of these clients, and another one for the rest."""

    def __init__(self, engine: Turns, others: Turns) -> None:
        self._engine = engine
        self._others = others

    async def turn(self, call: TurnCall) -> RecordedTurn:
        """See `Turns`."""
        return await self._of(call.episode).turn(call)

    async def history(self, episode: EpisodeAttempt, newest: bool = False) -> Sequence[StoredTurn]:
        """See `Turns`."""
        return await self._of(episode).history(episode, newest)

    def _of(self, episode: EpisodeAttempt) -> Turns:
        return self._engine if episode.key.prompt.epoch >= EPOCH else self._others


@dataclass
class Clients:
    """Clients of both ways. `url`, `key`: of the gateway and of its capabilities; `metrics`: its `/metrics`."""

    engine: PacedTurns
    words: Words
    model: str
    url: str
    key: bytes
    metrics: str

    async def play(self, block: int, concurrent: int, episodes: int) -> tuple[Played, Played]:
        """Play a block of each way: so many clients at a time, with so many episodes each, one after the other.

        The way that is first changes from block to block. Returns that through the gateway first.
        """
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=concurrent)) as http:
            ways: list[tuple[int, Client]] = [(1, lambda episode: self._through(http, episode)), (2, self._directly)]
            found: dict[int, Played] = {}
            for attempt, client in reversed(ways) if block % 2 else ways:
                before = await self._own(http)
                found[attempt] = await _play(client, EPOCH + block, attempt, concurrent, episodes)
                found[attempt].own = difference(before, await self._own(http))
                found[attempt].tokens = concurrent * episodes * (len(self.words.call) + len(self.words.answer))
        return found[1], found[2]

    async def _directly(self, episode: EpisodeAttempt) -> list[float]:
        prompts = (self.words.prompt, (*self.words.prompt, *self.words.call, *self.words.answer))
        added = []
        for number, prompt in enumerate(prompts):
            began = time.monotonic()
            call = TurnCall(episode, str(number), False, prompt, TurnBounds(64), b"", time.time() + FAR_SECONDS)
            await self.engine.turn(call)
            added.append(time.monotonic() - began - self.engine.seconds_of(episode, number))
        return added

    async def _through(self, http: aiohttp.ClientSession, episode: EpisodeAttempt) -> list[float]:
        messages: list[Any] = [{"role": "user", "content": PHRASING.format(expression=QUESTION)}]
        capability = mint(self.key, Capability(episode, int(time.time() + FAR_SECONDS)))
        added = []
        for number in range(TURNS):
            began = time.monotonic()
            body = {"model": self.model, "messages": messages, "tools": TOOLS}
            headers = {"Authorization": f"Bearer {capability}"}
            async with http.post(f"{self.url}/v1/chat/completions", json=body, headers=headers) as answer:
                answer.raise_for_status()
                said = (await answer.json())["choices"][0]["message"]
            added.append(time.monotonic() - began - self.engine.seconds_of(episode, number))
            calls = said.get("tool_calls") or ()
            messages += [said, *({"role": "tool", "tool_call_id": one["id"], "content": RESULT} for one in calls)]
        if len(messages) != TURNS + 2 or messages[-1]["content"] != RESULT:
            raise RuntimeError(f"the gateway did not answer what the engine emitted: {messages[1:]}")
        return added

    async def _own(self, http: aiohttp.ClientSession) -> Buckets:
        async with http.get(self.metrics) as answer:
            answer.raise_for_status()
            return own_buckets(await answer.text())


@dataclass
class Played:
    """A block of one way. `added`: seconds of each turn beyond the engine's; `own`: the gateway's histogram of it."""

    seconds: float
    tokens: int = 0
    added: list[float] = field(default_factory=list)
    own: Buckets = ()


async def _play(client: Client, epoch: int, attempt: int, concurrent: int, episodes: int) -> Played:
    played = Played(0.0)
    began = time.monotonic()

    async def one(number: int) -> None:
        for index in range(number * episodes, (number + 1) * episodes):
            played.added += await client(EpisodeAttempt(TrajectoryKey(PromptKey(epoch, index), 0), attempt))

    async with asyncio.TaskGroup() as group:
        for number in range(concurrent):
            group.create_task(one(number))
    played.seconds = time.monotonic() - began
    return played


def own_buckets(text: str) -> Buckets:
    """Return the buckets of the gateway's own share in its `/metrics`."""
    return [
        (sample.labels["le"], sample.value)
        for family in text_string_to_metric_families(text)
        if family.name == OWN
        for sample in family.samples
        if sample.name == f"{OWN}_bucket"
    ]


def difference(before: Buckets, after: Buckets) -> Buckets:
    """Return what was counted between two looks."""
    earlier = dict(before)
    return [(bound, count - earlier.get(bound, 0.0)) for bound, count in after]


def total(blocks: Sequence[Buckets]) -> Buckets:
    """Return what was counted in all blocks."""
    bounds = [bound for bound, _ in blocks[0]] if blocks else []
    return [(bound, sum(dict(block)[bound] for block in blocks)) for bound in bounds]


def free_port() -> int:
    """Return a port of loopback that is free at the moment."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port
