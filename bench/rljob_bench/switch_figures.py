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
from rljob_bench.lib.turns import Ordered, Played, Way
from rljob_bench.simulated.pat_rules import Hindsight
from rljob_bench.switch_predictions import prediction_figures, speed_rows
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.scheduling.adaptive_tp.stage import Asked, generate
from rljob_runtime.scheduling.adaptive_tp.switch_costs import State
from rljob_runtime.scheduling.layouts.layout_switch import LayoutSwitch
from rljob_runtime.workloads import Workload

LEAST, GAIN_GOAL, GAIN_COUNT = 0.99, 1.03, 256
"""Speed over the best static size: everywhere, and with at least so many responses."""
RESTART_GOAL, FIXED_GOAL = 20.0, 0.5
PAPER_RESTART = "PAT §5.4: 10.7"
RIGHT_GOAL = 0.95
OTHERS = ("training", "broadcast", "between rounds")
"""What a round takes that is not its generation."""
OTHERS_GOAL = 1.015
TIE = 0.1
"""Of two states whose seconds differ by less, either is right."""
PEAK_GOAL, STEADY_GOAL = 2.5, 5.2
FIXED_PARTS = ("stop", "release", "start", "load")
PARTS = ("stop", "export", "release", "start", "load", "import", "prefill")


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
    found += prediction_figures(experiment.played)
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
    limit = _limit(experiment, count, blocks)
    yield figure(f"{count} responses: over the best static size", best / ours, _goal(count), "hindsight", limit)
    for size, seconds in sorted(static.items()):
        yield figure(f"{count} responses: over static size {size}", seconds / ours)
    never = sum(block.static[block.adaptive.size].seconds for block in blocks)
    yield figure(f"{count} responses: over never switching, from the same start", never / ours)
    yield from _others(count, experiment.played[count])


def _goal(count: int) -> float:
    return GAIN_GOAL if count >= GAIN_COUNT else LEAST


def _pay_row(experiment: SwitchExperiment, count: int) -> dict[str, Any]:
    """Return whether a switch can pay: the best sequence in hindsight reaches the least gain that is the goal."""
    limit = _limit(experiment, count, blocks_of(experiment.played[count]))
    verdict = "not known" if limit is None else "can pay" if limit >= GAIN_GOAL else "cannot pay"
    return {"responses": count, "limit": limit, "least_gain": GAIN_GOAL, "switches": verdict}


# --- what is not generation ---


def _others(count: int, played: Sequence[Played]) -> Iterator[dict[str, Any]]:
    """Yield the seconds beyond generation of the policy's rounds, over those of the static rounds of their blocks."""
    found: dict[Way, list[Mapping[str, float]]] = {Way.ADAPTIVE: [], Way.STATIC: []}
    counted = {block.adaptive.turn.block for block in blocks_of(played)}
    for before, one in pairwise(played):
        if one.turn.block in counted:
            found[one.turn.way].append(other_seconds(before, one))
    ours, static = ({part: fmean(one[part] for one in its) for part in OTHERS} for its in found.values())
    name = f"{count} responses: beyond generation"
    for part in OTHERS:
        yield figure(f"{name}: {part}", ours[part], anchor="limit: static sizes", limit=static[part], unit="s",
                     better="lower")  # fmt: skip
    share = sum(ours.values()) / max(sum(static.values()), 1e-9)
    yield figure(f"{name}: over static sizes", share, OTHERS_GOAL, "PAT §5.3", 1.0, better="lower")


def other_seconds(before: Played, one: Played) -> dict[str, float]:
    """Return the seconds from the end of the round before that are not of this round's generation, by part.

    Changes of the layout between two rounds are left out: here they are those of the turns. Raises `RuntimeError`
    without a report."""
    report = one.report
    if report is None or report.seconds is None:
        raise RuntimeError(f"a round of {one.turn} has no report of its seconds")
    between = one.ended - before.ended - report.seconds - (report.layout_seconds or 0.0)
    parts = report.training_seconds or 0.0, report.broadcast_seconds or 0.0, max(0.0, between)
    return dict(zip(OTHERS, parts, strict=True))


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


# --- memory ---


def _memory(experiment: SwitchExperiment) -> Iterator[dict[str, Any]]:
    kept = [one for one in experiment.rounds if one.turn.way is Way.STATIC and one.turn.block > 0]
    steady = (median(one.held for one in kept) - experiment.warm_up.held) / 1e9
    yield figure("memory: both sizes kept, over one", steady, STEADY_GOAL, "PAT §5.4", unit="GB", better="lower")
    calm = [sample for one in kept for sample in _samples(experiment, one)]
    busy = [sample for one in experiment.rounds if one.switches for sample in _samples(experiment, one)]
    if calm and busy:
        peak = (max(busy) - median(calm)) / 1e9
        yield figure("memory: peak of a switch", peak, PEAK_GOAL, "PAT §5.4", unit="GB", better="lower")


def _samples(experiment: SwitchExperiment, played: Played) -> list[int]:
    return experiment.memory.between(played.ended - played.seconds, played.ended)


# --- rows ---


def rows(experiment: SwitchExperiment) -> list[dict[str, Any]]:
    """Return whether a switch can pay, a row for each round, and each size's speed by the responses that are left."""
    found: list[dict[str, Any]] = [_pay_row(experiment, count) for count in experiment.played]
    for count, played in experiment.played.items():
        for one in played:
            found.append(
                {
                    "responses": count,
                    "block": one.turn.block,
                    "way": one.turn.way.value,
                    "start": one.size,
                    "seconds": round(one.seconds, 3),
                    "layout_seconds": one.report.layout_seconds if one.report is not None else None,
                    "tokens": one.report.tokens if one.report is not None else None,
                    "switches": [_switch_row(switch) for switch in one.switches],
                }
            )
    return [*found, *speed_rows(experiment.rounds)]


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
