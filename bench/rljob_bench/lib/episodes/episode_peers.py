"""Peers of `rljob bench agents`: an engine that stands in for a replica, and what passes calls on and notes when."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rljob_runtime.coordinator.episodes.attempt import turn_of
from rljob_runtime.coordinator.episodes.book import EpisodeBook
from rljob_runtime.coordinator.episodes.replica import EpisodeReplica
from rljob_runtime.models.toy_calculator import CALL, CALL_END, PHRASING, calculator_tokenizer
from rljob_runtime.protocols import Delta, EngineStats, GenerateRequest, ReplicaReport
from rljob_runtime.protocols.environments import Assignment, EpisodeReport, ToolCall
from rljob_runtime.protocols.trajectory import FinishReason, PromptKey, TrajectoryKey
from rljob_runtime.protocols.turns import EpisodeAttempt, RecordedTurn, StoredTurn, TurnCall

ENVIRONMENT = "calc"
QUESTION, RESULT = "47 * 68", "3196"
VERSION = 1


class Words:
    """The tokens that the model writes and reads."""

    def __init__(self) -> None:
        self.tokenizer = calculator_tokenizer()
        end = self.tokenizer.eos_token
        self.call = tuple(self.tokenizer.encode(f"{CALL}{QUESTION}{CALL_END}{end}"))
        self.answer = tuple(self.tokenizer.encode(f"{RESULT}{end}"))
        self.prompt = tuple(self.tokenizer.encode(PHRASING.format(expression=QUESTION)))

    def said(self, prompt: Sequence[int]) -> tuple[int, ...]:
        """Return a turn: the call, and after a call the answer."""
        return self.answer if self.call[0] in prompt else self.call


class PacedEngine:
    """A stand-in for a replica: each turn is emitted complete after a fixed time, however many there are."""

    name = "rollout-0/replica-0"

    def __init__(self, words: Words, seconds: float) -> None:
        self._words = words
        self._seconds = seconds
        self._outbox: list[tuple[int, Delta]] = []
        self._sent = 0
        self._wake = asyncio.Event()
        self._emitted: dict[int, list[int]] = {}
        """The tokens of each attempt of an episode."""

    async def submit(self, term: int, requests: Sequence[GenerateRequest]) -> None:
        """Emit the turns of these requests when their time has passed."""
        for request in requests:
            asyncio.get_running_loop().call_later(self._seconds, self._emit, request)

    async def abort(self, term: int, attempts: Mapping[TrajectoryKey, int]) -> None:
        """Stop nothing: what is emitted for an aborted attempt is not taken."""

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        """See `protocols.Replica.poll`."""
        self._outbox = [entry for entry in self._outbox if entry[0] > after]
        if not self._outbox:
            self._wake.clear()
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._wake.wait()
            except TimeoutError:
                pass
        deltas = tuple(delta for _, delta in self._outbox)
        return ReplicaReport("boot", self._sent, deltas, VERSION, EngineStats(0, 0, 0.0, 0, 0, 0, 0, 0))

    def emitted_for(self, watch: Watch, prompt: PromptKey) -> list[int]:
        """Return the tokens of a response, in the order of its turns."""
        return self._emitted.pop(watch.number(prompt), [])

    def _emit(self, request: GenerateRequest) -> None:
        tokens = self._words.said(request.prompt_token_ids)
        place = turn_of(request.key)
        if place is not None:
            self._emitted.setdefault(place[0], []).extend(tokens)
        logprobs, finish = tuple(-0.5 for _ in tokens), FinishReason.STOP
        delta = Delta(request.key, request.attempt, 0, tokens, logprobs, request.weight_version, finish)
        self._sent += 1
        self._outbox.append((self._sent, delta))
        self._wake.set()


class Watch:
    """Passes calls of the gateway on to the book, and notes when runners have episodes and ask for first turns."""

    def __init__(self, book: EpisodeBook) -> None:
        self.acquired: list[float] = []
        self.first_turns: list[float] = []
        self.lived_seconds = 0.0
        """From the launch of each response until its end had been polled, summed up."""
        self._book = book
        self._launched: dict[PromptKey, float] = {}
        self._numbers: dict[PromptKey, int] = {}
        self._asked: set[EpisodeAttempt] = set()

    def launch(self, requests: Iterable[GenerateRequest]) -> None:
        """Note that responses are launched now."""
        self._launched |= {request.key.prompt: time.monotonic() for request in requests}

    def ended(self, prompt: PromptKey) -> None:
        """Note that the end of a response has arrived. Replicas report again what was not acknowledged: once counts."""
        if (launched := self._launched.pop(prompt, None)) is not None:
            self.lived_seconds += time.monotonic() - launched

    def number(self, prompt: PromptKey) -> int:
        """Return the number of a response's attempt."""
        return self._numbers.pop(prompt, 0)

    def forget(self) -> None:
        """Forget what was noted so far."""
        self.acquired.clear()
        self.first_turns.clear()
        self.lived_seconds = 0.0
        self._asked.clear()

    async def lease(
        self, environment: str, runner: str, wait_seconds: float, most: int = 1, journals: bool = False
    ) -> Sequence[Assignment]:
        """See `protocols.environments.Environments.lease`."""
        found = await self._book.runners.lease(environment, runner, wait_seconds, most, journals)
        for one in found:
            prompt = one.episode.key.prompt
            self.acquired.append(time.monotonic() - self._launched[prompt])
            self._numbers[prompt] = one.episode.attempt
        return found

    async def heartbeat(
        self, environment: str, runner: str, episodes: Sequence[EpisodeAttempt]
    ) -> Sequence[EpisodeAttempt]:
        """See `protocols.environments.Environments.heartbeat`."""
        return await self._book.runners.heartbeat(environment, runner, episodes)

    async def called(self, environment: str, runner: str, episode: EpisodeAttempt, call: ToolCall) -> None:
        """See `protocols.environments.Environments.called`."""
        await self._book.runners.called(environment, runner, episode, call)

    async def done(self, environment: str, runner: str, episode: EpisodeAttempt, report: EpisodeReport) -> None:
        """See `protocols.environments.Environments.done`."""
        await self._book.runners.done(environment, runner, episode, report)

    async def turn(self, call: TurnCall) -> RecordedTurn:
        """See `protocols.turns.Turns.turn`."""
        if call.episode not in self._asked:
            self._asked.add(call.episode)
            self.first_turns.append(time.monotonic() - self._launched[call.episode.key.prompt])
        return await self._book.turns.turn(call)

    async def history(self, episode: EpisodeAttempt, newest: bool = False) -> Sequence[StoredTurn]:
        """See `protocols.turns.Turns.history`."""
        return await self._book.turns.history(episode, newest)


@dataclass(frozen=True)
class Prompts:
    """One question, again and again."""

    def environment(self, key: PromptKey) -> str:
        """Return the only environment."""
        return ENVIRONMENT

    async def record(self, key: PromptKey) -> Mapping[str, object]:
        """Return the answer."""
        return {"answer": RESULT}

    async def messages(self, key: PromptKey) -> Sequence[Mapping[str, str]]:
        """Return the question."""
        return [{"role": "user", "content": PHRASING.format(expression=QUESTION)}]


class Launching:
    """A replica of episodes whose launches and ends are noted."""

    def __init__(self, replica: EpisodeReplica, watch: Watch) -> None:
        self._replica = replica
        self._watch = watch

    async def submit(self, term: int, requests: Sequence[GenerateRequest]) -> None:
        """See `protocols.Replica.submit`."""
        self._watch.launch(requests)
        await self._replica.submit(term, requests)

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        """See `protocols.Replica.poll`."""
        report = await self._replica.poll(term, after, wait_seconds)
        for delta in report.deltas:
            if delta.finish_reason is not None:
                self._watch.ended(delta.key.prompt)
        return report
