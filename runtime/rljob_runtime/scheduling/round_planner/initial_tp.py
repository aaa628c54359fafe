"""Initial TP: selects the tensor parallel size that a job starts with, by simulating its round on every measured size.

The parallelism planner continues from there by preemptions, one size at a time (RollPacker §4.2), so each step of a
wrong start costs rounds. A plain round decides: the best size depends on the number of running responses and their
lengths, and a race changes both little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rljob_runtime.perf_model.profile import SizedRound
from rljob_runtime.scheduling.round_planner.round_simulator import EngineFleet, PromptDemand, simulate_round


def simulate_tp_sizes(
    fleets: Mapping[int, EngineFleet], demands: Sequence[PromptDemand], group_size: int
) -> tuple[SizedRound, ...]:
    """Simulate a round that keeps all of these prompts on the engines of each TP size, the smallest first."""
    longest = max(one.prompt_tokens + max(one.lengths) for one in demands)
    simulated = []
    for size, fleet in sorted(fleets.items()):
        if longest > fleet.kv_tokens:
            simulated.append(SizedRound(tensor_parallel=size, replicas=fleet.replicas))
            continue
        went = simulate_round(fleet, demands, len(demands), len(demands), group_size)
        simulated.append(
            SizedRound(
                tensor_parallel=size, replicas=fleet.replicas, seconds=went.seconds, preemptions=went.preemptions
            )
        )
    return tuple(simulated)


def best_tp_size(simulated: Sequence[SizedRound]) -> int | None:
    """Return the size of the fastest round, the smallest of equal ones; None if no size holds the longest response."""
    whole = [(one.seconds, one.tensor_parallel) for one in simulated if one.seconds is not None]
    return min(whole)[1] if whole else None
