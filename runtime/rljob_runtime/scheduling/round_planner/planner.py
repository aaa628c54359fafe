"""Round planner: predicts each candidate plan and selects the one with the shortest predicted time per trained prompt.

Each plan is simulated on the performance model with lengths of recent rounds. Tail batching gains up to 4x if the mean
response is much shorter than the longest, and loses 20 % if engines stay busy to the end (RollPacker §3 has one
setting).

A plan's time is the mean over the rounds to come, including the long rounds that its own queue will cost. Hysteresis:
the reference plan is left only for a clear gain, which covers the errors of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from random import Random
from statistics import fmean

from rljob_api.status import RoundKind
from rljob_runtime.scheduling.round_planner.length_model import LengthModel
from rljob_runtime.scheduling.round_planner.plans import CandidatePlans, Plan
from rljob_runtime.scheduling.round_planner.round_simulator import (
    EngineFleet,
    PromptDemand,
    SimulatedRound,
    TooManyEvents,
    simulate_round,
)
from rljob_runtime.scheduling.tail_batching import Factors, ceil_product, next_round

FIRST_ROUNDS = 2
"""Rounds that run by the reference plan before the first prediction …"""
FIRST_RESPONSES = 256
"""… and responses observed in them, …"""
MOST_FIRST_ROUNDS = 8
"""… unless rounds are so small that this takes longer."""
HORIZON = 40
"""Rounds over which a plan's time is a mean, if that many are left. Queued prompts are paid within them."""
DRAWN_RESPONSES = 3072
"""Responses launched per finalist, filtered ones included: three rounds of 1,024; more rounds if they are small, …"""
MOST_DRAWS = 24
"""… at most this many; the other plans get a third of them."""
FINALISTS = 3
"""Plans that stay after the first third."""
MOST_EVENTS = 48_000
"""Simulated events per decision, for a decision within half a second. With preemptions or filtered prompts a round has
several times the events of its responses."""
PILOT_EVENTS = 32_000
"""The part of these events for the first third."""
LAYOUT_EVENTS = 12_000
"""Additional events for the next round in one other layout, or in the present one for comparison."""
SPARE = 1.25
"""Factor of spare prompts over the expected number of filtered ones."""

ALIKE = 0.05
"""Relative difference below which two updates have the same size."""

LEAVE = 0.10
"""Predicted gain from which the reference plan is left."""
RETURN = 0.03
"""Predicted gain below which the planner returns to the reference plan."""
SURPRISE = 1.5
"""A round slower than this multiple of its prediction, and slower than all simulated ones, is not explained by the
assumed lengths."""
SWITCH = 0.05
"""Gain over the plan in force that another plan needs."""


def has_enough_history(rounds: int, responses: int, needed: int = FIRST_RESPONSES) -> bool:
    """Check whether the history predicts the next rounds: rounds completed and responses observed."""
    return rounds >= MOST_FIRST_ROUNDS or (rounds >= FIRST_ROUNDS and responses >= needed)


@dataclass(frozen=True)
class Costs:
    """Measured costs of a round besides generation, in seconds."""

    reward: float = 0.0
    """From the last token of a response to its reward, with the seconds that any response spends outside of engines."""
    update: float = 0.0
    """Fixed part of an update."""
    token: float = 0.0
    """Per token of prompts and responses in an update."""
    broadcast: float = 0.0
    """Until every replica has the new weights."""
    stream_slowdown: float = 1.0
    """Factor by which engines slow down while the trainer computes concurrently."""
    saved: float = 0.0
    """Seconds by which layout switches are predicted to end generation earlier, where the last response decides."""
    saved_in_race: float = 0.0
    """The same for short rounds. Few of their responses are long, as the others are stopped."""

    def round(self, simulated: SimulatedRound, stream: bool, race: bool = False) -> float:
        """Return the seconds of the complete round.

        With streaming the trainer processes groups one by one as they arrive; at best it never waits for the next one,
        and gains what layout switches save."""
        end = max(0.0, simulated.seconds - (self.saved_in_race if race else self.saved))
        if not stream:
            tokens = sum(group.tokens for group in simulated.groups)
            return end + self.token * tokens + self.update + self.broadcast
        free = 0.0
        for group in simulated.groups:
            free = max(free, min(group.time, end) * self.stream_slowdown) + self.token * group.tokens
        return free + self.update + self.broadcast


def update_costs(updates: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Fit the fixed and the per-token seconds of an update to (tokens, seconds) of past ones.

    Least squares, neither below 0. If all updates have about the same size, the two cannot be separated: all time is
    per token.

    >>> update_costs([(100, 14.0), (200, 24.0)]), update_costs([(100, 14.0), (100, 16.0)])
    ((4.0, 0.1), (0.0, 0.15))
    """
    tokens, seconds = fmean(one for one, _ in updates), fmean(one for _, one in updates)
    spread = fmean((one - tokens) ** 2 for one, _ in updates)
    if tokens <= 0:
        return seconds, 0.0
    if spread < (ALIKE * tokens) ** 2:
        return 0.0, seconds / tokens
    slope = fmean((one - tokens) * (took - seconds) for one, took in updates) / spread
    slope = min(max(0.0, slope), seconds / tokens)
    return round(seconds - slope * tokens, 9), slope


@dataclass(frozen=True)
class PlanningHorizon:
    """State of the job: P0, R0, the remaining rounds (at least 1) and the prompts queued for a long round.

    `most_prompts`: the most prompts that a round may draw, replacements included.
    """

    prompts: int
    responses: int
    rounds_left: int
    queued: int = 0
    most_prompts: int = 0

    def rounds(self, factors: Factors | None) -> tuple[int, int, int]:
        """Return the numbers of plain, short and long rounds to come, by the rule that opens them."""
        count, queued = {"plain": 0, "short": 0, "long": 0}, self.queued
        for left in range(min(self.rounds_left, HORIZON), 0, -1):
            opening = next_round(self.prompts, self.responses, factors, queued, left)
            if opening.shape.kind is RoundKind.SHORT:
                count["short"] += 1
                queued += opening.shape.prompts - opening.shape.groups
            else:
                count["long" if opening.queued else "plain"] += 1
                queued -= opening.queued
        return count["plain"], count["short"], count["long"]


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds of a plan's rounds.

    `plain`, `short`, `long`: of each kind, 0 if the plan has none. `seconds`: the mean over the rounds to come, which
    compares plans. Every round trains on the same number of prompts. `longest`: of all simulated rounds, plain ones
    included."""

    plan: Plan
    plain: float
    short: float
    long: float
    seconds: float
    longest: float

    def of(self, kind: RoundKind, queued: int) -> float:
        """Return the seconds of the next round of this kind with this many queued prompts."""
        return self.short if kind is RoundKind.SHORT else self.long if queued and self.long else self.plain

    def explained(self, kind: RoundKind, queued: int) -> float:
        """Return the seconds up to which such a round is no surprise.

        A round no slower than plain rounds did no harm."""
        return max(SURPRISE * self.of(kind, queued), self.longest)


class RoundPlanner:
    """Predictions of the candidate plans, deterministic in its arguments: all randomness comes from `seed`.

    `events` counts the simulated events, which are its cost; after MOST_EVENTS it simulates no more."""

    def __init__(
        self,
        candidates: CandidatePlans,
        fleet: EngineFleet,
        lengths: LengthModel,
        costs: Costs,
        horizon: PlanningHorizon,
        seed: str = "",
    ) -> None:
        self.candidates = candidates
        self.lengths = lengths
        self.events = 0
        self._most_events = MOST_EVENTS
        self._fleet = fleet
        self._costs = costs
        self._horizon = horizon
        self._seed = seed
        factors = [plan.factors for plan in candidates.plans if plan.factors is not None]
        self._responses = ceil_product(max((one.responses for one in factors), default=1), horizon.responses)
        prompts = ceil_product(max((one.prompts for one in factors), default=1), horizon.prompts)
        spares = ceil(prompts * SPARE / max(1 - lengths.filtered, 0.01)) if lengths.filtered else 0
        self._prompts = max(prompts, min(spares, horizon.most_prompts))
        self._drawn: dict[int, tuple[PromptDemand, ...]] = {}
        self._simulated: dict[tuple[Factors | None, int], tuple[SimulatedRound, SimulatedRound | None]] = {}

    @property
    def draws(self) -> int:
        """Number of simulated rounds per final prediction."""
        launched = self._horizon.prompts * self._horizon.responses / max(1 - self.lengths.filtered, 0.01)
        return min(MOST_DRAWS, max(1, int(DRAWN_RESPONSES / launched)))

    def in_turn(self, in_force: Plan) -> list[Plan]:
        """Return the order in which plans are considered: the reference, `in_force`, the others shuffled by seed.

        Late plans are not considered if rounds cost many events, so the others take turns."""
        reference, *others = self.candidates.plans
        Random(f"{self._seed}/turns").shuffle(others)
        return [reference, *sorted(others, key=lambda plan: plan != in_force)]

    def compare(self, plans: Iterable[Plan], draws: int, most_events: int) -> dict[Plan, Prediction]:
        """Predict plans over the same draws: `draws`, or as many as fit into `most_events`.

        A plan whose first draw does not fit is left out."""
        self._most_events = most_events
        played = [plan for plan in plans if self._is_affordable(plan.factors, 0)]
        done = 1
        while done < draws and all(self._is_affordable(plan.factors, done) for plan in played):
            done += 1
        return {plan: self.predict_plan(plan, done) for plan in played}

    def predict_plan(self, plan: Plan, draws: int) -> Prediction:
        """Predict a plan over this many draws, the same for all plans. Raises `TooManyEvents`."""

        def seconds(factors: Factors | None, kind: int) -> list[float]:
            rounds = [self._rounds_of(factors, draw)[kind] for draw in range(draws)]
            race = factors is not None and kind == 0
            return [self._costs.round(one, plan.stream, race) for one in rounds if one is not None]

        plains, shorts, longs = seconds(None, 0), [0.0], [0.0]
        if plan.factors is not None:
            shorts, longs = seconds(plan.factors, 0), seconds(plan.factors, 1) or longs
        plain, short, long = fmean(plains), fmean(shorts), fmean(longs)
        plain_rounds, short_rounds, long_rounds = self._horizon.rounds(plan.factors)
        total = plain_rounds * plain + short_rounds * short + long_rounds * (long or plain)
        mean = total / (plain_rounds + short_rounds + long_rounds)
        return Prediction(plan, plain, short, long, mean, max(*plains, *shorts, *longs))

    def _is_affordable(self, factors: Factors | None, draw: int) -> bool:
        try:
            self._rounds_of(None, draw)
            self._rounds_of(factors, draw)
        except TooManyEvents:
            return False
        return True

    def predict(self, kind: RoundKind, queued: int) -> float | None:
        """Predict the seconds of the next round by the first plan, over a few draws that are equal for all fleets.

        The result compares fleets. None if it costs more than LAYOUT_EVENTS."""
        self._most_events = LAYOUT_EVENTS
        plan, draws, race = self.candidates.plans[0], range(ceil(self.draws / 3)), kind is RoundKind.SHORT
        try:
            return fmean(self._costs.round(self._next(plan, kind, queued, draw), plan.stream, race) for draw in draws)
        except TooManyEvents:
            return None

    def _next(self, plan: Plan, kind: RoundKind, queued: int, draw: int) -> SimulatedRound:
        if kind is RoundKind.SHORT:
            return self._rounds_of(plan.factors, draw)[0]
        again = self._rounds_of(plan.factors, draw)[1] if queued else None
        return again or self._rounds_of(None, draw)[0]

    def _rounds_of(self, factors: Factors | None, draw: int) -> tuple[SimulatedRound, SimulatedRound | None]:
        """Simulate a plain round, or a short one and a long one of the prompts that lost."""
        key = (factors, draw)
        if key not in self._simulated:
            horizon, demands = self._horizon, self._draw(draw)
            if factors is None:
                self._simulated[key] = self._simulate(demands, horizon.prompts, horizon.responses), None
            else:
                prompts, responses = (
                    ceil_product(factors.prompts, horizon.prompts),
                    ceil_product(factors.responses, horizon.responses),
                )
                short, long = self._simulate(demands, prompts, responses), None
                if prompts > horizon.prompts:
                    losers = [demands[prompt] for prompt in short.lost]
                    long = self._simulate(self._again(losers, draw), horizon.prompts, horizon.responses)
                self._simulated[key] = short, long
        return self._simulated[key]

    def _simulate(self, demands: Sequence[PromptDemand], prompts: int, responses: int) -> SimulatedRound:
        left = self._most_events - self.events
        if left <= 0:
            raise TooManyEvents(f"all {self._most_events} events are spent")
        horizon = self._horizon
        launched = [one.first(responses) for one in demands]
        try:
            simulated = simulate_round(
                self._fleet, launched, prompts, horizon.prompts, horizon.responses, self._costs.reward, left
            )
        except TooManyEvents:
            self.events = self._most_events
            raise
        self.events += simulated.events
        return simulated

    def _draw(self, draw: int) -> tuple[PromptDemand, ...]:
        """Draw prompts for any plan; prompts that a plan does not launch replace filtered ones."""
        if draw not in self._drawn:
            random = Random(f"{self._seed}/{draw}")
            self._drawn[draw] = self.lengths.draw(random, self._prompts, self._responses)
        return self._drawn[draw]

    def _again(self, losers: Sequence[PromptDemand], draw: int) -> list[PromptDemand]:
        """Draw a long round: the queue consists of such prompts, each generated again."""
        random = Random(f"{self._seed}/{draw}/again")
        selected = (random.choice(losers) for _ in range(self._prompts))
        return [self.lengths.redraw(random, one, self._horizon.responses) for one in selected]


@dataclass(frozen=True)
class PlanDecision:
    """The selected plan with its reason and prediction, and the prediction of the reference plan."""

    prediction: Prediction
    reference: Prediction
    reason: str

    @property
    def plan(self) -> Plan:
        return self.prediction.plan

    @property
    def speedup(self) -> float:
        """Predicted speed-up over the reference plan."""
        return self.reference.seconds / self.prediction.seconds


def decide(planner: RoundPlanner, in_force: Plan) -> PlanDecision | None:
    """Select the plan of the next round; `in_force` is that of the last one.

    None if even a round of the reference plan costs too many events."""
    plans = planner.candidates.plans
    reference = plans[0]
    pilot = planner.compare(planner.in_turn(in_force), ceil(planner.draws / 3), PILOT_EVENTS)
    if reference not in pilot:
        return None
    best_first = sorted((plan for plan in plans if plan in pilot), key=lambda plan: pilot[plan].seconds)
    near = {reference, *best_first[:FINALISTS], *({in_force} & pilot.keys())}
    predicted = planner.compare([plan for plan in plans if plan in near], planner.draws, MOST_EVENTS)
    plain, best = predicted[reference], min(predicted.values(), key=lambda one: one.seconds)
    kept = predicted.get(in_force, plain)
    selected = kept if kept.plan != reference and kept.seconds <= (1 - RETURN) * plain.seconds else plain
    needed = LEAVE if selected is plain else SWITCH
    if best.seconds < (1 - needed) * selected.seconds:
        selected = best
    if selected is plain:
        reason = f"{reference}: {plain.seconds:.3g} s a round; {_rival(predicted, reference)}"
    else:
        reason = f"{selected.plan}: {selected.seconds:.3g} s a round, {reference} {plain.seconds:.3g} s"
    if len(pilot) < len(plans):
        reason += f"; {len(pilot)} of {len(plans)} plans were looked at, the others have their turn"
    return PlanDecision(selected, plain, reason)


def _rival(predicted: Mapping[Plan, Prediction], reference: Plan) -> str:
    others = [one for plan, one in predicted.items() if plan != reference]
    if not others:
        return "no other plan could be looked at"
    best = min(others, key=lambda one: one.seconds)
    return f"{best.plan}, the best other one, {best.seconds:.3g} s, and {LEAVE:.0%} less would be clear"
