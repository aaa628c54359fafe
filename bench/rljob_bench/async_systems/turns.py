"""Engines whose responses have several turns: between two of them a response waits for its tools, outside.

A turn's answers join the context, and the next turn is a request for the engine with all of it. The keys and values of
a response that waits stay where they are while the cache has room for them beside what runs, as in an engine with a
prefix cache; otherwise its context is computed again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count

from rljob_runtime.perf_model.engine_records import EngineLoad, Finish, Request
from rljob_runtime.perf_model.engine_simulator import EngineSimulator
from rljob_runtime.workloads.workload import Turn


@dataclass(frozen=True, slots=True)
class Stretch:
    """A turn as a stretch of its response. `begin`: tokens of the response before it, those of tools included.

    `seconds`: until its tools have answered."""

    begin: int
    tokens: int
    seconds: float = 0.0

    @property
    def end(self) -> int:
        """Tokens of the response when it has been generated."""
        return self.begin + self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRequest(Request):
    """A response of several turns. Its `response_tokens` and `generated_tokens` include those of tools."""

    turns: tuple[Stretch, ...]
    due: float = 0.0
    """When the tools of its last complete turn answer. It means nothing in the middle of a turn."""


def stretches(turns: Sequence[Turn], longest: int) -> tuple[Stretch, ...]:
    """Return the turns of a response of at most `longest` tokens. It ends with the turn that leaves no room."""
    made: list[Stretch] = []
    begin = 0
    for turn in turns:
        made.append(Stretch(begin, min(turn.tokens, longest - begin), turn.tool_seconds))
        begin += turn.tokens + turn.tool_tokens
        if begin >= longest:
            break
    return tuple(made)


@dataclass(slots=True, eq=False)
class _Episode:
    """A response on this engine. `turn`: the one that it generates, or that its tools precede."""

    request: EpisodeRequest
    turn: int
    due: float = 0.0
    outside: bool = False
    cached: int = 0
    """Tokens of its context that this engine has computed, while it waits outside."""

    @property
    def stretch(self) -> Stretch:
        return self.request.turns[self.turn]

    @property
    def before(self) -> int:
        """Tokens of its response when it began to wait."""
        return self.request.turns[self.turn - 1].end

    def generated(self, current: int) -> int:
        """Return its generated tokens. `current`: those of the turn that it generates."""
        return sum(one.tokens for one in self.request.turns[: self.turn]) + current


class TurnEngine:
    """An `EngineSimulator` that also takes `EpisodeRequest`s. It is exact between events, as that is."""

    def __init__(self, engine: EngineSimulator) -> None:
        self._engine = engine
        self._episodes: dict[Hashable, _Episode] = {}
        self._returns: list[tuple[float, int, _Episode]] = []
        """Heap of (due, place, episode); stale where the episode has left."""
        self._places = count()
        self._held = 0
        """Tokens in the cache of episodes that wait outside."""
        self._told: list[Finish] = []

    def submit(self, now: float, requests: Iterable[Request]) -> None:
        """See `EngineSimulator.submit`."""
        self._run_to(now)
        ready: list[Request] = []
        for request in requests:
            if not isinstance(request, EpisodeRequest):
                ready.append(request)
                continue
            # Where its tokens are those of complete turns it may wait for tools.
            turn = next(place for place, one in enumerate(request.turns) if one.end > request.generated_tokens)
            episode = self._episodes[request.id] = _Episode(request, turn)
            if turn and request.generated_tokens <= episode.stretch.begin and request.due > now:
                self._wait(episode, request.due)
            else:
                ready.append(self._request(episode, max(0, request.generated_tokens - episode.stretch.begin)))
        self._engine.submit(now, ready)

    def abort(self, now: float, ids: Iterable[Hashable]) -> list[Request]:
        """See `EngineSimulator.abort`."""
        self._run_to(now)
        leaving = list(ids)
        aborted = {one.id: one for one in self._engine.abort(now, leaving)}
        taken: list[Request] = []
        for name in leaving:
            if (episode := self._episodes.pop(name, None)) is None:
                taken += [aborted[name]] if name in aborted else []
                continue
            if episode.outside:
                self._held -= episode.cached
                tokens = episode.before
            else:
                tokens = episode.stretch.begin + aborted[name].generated_tokens
            taken.append(replace(episode.request, generated_tokens=tokens, due=episode.due))
        return taken

    def advance(self, now: float) -> list[Finish]:
        """See `EngineSimulator.advance`."""
        self._run_to(now)
        told, self._told = self._told, []
        return told

    @property
    def next_event(self) -> float:
        """When `advance` may next return something, or a response comes back from its tools."""
        while self._returns and self._episodes.get(self._returns[0][2].request.id) is not self._returns[0][2]:
            heapq.heappop(self._returns)
        due = self._returns[0][0] if self._returns else math.inf
        return min(due, self._engine.next_event)

    def progress(self, now: float) -> dict[Hashable, int]:
        """Return the generated tokens of every response at `now`, without those of tools."""
        self._run_to(now)
        running = self._engine.progress(now)
        if not self._episodes:
            return running
        plain = {name: tokens for name, tokens in running.items() if name not in self._episodes}
        return plain | {name: one.generated(running.get(name, 0)) for name, one in self._episodes.items()}

    def load(self, now: float) -> EngineLoad:
        """Return the metrics at `now`. Responses that wait for tools are not in them."""
        self._run_to(now)
        return self._engine.load(now)

    # --- between events ---

    def _run_to(self, now: float) -> None:
        while self._episodes and (time := self.next_event) <= now:
            self._take(self._engine.advance(time))
            back: list[_Episode] = []
            while self._returns and self._returns[0][0] <= time:
                back.append(heapq.heappop(self._returns)[2])
            # Episodes that come back at the same moment share a prefill pass.
            here = (one for one in back if self._episodes.get(one.request.id) is one)
            self._engine.submit(time, [self._back(one, time) for one in here])
        self._take(self._engine.advance(now))

    def _take(self, finished: Iterable[Finish]) -> None:
        for finish in finished:
            episode = self._episodes.get(finish.id)
            if episode is None:
                self._told.append(finish)
            elif episode.turn + 1 == len(episode.request.turns):
                del self._episodes[finish.id]
                self._told.append(finish)
            else:
                episode.turn += 1
                episode.cached = episode.request.prompt_tokens + episode.before
                self._wait(episode, finish.time + episode.request.turns[episode.turn - 1].seconds)

    def _wait(self, episode: _Episode, due: float) -> None:
        episode.due, episode.outside = due, True
        self._held += episode.cached
        heapq.heappush(self._returns, (due, next(self._places), episode))

    def _back(self, episode: _Episode, now: float) -> Request:
        """Return the request of an episode whose tools have answered."""
        fits = self._engine.load(now).kv_tokens + self._held <= self._engine.kv_tokens
        self._held -= episode.cached
        episode.outside = False
        return self._request(episode, 0, episode.cached if fits else 0)

    def _request(self, episode: _Episode, generated: int, cached: int = 0) -> Request:
        """Return the request of the episode's turn."""
        stretch = episode.stretch
        return Request(
            episode.request.id, episode.request.prompt_tokens + stretch.begin, stretch.tokens, generated, cached
        )
