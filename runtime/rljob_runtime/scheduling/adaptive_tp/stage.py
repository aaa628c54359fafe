"""Generation stage: one machine's responses of known lengths on simulated engines, with switches of its size.

The engines are those of the round simulator, so waiting, prefill and preemptions are included. A switch happens when a
response ends: all engines stop after their step, the cost passes, and the responses continue on the engines of the
other size. Their KV arrives by migration or is recomputed; either is part of the cost. In a race, responses whose group
has all of its places taken are stopped, and the last complete group that counts ends the stage.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rljob_runtime.perf_model.engine_records import Request
from rljob_runtime.perf_model.engine_simulator import EngineSimulator
from rljob_runtime.scheduling.adaptive_tp.packing import pack
from rljob_runtime.scheduling.adaptive_tp.policy import LookCadence
from rljob_runtime.scheduling.adaptive_tp.snapshot import MachineSnapshot, Running, SizedEngine
from rljob_runtime.scheduling.adaptive_tp.switch_costs import PairCost, carried_by
from rljob_runtime.scheduling.lending.gain import OpenGroup
from rljob_runtime.scheduling.round_planner.survival import Survival


@dataclass(frozen=True)
class Asked:
    """A response to generate: tokens of its prompt, and of itself at its end. `group`: its prompt in a race."""

    prompt_tokens: int
    tokens: int
    group: int = 0


@dataclass(frozen=True)
class Race:
    """A stage that keeps the first `group_size` responses of the first `groups` complete groups."""

    groups: int
    group_size: int


@dataclass(frozen=True)
class MadeSwitch:
    """A switch: when, between which sizes, with how many responses, and what it took."""

    at: float
    start: int
    target: int
    responses: int
    seconds: float


@dataclass(frozen=True)
class StageResult:
    """Seconds until the last response, and the switches."""

    seconds: float
    switches: tuple[MadeSwitch, ...] = ()
    preemptions: int = 0


class Stage:
    """A running stage, as a policy sees it. Lists are those of the stage: do not change them.

    `now`: seconds since its start. `ended`: lengths of the responses that ended."""

    def __init__(
        self, play: _Play, tensor_parallel: int, now: float, ended: list[int], switches: list[MadeSwitch]
    ) -> None:
        self._play = play
        self.tensor_parallel = tensor_parallel
        self.accelerators = play.accelerators
        self.now = now
        self.total = play.total
        self.ended = ended
        self.switches = switches

    @cached_property
    def replicas(self) -> list[list[Running]]:
        """Running responses by replica."""
        return self._play.running()

    @cached_property
    def waiting(self) -> int:
        """Number of responses that wait for an engine."""
        return self._play.waiting()

    def snapshot(self, past: Sequence[int], cut: Sequence[int], max_tokens: int) -> MachineSnapshot:
        """Return the machine for `policy.decide`. `past`: complete lengths of earlier rounds; `cut`: stopped ones."""
        running = [response.generated for replica in self.replicas for response in replica]
        return MachineSnapshot(
            tensor_parallel=self.tensor_parallel,
            accelerators=self.accelerators,
            replicas=tuple(map(tuple, self.replicas)),
            lengths=Survival([*past, *self.ended], [*cut, *self._play.stopped, *running]),
            max_tokens=max_tokens,
            queued=self.waiting,
            groups=[OpenGroup(missing) for missing in self._play.missing],
            wanted=self._play.wanted,
            switches=len(self.switches),
        )


Chooser = Callable[[Stage], int | None]
"""The size to switch to now, or None."""


def generate(
    asked: Sequence[Asked],
    size: int,
    engines: Mapping[int, SizedEngine],
    accelerators: int,
    costs: Mapping[tuple[int, int], PairCost],
    choose: Chooser | None = None,
    race: Race | None = None,
) -> StageResult:
    """Play a stage that starts with this size. `choose` is asked at each look.

    `race`: what it keeps; None for all. Raises `ValueError` if it keeps more than it launches."""
    return _Play(asked, size, engines, accelerators, costs, race).run(choose)


class _Play:
    def __init__(
        self,
        asked: Sequence[Asked],
        size: int,
        engines: Mapping[int, SizedEngine],
        accelerators: int,
        costs: Mapping[tuple[int, int], PairCost],
        race: Race | None,
    ) -> None:
        self._asked = asked
        self.total = len(asked) if race is None else race.groups * race.group_size
        """Responses that the stage keeps."""
        self.wanted = race.groups if race is not None else 0
        self.stopped: list[int] = []
        """Tokens of the responses that lost their places."""
        self._unfinished: list[set[int]] = []
        """In a race, by group."""
        self.missing: list[int] = []
        """In a race, free places by group."""
        self._open = len(asked)
        if race is not None:
            self._unfinished = _by_group(asked)
            self.missing = [race.group_size] * len(self._unfinished)
            if sum(len(group) >= race.group_size for group in self._unfinished) < race.groups:
                raise ValueError(f"{race} of {len(self._unfinished)} groups: a race keeps no more than it launches")
        self._engines = engines
        self.accelerators = accelerators
        self._costs = costs
        self._size = size
        self._now = 0.0
        self._ended: list[int] = []
        self._switches: list[MadeSwitch] = []
        self._preemptions = 0
        self._made = self._build(0.0)
        loads: list[list[Request]] = [[] for _ in self._made]
        for number, one in enumerate(asked):
            loads[number % len(loads)].append(Request(number, one.prompt_tokens, one.tokens))
        self._submit(loads, 0.0)

    def run(self, choose: Chooser | None) -> StageResult:
        looks = LookCadence()
        while self._open:
            self._now = min(engine.next_event for engine in self._made)
            # Responses of several engines may end together: a switch that follows must not take one for unfinished.
            due = [engine for engine in self._made if engine.next_event <= self._now]
            ended = [one for engine in due for one in engine.advance(self._now)]
            self._end([int(str(one.id)) for one in ended])
            if choose is None or not ended or not self._open:
                continue
            if looks.is_due(len(self._ended), self.total, self._now):
                target = choose(Stage(self, self._size, self._now, self._ended, self._switches))
                if target is not None and target != self._size:
                    self._switch(target)
        return StageResult(self._now, tuple(self._switches), self._preemptions + self._preempted())

    def _end(self, ended: Sequence[int]) -> None:
        """Count responses that ended, and stop those that have lost their places to them."""
        self._ended += [self._asked[number].tokens for number in ended]
        self._open -= len(ended)
        if not self.missing:
            return
        for number in ended:
            self._unfinished[self._asked[number].group].discard(number)
        for number in ended:
            group = self._asked[number].group
            self.missing[group] = max(0, self.missing[group] - 1)
            if not self.missing[group]:
                self._stop(group)
        if self.missing.count(0) >= self.wanted:
            self._open = 0

    def _stop(self, group: int) -> None:
        losers, self._unfinished[group] = self._unfinished[group], set()
        for engine in self._made:
            self.stopped += [one.generated_tokens for one in engine.abort(self._now, sorted(losers))]
        self._open -= len(losers)

    def _build(self, now: float) -> list[EngineSimulator]:
        engine = self._engines[self._size]
        count = self.accelerators // self._size
        kv_tokens, most = engine.kv_tokens, engine.max_running
        return [EngineSimulator(engine.latency, kv_tokens, max_sequences=most, now=now) for _ in range(count)]

    def _submit(self, loads: Sequence[Sequence[Request]], now: float) -> None:
        for engine, load in zip(self._made, loads, strict=True):
            engine.submit(now, load)

    def _preempted(self) -> int:
        return sum(engine.load(self._now).preemptions for engine in self._made)

    def running(self) -> list[list[Running]]:
        """Return the running responses by replica."""
        return [
            [self._described(number, made) for number, made in engine.progress(self._now).items()]
            for engine in self._made
        ]

    def waiting(self) -> int:
        """Return the number of responses that wait for an engine."""
        return sum(engine.load(self._now).waiting for engine in self._made)

    def _described(self, number: Hashable, generated: int) -> Running:
        asked = self._asked[int(str(number))]
        return Running(asked.prompt_tokens, generated, asked.group)

    def _switch(self, target: int) -> None:
        left = [
            request for engine in self._made for request in engine.abort(self._now, list(engine.progress(self._now)))
        ]
        self._preemptions += self._preempted()
        carried = carried_by(map(self._packed, left))
        seconds = self._costs[self._size, target].seconds(carried)
        self._switches.append(MadeSwitch(self._now, self._size, target, len(left), seconds))
        self._size, start = target, self._now + seconds
        self._made = self._build(start)
        self._submit(self._loads(left), start)

    def _loads(self, left: Sequence[Request]) -> Sequence[Sequence[Request]]:
        """Pack the requests; their KV is present, as its way there is part of the cost."""
        requests = [
            Request(
                request.id,
                request.prompt_tokens,
                request.response_tokens,
                request.generated_tokens,
                request.context_tokens,
            )
            for request in left
        ]
        return pack(requests, len(self._made), self._packed)

    def _packed(self, request: Request) -> Running:
        """Describe a request. Without a race each is its own group: those of a stage are no siblings."""
        number = int(str(request.id))
        group = self._asked[number].group if self.missing else number
        return Running(request.prompt_tokens, request.generated_tokens, group)


def _by_group(asked: Sequence[Asked]) -> list[set[int]]:
    """Return the numbers of the responses of each group."""
    groups: list[set[int]] = [set() for _ in range(1 + max(one.group for one in asked))]
    for number, one in enumerate(asked):
        groups[one.group].add(number)
    return groups
