"""Small traces in PolyTrace's formats, written by the tests that read them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def write(path: Path, rows: Iterable[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def lengths(step: int, place: int, prompt: int, output: Sequence[int], **changed: Any) -> dict[str, Any]:
    row = {"step": step, "rank": 0, "dp_rank": 0, "tp_rank": 0, "local_index": place, "input": prompt}
    return row | {"output": list(output), "n_sampling": len(output), "validate": False} | changed


def timing(step: int, dp_rank: int, batch_size: int, seconds: float, **changed: Any) -> dict[str, Any]:
    row = {"step": step, "rank": 0, "tp_rank": 0, "dp_rank": dp_rank, "batch_size": batch_size}
    return row | {"reward_time_s": seconds, "response_max": 9, "validate": False} | changed


def kept(step: int, prompts: int, indices: Sequence[int], **changed: Any) -> dict[str, Any]:
    row = {"workload_step": step, "trainer_step": 1, "prompt_count": prompts, "kept_prompt_count": len(indices)}
    return row | {"kept_prompt_indices": list(indices)} | changed


def multi_turn(
    step: int, group: int, sample: int, tokens: Sequence[int], calls: Sequence[tuple[int, float, int]], **changed: Any
) -> dict[str, Any]:
    """`calls`: (turn, seconds, tokens of the answer)."""
    turns = [{"turn": turn, "completion_tokens": length, "finish_reason": "stop"} for turn, length in enumerate(tokens)]
    answers = [{"turn": turn, "latency_s": seconds, "append_len": answer} for turn, seconds, answer in calls]
    row = {"step": step, "prompt_len": 300, "turns": turns, "turn_count": len(turns), "tool_calls": answers}
    row |= {"tool_call_count": len(answers), "validate": False, "prompt_group_id": group, "sample_id": sample}
    return row | changed


def single_turn_folder(folder: Path) -> Path:
    """Two steps of two ranks with rewards and a filter."""
    for step in (2, 10):
        rows = [lengths(step, place, 100 + place, [10 * step + place, 7], dp_rank=place % 2) for place in range(4)]
        write(folder / f"packed_lengths_step_{step}.jsonl", rows)
        write(
            folder / f"reward_timings_step_{step}.jsonl", [timing(step, rank, 4, 8.0 * (1 + rank)) for rank in (0, 1)]
        )
    write(folder / "dapo_filter_indices.jsonl", [kept(2, 4, [0, 3]), kept(11, 4, [1])])
    return folder


def multi_turn_folder(folder: Path) -> Path:
    rows = [
        multi_turn(0, 1, 1, [5, 6], [(0, 0.5, 40)]),
        multi_turn(0, 0, 0, [9], []),
        multi_turn(0, 1, 0, [5, 8, 2], [(0, 0.25, 30), (1, 1.0, 20), (1, 3.0, 10)]),
    ]
    write(folder / "multiturn_workload_step_0.jsonl", rows)
    return folder


def distribution_file(path: Path, changed: Mapping[str, Any] | None = None) -> Path:
    """The shape of PolyTrace's `enhanced_task_distribution_parameters.json`, with figures of ours."""

    def sequence(count: int) -> dict[str, Any]:
        names = [f"{kind}_{call}" for kind in ("input", "output") for call in range(1, count + 1)]
        names += ["total_input"]
        matrix = [[2500.0 if row == column else 0.0 for column in range(len(names))] for row in range(len(names))]
        return {"feature_names": names, "mean_vector": [100.0] * len(names), "covariance_matrix": matrix}

    content: dict[str, Any] = {
        "version": "3",
        "math_task": {
            "output_distribution": {"type": "lognorm", "parameters": [0.8, 4.9, 767.2]},
            "joint_distribution": {"correlation": 0.1},
            "gmm_parameters": {
                "weights": [0.5, 0.5],
                "means": [[100.0, 2000.0], [200.0, 6000.0]],
                "covariances": [[[100.0, 0.0], [0.0, 250000.0]], [[100.0, 0.0], [0.0, 250000.0]]],
            },
        },
        "tool_calling_task": {
            "call_count_distribution": {"1": 10, "2": 30},
            "sequence_models": {"1": sequence(1), "2": sequence(2)},
        },
    }
    path.write_text(json.dumps(content | dict(changed or {})), encoding="utf-8")
    return path
