"""Switch figures: what rounds that were played by turns say of PAT's policy, its predictions, switches and memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from rljob_bench.lib.engine_switch import Restart
from rljob_bench.lib.memory_watch import MemoryWatch
from rljob_bench.lib.turns import Glance, Ordered, Played, Way
from rljob_bench.simulated.pat_rules import Hindsight
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.scheduling.adaptive_tp.stage import Asked, generate
from rljob_runtime.scheduling.adaptive_tp.switch_costs import State
from rljob_runtime.scheduling.layouts.layout_switch import LayoutSwitch
from rljob_runtime.workloads import Workload

LEAST, GAIN_GOAL, GAIN_COUNT = 0.99, 1.03, 256
"""Speed over the best static size: everywhere, and with at least so many responses."""
RESTART_GOAL, FIXED_GOAL = 20.0, 0.5
PAPER_RESTART = "PAT §4.3: 10.7"
RIGHT_GOAL, ERROR_GOAL, BIAS_GOAL = 0.95, 0.05, 0.1
TIE = 0.1
"""Of two states whose seconds differ by less, either is right."""
PEAK_GOAL, STEADY_GOAL = 2.5, 5.2
FIXED_PARTS = ("stop", "release", "start", "load")
PARTS = ("stop", "export", "release", "start", "load", "import", "prefill")
BUCKETS = (2, 8, 32, 128, 1 << 30)
"""Most responses of a row of predicted and measured speed."""
FEWEST_STEPS = 20


@dataclass(frozen=True)
class SwitchExperiment:
    """Rounds that were played, by the number of their responses. `warm_up`: before the second size ever ran.

    `workloads`: lengths. `shapes`: prompts and responses to each."""

    played: Mapping[int, Sequence[Played]]
    warm_up: Played
    restarted: Restart
    memory: MemoryWatch
    workloads: Mapping[int, Workload]
    shapes: Mapping[int, tuple[int, int]]
    longest: int
    load: float

    @property
    def rounds(self) -> list[Played]:
        """All rounds, without the warm-up."""
        return [one for played in self.played.values() for one in played]

    @property
    def switches(self) -> list[LayoutSwitch]:
        """All switches that reached their size."""
        return [one for played in self.rounds for one in played.switches if one.succeeded]


def figures(experiment: SwitchExperiment) -> list[dict[str, Any]]:
    """Return all figures."""
    found = [one for count in experiment.played for one in _speed(experiment, count)]
    found += _parts(experiment.switches, experiment.restarted)
    found += _states(experiment)
    found += _predictions(experiment)
    found += _memory(experiment)
    return found


# --- speed over the baselines ---


@dataclass(frozen=True)
class Block:
    """The rounds of one block: PAT's, and the static ones by size."""

    adaptive: Played
    static: Mapping[int, Played]


def blocks_of(played: Sequence[Played]) -> list[Block]:
    """Return the blocks that count."""
    found: dict[int, list[Played]] = defaultdict(list)
    for one in played:
        found[one.turn.block].append(one)
    return [
        Block(adaptive, {one.size: one for one in its if one is not adaptive})
        for _, its in sorted(found.items())
        for adaptive in its
        if adaptive.turn.way is Way.ADAPTIVE
    ]


def _speed(experiment: SwitchExperiment, count: int) -> Iterator[dict[str, Any]]:
    blocks = blocks_of(experiment.played[count])
    ours = sum(block.adaptive.seconds for block in blocks)
    static = {size: sum(block.static[size].seconds for block in blocks) for size in blocks[0].static}
    best = min(static.values())
    goal = GAIN_GOAL if count >= GAIN_COUNT else LEAST
    limit = _limit(experiment, count, blocks)
    yield figure(f"{count} responses: over the best static size", best / ours, goal, "hindsight", limit)
    for size, seconds in sorted(static.items()):
        yield figure(f"{count} responses: over static size {size}", seconds / ours)
    never = sum(block.static[block.adaptive.size].seconds for block in blocks)
    yield figure(f"{count} responses: over never switching, from the same start", never / ours)


def _limit(experiment: SwitchExperiment, count: int, blocks: Sequence[Block]) -> float | None:
    """Return the speed of the best sequence in hindsight over the best static size, in the engine model of this run."""
    static, best = defaultdict[int, float](float), 0.0
    for block in blocks:
        engines = block.adaptive.engines
        if set(engines) != set(block.static):
            return None
        machine = max(engines)
        pairs = block.adaptive.costs.table(engines, machine)
        asked = _asked(experiment, count, block.adaptive.turn.block)
        for size in engines:
            static[size] += generate(asked, size, engines, machine, pairs).seconds
        best += Hindsight(asked, engines, machine, pairs).best().seconds
    return min(static.values()) / best


def _asked(experiment: SwitchExperiment, count: int, block: int) -> list[Asked]:
    prompts, responses = experiment.shapes[count]
    workload = experiment.workloads[count]
    drawn = [workload.prompt(0, block * prompts + number, responses, 0) for number in range(prompts)]
    return [Asked(1, one.output_tokens) for prompt in drawn for one in prompt.responses]


# --- the switch ---


def _parts(switches: Sequence[LayoutSwitch], restarted: Restart) -> Iterator[dict[str, Any]]:
    yield figure("switches", len(switches), unit="count")
    for part in PARTS:
        if seconds := [one.seconds[part] for one in switches if part in one.seconds]:
            yield figure(f"switch: {part}", median(seconds), unit="s", better="lower")
    yield figure("restart: new processes", restarted.cold, unit="s", better="lower")
    yield figure("restart: warm processes", restarted.warm, unit="s", better="lower")
    # The first switch to a size may build its engines.
    if fixed := [sum(one.seconds.get(part, 0.0) for part in FIXED_PARTS) for one in switches if _is_kept(one)]:
        yield figure("switch: all but the state of responses", median(fixed), FIXED_GOAL, unit="s", better="lower")
        yield figure("switch: over a restart", restarted.cold / median(fixed), RESTART_GOAL, PAPER_RESTART)
        yield figure("switch: over a restart in warm processes", restarted.warm / median(fixed))


def _is_kept(switch: LayoutSwitch) -> bool:
    return "start" in switch.seconds


# --- move, or compute again ---


@dataclass(frozen=True)
class StatePair:
    """Two neighbouring switches in the same direction: seconds of the state of the same responses, either way.

    `cheaper`: what was predicted for them."""

    move: float
    recompute: float
    cheaper: State

    @property
    def chosen(self) -> float:
        """Seconds of the state that was predicted to be cheaper."""
        return self.move if self.cheaper is State.MIGRATE else self.recompute

    @property
    def is_right(self) -> bool:
        """Whether the other state is not clearly cheaper."""
        return self.chosen <= min(self.move, self.recompute) * (1 + TIE)


def state_pairs(played: Played) -> list[StatePair]:
    """Return the pairs of a round of ordered switches. Seconds of the second one are scaled to the first's tokens."""
    made: dict[tuple[int, int], list[tuple[Ordered, LayoutSwitch]]] = defaultdict(list)
    for switch in played.switches:
        for ordered in played.ordered:
            if switch.decision is ordered.decision and switch.succeeded and _state_seconds(switch) is not None:
                made[switch.start, switch.target].append((ordered, switch))
    return [
        pair
        for its in made.values()
        for one, other in zip(its[::2], its[1::2], strict=False)
        if (pair := _pair(one, other)) is not None
    ]


def _pair(one: tuple[Ordered, LayoutSwitch], other: tuple[Ordered, LayoutSwitch]) -> StatePair | None:
    (first, its), (second, theirs) = one, other
    seconds, others = _state_seconds(its), _state_seconds(theirs)
    if first.cheaper is None or seconds is None or others is None or its.state is theirs.state:
        return None
    others *= first.tokens / second.tokens
    move, recompute = (seconds, others) if its.state is State.MIGRATE else (others, seconds)
    return StatePair(move, recompute, first.cheaper)


def _state_seconds(switch: LayoutSwitch) -> float | None:
    """Return the seconds of the state of the responses; None if no token followed the switch."""
    taken = switch.seconds.get("import", switch.seconds.get("prefill"))
    return None if taken is None else taken + switch.seconds.get("export", 0.0)


def _states(experiment: SwitchExperiment) -> Iterator[dict[str, Any]]:
    pairs = [pair for played in experiment.rounds if played.turn.way is Way.ORDERED for pair in state_pairs(played)]
    if not pairs:
        return
    yield figure("state: moved", median(pair.move for pair in pairs), unit="s", better="lower")
    yield figure("state: computed again", median(pair.recompute for pair in pairs), unit="s", better="lower")
    yield figure("state: chosen right", fmean(pair.is_right for pair in pairs), RIGHT_GOAL, unit="share")
    best = sum(min(pair.move, pair.recompute) for pair in pairs)
    yield figure("state: chosen over the cheaper", sum(p.chosen for p in pairs) / best, limit=1.0, better="lower")


# --- predictions ---


@dataclass(frozen=True)
class Stretch:
    """Steps of one replica between two looks."""

    size: int
    responses: int
    steps: int
    seconds: float
    predicted: float


def stretches_of(played: Played) -> list[Stretch]:
    """Return the steps of a round without switches, predicted by what was known of its engines at its first look."""
    found = []
    for before, after in pairwise(played.glances):
        model = played.engines.get(before.size)
        if model is None or before.waiting or after.waiting or before.size != after.size:
            continue
        for name in before.running.keys() & after.running.keys():
            if (steps := _steps(before, after, name)) > 0:
                ends = [model.latency.step(*glance.running[name]) for glance in (before, after)]
                count, seconds = before.running[name][0], after.at - before.at
                found.append(Stretch(before.size, count, steps, seconds, steps * fmean(ends)))
    return found


def _steps(before: Glance, after: Glance, replica: str) -> int:
    earlier, later = before.tokens.get(replica, {}), after.tokens.get(replica, {})
    return max((later[key] - earlier[key] for key in earlier.keys() & later.keys()), default=0)


def _predictions(experiment: SwitchExperiment) -> Iterator[dict[str, Any]]:
    static = [played for played in experiment.rounds if played.turn.way is Way.STATIC and played.turn.block > 0]
    for size in sorted({played.size for played in static}):
        errors = []
        for played in static:
            its = stretches_of(played) if played.size == size else []
            if sum(one.steps for one in its) >= FEWEST_STEPS:
                errors.append(abs(sum(one.predicted for one in its) / sum(one.seconds for one in its) - 1))
        if errors:
            yield figure(
                f"predictor: error of size {size}", fmean(errors), ERROR_GOAL, "PAT §5: 0.040 and 0.031",
                unit="share", better="lower",
            )  # fmt: skip
    gains = [gain for played in experiment.played.values() for gain in _gains(blocks_of(played))]
    if measured := sum(gain for _, gain in gains):
        ratio = sum(predicted for predicted, _ in gains) / measured
        yield figure("gain: predicted over measured", ratio, 1.0, unit="ratio", better="nearest")
        yield figure("gain: bias", abs(ratio - 1), BIAS_GOAL, unit="share", better="lower")


def _gains(blocks: Sequence[Block]) -> Iterator[tuple[float, float]]:
    """Yield the predicted and the measured gain of each round that switched."""
    for block in blocks:
        made = [one for one in block.adaptive.switches if one.succeeded]
        if made and made[0].decision is not None and made[0].decision.gain is not None:
            never = block.static[block.adaptive.size]
            yield made[0].decision.gain, never.seconds - block.adaptive.seconds


# --- memory ---


def _memory(experiment: SwitchExperiment) -> Iterator[dict[str, Any]]:
    kept = [one for one in experiment.rounds if one.turn.way is Way.STATIC and one.turn.block > 0]
    steady = (median(one.held for one in kept) - experiment.warm_up.held) / 1e9
    yield figure("memory: both sizes kept, over one", steady, STEADY_GOAL, "PAT §6", unit="GB", better="lower")
    calm = [sample for one in kept for sample in _samples(experiment, one)]
    busy = [sample for one in experiment.rounds if one.switches for sample in _samples(experiment, one)]
    if calm and busy:
        peak = (max(busy) - median(calm)) / 1e9
        yield figure("memory: peak of a switch", peak, PEAK_GOAL, "PAT §6", unit="GB", better="lower")


def _samples(experiment: SwitchExperiment, played: Played) -> list[int]:
    return experiment.memory.between(played.ended - played.seconds, played.ended)


# --- rows ---


def rows(experiment: SwitchExperiment) -> list[dict[str, Any]]:
    """Return a row for each round, each switch, and each size's speed by the responses that are left."""
    found: list[dict[str, Any]] = []
    for count, played in experiment.played.items():
        for one in played:
            found.append(
                {
                    "responses": count,
                    "block": one.turn.block,
                    "way": one.turn.way.value,
                    "start": one.size,
                    "seconds": round(one.seconds, 3),
                    "tokens": one.report.tokens if one.report is not None else None,
                    "switches": [_switch_row(switch) for switch in one.switches],
                }
            )
    return [*found, *_speed_rows(experiment)]


def _switch_row(one: LayoutSwitch) -> dict[str, Any]:
    decision = one.decision
    return {
        "at": round(one.at, 3),
        "sizes": [one.start, one.target, one.reached],
        "responses": len(one.responses),
        "state": one.state.value if one.state is not None else None,
        "seconds": {part: round(seconds, 4) for part, seconds in one.seconds.items()},
        "predicted_seconds": decision.seconds if decision is not None else None,
        "predicted_gain": decision.gain if decision is not None else None,
    }


def _speed_rows(experiment: SwitchExperiment) -> Iterator[dict[str, Any]]:
    """Yield predicted and measured steps by size and responses of an engine, as PAT Fig. 14 has them."""
    its: dict[tuple[int, int], list[Stretch]] = defaultdict(list)
    for played in experiment.rounds:
        if played.turn.way is Way.STATIC:
            for one in stretches_of(played):
                its[one.size, next(most for most in BUCKETS if one.responses <= most)].append(one)
    for (size, most), stretches in sorted(its.items()):
        steps = sum(one.steps for one in stretches)
        yield {
            "size": size,
            "responses_of_an_engine": f"up to {most}" if most < BUCKETS[-1] else f"more than {BUCKETS[-2]}",
            "steps": steps,
            "step_seconds": round(sum(one.seconds for one in stretches) / steps, 5),
            "predicted_step_seconds": round(sum(one.predicted for one in stretches) / steps, 5),
        }
