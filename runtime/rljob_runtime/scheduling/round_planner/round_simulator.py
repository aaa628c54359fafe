"""Round simulator: simulates one round on the performance model and returns when each group completes.

The rules are those of `round.Round` and `response_placement.spread`, with known lengths and a constant reward delay.
The first R0 responses of a prompt take its places, the first P0 prompts end the round, the rest is aborted, and a
filtered prompt is replaced. Unlike in a real round, prompts that lost run until the last reward arrives, which costs
tokens but no time.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from rljob_runtime.perf_model.engine_records import Request
from rljob_runtime.perf_model.engine_simulator import EngineSimulator
from rljob_runtime.perf_model.latency_model import LatencyModel


@dataclass(frozen=True)
class EngineFleet:
    """The generating machines: `replicas` engines with one latency model and KV cache size."""

    latency: LatencyModel
    replicas: int
    kv_tokens: int
    max_sequences: int = 1024

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ValueError(f"replicas is {self.replicas}; 1 or more would be right")


@dataclass(frozen=True)
class PromptDemand:
    """A prompt: its tokens, and the length of every launched response.

    `filtered`: its rewards will be equal, so another prompt replaces it."""

    prompt_tokens: int
    lengths: tuple[int, ...]
    filtered: bool = False

    def first(self, responses: int) -> PromptDemand:
        """Keep the first responses only."""
        return PromptDemand(self.prompt_tokens, self.lengths[:responses], self.filtered)


@dataclass(frozen=True)
class CompletedGroup:
    """A group that won.

    `prompt`: its index. `time`: arrival of its last reward. `tokens`: those of its responses, each with its prompt."""

    prompt: int
    time: float
    tokens: int


@dataclass(frozen=True)
class SimulatedRound:
    """Result of a simulated round.

    `groups`: the trained groups in order of completion. `lost`: requeued prompts. `stopped`: tokens of aborted
    responses by (prompt, sample). `events`: simulated engine events, the cost of the simulation."""

    groups: tuple[CompletedGroup, ...]
    lost: tuple[int, ...]
    stopped: dict[tuple[int, int], int]
    preemptions: int
    events: int

    @property
    def seconds(self) -> float:
        """Seconds until the last trained group."""
        return self.groups[-1].time


class TooManyEvents(Exception):
    """The simulation would exceed its event limit."""


def simulate_round(
    fleet: EngineFleet,
    demands: Sequence[PromptDemand],
    runners: int,
    groups: int,
    group_size: int,
    reward_seconds: float = 0.0,
    most_events: float = math.inf,
) -> SimulatedRound:
    """Simulate a round that keeps `groups` x `group_size`.

    `runners` prompts run simultaneously: the first ones, then replacements of filtered ones; without replacements
    filtered ones are kept. `reward_seconds`: from a response's end to its reward. Raises `ValueError` if a response
    does not fit the KV cache or the round keeps more than it launches, and `TooManyEvents` after `most_events`."""
    if not 1 <= groups <= runners <= len(demands) or any(len(one.lengths) < group_size for one in demands):
        raise ValueError(
            f"{groups} x {group_size} of {runners} of {len(demands)} prompts: a round keeps no more than it launches"
        )
    return _RoundSimulation(fleet, demands, group_size, reward_seconds, most_events).run(runners, groups)


class _RoundSimulation:
    def __init__(
        self,
        fleet: EngineFleet,
        demands: Sequence[PromptDemand],
        group_size: int,
        reward_seconds: float,
        most_events: float,
    ) -> None:
        self._asked = demands
        self._group_size = group_size
        self._reward_seconds = reward_seconds
        self._most_events = most_events
        self._engines = [
            EngineSimulator(fleet.latency, fleet.kv_tokens, fleet.max_sequences) for _ in range(fleet.replicas)
        ]
        self._due = [math.inf] * fleet.replicas
        self._boundaries: list[tuple[float, int]] = []
        """Heap of (time, engine); stale if the time differs from the engine's `_due`."""
        self._load = [0] * fleet.replicas
        self._places: list[list[int]] = [[] for _ in demands]
        """Samples by prompt, in order of completion."""
        self._running: list[dict[int, int]] = [{} for _ in demands]
        """Engine by sample, by prompt."""
        self._rewards: list[tuple[float, int]] = []
        """Heap of (time, prompt): arrival of the last reward of its places."""
        self._stopped: dict[tuple[int, int], int] = {}
        self._dropped: set[int] = set()
        self._launched = 0
        self._events = 0

    def run(self, runners: int, groups: int) -> SimulatedRound:
        self._launch(runners, 0.0)
        won: list[CompletedGroup] = []
        while len(won) < groups:
            due = self._boundaries[0][0] if self._boundaries else math.inf
            if self._rewards and self._rewards[0][0] <= due:
                time, prompt = heapq.heappop(self._rewards)
                if self._asked[prompt].filtered and self._launched < len(self._asked):
                    self._dropped.add(prompt)
                    self._collect(self._launch(1, time), time)
                else:
                    won.append(self._whole(prompt, time))
            else:
                time, engine = heapq.heappop(self._boundaries)
                if time == self._due[engine]:
                    if self._events >= self._most_events:
                        raise TooManyEvents(f"more than {self._most_events} events")
                    self._events += 1
                    self._collect({engine}, time)
        return self._end(won)

    def _end(self, won: list[CompletedGroup]) -> SimulatedRound:
        end, settled = won[-1].time, {group.prompt for group in won} | self._dropped
        for prompt in range(self._launched):
            self._abort(prompt, end)
        lost = tuple(prompt for prompt in range(self._launched) if prompt not in settled)
        preemptions = sum(engine.load(end).preemptions for engine in self._engines)
        return SimulatedRound(tuple(won), lost, self._stopped, preemptions, self._events)

    def _whole(self, prompt: int, time: float) -> CompletedGroup:
        one = self._asked[prompt]
        kept = [one.lengths[sample] for sample in self._places[prompt]]
        return CompletedGroup(prompt, time, sum(kept) + one.prompt_tokens * len(kept))

    def _launch(self, count: int, time: float) -> set[int]:
        """Launch prompts on the engines with the lowest load, as `spread` does.

        Returns the engines that received some."""
        requests: dict[int, list[Request]] = {}
        emptiest = [(load, engine) for engine, load in enumerate(self._load)]
        heapq.heapify(emptiest)
        for prompt in range(self._launched, self._launched + count):
            one = self._asked[prompt]
            for sample, length in enumerate(one.lengths):
                load, engine = emptiest[0]
                heapq.heapreplace(emptiest, (load + 1, engine))
                self._load[engine] += 1
                self._running[prompt][sample] = engine
                requests.setdefault(engine, []).append(Request((prompt, sample), one.prompt_tokens, length))
        self._launched += count
        for engine, its in requests.items():
            self._engines[engine].submit(time, its)
            self._look_at(engine)
        return set(requests)

    def _look_at(self, engine: int) -> None:
        due = self._engines[engine].next_event
        if due != self._due[engine]:
            self._due[engine] = due
            if due < math.inf:
                heapq.heappush(self._boundaries, (due, engine))

    def _collect(self, engines: set[int], time: float) -> None:
        """Collect completed responses. Aborts advance further engines to `time`, which may complete more responses."""
        while engines:
            engine = engines.pop()
            for finish in self._engines[engine].advance(time):
                prompt, sample = cast(tuple[int, int], finish.id)
                if self._running[prompt].pop(sample, None) is not None:
                    self._load[engine] -= 1
                    self._places[prompt].append(sample)
                    if len(self._places[prompt]) == self._group_size:
                        heapq.heappush(self._rewards, (time + self._reward_seconds, prompt))
                        engines |= self._abort(prompt, time)
            self._look_at(engine)

    def _abort(self, prompt: int, time: float) -> set[int]:
        """Stop the running responses of a prompt, those of an engine in one call. Returns their engines."""
        stopped: dict[int, list[int]] = {}
        for sample, engine in self._running[prompt].items():
            stopped.setdefault(engine, []).append(sample)
        self._running[prompt] = {}
        for engine, samples in stopped.items():
            self._load[engine] -= len(samples)
            left = self._engines[engine].abort(time, [(prompt, sample) for sample in samples])
            tokens = {request.id: request.generated_tokens for request in left}
            for sample in samples:
                complete = self._asked[prompt].lengths[sample]
                self._stopped[prompt, sample] = tokens.get((prompt, sample), complete)
        return set(stopped)
