"""Forecast of switches: the seconds that they save in a stage, by the tensor parallel size in which it begins.

The round simulator predicts rounds without switches. This is the difference: a machine's stage is played until it could
leave its size, and the switch plan then compares its best sequence with none. So start and switches are predicted
together, at the cost of one play and one plan for each size. The plan's step of each size is corrected by that size's
play: else it would find a gain where it only expects one size to be faster than it is. A size that is best for a
complete stage need not be the best start. Of a race, a machine plays its share: as large a part of the prompts as of
the machines, with the same part of the groups that are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from rljob_runtime.scheduling.adaptive_tp.load_curve import Point, load_curve
from rljob_runtime.scheduling.adaptive_tp.policy import SwitchRules, decide, is_worth
from rljob_runtime.scheduling.adaptive_tp.snapshot import MachineSnapshot, SizedEngine
from rljob_runtime.scheduling.adaptive_tp.stage import Asked, Chooser, Race, Stage, generate
from rljob_runtime.scheduling.adaptive_tp.switch_costs import SwitchCosts
from rljob_runtime.scheduling.adaptive_tp.switch_plan import expected_seconds, holds, plan_switches
from rljob_runtime.scheduling.round_planner.survival import LengthObservation

MOST_DRAWS = 3
"""Stages over which a gain is a mean."""
DRAWN_RESPONSES = 4096
"""Responses that are played for each size: fewer draws of large stages."""
CHECK_SHARE = 1 / 16
"""Share of a stage's responses that end between two checks whether another size would run the others."""

Known = tuple[Sequence[int], Sequence[int]]
"""Lengths before a stage: of responses that ended, and of those that were stopped."""


@dataclass(frozen=True)
class Machine:
    """A machine for predictions: its engines by size, its accelerators, costs of switches, and their rules."""

    engines: Mapping[int, SizedEngine]
    accelerators: int
    costs: SwitchCosts
    rules: SwitchRules

    def chooser(self, past: Sequence[int], max_tokens: int) -> Chooser:
        """Return the policy, for a stage before which the lengths `past` are known."""
        return lambda stage: decide(stage.snapshot(past, (), max_tokens), self.engines, self.costs, self.rules).target


def stages_to_draw(responses: int) -> int:
    """Return how many stages to draw, of so many responses on a machine.

    >>> stages_to_draw(256), stages_to_draw(2048), stages_to_draw(10_000)
    (3, 2, 1)
    """
    return max(1, min(MOST_DRAWS, DRAWN_RESPONSES // max(1, responses)))


def switch_gains(
    machine: Machine,
    stages: Sequence[Sequence[Asked]],
    observed: Sequence[LengthObservation],
    max_tokens: int,
    race: Race | None = None,
) -> dict[int, float]:
    """Return the mean seconds by which switches end a machine's stage earlier, by the size in which it begins.

    0 where no plan is clearly better than none. A size that does not hold the longest response is left out, and so is
    one that machines could not leave. `stages`: drawn ones, of one machine. `observed`: lengths that are known before
    the stage. `race`: what a stage keeps, None for all."""
    longest = max((one.prompt_tokens + one.tokens for stage in stages for one in stage), default=0)
    sizes = [size for size, engine in sorted(machine.engines.items()) if longest <= engine.kv_tokens]
    starts = [size for size in sizes if not machine.rules.sizes.isdisjoint(set(sizes) - {size})]
    if not stages:
        return {}
    known = [one.tokens for one in observed if one.ended], [one.tokens for one in observed if not one.ended]

    stages_played = [_played(machine, asked, sizes, race, known, max_tokens) for asked in stages]
    return {size: fmean(_gain(machine, played, size) for played in stages_played) for size in starts}


@dataclass(frozen=True)
class _Played:
    """A stage without a switch, from a look of it on.

    `engine`: with the speed at which the plan expects this curve to take what the stage took."""

    curve: Sequence[Point]
    engine: SizedEngine


@dataclass(frozen=True)
class _Stage:
    """A stage without a switch, played in one size; a part of it is None if the stage has no such look.

    `leaving`: from where the plan begins. `settled`: the engine of the stage from where nothing waits any longer."""

    leaving: _Played | None
    settled: SizedEngine | None


_Look = tuple[MachineSnapshot, float]
"""The machine at a look, and the seconds since the stage began."""


class _Looks:
    """Chooses the looks from which a stage is predicted, while it is played.

    Nothing waits at the first look of a stage whose caches become full later. From there, the plan would see responses
    that take turns to the end, and no tail that a switch could shorten."""

    def __init__(self, others: Mapping[int, SizedEngine], known: Known, max_tokens: int) -> None:
        self._others = others
        self._known = known
        self._max_tokens = max_tokens
        self._checked = 0
        self._holding: _Look | None = None
        self.settled: _Look | None = None
        """The first look after which nothing waits."""

    def __call__(self, stage: Stage) -> None:
        if not stage.waiting:
            self.settled = self.settled or self._look(stage)
            return
        self.settled = None
        if self._holding is None and len(stage.ended) - self._checked >= CHECK_SHARE * stage.total:
            self._checked = len(stage.ended)
            look = self._look(stage)
            curve = load_curve(look[0])
            if any(holds(curve, engine, stage.accelerators // size) for size, engine in self._others.items()):
                self._holding = look

    @property
    def leaving(self) -> _Look | None:
        """The first look at which another size would run all although responses wait, else the settled one.

        If both exist, it precedes the settled one, which follows the last wait."""
        return self._holding or self.settled

    def _look(self, stage: Stage) -> _Look:
        return stage.snapshot(*self._known, self._max_tokens), stage.now


def _played(
    machine: Machine,
    asked: Sequence[Asked],
    sizes: Sequence[int],
    race: Race | None,
    known: Known,
    max_tokens: int,
) -> dict[int, _Stage]:
    """Play a stage in each size."""
    found = {}
    for size in sizes:
        engine = machine.engines[size]
        others = {other: machine.engines[other] for other in sizes if other != size and other in machine.rules.sizes}
        looks = _Looks(others, known, max_tokens)
        end = generate(asked, size, machine.engines, machine.accelerators, {}, looks, race).seconds
        leaving = _from(looks.leaving, engine, end, machine.accelerators // size)
        same = looks.settled is looks.leaving
        settled = leaving if same else _from(looks.settled, engine, end, machine.accelerators // size)
        found[size] = _Stage(leaving, settled.engine if settled is not None else None)
    return found


def _from(look: _Look | None, engine: SizedEngine, end: float, replicas: int) -> _Played | None:
    """Return the part of a stage from a look of it on; `end`: its seconds."""
    if look is None:
        return None
    snapshot, since = look
    curve = load_curve(snapshot)
    return _Played(curve, _as_played(engine, curve, end - since, replicas))


def _as_played(engine: SizedEngine, curve: Sequence[Point], seconds: float, replicas: int) -> SizedEngine:
    if not (expected := expected_seconds(curve, engine, replicas)):
        return engine
    return replace(engine, latency=engine.latency.scaled(max(seconds, 1e-9) / expected))


def _gain(machine: Machine, played: Mapping[int, _Stage], start: int) -> float:
    """Return the seconds that switches save in the rest of a stage; 0 if it could never leave its first size.

    Switches are priced as the policy prices them: KV is moved where that is cheaper."""
    leaving = played[start].leaving
    if leaving is None:
        return 0.0
    rules, accelerators = machine.rules, machine.accelerators
    settled = {size: one.settled for size, one in played.items() if one.settled is not None}
    known = {**machine.engines, **settled, start: leaving.engine}
    engines = {size: engine for size, engine in known.items() if size in rules.sizes | {start}}
    pairs = machine.costs.table(engines, accelerators, rules.state)
    plan = plan_switches(leaving.curve, start, engines, accelerators, pairs, rules.max_switches)
    gain = plan.never - min([plan.wait, *plan.now.values()])
    return gain if is_worth(gain, plan.never, 0.0, rules) else 0.0
