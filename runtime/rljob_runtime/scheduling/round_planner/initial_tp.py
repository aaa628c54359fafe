"""The tensor parallel size to start at: the job's own round, played on the engine model of every size measured.

The parallelism planner goes on from there by preemptions alone and one size at a time (RollPacker §4.2), so rounds are
lost for every step by which its start is off. A plain round decides: which size is best hangs on how many responses run
at a time and on how long they are, and a race changes both little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rljob_runtime.perf_model.profile import SizedRound
from rljob_runtime.scheduling.round_planner.round_simulator import EngineFleet, PromptDemand, simulate_round


def simulate_tp_sizes(
    stages: Mapping[int, EngineFleet], asked: Sequence[PromptDemand], group_size: int
) -> tuple[SizedRound, ...]:
    """A round that keeps all of these prompts, on the engines of each tensor parallel size; the smallest size first."""
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
    """The size of the shortest round, of equal ones the smallest; None where no size holds the longest response."""
    whole = [(one.seconds, one.tensor_parallel) for one in played if one.seconds is not None]
    return min(whole)[1] if whole else None
