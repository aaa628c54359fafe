"""Looks: observe a round in its tail, and decide in one look whether machines are loaned or switch their layout.

The duration of a look grows with the responses, so none of it runs in the event loop. The round is described in a
thread while its stage waits: the stage owns it, so nothing changes meanwhile. The decision then needs no more of it,
and the round goes on. There is one look at a time.

A policy that fails by an error is not asked again in the round, which goes on without its decision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TypeVar

from rljob_runtime.coordinator.core.async_utils import Apart
from rljob_runtime.coordinator.generation.observed_engines import ObservedEngines
from rljob_runtime.coordinator.on_policy.switcher import Switcher
from rljob_runtime.coordinator.reporting.policy_failures import OptionalPolicy, PolicyFailures, attempt
from rljob_runtime.coordinator.stream_training.loans import LoanManager
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchDecision
from rljob_runtime.scheduling.adaptive_tp.switch_costs import SwitchCosts
from rljob_runtime.scheduling.layouts.layout_switch import SwitchableMachine, SwitchLook, with_responses
from rljob_runtime.scheduling.layouts.look_decision import LookDecision
from rljob_runtime.scheduling.layouts.training_bound import RoundGain, round_gain
from rljob_runtime.scheduling.lending.gain import RoundSnapshot
from rljob_runtime.scheduling.lending.policy import LoanDecision
from rljob_runtime.scheduling.round_plan import Launch

T = TypeVar("T")

OPTIONAL = (OptionalPolicy.LOANS, OptionalPolicy.SWITCHES)


@dataclass(frozen=True)
class Look:
    """A look that is due, with `done` of `total` responses complete.

    `considers_loan`: whether a loan is decided. `machines`: those whose switch is decided, without their responses.
    `computed_tokens`: loss tokens of complete groups that have their gradients. `training_token`: seconds per loss
    token of the trainer; None if unknown, or in a round that does not stream. `rounds`: of the job, from this one on.
    """

    done: int
    total: int
    considers_loan: bool
    machines: Sequence[SwitchableMachine]
    engines: ObservedEngines
    costs: SwitchCosts
    computed_tokens: int
    training_token: float | None
    rounds: int = 1

    def switch_look(
        self, round_: RoundSnapshot, held: Sequence[tuple[Launch, int]], expected: Mapping[str, int]
    ) -> SwitchLook:
        """Return what switches are decided from.

        `held`: the launches that generate, with their tokens so far. `expected`: sizes of the engines that machines
        which switch now will have, by their names in the round."""
        machines = with_responses(self.machines, held, len(round_.waiting))
        sizes = {**self.engines.sizes, **expected}
        return SwitchLook(machines, round_, sizes, self.engines.sized, self.costs, self.rounds)


class Looks:
    """The looks of one round. `notify` is called when one was decided.

    `rounds`: of the job, from this one on."""

    def __init__(
        self,
        loans: LoanManager,
        switcher: Switcher,
        apart: Apart,
        notify: Callable[[], None],
        failures: PolicyFailures,
        rounds: int,
    ) -> None:
        self._loans = loans
        self._switcher = switcher
        self._apart = apart
        self._notify = notify
        self._failures = failures
        self._rounds = rounds
        self._asked = {policy for policy in OPTIONAL if failures.is_asked(policy)}
        """The policies that did not fail in this round."""
        self._looking = False
        self._decided = LookDecision()
        for policy in set(OPTIONAL) - self._asked:
            self._record_failure(policy)
        begun = attempt(switcher.begin_round) if OptionalPolicy.SWITCHES in self._asked else None
        if isinstance(begun, Exception):
            self._failed(OptionalPolicy.SWITCHES, begun)

    def begin(self, done: int, total: int, observed: Callable[[], ObservedEngines]) -> Look | None:
        """Return the look that is due with `done` of `total` responses complete; None if there is none.

        `observe` and `decide` have to follow. A loan waits for the end of switches. Machines that are not on loan may
        switch during one."""
        if self._looking:
            return None
        # The responses of a switch that has ended are with no machine until their launch.
        loan = not self._switcher.under_way() and self._is_due(
            OptionalPolicy.LOANS, lambda: self._loans.is_due(done, total)
        )
        switch = self._is_due(OptionalPolicy.SWITCHES, lambda: self._switcher.is_due(done, total))
        if not loan and not switch:
            return None
        engines = observed()
        if engines.kv is not None:
            self._switcher.costs.kv = engines.kv
        if (build := self._switcher.longest_build) is not None:
            self._switcher.costs.record_build(build)
        machines = self._switcher.candidates(engines.waiting) if switch else []
        if not loan and not machines:
            return None
        self._looking = True
        costs, computed = deepcopy(self._switcher.costs), self._loans.computed_tokens
        token = self._loans.training_token
        return Look(done, total, loan, machines, engines, costs, computed, token, self._rounds)

    async def observe(self, look: Look, work: Callable[[], SwitchLook]) -> SwitchLook | None:
        """Describe the round, while it waits; None if that fails, which ends the look."""
        seen = await self._apart(lambda: attempt(work), "round snapshot")
        if not isinstance(seen, Exception):
            return seen
        self._looking = False
        if look.considers_loan:
            self._failed(OptionalPolicy.LOANS, seen)
        if look.machines:
            self._failed(OptionalPolicy.SWITCHES, seen)
        return None

    async def decide(self, look: Look, seen: SwitchLook) -> None:
        """Decide, while the round goes on. `take` returns the result."""

        def loan() -> LoanDecision | None:
            return self._loans.decide(look.done, look.total, seen.round_) if look.considers_loan else None

        def switches() -> tuple[Mapping[str, SwitchDecision], RoundGain | None]:
            if not seen.machines:
                return {}, None
            decided = self._switcher.decide(seen)
            return decided, round_gain(seen, decided, look.training_token)

        loaned, switched = await self._apart(lambda: (attempt(loan), attempt(switches)), "look")
        self._decided = LookDecision.of(
            self._result(OptionalPolicy.LOANS, loaned, None, look.considers_loan),
            *self._result(OptionalPolicy.SWITCHES, switched, ({}, None), bool(look.machines)),
        )
        self._looking = False
        self._notify()

    def take(self) -> LookDecision:
        """Return the decisions that were not taken yet."""
        decided, self._decided = self._decided, LookDecision()
        return decided

    def _is_due(self, policy: OptionalPolicy, work: Callable[[], bool]) -> bool:
        due = policy in self._asked and attempt(work)
        if isinstance(due, Exception):
            self._failed(policy, due)
            return False
        return due

    def _result(self, policy: OptionalPolicy, found: T | Exception, otherwise: T, was_asked: bool) -> T:
        if isinstance(found, Exception):
            self._failed(policy, found)
            return otherwise
        if was_asked:
            self._failures.decided(policy)
        return found

    def _failed(self, policy: OptionalPolicy, error: Exception) -> None:
        self._failures.failed(policy, error)
        self._asked.discard(policy)
        self._record_failure(policy)

    def _record_failure(self, policy: OptionalPolicy) -> None:
        if policy is OptionalPolicy.LOANS:
            self._loans.policy_failed()
        else:
            self._switcher.policy_failed()
