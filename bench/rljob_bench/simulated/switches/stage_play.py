"""Stage plays: one stage of `rljob bench pat` in every size, with the policy, and as it is predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

from rljob_bench.simulated.pat_stages import ACCELERATORS, Stage
from rljob_bench.simulated.pat_starts import START_ROUNDS, Forecasts, arrived, predicted_starts
from rljob_runtime.scheduling.adaptive_tp import stage as engine_stage
from rljob_runtime.scheduling.adaptive_tp.forecast import Machine
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchRules
from rljob_runtime.scheduling.adaptive_tp.snapshot import SizedEngine
from rljob_runtime.scheduling.adaptive_tp.stage import Asked, Chooser, StageResult, generate


@dataclass(frozen=True)
class Told:
    """How well a stage is predicted.

    `gain`, `played`: share of the seconds without a switch that switches save, as predicted and as played. `error`:
    relative error of the predicted seconds of the stage."""

    gain: float
    played: float
    error: float


class Play:
    """The plays of one stage, in the sizes that hold a longest response.

    `believed`: what the policy knows of its engines, where that is not the truth. A size that runs is observed, and
    known from then on."""

    def __init__(
        self,
        stage: Stage,
        seed: int,
        fixed: float | None = None,
        believed: Mapping[int, SizedEngine] | None = None,
        past_scale: float = 1.0,
    ) -> None:
        self.stage = stage
        self._seed = seed
        asked, earlier = stage.lengths(str(seed), 1), stage.lengths(str(seed), 0)
        longest = stage.cap + max(one.prompt_tokens for one in (*asked, *earlier))
        self.engines = {size: one for size, one in stage.engines.by_size().items() if longest <= one.kv_tokens}
        costs = stage.engines.costs(fixed)
        self.pairs = costs.table(self.engines, ACCELERATORS)
        self.asked = [asked[number :: stage.machines] for number in range(stage.machines)]
        self.earlier = [replace(one, tokens=min(stage.cap, max(1, int(one.tokens * past_scale)))) for one in earlier]
        self.past = [one.tokens for one in self.earlier]
        self.machine = Machine(believed or self.engines, ACCELERATORS, costs, SwitchRules(frozenset(self.engines)))
        self._policy = self.machine.chooser(self.past, stage.cap) if believed is None else self._observing
        self._is_known = believed is None

    def static(self, asked: Sequence[Sequence[Asked]], size: int) -> float:
        """Return the seconds of a stage without a switch."""
        return max(self._generate(one, size).seconds for one in asked)

    def switched(self, size: int) -> StageResult:
        """Return the stage with the policy, from this size: that of its last machine, with the most switches of any."""
        return self.chosen(size, self._policy)

    def informed(self, size: int) -> StageResult:
        """Return the same with a policy that knows the lengths of this stage, but not which response has which."""
        own = [one.tokens for asked in self.asked for one in asked]
        return self.chosen(size, self.machine.chooser(own, self.stage.cap))

    def chosen(self, size: int, choose: Chooser) -> StageResult:
        """Return the stage from this size as `choose` switches it: its last machine, with the most switches of any."""
        return last_of([self._generate(one, size, choose) for one in self.asked])

    def _observing(self, running: engine_stage.Stage) -> int | None:
        """Decide with the true models of the sizes that ran in this stage, and the believed ones of others."""
        ran = {running.tensor_parallel, *(made.start for made in running.switches)}
        return self._with_known(ran).chooser(self.past, self.stage.cap)(running)

    def _with_known(self, ran: Set[int]) -> Machine:
        """Return the machine with the true models of these sizes, and the believed ones of others."""
        engines = {size: self.engines[size] if size in ran else one for size, one in self.machine.engines.items()}
        return replace(self.machine, engines=engines)

    @property
    def own_earlier(self) -> list[Asked]:
        """The first machine's part of the earlier round."""
        return self.earlier[:: self.stage.machines]

    @cached_property
    def profiled(self) -> int:
        """Return the size that a profile names: the best one for responses at their limit."""
        most = [[replace(one, tokens=self.stage.cap) for one in asked] for asked in self.asked]
        return min(self.engines, key=lambda size: self.static(most, size))

    @cached_property
    def forecasts(self) -> Forecasts:
        """Return the seconds of a stage that a coordinator predicts for each start from earlier rounds."""
        return self._forecasts(self.machine)

    def _forecasts(self, machine: Machine) -> Forecasts:
        stage = self.stage
        rounds = [self.earlier, *(stage.lengths(str(self._seed), number) for number in range(2, START_ROUNDS + 1))]
        return predicted_starts(machine, rounds, stage.machines, stage.cap)

    def start(self, switches: bool = True) -> int:
        """Return the size that the parallelism planner arrives at from the profile's size.

        A size that is only believed to be fast is left again: its speed is known once it has run."""
        ran = {self.profiled}
        while True:
            forecasts = self.forecasts if self._is_known else self._forecasts(self._with_known(ran))
            size = arrived(self.profiled, forecasts.switched if switches else forecasts.without, ACCELERATORS)
            if size in ran or self._is_known:
                return size
            ran.add(size)

    def predicted(self, start: int) -> StageResult:
        """Return the stage that the policy predicts from this size: that of the earlier round."""
        return self._generate(self.own_earlier, start, self._policy)

    def predicted_never(self, start: int) -> float:
        """Return the same in seconds, without a switch."""
        return self._generate(self.own_earlier, start).seconds

    def told(self, start: int) -> Told:
        """Return how well the stage from this size is predicted."""
        predicted, never = self.predicted(start).seconds, self.predicted_never(start)
        played = self.switched(start).seconds
        return Told(1 - predicted / never, 1 - played / self.static(self.asked, start), abs(predicted / played - 1))

    def _generate(self, asked: Sequence[Asked], size: int, choose: Chooser | None = None) -> StageResult:
        return generate(asked, size, self.engines, ACCELERATORS, self.pairs, choose)


def last_of(results: Sequence[StageResult]) -> StageResult:
    """Return the stage of a fleet: that of its last machine, with the most switches of any."""
    last = max(results, key=lambda one: one.seconds)
    return replace(last, switches=max((one.switches for one in results), key=len))
