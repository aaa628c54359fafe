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
    stages: Mapping[int, EngineFleet], asked: Sequence[PromptDemand], group_size: int
) -> tuple[SizedRound, ...]:
    """Simulate a round that keeps all of these prompts on the engines of each TP size, the smallest first."""
    longest = max(one.prompt_tokens + max(one.lengths) for one in asked)
    played = []
    for size, stage in sorted(stages.items()):
        if longest > stage.kv_tokens:
            played.append(SizedRound(tensor_parallel=size, replicas=stage.replicas))
            continue
        went = simulate_round(stage, asked, len(asked), len(asked), group_size)
        played.append(
            SizedRound(
                tensor_parallel=size, replicas=stage.replicas, seconds=went.seconds, preemptions=went.preemptions
            )
        )
    return tuple(played)


def best_tp_size(played: Sequence[SizedRound]) -> int | None:
    """Return the size of the fastest round, the smallest of equal ones; None if no size holds the longest response."""
    whole = [(one.seconds, one.tensor_parallel) for one in played if one.seconds is not None]
    return min(whole)[1] if whole else None
