"""What a loan of rollout machines would bring: predicted seconds, from what this run has measured and nothing else.

Two programs of the same model are compared, with the loan and without. Generation: every engine makes a token of each
of its responses a step, and a step takes a + b·n seconds for n responses, as fitted to this run's engines. Training:
responses come in as they end and are worked off at the measured seconds a token, by the trainer or by it and the lent
machines together. What moves is computed anew first; what the lent machines summed has to be brought to the trainer.
Where nothing was measured the assumption is the one that speaks against a loan.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rljob_runtime.scheduling.lending import Lendable, Unfinished, expected_length

LENGTHS_KEPT = 4096
"""Enough for a distribution, few enough to look through at every decision."""

Arrival = tuple[float, int]
"""A response's end: seconds from now, and its loss tokens."""


class StepTimes:
    """Seconds of an engine's step by how many responses it runs: a least-squares line a + b·n, neither below zero."""

    def __init__(self) -> None:
        self._weight = self._n = self._nn = self._t = self._nt = 0.0
        self._most = 0.0

    def note(self, running: float, tokens: float, seconds: float) -> None:
        """An engine that ran so many responses has made `tokens` in `seconds`."""
        if not (running > 0 and tokens > 0 and seconds > 0):
            return
        step = seconds * running / tokens
        self._weight += seconds
        self._n += seconds * running
        self._nn += seconds * running * running
        self._t += seconds * step
        self._nt += seconds * running * step
        self._most = max(self._most, running)

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return self._weight > 0

    def of(self, running: float) -> float:
        """Seconds of a step, in which each of `running` responses gains a token. No batch larger than any that was seen
        is counted on: what is beyond it waits its turn."""
        together = min(running, self._most)
        a, b = self._line()
        return (a + b * together) * max(1.0, running / self._most)

    @property
    def token(self) -> float:
        """Seconds a token at the largest batch seen: more than recomputing one takes."""
        return self.of(self._most) / self._most

    def _line(self) -> tuple[float, float]:
        mean_n, mean_t = self._n / self._weight, self._t / self._weight
        spread = self._nn / self._weight - mean_n * mean_n
        if spread <= 1e-9 * mean_n * mean_n:
            # One batch size only: assume that a larger batch makes no more tokens a second.
            return 0.0, mean_t / mean_n
        b = (self._nt / self._weight - mean_n * mean_t) / spread
        b = min(max(b, 0.0), mean_t / mean_n)
        return mean_t - b * mean_n, b


class Rate:
    """Seconds a unit, over everything measured."""

    def __init__(self) -> None:
        self._units = self._seconds = 0.0

    def note(self, units: float, seconds: float) -> None:
        """So many took so long."""
        self._units += units
        self._seconds += seconds

    @property
    def seconds(self) -> float | None:
        """Of one; None before anything was measured."""
        return self._seconds / self._units if self._units else None


class Measured:
    """What a run has measured so far. `workers_per_trainer`: how many lent machines do the trainer's work in its time,
    which is believed until a worker was measured."""

    def __init__(self, workers_per_trainer: float = 1.0) -> None:
        self.steps = StepTimes()
        self.training = Rate()
        """Loss tokens, by the trainer."""
        self.lent = Rate()
        """Loss tokens, by a lent machine."""
        self.handover = Rate()
        """Contributions brought to the trainer and added."""
        self.broadcast = Rate()
        """Versions brought to all machines: a contribution takes about as long, as long as none was measured."""
        self.lengths: deque[int] = deque(maxlen=LENGTHS_KEPT)
        """Of responses of the rounds before."""
        self._workers_per_trainer = workers_per_trainer

    @property
    def lent_token(self) -> float | None:
        """Seconds a loss token on a lent machine."""
        if (seconds := self.lent.seconds) is not None:
            return seconds
        trainer = self.training.seconds
        return None if trainer is None else trainer * self._workers_per_trainer


@dataclass(frozen=True)
class Outlook:
    """A round under way. `backlog`: loss tokens of responses that ended and whose gradients nobody has computed yet."""

    machines: Sequence[Lendable]
    waiting: Sequence[Unfinished]
    lengths: Sequence[int]
    max_tokens: int
    backlog: int


def predicted_gain(outlook: Outlook, loan: Sequence[str], measured: Measured) -> float:
    """Seconds by which lending these machines ends the round's training earlier; negative when it ends later, and NaN
    where too little was measured to say."""
    trainer, lent = measured.training.seconds, measured.lent_token
    if trainer is None or lent is None or not measured.steps.known:
        return float("nan")
    lengths = sorted(outlook.lengths)
    stay = [machine for machine in outlook.machines if machine.name not in loan]
    moved = [response for machine in outlook.machines if machine.name in loan for response in machine.unfinished]

    def end(machines: Sequence[Lendable], homeless: Sequence[Unfinished], token: float) -> float:
        arrivals = [
            arrival
            for engine in engines(machines, homeless)
            for arrival in ends(engine, lengths, outlook.max_tokens, measured.steps)
        ]
        return training_end(outlook.backlog, arrivals, token)

    together = 1 / (1 / max(trainer, 1e-12) + len(loan) / max(lent, 1e-12))
    bring = measured.handover.seconds if measured.handover.seconds is not None else measured.broadcast.seconds or 0.0
    with_loan = end(stay, [*outlook.waiting, *moved], together) + len(loan) * bring
    return end(outlook.machines, outlook.waiting, trainer) - with_loan


Engine = tuple[list[Unfinished], list[Unfinished]]
"""What an engine has in its KV cache, and what comes to it from elsewhere."""


def engines(machines: Iterable[Lendable], homeless: Sequence[Unfinished]) -> list[Engine]:
    """The engines of these machines, `homeless` responses going to those with the fewest."""
    made: list[Engine] = [
        (list(machine.unfinished[index :: machine.engines]), [])
        for machine in machines
        for index in range(machine.engines)
    ]
    for response in homeless:
        min(made, key=lambda engine: len(engine[0]) + len(engine[1]))[1].append(response)
    return made


def ends(engine: Engine, lengths: Sequence[int], max_tokens: int, steps: StepTimes) -> list[Arrival]:
    """When the responses of an engine are expected to end, the first first. `lengths` are sorted."""
    held, come = engine
    left = sorted(
        (max(0.0, total - response.generated), round(total))
        for response in (*held, *come)
        for total in (expected_length(response.generated, lengths, max_tokens),)
    )
    now = sum(response.prompt_tokens + response.generated for response in come) * steps.token
    made, arrivals = 0.0, []
    for ended, (remaining, tokens) in enumerate(left):
        now += (remaining - made) * steps.of(len(left) - ended)
        made = remaining
        arrivals.append((now, tokens))
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
