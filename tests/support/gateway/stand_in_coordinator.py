"""Stand-in coordinator: `Turns` over the real tree of turns, with an engine that records what it emits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rljob_runtime.protocols.errors import PeerGone, PeerTimeout
from rljob_runtime.protocols.trajectory import FinishReason, PromptKey, TrajectoryKey
from rljob_runtime.protocols.turns import (
    AttemptEnded,
    EpisodeAttempt,
    RecordedTurn,
    StoredTurn,
    TurnCall,
    TurnRefused,
)
from rljob_runtime.scheduling.episodes.episode import Episode, EpisodeRules
from rljob_runtime.scheduling.episodes.node import Node
from rljob_runtime.scheduling.episodes.sequences import training_sequences
from rljob_runtime.scheduling.episodes.turns import Diverged, Generate, InProgress, Recorded, Refused, TurnRequest
from tests.support.gateway.light_tokenizer import LightTokenizer

VERSION = 7
STORED_AT = 1_700_000_000.5

Script = Callable[[str, int], str]
"""What the model says: from the prompt's text and the number of turns before."""


def attempt_of(index: int = 0, attempt: int = 1, source: str = "") -> EpisodeAttempt:
    return EpisodeAttempt(TrajectoryKey(PromptKey(0, index, source), 0), attempt)


@dataclass
class RecordingEngine:
    """An engine that says what its script says, in tokens that no encoder writes, and records them."""

    tokenizer: LightTokenizer
    script: Script
    emitted: list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]] = field(default_factory=list)
    """Prompt, tokens and logprobs of each turn."""

    def answer(self, call: TurnCall) -> tuple[tuple[int, ...], tuple[float, ...], FinishReason]:
        prompt = tuple(call.token_ids)
        said = self.tokenizer.spelled(self.script(self.tokenizer.decode(prompt), len(self.emitted)))
        tokens, finish = [*said, self.tokenizer.end], FinishReason.STOP
        for count in range(1, len(said) + 1):
            text = self.tokenizer.decode(said[:count])
            if said[count - 1] in call.bounds.stop_token_ids or any(stop in text for stop in call.bounds.stop_strings):
                tokens = said[:count]
                break
        if len(tokens) > call.bounds.max_tokens:
            tokens, finish = tokens[: call.bounds.max_tokens], FinishReason.LENGTH
        logprobs = tuple(-(1 + index) / 64 for index in range(len(tokens)))
        self.emitted.append((prompt, tuple(tokens), logprobs))
        return tuple(tokens), logprobs, finish


@dataclass
class StandInCoordinator:
    """The coordinator's side. `weights` unset: engines load.

    `faults`: what the next calls raise. `PeerTimeout` comes after the turn was stored, `PeerGone` before it was asked.
    """

    engine: RecordingEngine
    rules: EpisodeRules = field(default_factory=EpisodeRules)
    episodes: dict[EpisodeAttempt, Episode] = field(default_factory=dict)
    stored: dict[EpisodeAttempt, list[StoredTurn]] = field(default_factory=dict)
    calls: list[TurnCall] = field(default_factory=list)
    faults: list[Exception] = field(default_factory=list)
    histories: int = 0
    weights: asyncio.Event = field(default_factory=asyncio.Event)
    _committed: dict[tuple[EpisodeAttempt, int], asyncio.Event] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.weights.set()

    def start(self, episode: EpisodeAttempt) -> Episode:
        self.stored[episode] = []
        self.episodes[episode] = Episode(self.rules, 0.0)
        return self.episodes[episode]

    def go_back(self, episode: EpisodeAttempt, turns: int) -> None:
        """Forget what came after the first turns of an attempt without forks."""
        kept = self.stored[episode][:turns]
        nodes = self.episodes[episode].nodes
        sampled = {one.turn.node for one in kept}
        there = sorted(sampled | {nodes[one].parent for one in sampled})
        self.stored[episode] = kept
        self.episodes[episode] = Episode(self.rules, 0.0, [nodes[one] for one in there])

    async def turn(self, call: TurnCall) -> RecordedTurn:
        self.calls.append(call)
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, PeerGone):
            raise fault
        turn = await self._turn(self._episode(call.episode), call)
        if isinstance(fault, PeerTimeout):
            raise fault
        return turn

    async def history(self, episode: EpisodeAttempt, newest: bool = False) -> Sequence[StoredTurn]:
        self.histories += 1
        self._episode(episode)
        return tuple(self.stored[episode][-1:] if newest else self.stored[episode])

    def loss_tokens(self, episode: EpisodeAttempt) -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]]:
        """Return what would be trained on: context, tokens and logprobs of each span with a loss."""
        found = []
        for sequence in training_sequences(self.episodes[episode].tree):
            before: list[int] = []
            for span in sequence.spans:
                before += span.given
                found.append((tuple(before), tuple(span.node.token_ids), tuple(span.node.logprobs)))
                before += span.node.token_ids
        return found

    def _episode(self, key: EpisodeAttempt) -> Episode:
        found = self.episodes.get(key)
        if found is None or found.end is not None:
            raise AttemptEnded(f"{key} has ended")
        return found

    async def _turn(self, episode: Episode, call: TurnCall) -> RecordedTurn:
        forks = episode.stats.forks
        match episode.open(TurnRequest(call.token_ids, call.digest, call.retry), now=1.0):
            case Refused(reason) | Diverged(reason):
                raise TurnRefused(reason)
            case Recorded(node):
                return _recorded(node, replayed=True)
            case InProgress(turn):
                await self._committed[call.episode, turn.id].wait()
                return _recorded(episode.nodes[turn.id], replayed=True)
            case Generate(turn):
                forked = episode.stats.forks > forks
                done = self._committed[call.episode, turn.id] = asyncio.Event()
                await self.weights.wait()
                tokens, logprobs, finish = self.engine.answer(call)
                episode.commit(turn.id, tokens, logprobs, VERSION, finish)
                recorded = _recorded(episode.nodes[turn.id], forked=forked)
                self.stored[call.episode].append(StoredTurn(tuple(call.token_ids), call.body, recorded))
                done.set()
                return recorded


def _recorded(node: Node, forked: bool = False, replayed: bool = False) -> RecordedTurn:
    assert node.version is not None
    assert node.finish is not None
    return RecordedTurn(
        node.id, node.token_ids, node.logprobs, node.version, node.finish, STORED_AT, forked, replayed
    )  # fmt: skip
