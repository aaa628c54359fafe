"""The simulator's benchmarks: jobs that are compared do the same work and pay for all of it, whatever they put off."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljob_api.status import RoundKind
from rljob_runtime.scheduling.reward_timeout import TimeoutRule
from rljob_runtime.simulation.assumptions import SETTINGS, STANDARD
from rljob_runtime.simulation.benchmarks.rollpacker import STREAM, WHOLE, rollpacker
from rljob_runtime.simulation.benchmarks.stream import Compared, overlapped, scarce, stream
from rljob_runtime.simulation.benchmarks.traces import trace_settings
from rljob_runtime.simulation.benchmarks.trial import (
    AUTO,
    PLAIN,
    TAIL,
    Technique,
    Trial,
    cluster_of,
    ideal_seconds,
    run,
    scenario_of,
    speedup,
)
from rljob_runtime.simulation.events import Scored, Submitted, Trained
from rljob_runtime.simulation.faults import FaultPlan
from rljob_runtime.simulation.pace import loop_time
from rljob_runtime.simulation.play import play
from rljob_runtime.workloads import TraceError

SMALL = replace(SETTINGS[0], prompts=8, responses=4)
ROUNDS = 5
AGAINST = ("", "_over_disaggregated", "_without_reward_time")


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    """`rljob bench rollpacker --quick`, as it is written."""
    loaded: dict[str, Any] = json.loads(json.dumps(rollpacker(quick=True, seed=3)))
    return loaded


def trained_prompts(technique: Technique) -> list[Any]:
    """The prompts of all updates of a small job."""
    prompts: list[Any] = []

    def watch(event: object) -> None:
        if isinstance(event, Trained):
            prompts.extend(group.prompt for group in event.groups)

    outcome = play(scenario_of(SMALL, technique, ROUNDS, 1, colocated=False), FaultPlan(), [watch])
    assert outcome.passed
    return prompts


def test_all_jobs_of_a_setting_train_on_the_same_prompts_each_once() -> None:
    plain = trained_prompts(PLAIN)
    assert len(set(plain)) == len(plain) == ROUNDS * SMALL.prompts
    for technique in (STREAM, WHOLE, AUTO, Technique("more", 1.5, 1.25)):
        prompts = trained_prompts(technique)
        assert len(prompts) == len(plain)
        assert set(prompts) == set(plain)


def test_a_job_pays_for_every_round_and_for_the_reward_stage_of_each() -> None:
    trial = run(SMALL, TAIL, ROUNDS, 1, colocated=False)
    kinds = [report.kind for report in trial.reports]
    assert kinds.count(RoundKind.SHORT) == 4
    assert kinds.count(RoundKind.LONG) == 1
    of_rounds = [report.seconds or 0.0 for report in trial.reports]
    assert trial.seconds() == pytest.approx(sum(of_rounds))
    assert max(of_rounds) < trial.seconds()
    assert trial.seconds(20.0) == pytest.approx(trial.seconds() + 5 * 20.0)
    assert trial.prompt_seconds() == pytest.approx(trial.seconds() / 40)
    assert trial.row(20.0)["seconds"] == pytest.approx(trial.seconds(20.0), abs=1e-3)


def test_speed_is_prompts_over_seconds() -> None:
    plain = run(SMALL, PLAIN, 1, 1, colocated=True)
    twice = replace(plain, prompts=2 * plain.prompts)
    assert speedup(plain, twice) == pytest.approx(2)
    slow = speedup(plain, twice, stage=0.0, trial_stage=plain.seconds())
    assert slow == pytest.approx(1)


def test_the_first_rounds_of_a_plain_job_are_a_shorter_job() -> None:
    longer, shorter = (run(SMALL, PLAIN, rounds, 1, colocated=True) for rounds in (4, 2))
    assert longer.first(2).prompts == shorter.prompts
    assert longer.first(2).seconds() == pytest.approx(shorter.seconds())
    with pytest.raises(AssertionError):
        run(SMALL, TAIL, ROUNDS, 1, colocated=True).first(2)


def test_a_quick_run_has_every_step_and_says_what_it_rests_on(result: dict[str, Any]) -> None:
    values = {figure["name"].partition(".")[2]: figure["value"] for figure in result["figures"]}
    whole = {f"{step}{against}" for step in ("whole", "auto") for against in AGAINST}
    assert values.keys() == {"rollout", "disaggregated", "tail", "reward", "planner", "stream", *whole}
    told = next(figure for figure in result["figures"] if figure["name"].endswith(".whole"))
    assert (told["goal"], told["anchor"]) == (2.3, "RollPacker: 2.03x")
    assert 0 < values["tail"] < values["reward"] < values["stream"] < told["limit"]
    assert result["settings"]["assumptions"]["model_flops_use"]["value"] == STANDARD.model_flops_use.value
    assert all(each["source"] for each in result["settings"]["assumptions"].values())
    assert [each["trainer_accelerators"] for each in result["settings"]["layouts"]] == [8]


def test_both_baselines_are_rows_with_and_without_a_reward_stage(result: dict[str, Any]) -> None:
    plain = {(row["layout"], row["reward_seconds"]): row for row in result["rows"] if row["technique"] == PLAIN.name}
    assert set(plain) == {(layout, stage) for layout in ("colocated", "disaggregated") for stage in (0.0, 20.0)}
    for (layout, stage), row in plain.items():
        assert row[f"over_plain_{layout}"] == 1
        assert row["seconds"] - plain[layout, 0.0]["seconds"] == pytest.approx(stage * row["rounds"])
    streamed = [row for row in result["rows"] if row["technique"] == STREAM.name]
    assert all(row["overlap_seconds"] > 0 for row in streamed)
    assert {row["reward"] for row in streamed} == {"none", "adaptive timeout"}


def test_a_job_that_chooses_by_itself_begins_plain_and_then_races(result: dict[str, Any]) -> None:
    chosen = [row for row in result["rows"] if row["technique"] == AUTO.name]
    assert len(chosen) == 2
    for row in chosen:
        assert sum(row["plans"].values()) == row["rounds"]
        assert row["plans"]["plain"] < row["rounds"]
        assert any(plan.startswith("race") for plan in row["plans"])


CRAMPED = replace(
    SMALL,
    prompts=16,
    responses=8,
    accelerator=replace(SMALL.accelerator, memory_bytes=20.1e9, flops=SMALL.accelerator.flops / 32),
)
"""Engines so small that they preempt, a trainer so slow that help pays."""


def test_machines_are_lent_and_laid_out_anew_where_a_job_may() -> None:
    trial = run(CRAMPED, WHOLE, ROUNDS, 1, colocated=False)
    assert trial.row()["machines_lent"] == sum(report.lent_machines or 0 for report in trial.reports) > 0
    assert sum(report.worker_groups or 0 for report in trial.reports) > 0
    assert trial.row()["largest_tensor_parallel_size"] > CRAMPED.tensor_parallel
    alone = run(CRAMPED, STREAM, ROUNDS, 1, colocated=False)
    assert alone.row()["machines_lent"] == 0


def test_what_a_lent_machine_generated_goes_on_elsewhere() -> None:
    prefixes: list[int] = []

    def watch(event: object) -> None:
        if isinstance(event, Submitted):
            prefixes.append(event.prefix)

    assert play(scenario_of(CRAMPED, WHOLE, ROUNDS, 1, colocated=False), FaultPlan(), [watch]).passed
    assert max(prefixes) > 0


def test_nothing_is_quicker_than_the_limit() -> None:
    for technique in (PLAIN, TAIL, STREAM):
        trial = run(SMALL, technique, ROUNDS, 1, colocated=technique is not STREAM)
        assert trial.seconds() > ideal_seconds(SMALL, run(SMALL, PLAIN, ROUNDS, 1, colocated=True))


# --- stream ---


def test_stream_training_changes_no_length_and_stays_below_perfect_overlap() -> None:
    compared = Compared.of(SMALL, PLAIN, 2, 1)
    after, beside, lent = compared.trials

    def lengths(trial: Trial) -> list[Any]:
        return [(report.tokens, report.max_response_tokens, report.generation_seconds) for report in trial.reports]

    assert lengths(after) == lengths(beside)
    assert [report.early_groups for report in after.reports] == [0, 0]
    early = [report.early_groups or 0 for report in beside.reports]
    assert all(0 < groups < SMALL.prompts for groups in early)
    assert 1 < speedup(after, beside) < 1.0001 * after.seconds() / overlapped(SMALL, after, lent=False)
    tokens = [[report.mean_response_tokens for report in trial.reports] for trial in (after, lent)]
    assert tokens[0] == tokens[1]
    assert overlapped(SMALL, after, lent=True) <= overlapped(SMALL, after, lent=False) < after.seconds()


def test_with_few_trainers_the_other_machines_generate() -> None:
    few = scarce(SMALL)
    assert (few.trainer_accelerators, few.accelerators) == (SMALL.trainer_accelerators // 2, SMALL.accelerators)
    assert cluster_of(few, colocated=False).machines == cluster_of(SMALL, colocated=False).machines + 1
    assert scarce(few).trainer_accelerators == few.trainer_accelerators == few.accelerators_per_machine


def test_the_bench_of_stream_training() -> None:
    result = json.loads(json.dumps(stream(quick=True, seed=2)))
    names = [figure["name"] for figure in result["figures"]]
    settings = ("7b-8k", "7b-8k-few-trainers")
    variants = [f"{rounds}{lent}" for rounds in ("plain", "tail_batching") for lent in ("", ".lent")]
    assert names == [f"{setting}.{variant}" for setting in settings for variant in variants]
    assert all(1 < figure["value"] < figure["limit"] for figure in result["figures"])
    assert [row["overlap_seconds"] > 0 for row in result["rows"]] == [False, True, True] * 4


# --- rewards that run programs ---


@pytest.mark.parametrize(
    ("rule", "longest"),
    [
        (TimeoutRule(minimum=20.0, maximum=20.0, shadow_share=0.0), 20.0),
        (TimeoutRule(minimum=2.0, maximum=20.0, shadow_share=0.0), 20.0),
    ],
    ids=["fixed", "adaptive"],
)
def test_programs_end_at_the_timeout_that_the_policy_decides(rule: TimeoutRule, longest: float) -> None:
    seen: list[tuple[float, float | None]] = []
    scenario = scenario_of(SMALL, replace(PLAIN, timeout=rule), ROUNDS, 1, colocated=True)

    def watch(event: object) -> None:
        if isinstance(event, Scored):
            seen.append((loop_time() - event.since, event.reward))

    assert play(scenario, FaultPlan(), [watch]).passed
    took = [seconds for seconds, _ in seen]
    assert len(seen) == ROUNDS * SMALL.prompts * SMALL.responses
    # A quick program takes at most 1.5 s; the rest met its timeout, and scored nothing.
    overran = [(seconds, reward) for seconds, reward in seen if seconds > 1.6]
    assert {reward for _, reward in overran} == {0.0}
    assert max(took) == pytest.approx(longest, rel=0.01)
    cut_short = sum(seconds == pytest.approx(2.0, abs=0.3) for seconds, _ in overran)
    assert (cut_short > 0) == (rule.minimum < rule.maximum)
    assert {reward for _, reward in seen} == {0.0, 1.0}


# --- traces ---


def write(folder: Path, lengths: list[int]) -> None:
    """A trace of one step."""
    folder.mkdir(parents=True)
    row = {"step": 0, "rank": 0, "dp_rank": 0, "local_index": 0, "input": 9, "output": lengths, "n_sampling": 2}
    (folder / "packed_lengths_step_0.jsonl").write_text(json.dumps({**row, "validate": False}) + "\n")


def test_a_trace_is_played_on_the_model_of_its_name_or_of_its_lengths(tmp_path: Path) -> None:
    write(tmp_path / "maths-14b", [100, 200])
    write(tmp_path / "other", [100, 9000])
    write(tmp_path / "longer", [100, 90_000])
    found = {each.name: each for each in trace_settings(tmp_path)}
    assert {name: (each.model.name, each.longest) for name, each in found.items()} == {
        "maths-14b": ("Qwen2.5-14B", 200),
        "other": ("Qwen2.5-14B", 9000),
        "longer": ("Qwen2.5-32B", 90_000),
    }
    (alone,) = trace_settings(tmp_path / "other")
    assert alone == found["other"]


def test_a_folder_without_a_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds no trace"):
        trace_settings(tmp_path)
    with pytest.raises(TraceError, match="is no folder"):
        trace_settings(tmp_path / "absent")


def test_a_layout_of_half_machines_is_refused() -> None:
    with pytest.raises(ValueError, match="10 of them the trainer's; multiples of 4"):
        replace(SMALL, trainer_accelerators=10)
