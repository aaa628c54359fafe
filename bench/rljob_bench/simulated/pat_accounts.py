"""Accounts of `rljob bench pat`: how often state is carried the cheaper way, and what the engines of all sizes keep.

The engine model gives both states' seconds for a switch, so that a choice can be judged. A job's rates differ from what
is assumed before the first switch: each true rate is drawn, up to `SPREADS` times off. A switch measures the state that
it chose and no other, with noise, as on real engines. Machines measure copies also in each size that they visit while
they rest, before a job's first switch: no size is switched to before its speed is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any

from rljob_runtime.cli.bench_result import figure
from rljob_runtime.perf_model.hardware import A40, Accelerator
from rljob_runtime.perf_model.model_shape import ModelShape
from rljob_runtime.scheduling.adaptive_tp.snapshot import Running, SizedEngine
from rljob_runtime.scheduling.adaptive_tp.stage import Asked
from rljob_runtime.scheduling.adaptive_tp.switch_costs import FIXED, Carried, Part, State, SwitchCosts, carried_by

SPREADS = {Part.EXPORT: 2.0, Part.IMPORT: 2.0, Part.PREFILL: 1.3}
"""Copies depend on the machine. A prefill is predicted by a latency model that was measured."""
NOISE = 0.1
TRUTHS, SWITCHES = 24, 12
"""Jobs, and switches of each."""
TAIL_SHARE = 8
"""A switch carries at most this part of a round: tails are what switches pay for."""
TIE = 0.1
"""Of two states whose seconds differ by less, either is right."""
RIGHT_GOAL = 0.95

CONTEXT_BYTES = 0.5e9
"""What a process keeps on an accelerator while its engine sleeps: its context. Assumed."""
GRAPH_BYTES = 0.4e9
"""CUDA graphs of a size for batches of a tail, which PAT captures too (§4.4). Assumed, after 0.36 GiB that vLLM 0.27
estimates for 16 batch sizes of a model on two accelerators. Engines that give their graphs back keep less."""
GROUPS_SHARE = 0.02
"""Share of an A40's memory that idle communication groups of all sizes keep: PAT §4.3, measured there."""
GROUP_BYTES = GROUPS_SHARE * A40.memory_bytes / 3
"""Of one size above 1: PAT has three such sizes. Buffers of a group depend on its links, not on the memory."""
STEADY_GOAL, PEAK_GOAL = 5.2, 2.5
"""PAT §5.4: GB of an accelerator, always and in a switch."""


@dataclass(frozen=True)
class Choice:
    """A switch of a job: seconds of the state that it chose, and of the cheaper one. `number`: from 0."""

    number: int
    chosen: float
    cheaper: float

    @property
    def is_right(self) -> bool:
        """Whether the other state is not clearly cheaper."""
        return self.chosen <= self.cheaper * (1 + TIE)


COPIES = (Part.EXPORT, Part.IMPORT)


def choices(
    engines: Mapping[int, SizedEngine],
    accelerators: int,
    assumed: SwitchCosts,
    asked: Sequence[Asked],
    random: Random,
    profiled: bool = True,
) -> Iterator[Choice]:
    """Yield the choices of one job, whose true rates are drawn. `assumed`: its costs before anything is measured.

    `profiled`: whether its machines have visited each size but the smallest, in which they start."""
    truth = _truth(assumed, random)
    start, *others = sorted(engines)
    for size in others if profiled else ():
        _measure(assumed, truth, (start, size), COPIES, random)
    ways = {state: truth.table(engines, accelerators, state) for state in (State.MIGRATE, State.RECOMPUTE)}
    for number in range(SWITCHES):
        start, target = random.sample(sorted(engines), 2)
        carried = _tail(asked, random)
        state = assumed.table(engines, accelerators)[start, target].of(carried).state
        seconds = {each: table[start, target].of(carried).seconds for each, table in ways.items()}
        yield Choice(number, seconds[state], min(seconds.values()))
        parts = COPIES if state is State.MIGRATE else (Part.PREFILL,)
        _measure(assumed, truth, (start, target), parts, random)


def _measure(
    assumed: SwitchCosts, truth: SwitchCosts, pair: tuple[int, int], parts: Sequence[Part], random: Random
) -> None:
    noise = random.uniform(1 - NOISE, 1 + NOISE)
    for part in parts:
        assumed.record(*pair, part, 1.0, truth.unit(*pair, part) * noise)


def _truth(assumed: SwitchCosts, random: Random) -> SwitchCosts:
    """Return costs of switches that are nothing but state, whose rates differ from the assumed ones."""
    rates = {part: assumed.unit(1, 2, part) * most ** random.uniform(-1, 1) for part, most in SPREADS.items()}
    return SwitchCosts(dict.fromkeys(FIXED, 0.0) | rates)


def _tail(asked: Sequence[Asked], random: Random) -> Carried:
    """Draw the unfinished responses of a round, and how far each is."""
    longest = sorted(asked, key=lambda one: one.tokens)[-max(1, len(asked) // TAIL_SHARE) :]
    left = random.sample(longest, random.randint(1, len(longest)))
    done = random.uniform(0.1, 1.0)
    return carried_by(Running(one.prompt_tokens, max(1, round(one.tokens * done))) for one in left)


Jobs = Callable[[Random, bool], Iterator[Choice]]
"""The choices of one job whose machines have, or have not, measured copies while they rested."""


def state_figures(jobs: Sequence[tuple[str, Jobs]], seed: int) -> list[dict[str, Any]]:
    """Return the figures of jobs on these engines, by name."""
    found = []
    for name, play in jobs:
        made, unprofiled = (
            [one for number in range(TRUTHS) for one in play(Random(f"{seed}/{name}/{number}"), profiled)]
            for profiled in (True, False)
        )
        right, first = fmean(one.is_right for one in made), fmean(one.is_right for one in made if one.number == 0)
        over = sum(one.chosen for one in made) / sum(one.cheaper for one in made)
        found.append(figure(f"{name}: state chosen right", right, RIGHT_GOAL, unit="share"))
        without = fmean(one.is_right for one in unprofiled)
        found.append(figure(f"{name}: state chosen right without idle-time profiles", without, unit="share"))
        found.append(figure(f"{name}: state of the first switch chosen right", first, unit="share"))
        found.append(figure(f"{name}: seconds of state over the cheaper one", over, limit=1.0, better="lower"))
    return found


def kept_bytes(sizes: Sequence[int]) -> dict[str, float]:
    """Return what the engines of these sizes keep on an accelerator while they sleep, by kind.

    >>> kept = kept_bytes([1, 2])
    >>> kept["contexts"] == 2 * CONTEXT_BYTES, kept["groups"] == GROUP_BYTES
    (True, True)
    """
    return {
        "contexts": len(sizes) * CONTEXT_BYTES,
        "graphs": len(sizes) * GRAPH_BYTES,
        "groups": sum(size > 1 for size in sizes) * GROUP_BYTES,
    }


def memory_figures(model: ModelShape, accelerator: Accelerator, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yield what each accelerator keeps for the sizes besides the one that runs, by account.

    A sleeping engine has given its weights and its KV cache back, and a switch puts the old engines to sleep before the
    new ones wake: nothing is held twice. It keeps its context, its graphs and its communication group. Most is kept
    while the smallest size runs. New weights arrive tensor by tensor, so that a switch needs room for the largest one,
    at most as the relay has it: not divided."""
    others = sorted(sizes)[1:]
    kept = kept_bytes(others)
    steady = sum(kept.values())
    naive = sum(model.parameters * model.dtype_bytes / size for size in others) / 1e9
    name = f"{accelerator.name} {model.name}, {len(sizes)} sizes: memory of an accelerator"
    peak = largest_tensor(model) * model.dtype_bytes / 1e9
    yield figure(f"{name}, kept, assumed", steady / 1e9, STEADY_GOAL, "PAT", unit="GB", better="lower")
    for kind, held in kept.items():
        yield figure(f"{name}, kept: {kind}", held / 1e9, unit="GB", better="lower")
    yield figure(f"{name}, kept over all", steady / accelerator.memory_bytes, unit="share", better="lower")
    yield figure(f"{name}, in a switch, assumed", peak, PEAK_GOAL, "PAT", unit="GB", better="lower")
    yield figure(f"{name}, if engines kept their weights", naive, unit="GB", better="lower")


def largest_tensor(model: ModelShape) -> int:
    """Return the parameters of the largest tensor: the embedding, or two fused matrices of a feed-forward layer.

    >>> from rljob_runtime.perf_model.model_shape import LLAMA3_1_8B
    >>> largest_tensor(LLAMA3_1_8B) == 128_256 * 4096
    True
    """
    return max(model.vocabulary * model.hidden, 2 * model.hidden * model.intermediate)
