"""The simulator's benchmarks: jobs that are compared do the same work and pay for all of it, whatever they put off."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljob_api.status import RoundKind
from rljob_bench.lib.experiment import (
    AUTO,
    PLAIN,
    TAIL,
    Experiment,
    Technique,
    cluster_of,
    ideal_seconds,
    run,
    scenario_of,
    speedup,
)
from rljob_bench.lib.result import settings_of
from rljob_bench.lib.settings import measured, settings_for, trace_settings
from rljob_bench.simulated import planner
from rljob_bench.simulated import rollpacker as benchmark
from rljob_bench.simulated.rollpacker import STREAM, WHOLE, rollpacker
from rljob_bench.simulated.stream import TRIGGERS, Compared, at_end, other_windows, overlapped, scarce, stream, trigger
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.model_shape import QWEN2_5_14B, SMOLLM2_135M, ModelShape
from rljob_runtime.perf_model.profile import Profile, ProfileError, Sample, Subject
from rljob_runtime.scheduling.reward_timeout import TimeoutRule
from rljob_runtime.simulator.core.events import Scored, Submitted, Trained
from rljob_runtime.simulator.core.process_clock import loop_time
from rljob_runtime.simulator.faults.plan import FaultPlan
from rljob_runtime.simulator.peers.assumptions import SETTINGS, STANDARD
from rljob_runtime.simulator.run import simulate
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

    outcome = simulate(scenario_of(SMALL, technique, ROUNDS, 1, colocated=False), FaultPlan(), [watch])
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
    experiment = run(SMALL, TAIL, ROUNDS, 1, colocated=False)
    kinds = [report.kind for report in experiment.reports]
    assert kinds.count(RoundKind.SHORT) == 4
    assert kinds.count(RoundKind.LONG) == 1
    of_rounds = [report.seconds or 0.0 for report in experiment.reports]
    assert experiment.seconds() == pytest.approx(sum(of_rounds))
    assert max(of_rounds) < experiment.seconds()
    assert experiment.seconds(20.0) == pytest.approx(experiment.seconds() + 5 * 20.0)
    assert experiment.prompt_seconds() == pytest.approx(experiment.seconds() / 40)
    assert experiment.row(20.0)["seconds"] == pytest.approx(experiment.seconds(20.0), abs=1e-3)


def test_speed_is_prompts_over_seconds() -> None:
    plain = run(SMALL, PLAIN, 1, 1, colocated=True)
    twice = replace(plain, prompts=2 * plain.prompts)
    assert speedup(plain, twice) == pytest.approx(2)
    slow = speedup(plain, twice, stage=0.0, experiment_stage=plain.seconds())
    assert slow == pytest.approx(1)


def test_the_first_rounds_of_a_plain_job_are_a_shorter_job() -> None:
    longer, shorter = (run(SMALL, PLAIN, rounds, 1, colocated=True) for rounds in (4, 2))
    assert longer.first(2).prompts == shorter.prompts
    assert longer.first(2).seconds() == pytest.approx(shorter.seconds())
    with pytest.raises(AssertionError):
        run(SMALL, TAIL, ROUNDS, 1, colocated=True).first(2)


@pytest.mark.slow
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


@pytest.mark.slow
def test_both_baselines_are_rows_with_and_without_a_reward_stage(result: dict[str, Any]) -> None:
    plain = {(row["layout"], row["reward_seconds"]): row for row in result["rows"] if row["technique"] == PLAIN.name}
    assert set(plain) == {(layout, stage) for layout in ("colocated", "disaggregated") for stage in (0.0, 20.0)}
    for (layout, stage), row in plain.items():
        assert row[f"over_plain_{layout}"] == 1
        assert row["seconds"] - plain[layout, 0.0]["seconds"] == pytest.approx(stage * row["rounds"])
    streamed = [row for row in result["rows"] if row["technique"] == STREAM.name]
    assert all(row["overlap_seconds"] > 0 for row in streamed)
    assert {row["reward"] for row in streamed} == {"none", "adaptive timeout"}


@pytest.mark.slow
def test_a_job_that_chooses_by_itself_begins_plain_and_then_races(result: dict[str, Any]) -> None:
    chosen = [row for row in result["rows"] if row["technique"] == AUTO.name]
    assert len(chosen) == 2
    for row in chosen:
        assert sum(row["plans"].values()) == row["rounds"]
        assert row["plans"]["plain"] < row["rounds"]
        assert any(plan.startswith("race") for plan in row["plans"])


@pytest.mark.slow  # a job for each option
def test_rounds_stages_and_trainers_are_as_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "QUICK", replace(benchmark.QUICK, settings=(SMALL,)))
    asked = rollpacker(quick=True, seed=3, rounds=6, auto_rounds=3, reward_seconds=(5.0, 30.0), trainers=4)
    auto = [row for row in asked["rows"] if row["technique"] == AUTO.name]
    assert [(row["rounds"], row["reward_seconds"]) for row in auto] == [(3, 0.0), (3, 5.0), (3, 30.0)]
    others = [row for row in asked["rows"] if row["technique"] != AUTO.name]
    assert {row["rounds"] for row in others} == {6}
    whole = next(row for row in others if row["technique"] == WHOLE.name and row["reward_seconds"] == 5.0)
    told = {figure["name"]: figure["value"] for figure in asked["figures"]}
    assert told["7b-8k.whole"] == pytest.approx(whole["over_plain_colocated"], abs=1e-3)
    assert told["7b-8k.auto"] == pytest.approx(auto[1]["over_plain_colocated"], abs=1e-3)
    assert [each["trainer_accelerators"] for each in asked["settings"]["layouts"]] == [4]
    assert asked["settings"]["reward_seconds"] == (5.0, 30.0)
    plain = next(row for row in others if row["technique"] == PLAIN.name and row["layout"] == "disaggregated")
    few = run(replace(SMALL, trainer_accelerators=4), PLAIN, 6, 3, colocated=False)
    assert plain["seconds"] == pytest.approx(few.seconds(), abs=1e-3)


CRAMPED = replace(
    SMALL,
    prompts=16,
    responses=8,
    accelerator=replace(SMALL.accelerator, memory_bytes=20.1e9, flops=SMALL.accelerator.flops / 32),
)
"""Engines so small that they preempt, a trainer so slow that help pays."""


def test_machines_are_loaned_and_change_layout_where_allowed() -> None:
    experiment = run(CRAMPED, WHOLE, ROUNDS, 1, colocated=False)
    assert experiment.row()["machines_loaned"] == sum(report.loaned_machines or 0 for report in experiment.reports) > 0
    assert sum(report.loaned_groups or 0 for report in experiment.reports) > 0
    assert experiment.row()["largest_tensor_parallel_size"] > CRAMPED.tensor_parallel
    alone = run(CRAMPED, STREAM, ROUNDS, 1, colocated=False)
    assert alone.row()["machines_loaned"] == 0


def test_what_a_loaned_machine_generated_continues_elsewhere() -> None:
    prefixes: list[int] = []

    def watch(event: object) -> None:
        if isinstance(event, Submitted):
            prefixes.append(event.prefix)

    assert simulate(scenario_of(CRAMPED, WHOLE, ROUNDS, 1, colocated=False), FaultPlan(), [watch]).passed
    assert max(prefixes) > 0


def test_nothing_is_quicker_than_the_limit() -> None:
    plain = run(SMALL, PLAIN, ROUNDS, 1, colocated=True)
    streamed = run(SMALL, STREAM, ROUNDS, 1, colocated=False)
    for experiment in (plain, run(SMALL, TAIL, ROUNDS, 1, colocated=True), streamed):
        assert experiment.seconds() > ideal_seconds(SMALL, plain)


# --- stream ---


def test_stream_training_changes_no_length_and_stays_below_perfect_overlap() -> None:
    compared = Compared.of(SMALL, PLAIN, 2, 1)
    after, beside, loaned = compared.experiments

    def lengths(experiment: Experiment) -> list[Any]:
        return [(report.tokens, report.max_response_tokens, report.generation_seconds) for report in experiment.reports]

    assert lengths(after) == lengths(beside)
    assert [report.early_groups for report in after.reports] == [0, 0]
    early = [report.early_groups or 0 for report in beside.reports]
    assert all(0 < groups < SMALL.prompts for groups in early)
    assert 1 < speedup(after, beside) < 1.0001 * after.seconds() / overlapped(SMALL, after, loaned=False)
    tokens = [[report.mean_response_tokens for report in experiment.reports] for experiment in (after, loaned)]
    assert tokens[0] == tokens[1]
    assert overlapped(SMALL, after, loaned=True) <= overlapped(SMALL, after, loaned=False) < after.seconds()


def test_with_few_trainers_the_other_machines_generate() -> None:
    few = scarce(SMALL)
    assert (few.trainer_accelerators, few.accelerators) == (SMALL.trainer_accelerators // 2, SMALL.accelerators)
    assert cluster_of(few, colocated=False).machines == cluster_of(SMALL, colocated=False).machines + 1
    assert scarce(few).trainer_accelerators == few.trainer_accelerators == few.accelerators_per_machine


@pytest.mark.slow
def test_the_bench_of_stream_training() -> None:
    result = json.loads(json.dumps(stream(quick=True, seed=2)))
    names = [figure["name"] for figure in result["figures"]]
    settings = ("7b-8k", "7b-8k-few-trainers")
    ablations = [f".loaned.{each}" for each in ("from_20", "from_30", "from_40", "at_end", *other_windows())]
    assert names == [
        f"{setting}.{rounds}{loaned}"
        for setting, ablated in zip(settings, ([], ablations), strict=True)
        for rounds in ("plain", "tail_batching")
        for loaned in ("", ".loaned", *ablated)
    ]
    values = {figure["name"]: figure["value"] for figure in result["figures"]}
    for name in [name for name in names if name.endswith("at_end")]:
        assert values.pop(name) < values[name.replace("at_end", "from_40")]
    assert all(1 < values[f["name"]] < f["limit"] for f in result["figures"] if f["name"] in values)
    unablated, few = [False, True, True], [False, True, True, True, True, True, False, *[True] * len(other_windows())]
    assert [row["overlap_seconds"] > 0 for row in result["rows"]] == [*unablated * 2, *few * 2]


LOANED = replace(PLAIN, stream=True, loans=True)
LOAN = cluster_of(scarce(SMALL), colocated=False).machines // 2
"""Half of the machines."""


def test_a_fixed_trigger_loans_whatever_is_predicted() -> None:
    for share in TRIGGERS:
        experiment = run(scarce(SMALL), replace(LOANED, adapt=trigger(share)), 2, 1, colocated=False)
        assert [report.loaned_machines for report in experiment.reports] == [LOAN] * len(experiment.reports)
    assert run(scarce(SMALL), LOANED, 2, 1, colocated=False).row()["machines_loaned"] == 0


def test_groups_fetched_together_are_shared_with_loaned_machines() -> None:
    loaned = replace(LOANED, adapt=at_end(trigger(0.4)))
    experiment = run(scarce(SMALL), loaned, ROUNDS, 1, colocated=False)
    assert [report.loaned_machines for report in experiment.reports] == [LOAN] * len(experiment.reports)
    assert experiment.row()["overlap_seconds"] == 0
    assert all((report.loaned_groups or 0) > 0 for report in experiment.reports)


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

    assert simulate(scenario, FaultPlan(), [watch]).passed
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


@pytest.mark.parametrize(
    ("name", "longest", "bound"),
    [
        ("maths-7b", 950_000, "of Qwen2.5-7B with tensor parallel size 1 ("),
        ("maths-32b", 400_000, "of Qwen2.5-32B with tensor parallel size 2 ("),
        ("other", 2_000_000, "1048576 at most"),
    ],
)
def test_a_trace_whose_longest_response_fits_no_engine_is_refused(
    tmp_path: Path, name: str, longest: int, bound: str
) -> None:
    write(tmp_path / name, [100, longest])
    with pytest.raises(TraceError) as refused:
        trace_settings(tmp_path)
    said = str(refused.value)
    assert said.startswith(f"{tmp_path / name}/packed_lengths_step_0.jsonl: a response of {longest} tokens; up to ")
    assert bound in said
    most = int(said.partition("up to ")[2].partition(" would be right")[0])
    write(tmp_path / "most" / name, [100, most])
    (fitting,) = trace_settings(tmp_path / "most" / name)
    scenario = scenario_of(fitting, PLAIN, 1, 0, colocated=True)
    assert scenario.max_prompt_tokens + most <= scenario.site.engine.kv_tokens
    assert scenario.job.spec.data.max_response_tokens == most
    write(tmp_path / "beyond" / name, [100, most + 1])
    with pytest.raises(TraceError):
        trace_settings(tmp_path / "beyond")


# --- engines that were measured ---


def profile_of(
    *latencies: tuple[int, LatencyModel], model: ModelShape = SMALL.model, kv_tokens: int = 300_000
) -> Profile:
    """What `rljob profile` writes of engines that keep these latency models, by tensor parallel size."""
    loads = [
        (size, latency, batch, context)
        for size, latency in latencies
        for batch in (1, 16, 256)
        for context in (64, 1024)
    ]

    def sample(size: int, batch: int, context: int, seconds: float) -> Sample:
        return Sample(tensor_parallel=size, batch=batch, context=context, seconds=seconds)

    return Profile(
        subject=Subject(model=model, engine="VLLM", engine_version="0.32.0", hardware="4 x H800"),
        kv_tokens={size: kv_tokens for size, _ in latencies},
        decode=tuple(sample(s, b, c, latency.step(b, b * c)) for s, latency, b, c in loads),
        prefill=tuple(sample(s, b, c, latency.prefill(b * c, b * c * c)) for s, latency, b, c in loads),
    )


SLOW = LatencyModel(((1, 0.05), (16, 0.06), (256, 0.2)), 1e-7, 0.02, 1e-5, 1e-10)


def test_engines_of_a_profile_are_as_fast_and_as_large_as_measured() -> None:
    slow = measured(SMALL, profile_of((1, SLOW), (2, SLOW)))
    engine = cluster_of(slow, colocated=True).engine()
    assert engine.kv_tokens == 300_000
    assert engine.latency.step(16, 16_000) == pytest.approx(SLOW.step(16, 16_000), rel=1e-3)
    planned = cluster_of(slow, benchmark.PLANNER, colocated=False)
    assert planned.wider == (2,), "of the machine's sizes those that were measured"
    there, here = (run(each, PLAIN, 1, 1, colocated=True) for each in (SMALL, slow))
    assert here.generation > 4 * there.generation


def test_a_profile_is_played_by_the_settings_of_its_model() -> None:
    chosen = settings_for(SETTINGS, quick=False, profile=profile_of((1, SLOW)))
    assert [each.name for each in chosen] == ["7b-8k"]
    told = json.loads(json.dumps(settings_of(chosen)))["layouts"][0]["engines"]
    assert told["source"] == "Qwen2.5-7B on VLLM 0.32.0, 4 x H800"
    assert told["sizes"]["1"]["kv_tokens"] == 300_000


def test_a_profile_of_something_else_is_refused(tmp_path: Path) -> None:
    def refusal(profile: Profile, traces: Path | None = None) -> str:
        with pytest.raises(ProfileError) as refused:
            settings_for(SETTINGS, quick=False, profile=profile, traces=traces)
        return str(refused.value)

    other = profile_of((1, SLOW), model=SMOLLM2_135M)
    assert "model.layers: measured with 30 (SmolLM2-135M), wanted for 28 (Qwen2.5-7B)" in refusal(other)
    right = profile_of((1, SLOW))
    another = right.model_copy(update={"subject": right.subject.model_copy(update={"engine": "Reference"})})
    assert "engine: measured with Reference, wanted for VLLM" in refusal(another)
    wide = refusal(profile_of((2, SLOW)))
    assert wide.startswith("profile.kv_tokens: tensor parallel size 1 is wanted, measured: 2; ")
    assert refusal(profile_of((1, SLOW), kv_tokens=10_000)).startswith(
        "profile.kv_tokens[1]: 10000; 7b-8k has responses of 8000 tokens and prompts of 4096, so 12096 or more"
    )
    write(tmp_path / "maths-14b", [100, 200])
    assert "(Qwen2.5-7B), wanted for 48 (Qwen2.5-14B)" in refusal(right, tmp_path)
    write(tmp_path / "sums-7b", [100, 9000])
    with pytest.raises(TraceError, match=r"sums-7b/packed_lengths_step_0.jsonl: a response of 9000 tokens; up to 5904"):
        trace_settings(tmp_path / "sums-7b", profile_of((1, SLOW), kv_tokens=10_000))


def test_the_planner_is_measured_on_engines_of_a_profile() -> None:
    sizes = [(size, SLOW) for size in planner.SIZES]
    setting = planner.measured(planner.QUICK, profile_of(*sizes, model=QWEN2_5_14B))
    assert setting.engines is not None
    assert setting.engines.at(4).kv_tokens == 300_000
    with pytest.raises(ProfileError, match="tensor parallel size 4 is wanted, measured: 1, 2"):
        planner.measured(planner.QUICK, profile_of(*sizes[:2], model=QWEN2_5_14B))
    with pytest.raises(ProfileError, match=r"kv_tokens.1.: 4000; 5048 or more"):
        planner.measured(planner.QUICK, profile_of(*sizes, model=QWEN2_5_14B, kv_tokens=4000))


def test_a_folder_without_a_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="holds no trace"):
        trace_settings(tmp_path)
    with pytest.raises(TraceError, match="is no folder"):
        trace_settings(tmp_path / "absent")


def test_a_layout_of_half_machines_is_refused() -> None:
    with pytest.raises(ValueError, match="10 of them the trainer's; multiples of 4"):
        replace(SMALL, trainer_accelerators=10)
