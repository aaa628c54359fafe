"""Loan policy: decides when rollout machines are loaned to training, and which (RollPacker §4.4, Algorithm 1).

Machines are loaned completely: tensor parallelism never crosses machines, so a loan splits no TP group. The paper
requires that the remaining requests fit the KV cache of the remaining machines. That is necessary, but not sufficient:
on busy engines a loan that fits still costs 2 to 10 %. So a loan must also have a predicted gain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from rljob_runtime.scheduling.round_planner.survival import Survival


@dataclass(frozen=True)
class LoanRules:
    """A loan may start while between `min_completed` and `max_completed` of the responses are done.

    It is considered whenever another `look_every` of them are."""

    min_completed: float = 0.2
    max_completed: float = 0.5
    look_every: float = 0.05
    requires_gain: bool = True
    """Whether a loan needs a predicted gain. Without, the first loan that fits starts: the paper's fixed trigger (Table
    3)."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_completed <= self.max_completed <= 1:
            raise ValueError(
                f"min_completed {self.min_completed} and max_completed {self.max_completed} must rise in 0..1"
            )
        if not self.look_every > 0:
            raise ValueError(f"look_every is {self.look_every}; it must be above 0")


@dataclass(frozen=True)
class Unfinished:
    """A response that is not complete, in an engine or not: tokens of its prompt and of itself so far.

    `group`: index of its group, in the caller's numbering. `share`: its quantile, in [0, 1), among the responses that
    become longer than it is now."""

    prompt_tokens: int
    generated: int = 0
    group: int = 0
    share: float = 0.5


@dataclass(frozen=True)
class LoanableMachine:
    """A rollout machine that may be loaned.

    `kv_tokens`: KV cache of all its `engines`, in tokens. `unfinished`: the responses that it generates now."""

    name: str
    kv_tokens: int
    unfinished: tuple[Unfinished, ...] = ()
    engines: int = 1

    @property
    def tokens_to_move(self) -> int:
        """Tokens that other machines would compute again."""
        return sum(response.prompt_tokens + response.generated for response in self.unfinished)


class LoanOutcome(StrEnum):
    """Why machines are loaned, or not."""

    LOANED = "Loaned"
    OUTSIDE_WINDOW = "OutsideWindow"
    """Outside the window of completed responses, or too few since the last check, or a loan already happened."""
    SWITCHED_OFF = "SwitchedOff"
    """The configured window contains no share of responses."""
    ONE_MACHINE = "OneMachine"
    """The job never has more than one machine."""
    NEEDS_REFERENCE_MODEL = "NeedsReferenceModel"
    """The loss has a KL term, and a loaned machine holds no reference model."""
    NO_WORKER = "NoWorker"
    """A machine has no gradient worker."""
    TRAINER_UNAVAILABLE = "TrainerUnavailable"
    """The trainer failed a call, or has not published the weights in use: it would accept no contribution."""
    TOO_FEW_MACHINES = "TooFewMachines"
    KV_CACHE_FULL = "KVCacheFull"
    """The unfinished responses would not fit the remaining machines."""
    NO_GAIN = "NoGain"
    POLICY_FAILED = "PolicyFailed"
    """The policy failed by an unforeseen error."""


@dataclass(frozen=True)
class LoanDecision:
    """Machines to loan now; none unless `outcome` is LOANED. `gain`: predicted seconds, if computed."""

    outcome: LoanOutcome
    machines: tuple[str, ...] = ()
    gain: float | None = None


class LoanPolicy:
    """Loans of one round: at most one."""

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
        """Decide with `done` of `total` responses complete.

        `waiting`: responses that no machine generates. `gain(machines)`: predicted seconds that this loan saves; called
        only if everything else permits the loan."""
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
            return LoanDecision(LoanOutcome.LOANED, loan)
        seconds = gain(loan)
        if not seconds > 0:
            return LoanDecision(LoanOutcome.NO_GAIN, gain=seconds)
        return LoanDecision(LoanOutcome.LOANED, loan, seconds)

    def begin(self) -> None:
        """Record that the decided loan starts."""
        self._loaned = True

    def is_due(self, done: int, total: int) -> bool:
        """Check whether there is a decision to make now."""
        rules = self._rules
        if self._loaned or not rules.min_completed * total <= done <= rules.max_completed * total:
            return False
        return self._looked is None or done - self._looked >= rules.look_every * total


def half_of(machines: Sequence[LoanableMachine]) -> tuple[str, ...]:
    """Return the names of half of the machines, rounded down.

    They are those with the fewest tokens to compute again elsewhere."""
    cheapest = sorted(machines, key=lambda machine: (machine.tokens_to_move, machine.name))
    return tuple(sorted(machine.name for machine in cheapest[: len(machines) // 2]))


SURELY = 1e-9
"""A smaller share of responses is a rounding error."""


class ExpectedLengths:
    """Expected final lengths of responses, at most `max_tokens`, from observed ones.

    The observations must include stopped and running responses: otherwise a round's long responses stay unknown while
    they run, and forever if others win their places. Beyond all observed lengths the mean is `max_tokens`, and a
    quantile is extrapolated from the responses that did not end.

    >>> expected = ExpectedLengths(Survival([4, 8, 1]), 20)
    >>> expected.of(3), expected.of(8)
    (6.0, 20)
    >>> expected.at(3, 0.4), expected.at(3, 0.6), expected.at(8, 0.6)
    (4, 8, 20)
    >>> ExpectedLengths(Survival([4], [4]), 20).of(3)
    12.0
    """

    def __init__(self, curve: Survival, max_tokens: int) -> None:
        self.curve = curve
        self.max_tokens = max_tokens

    def of(self, generated: int) -> float:
        """Return the mean final length of a response that has `generated` tokens."""
        share = self.curve.longer_than(generated)
        if generated >= self.max_tokens or share < SURELY:
            return self.max_tokens
        return generated + (self.curve.mean_up_to(self.max_tokens) - self.curve.mean_up_to(generated)) / share

    def at(self, generated: int, share: float) -> int:
        """Return the quantile `share`, in [0, 1), of the final length."""
        if self.curve.longer_than(generated) < SURELY:
            return self.max_tokens
        return min(self.curve.predicted_beyond(generated, share) or self.max_tokens, self.max_tokens)


def peak_kv_tokens(unfinished: Sequence[Unfinished], lengths: ExpectedLengths) -> float:
    """Return the peak of tokens in KV cache if all of these are generated simultaneously, a token each per step.

    Lengths are the expected ones. Every response's prompt counts, so this is an upper bound for engines that share
    prefixes."""
    left = sorted(
        (
            max(0.0, lengths.of(response.generated) - response.generated),
            response.prompt_tokens + response.generated,
        )
        for response in unfinished
    )
    held, peak = sum(tokens for _, tokens in left), 0.0
    # The peak is immediately before a response ends.
    for ended, (steps, tokens) in enumerate(left):
        peak = max(peak, held + steps * (len(left) - ended))
        held -= tokens
    return peak
