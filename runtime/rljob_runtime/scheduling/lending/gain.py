"""Loan gain: predicts the seconds that a loan of rollout machines saves, from measurements of this run only.

Two schedules of the same model are compared: with the loan and without. Generation: each step of an engine adds a token
to each of its responses and takes the time that `perf_model` fitted to this run's engines. The race runs at both
levels: the first R0 responses of a prompt take its places, the first complete groups end the round, and the rest is
aborted. Lengths are drawn, equally for both schedules: a round ends with its longest responses, which expected values
would hide. Training: complete groups are processed in order at the measured seconds per token, by the trainer alone or
together with the loaned machines. Moved prefixes are computed again first, and the loaned machines' sums must be
transferred to the trainer. Without a measurement, the assumption is the one against a loan.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from statistics import fmean

from rljob_runtime.perf_model.batch_timeline import BatchTimeline, race_ends
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.outside_time import INSIDE, OutsideTime
from rljob_runtime.scheduling.lending.policy import ExpectedLengths, LoanableMachine, Unfinished
from rljob_runtime.scheduling.round_planner.survival import LengthObservation

LENGTHS_USED = 4096
"""Minimum number of lengths of earlier rounds, in complete rounds: enough for a distribution, few enough to scan at
every decision."""
SUM_WIDTH = 2
"""Bytes of a sum (fp32) over those of a weight (bfloat16). With weights of fp32 the estimate is too high, which is
against a loan."""

Arrival = tuple[float, int]
"""A complete group: seconds from now, and its loss tokens."""


@dataclass(frozen=True)
class EngineSpeed:
    """Latency of an engine.

    The model holds between the smallest and the largest observed batch; outside, tokens per second are those of the
    nearest one. `outside`: time that its responses spend outside of it."""

    latency: LatencyModel
    least: int
    most: int
    outside: OutsideTime = INSIDE

    def decode(self, running: int, context_tokens: float, steps: float) -> float:
        """Return the seconds in which each of `running` responses gets `steps` tokens.

        `context_tokens`: the total of their contexts before the first one."""
        batch = self.outside.batch(running)
        seen = min(max(batch, self.least), self.most)
        grown = self.outside.inside * (context_tokens + running * steps / 2)
        step = self.latency.base(seen) * batch / seen + self.latency.context_token_seconds * grown
        return steps * (step + self.outside.token_seconds)

    def prefill(self, contexts: Sequence[int]) -> float:
        """Return the seconds to compute contexts of these lengths, in tokens, again."""
        return self.latency.prefill(sum(contexts), sum(one * one for one in contexts)) if contexts else 0.0


class Rate:
    """Mean seconds per unit over all measurements."""

    def __init__(self) -> None:
        self._units = self._seconds = 0.0

    def record(self, units: float, seconds: float) -> None:
        """Record a measurement; 0 units are ignored."""
        if units > 0:
            self._units += units
            self._seconds += seconds

    @property
    def seconds(self) -> float | None:
        """Seconds per unit; None before the first measurement."""
        return self._seconds / self._units if self._units else None

    @property
    def sums(self) -> tuple[float, float]:
        """Units and seconds of all measurements: what a rate that goes on from here has to record."""
        return self._units, self._seconds


class LoanMeasurements:
    """Measurements of this run.

    `workers_per_trainer`: loaned machines that equal the trainer's speed, assumed until a worker was measured."""

    RATES = ("training", "with_loan", "loaned", "transfer", "broadcast")

    def __init__(self, workers_per_trainer: float = 1.0) -> None:
        self.training = Rate()
        """Loss tokens by the trainer without a loan."""
        self.with_loan = Rate()
        """Loss tokens by the trainer during a loan: loaned machines may compete for its processors or links."""
        self.loaned = Rate()
        """Loss tokens by a loaned machine."""
        self.transfer = Rate()
        """Contributions transferred to the trainer and added, or abandoned."""
        self.broadcast = Rate()
        """Versions sent from the trainer's memory to all relays, over the links that contributions use."""
        self.lengths: Sequence[LengthObservation] = ()
        """Response lengths of recent rounds, stopped ones included, as the store has them."""
        self._workers_per_trainer = workers_per_trainer

    def to_json(self, machines: str = "") -> str:
        """Serialise the rates for `from_json`.

        `machines`: what the rates depend on, in any form."""
        return json.dumps({"machines": machines, **{name: getattr(self, name).sums for name in self.RATES}})

    @classmethod
    def from_json(cls, text: str, workers_per_trainer: float = 1.0, machines: str = "") -> LoanMeasurements:
        """Parse the output of `to_json`; no rate of other `machines` is taken.

        Raises `ValueError`, `KeyError` or `TypeError` for a text of another form.

        >>> seen = LoanMeasurements()
        >>> seen.training.record(8, 2.0)
        >>> LoanMeasurements.from_json(seen.to_json("one"), 1.0, "one").training.seconds
        0.25
        """
        told, made = json.loads(text), cls(workers_per_trainer)
        for name in cls.RATES if told["machines"] == machines else ():
            units, seconds = map(float, told[name])
            getattr(made, name).record(units, seconds)
        return made

    @property
    def with_loan_token(self) -> float | None:
        """Seconds per loss token of the trainer during a loan; before a measurement, as without one."""
        seconds = self.with_loan.seconds
        return seconds if seconds is not None else self.training.seconds

    @property
    def contribution(self) -> float | None:
        """Seconds to transfer one machine's sums; before a measurement, derived from a version's broadcast by size."""
        if (seconds := self.transfer.seconds) is not None:
            return seconds
        version = self.broadcast.seconds
        return None if version is None else version * SUM_WIDTH

    @property
    def loaned_token(self) -> float | None:
        """Seconds per loss token of a loaned machine."""
        if (seconds := self.loaned.seconds) is not None:
            return seconds
        trainer = self.training.seconds
        return None if trainer is None else trainer * self._workers_per_trainer


@dataclass(frozen=True)
class OpenGroup:
    """A prompt that may still become complete: free places of its group, and the loss tokens of the taken ones."""

    missing: int
    tokens: int = 0


@dataclass(frozen=True)
class RoundSnapshot:
    """A round in progress, over all its machines: what a loan is predicted from.

    `adaptive_tp.snapshot.MachineSnapshot` is one machine with its engines. `Unfinished.group` is an index into
    `groups`; the round keeps the first `wanted` complete ones. `backlog`: loss tokens of complete groups without
    gradients. `speed`: of the engines in the layout of most machines, None before they were observed; `speeds` of those
    of machines in another layout, by machine. `by_replica`: what each replica generates."""

    machines: Sequence[LoanableMachine]
    waiting: Sequence[Unfinished]
    lengths: ExpectedLengths
    groups: Sequence[OpenGroup]
    wanted: int
    backlog: int
    speed: EngineSpeed | None
    by_replica: Mapping[str, Sequence[Unfinished]] = field(default_factory=dict)
    speeds: Mapping[str, EngineSpeed | None] = field(default_factory=dict)

    @property
    def unfinished(self) -> int:
        """Number of responses that are not complete."""
        return len(self.waiting) + sum(len(machine.unfinished) for machine in self.machines)

    def speed_of(self, machine: str) -> EngineSpeed | None:
        """Return the speed of a machine's engines; None before one of their layout was observed."""
        return self.speeds.get(machine, self.speed)

    @property
    def ends_early(self) -> bool:
        """Whether the round ends before all its responses do."""
        return self.wanted < len(self.groups) or self.unfinished > sum(group.missing for group in self.groups)


DRAWN_RESPONSES = 4096
"""Lengths drawn per prediction: small rounds are drawn several times, …"""
MOST_DRAWS = 8
"""… at most this often."""
CLEAR_GAIN = 0.05
"""Share of the remaining time. A smaller gain is within the prediction error, and a loan that does not pay costs as
much (simulated on recorded lengths)."""


def predicted_gain(snapshot: RoundSnapshot, loan: Sequence[str], measured: LoanMeasurements) -> float:
    """Return the seconds by which this loan ends the round's training earlier.

    Negative if training ends later, 0 if the difference is not clear, NaN without enough measurements."""
    trainer, beside, loaned = measured.training.seconds, measured.with_loan_token, measured.loaned_token
    bring, speeds = measured.contribution, speeds_of(snapshot)
    if trainer is None or beside is None or loaned is None or bring is None or speeds is None:
        return float("nan")
    if not measured.lengths and not snapshot.ends_early:
        return float("nan")  # the round waits for its longest response, and no length was observed yet

    def ends(round_: RoundSnapshot) -> tuple[float, float]:
        stay = [machine for machine in round_.machines if machine.name not in loan]
        moved = [response for machine in round_.machines if machine.name in loan for response in machine.unfinished]
        loaned_round = replace(round_, machines=stay, waiting=[*round_.waiting, *moved])
        return (
            training_end(round_.backlog, arrivals(round_, speeds), trainer),
            training_end(loaned_round.backlog, arrivals(loaned_round, speeds), together),
        )

    together = 1 / (1 / max(beside, 1e-12) + len(loan) / max(loaned, 1e-12))
    found = [ends(round_) for round_ in drawn(snapshot)]
    alone = fmean(before for before, _ in found)
    gain = alone - fmean(after for _, after in found) - len(loan) * bring
    return 0.0 if 0 < gain < CLEAR_GAIN * alone else gain


def drawn(snapshot: RoundSnapshot) -> list[RoundSnapshot]:
    """Return the round with drawn lengths, several times if it is small."""
    draws = min(MOST_DRAWS, max(1, DRAWN_RESPONSES // max(1, snapshot.unfinished)))
    return [with_drawn_lengths(snapshot, Random(draw)) for draw in range(draws)]


def speeds_of(snapshot: RoundSnapshot) -> dict[str, EngineSpeed] | None:
    """Return the speed of each machine's engines; None if that of one is unknown."""
    known: dict[str, EngineSpeed] = {}
    for machine in snapshot.machines:
        if (speed := snapshot.speed_of(machine.name)) is None:
            return None
        known[machine.name] = speed
    return known


def arrivals(round_: RoundSnapshot, speeds: Mapping[str, EngineSpeed]) -> list[Arrival]:
    """Return the groups that become complete, in order, if all responses have their drawn lengths.

    `speeds`: of the engines of each machine."""
    of_engines = [speeds[machine.name] for machine in round_.machines for _ in range(machine.engines)]
    made = [
        EngineTimeline(load, round_.lengths, speed)
        for load, speed in zip(loads(round_.machines, round_.waiting), of_engines, strict=True)
    ]
    return simulate_tail(made, round_.groups, round_.wanted)


def with_drawn_lengths(snapshot: RoundSnapshot, random: Random) -> RoundSnapshot:
    """Return the round with a drawn quantile for each running response.

    Quantiles are spread evenly, so every draw has the expected number of long responses; chance decides which they are.
    The lengths stay with the responses, which a loan spreads over other engines. `adaptive_tp.draws` draws the steps of
    engines that keep their responses.
    """
    count = snapshot.unfinished
    shares = [(place + 0.5) / count for place in range(count)]
    random.shuffle(shares)

    def these(responses: Sequence[Unfinished]) -> tuple[Unfinished, ...]:
        return tuple(Unfinished(one.prompt_tokens, one.generated, one.group, shares.pop()) for one in responses)

    machines = [replace(machine, unfinished=these(machine.unfinished)) for machine in snapshot.machines]
    return replace(snapshot, machines=machines, waiting=these(snapshot.waiting))


Load = tuple[list[Unfinished], list[Unfinished]]
"""An engine's responses: those in its KV cache, and those that arrive from other machines."""


def loads(machines: Iterable[LoanableMachine], homeless: Sequence[Unfinished]) -> list[Load]:
    """Return the loads of the machines' engines. `homeless` responses go to the engines with the fewest."""
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
    """A response's run.

    `steps`: of its engine, from now to its end. `tokens`: its final length. `context`: in the KV cache now."""

    steps: float
    group: int
    tokens: int
    context: int


class EngineTimeline(BatchTimeline):
    """Timeline of an engine up to the drawn lengths.

    Arriving responses are computed again before it generates, and before that it pauses for `pause` seconds."""

    def __init__(self, load: Load, lengths: ExpectedLengths, speed: EngineSpeed, pause: float = 0.0) -> None:
        held, come = load
        self.runs = sorted(_run(response, lengths) for response in (*held, *come))
        """Sorted by their end."""
        again = speed.prefill([response.prompt_tokens + response.generated for response in come])
        groups = [run.group for run in self.runs]
        steps, contexts = [run.steps for run in self.runs], [run.context for run in self.runs]
        super().__init__(steps, contexts, speed.decode, pause + again, groups)


def _run(response: Unfinished, lengths: ExpectedLengths) -> _Run:
    total = lengths.at(response.generated, response.share)
    left = max(0, total - response.generated)
    return _Run(left, response.group, total, response.prompt_tokens + response.generated)


def simulate_tail(engines: Sequence[EngineTimeline], groups: Sequence[OpenGroup], wanted: int) -> list[Arrival]:
    """Return the first `wanted` of `groups` that become complete, in order. Responses without a place stop.

    Training needs each group's time and tokens. `adaptive_tp.tail` needs the end of one machine, whose responses change
    their engines on the way. Both run on `batch_timeline.race_ends`.
    """
    arrivals = [(0.0, group.tokens) for group in groups if not group.missing][:wanted]
    tokens = [group.tokens for group in groups]
    ends = race_ends(engines, [group.missing for group in groups])
    while len(arrivals) < wanted and (end := next(ends, None)) is not None:
        now, number, place, lost = end
        run = engines[number].runs[place]
        tokens[run.group] += run.tokens
        if lost is not None:
            arrivals.append((now, tokens[run.group]))
    return arrivals


def training_end(backlog: int, arrivals: Iterable[Arrival], token: float) -> float:
    """Return the seconds until all arrivals are processed at `token` seconds each, in order.

    >>> training_end(10, [(5.0, 10), (20.0, 10)], 1.0), training_end(30, [(5.0, 10)], 1.0)
    (30.0, 40.0)
    """
    free = backlog * token
    for at, tokens in sorted(arrivals):
        free = max(free, at) + tokens * token
    return free
