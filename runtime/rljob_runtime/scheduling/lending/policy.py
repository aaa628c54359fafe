"""Whether rollout machines are lent to training while others still generate, and which (RollPacker §4.4, Algorithm 1).

A machine is lent whole: tensor parallelism never crosses machines, so neither a loan nor what stays splits a TP group.
The paper's test that the remaining requests fit the KV cache of what stays is necessary and not enough: on busy engines
a loan that fits still costs 2 to 10 %. So a loan must also be predicted to pay, by whoever models engines and trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rljob_runtime.scheduling.round_planner.survival import Survival


@dataclass(frozen=True)
class LoanRules:
    """A loan may begin while between `min_completed` and `max_completed` of the responses are done, and is thought
    about each time that another `look_every` of them are."""

    min_completed: float = 0.2
    max_completed: float = 0.5
    look_every: float = 0.05
    requires_gain: bool = True
    """A loan must be predicted to pay. Without, it is the paper's fixed trigger (Table 3): the first that fits."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_completed <= self.max_completed <= 1:
            raise ValueError(
                f"min_completed {self.min_completed} and max_completed {self.max_completed} must rise in 0..1"
            )
        if not self.look_every > 0:
            raise ValueError(f"look_every is {self.look_every}; it must be above 0")


@dataclass(frozen=True)
class Unfinished:
    """A response that is still to be generated, or to be generated on: tokens of its prompt, and of it so far; whose
    `group` it may have a place in, as whoever asks numbers them. `share`: of those that became longer than it is, so
    many end before it in a prediction; 0 to 1, 1 not included."""

    prompt_tokens: int
    generated: int = 0
    group: int = 0
    share: float = 0.5


@dataclass(frozen=True)
class LoanableMachine:
    """A rollout machine: the tokens that the KV caches of all its `engines` hold, and what it generates now."""

    name: str
    kv_tokens: int
    unfinished: tuple[Unfinished, ...] = ()
    engines: int = 1

    @property
    def tokens_to_move(self) -> int:
        """What other machines would have to compute anew."""
        return sum(response.prompt_tokens + response.generated for response in self.unfinished)


class LoanOutcome(StrEnum):
    """Why machines are lent, or not."""

    LOANED = "Loaned"
    OUTSIDE_WINDOW = "OutsideWindow"
    """Too few or too many responses are done, or hardly more than at the last look; or machines were lent before."""
    SWITCHED_OFF = "SwitchedOff"
    """No share of responses done is between the bounds that were asked for."""
    ONE_MACHINE = "OneMachine"
    """The job has never more than one."""
    NEEDS_REFERENCE_MODEL = "NeedsReferenceModel"
    """The loss has a KL term, and a lent machine holds no model to compare with."""
    NO_WORKER = "NoWorker"
    """A machine was made without a gradient worker."""
    TRAINER_UNAVAILABLE = "TrainerUnavailable"
    """The trainer has failed a call, or has not published the weights in use: it would count nothing."""
    TOO_FEW_MACHINES = "TooFewMachines"
    KV_CACHE_FULL = "KVCacheFull"
    """The unfinished responses would not fit the machines that stay."""
    NO_GAIN = "NoGain"


@dataclass(frozen=True)
class LoanDecision:
    """`machines`: the ones to lend now, none unless the outcome is LOANED. `gain`: predicted seconds, where it was
    asked for."""

    outcome: LoanOutcome
    machines: tuple[str, ...] = ()
    gain: float | None = None


class LoanPolicy:
    """The loans of one round: at most one."""

    def __init__(self, rules: LoanRules | None = None) -> None:
        self._rules = rules or LoanRules()
        self._looked: int | None = None
        self._loaned = False

    def decide(
        self,
        done: int,
        total: int,
        machines: Sequence[LoanableMachine],
        waiting: Sequence[Unfinished],
        lengths: ExpectedLengths,
        gain: Callable[[tuple[str, ...]], float],
    ) -> LoanDecision:
        """Decide with `done` of `total` responses done. `waiting`: those that no machine generates. `gain(machines)`:
        the predicted seconds by which lending these ends the round's update earlier; asked only if all else holds."""
        if not self.is_due(done, total):
            return LoanDecision(LoanOutcome.OUTSIDE_WINDOW)
        self._looked = done
        loan = half_of(machines)
        if not loan:
            return LoanDecision(LoanOutcome.TOO_FEW_MACHINES)
        stays = sum(machine.kv_tokens for machine in machines if machine.name not in loan)
        unfinished = [*waiting, *(response for machine in machines for response in machine.unfinished)]
        if peak_kv_tokens(unfinished, lengths) > stays:
            return LoanDecision(LoanOutcome.KV_CACHE_FULL)
        if not self._rules.requires_gain:
            self._loaned = True
            return LoanDecision(LoanOutcome.LOANED, loan)
        seconds = gain(loan)
        if not seconds > 0:
            return LoanDecision(LoanOutcome.NO_GAIN, gain=seconds)
        self._loaned = True
        return LoanDecision(LoanOutcome.LOANED, loan, seconds)

    def is_due(self, done: int, total: int) -> bool:
        """Whether there is anything to decide now."""
        rules = self._rules
        if self._loaned or not rules.min_completed * total <= done <= rules.max_completed * total:
            return False
        return self._looked is None or done - self._looked >= rules.look_every * total


def half_of(machines: Sequence[LoanableMachine]) -> tuple[str, ...]:
    """Half of the machines, rounded down, by name: those with the fewest tokens to compute anew elsewhere."""
    cheapest = sorted(machines, key=lambda machine: (machine.tokens_to_move, machine.name))
    return tuple(sorted(machine.name for machine in cheapest[: len(machines) // 2]))


SURELY = 1e-9
"""A smaller share of responses is a rounding error."""


class ExpectedLengths:
    """How long responses become, at most `max_tokens`, by what is known of others. Those that were stopped, or still
    run, must be among them: else a round's long responses would be unknown for as long as they run, and for ever where
    others win their places. Nothing so long has ended: the mean is `max_tokens`, a share's length the one foretold from
    those that did not end.

    >>> expected = ExpectedLengths(Survival([4, 8, 1]), 20)
    >>> expected.of(3), expected.of(8)
    (6.0, 20)
    >>> expected.at(3, 0.4), expected.at(3, 0.6), expected.at(8, 0.6)
    (4, 8, 20)
    >>> ExpectedLengths(Survival([4], [4]), 20).of(3)
    12.0
    """

    def __init__(self, curve: Survival, max_tokens: int) -> None:
        self._curve = curve
        self._max_tokens = max_tokens

    def of(self, generated: int) -> float:
        """Tokens that a response of `generated` tokens ends with: the mean."""
        share = self._curve.longer_than(generated)
        if generated >= self._max_tokens or share < SURELY:
            return self._max_tokens
        return generated + (self._curve.mean_up_to(self._max_tokens) - self._curve.mean_up_to(generated)) / share

    def at(self, generated: int, share: float) -> int:
        """The same: the length that comes after this share of the longer ones, 0 to 1, 1 not included."""
        if self._curve.longer_than(generated) < SURELY:
            return self._max_tokens
        return min(self._curve.predicted_beyond(generated, share) or self._max_tokens, self._max_tokens)


def peak_kv_tokens(unfinished: Sequence[Unfinished], lengths: ExpectedLengths) -> float:
    """The most tokens in KV cache from now on, if all of these are generated at once, a token each a step, to their
    expected lengths. Counts every response's prompt, so it is not less than an engine that shares prefixes needs."""
    left = sorted(
        (
            max(0.0, lengths.of(response.generated) - response.generated),
            response.prompt_tokens + response.generated,
        )
        for response in unfinished
    )
    held, peak = sum(tokens for _, tokens in left), 0.0
    # The most is held just before one of them ends.
    for ended, (steps, tokens) in enumerate(left):
        peak = max(peak, held + steps * (len(left) - ended))
        held -= tokens
    return peak
