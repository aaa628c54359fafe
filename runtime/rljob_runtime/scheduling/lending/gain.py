"""What a loan of rollout machines would bring: predicted seconds, from what this run has measured and nothing else.

Two programs of the same model are compared, with the loan and without. Generation: every engine makes a token of each
of its responses a step, a step takes what `perf_model` fitted to this run's engines, and the round's race is played at
both levels: the first R0 responses of a prompt take its places, the first groups that are whole end the round, and what
lost is aborted. Lengths are drawn, the same for both: a round ends with its longest responses, and if each ended at
what is expected of it, all would end long before. Training: whole groups come in and are worked off at the measured
seconds a token, by the trainer or by it and the lent machines together. What moves is computed anew first; what the
lent machines summed has to be brought to the trainer. Where nothing was measured the assumption is the one that speaks
against a loan.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import inf
from random import Random
from statistics import fmean

from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.scheduling.lending.policy import ExpectedLengths, LoanableMachine, Unfinished
from rljob_runtime.scheduling.round_planner.survival import LengthObservation

LENGTHS_KEPT = 4096
"""The fewest, of whole rounds: enough for a distribution, few enough to look through at every decision."""
SUM_WIDTH = 2
"""A sum's bytes (fp32) over a weight's (bfloat16). Weights of fp32 are as wide: there it speaks against a loan."""

Arrival = tuple[float, int]
"""A group that is whole: seconds from now, and its loss tokens."""


@dataclass(frozen=True)
class EngineSpeed:
    """Seconds of an engine's steps. The law holds between the smallest and the largest batch that were seen; outside,
    an engine makes as many tokens a second as at the nearest one."""

    latency: LatencyModel
    least: int
    most: int

    def decode(self, running: int, context_tokens: float, steps: float) -> float:
        """Seconds of `steps` in a row, in which each of `running` responses gains a token; `context_tokens`: what all
        of them hold before the first."""
        seen = min(max(running, self.least), self.most)
        grown = context_tokens + running * steps / 2
        return steps * (self.latency.base(seen) * running / seen + self.latency.context_token_seconds * grown)

    @property
    def prompt_token(self) -> float:
        """Seconds to compute a token anew; where no prefill was seen, what the largest batch takes to make one, which
        is longer."""
        return self.latency.prefill_token_seconds or self.decode(self.most, 0, 1) / self.most


class Rate:
    """Seconds a unit, over everything measured."""

    def __init__(self) -> None:
        self._units = self._seconds = 0.0

    def record(self, units: float, seconds: float) -> None:
        """So many took so long. Nothing that was done tells nothing."""
        if units > 0:
            self._units += units
            self._seconds += seconds

    @property
    def seconds(self) -> float | None:
        """Of one; None before anything was measured."""
        return self._seconds / self._units if self._units else None


class LoanMeasurements:
    """What a run has measured so far. `workers_per_trainer`: how many lent machines do the trainer's work in its time,
    which is believed until a worker was measured."""

    def __init__(self, workers_per_trainer: float = 1.0) -> None:
        self.training = Rate()
        """Loss tokens, by the trainer with no machine on loan."""
        self.with_loan = Rate()
        """The same, beside lent machines: they may want the trainer's processors, or its links."""
        self.loaned = Rate()
        """Loss tokens, by a lent machine."""
        self.transfer = Rate()
        """Contributions brought to the trainer and added, or given up."""
        self.broadcast = Rate()
        """Versions on their way from the trainer's memory to all relays, over the links that contributions take."""
        self._rounds: deque[tuple[LengthObservation, ...]] = deque()
        self._workers_per_trainer = workers_per_trainer

    @property
    def lengths(self) -> tuple[LengthObservation, ...]:
        """Of responses of the rounds before, stopped ones among them."""
        return tuple(chain.from_iterable(self._rounds))

    def record_lengths(self, seen: Iterable[LengthObservation]) -> None:
        """Of all responses of a round. Rounds are forgotten whole: without those that ended, the ones that were stopped
        would make every length look long."""
        self._rounds.append(tuple(seen))
        while sum(map(len, self._rounds)) - len(self._rounds[0]) >= LENGTHS_KEPT:
            self._rounds.popleft()

    @property
    def with_loan_token(self) -> float | None:
        """Seconds a loss token by the trainer beside lent machines: as it was measured, before that as alone."""
        seconds = self.with_loan.seconds
        return seconds if seconds is not None else self.training.seconds

    @property
    def contribution(self) -> float | None:
        """Seconds to bring what one machine has summed: as measured, before that by its size beside a version's."""
        if (seconds := self.transfer.seconds) is not None:
            return seconds
        version = self.broadcast.seconds
        return None if version is None else version * SUM_WIDTH

    @property
    def loaned_token(self) -> float | None:
        """Seconds a loss token on a lent machine."""
        if (seconds := self.loaned.seconds) is not None:
            return seconds
        trainer = self.training.seconds
        return None if trainer is None else trainer * self._workers_per_trainer


@dataclass(frozen=True)
class OpenGroup:
    """A prompt that may still become whole: places of its group that nobody has yet, and the loss tokens of those that
    are taken."""

    missing: int
    tokens: int = 0


@dataclass(frozen=True)
class RoundSnapshot:
    """A round under way. `Unfinished.group` is a place in `groups`; the round keeps the first `wanted` of them that
    become whole. `backlog`: loss tokens of whole groups whose gradients nobody has computed yet. `speed`: of the
    engines; None before they were seen at work."""

    machines: Sequence[LoanableMachine]
    waiting: Sequence[Unfinished]
    lengths: ExpectedLengths
    groups: Sequence[OpenGroup]
    wanted: int
    backlog: int
    speed: EngineSpeed | None

    @property
    def unfinished(self) -> int:
        """How many responses are to be generated, or to be generated on."""
        return len(self.waiting) + sum(len(machine.unfinished) for machine in self.machines)

    @property
    def ends_early(self) -> bool:
        """Whether the round ends before all of them have ended."""
        return self.wanted < len(self.groups) or self.unfinished > sum(group.missing for group in self.groups)


DRAWN_RESPONSES = 4096
"""Lengths that are drawn for a prediction: several times for each response where there are few of them, …"""
MOST_DRAWS = 8
"""… but no more often than this."""
CLEAR_GAIN = 0.05
"""Of the time that is left: a smaller gain is within what predictions are off, and a loan that does not pay costs as
much (simulated on recorded lengths)."""


def predicted_gain(outlook: RoundSnapshot, loan: Sequence[str], measured: LoanMeasurements) -> float:
    """Seconds by which lending these machines ends the round's training earlier; negative when it ends later, 0 when it
    is not clear which, and NaN where too little was measured to say."""
    trainer, beside, lent = measured.training.seconds, measured.with_loan_token, measured.loaned_token
    bring, speed = measured.contribution, outlook.speed
    if trainer is None or beside is None or lent is None or bring is None or speed is None:
        return float("nan")
    if not measured.lengths and not outlook.ends_early:
        return float("nan")  # it waits for its longest response, of which nobody has seen the like

    def end(machines: Sequence[LoanableMachine], homeless: Sequence[Unfinished], token: float) -> float:
        made = [EngineTimeline(load, outlook.lengths, speed) for load in loads(machines, homeless)]
        return training_end(outlook.backlog, simulate_tail(made, outlook.groups, outlook.wanted), token)

    def ends(round_: RoundSnapshot) -> tuple[float, float]:
        stay = [machine for machine in round_.machines if machine.name not in loan]
        moved = [response for machine in round_.machines if machine.name in loan for response in machine.unfinished]
        return end(round_.machines, round_.waiting, trainer), end(stay, [*round_.waiting, *moved], together)

    together = 1 / (1 / max(beside, 1e-12) + len(loan) / max(lent, 1e-12))
    draws = min(MOST_DRAWS, max(1, DRAWN_RESPONSES // max(1, outlook.unfinished)))
    found = [ends(with_drawn_lengths(outlook, Random(draw))) for draw in range(draws)]
    alone = fmean(before for before, _ in found)
    gain = alone - fmean(after for _, after in found) - len(loan) * bring
    return 0.0 if 0 < gain < CLEAR_GAIN * alone else gain


def with_drawn_lengths(outlook: RoundSnapshot, random: Random) -> RoundSnapshot:
    """The round with a length for each response that still runs. Their shares are as far apart as they can be, so that
    every draw has as many long ones as there should be; which ones they are is chance."""
    count = outlook.unfinished
    shares = [(place + 0.5) / count for place in range(count)]
    random.shuffle(shares)

    def these(responses: Sequence[Unfinished]) -> tuple[Unfinished, ...]:
        return tuple(Unfinished(one.prompt_tokens, one.generated, one.group, shares.pop()) for one in responses)

    machines = [replace(machine, unfinished=these(machine.unfinished)) for machine in outlook.machines]
    return replace(outlook, machines=machines, waiting=these(outlook.waiting))


Load = tuple[list[Unfinished], list[Unfinished]]
"""What an engine has in its KV cache, and what comes to it from elsewhere."""


def loads(machines: Iterable[LoanableMachine], homeless: Sequence[Unfinished]) -> list[Load]:
    """Of the engines of these machines, `homeless` responses going to those with the fewest."""
    made: list[Load] = [
        (list(machine.unfinished[index :: machine.engines]), [])
        for machine in machines
        for index in range(machine.engines)
    ]
    emptiest = [(len(held), place) for place, (held, _) in enumerate(made)]
    heapq.heapify(emptiest)
    for response in homeless:
        count, place = emptiest[0]
        made[place][1].append(response)
        heapq.heapreplace(emptiest, (count + 1, place))
    return made


@dataclass(frozen=True, order=True)
class _Run:
    """`steps`: of its engine, from now to its end. `tokens`: its length then. `context`: in the KV cache now."""

    steps: float
    group: int
    tokens: int
    context: int


class EngineTimeline:
    """Responses that gain a token a step together, to the lengths of their shares. Times are seconds from now."""

    def __init__(self, load: Load, lengths: ExpectedLengths, speed: EngineSpeed) -> None:
        held, come = load
        self.runs = sorted(_run(response, lengths) for response in (*held, *come))
        """Those that end first come first."""
        self.due = inf
        """When the next one ends."""
        self._speed = speed
        self._alive = [True] * len(self.runs)
        self._next = 0
        self._running = len(self.runs)
        self._context = float(sum(runner.context for runner in self.runs))
        self._made = 0.0
        self._now = speed.prompt_token * sum(response.prompt_tokens + response.generated for response in come)
        self._look_ahead()

    def end(self) -> _Run:
        """The next one ends, at `due`."""
        runner = self.runs[self._next]
        self._go_on(self.due)
        self._leave(self._next)
        return runner

    def abort(self, place: int, now: float) -> None:
        """The runner of this place is stopped, if it runs."""
        if self._alive[place]:
            self._go_on(now)
            self._leave(place)

    def _leave(self, place: int) -> None:
        self._alive[place] = False
        self._running -= 1
        self._context -= self.runs[place].context + self._made
        self._look_ahead()

    def _go_on(self, now: float) -> None:
        """To a moment no later than `due`. Nothing is generated before what came is computed anew."""
        if now <= self._now:
            return
        steps = (self.runs[self._next].steps - self._made) * (now - self._now) / (self.due - self._now)
        self._made += steps
        self._context += steps * self._running
        self._now = now

    def _look_ahead(self) -> None:
        while self._next < len(self._alive) and not self._alive[self._next]:
            self._next += 1
        if self._next == len(self._alive):
            self.due = inf
        else:
            steps = max(0.0, self.runs[self._next].steps - self._made)
            self.due = self._now + self._speed.decode(self._running, self._context, steps)


def _run(response: Unfinished, lengths: ExpectedLengths) -> _Run:
    total = lengths.at(response.generated, response.share)
    left = max(0, total - response.generated)
    return _Run(left, response.group, total, response.prompt_tokens + response.generated)


def simulate_tail(engines: Sequence[EngineTimeline], groups: Sequence[OpenGroup], wanted: int) -> list[Arrival]:
    """The first `wanted` of `groups` that become whole, in that order. What lost its place runs no further."""
    arrivals = [(0.0, group.tokens) for group in groups if not group.missing][:wanted]
    missing = [group.missing for group in groups]
    tokens = [group.tokens for group in groups]
    runners: list[list[tuple[int, int]]] = [[] for _ in groups]
    for number, engine in enumerate(engines):
        for place, runner in enumerate(engine.runs):
            runners[runner.group].append((number, place))
    due = [(engine.due, number) for number, engine in enumerate(engines)]
    heapq.heapify(due)
    while len(arrivals) < wanted and due:
        now, number = heapq.heappop(due)
        engine = engines[number]
        if now != engine.due or now == inf:
            continue
        runner = engine.end()
        touched, group = {number}, runner.group
        missing[group] -= 1
        tokens[group] += runner.tokens
        if missing[group] == 0:
            arrivals.append((now, tokens[group]))
            for other, place in runners[group]:
                engines[other].abort(place, now)
                touched.add(other)
        for other in touched:
            heapq.heappush(due, (engines[other].due, other))
    return arrivals


def training_end(backlog: int, arrivals: Iterable[Arrival], token: float) -> float:
    """Seconds until all of it is worked off at `token` seconds each, in the order it comes.

    >>> training_end(10, [(5.0, 10), (20.0, 10)], 1.0), training_end(30, [(5.0, 10)], 1.0)
    (30.0, 40.0)
    """
    free = backlog * token
    for at, tokens in sorted(arrivals):
        free = max(free, at) + tokens * token
    return free
