"""Distributions, generators and replays: the right marginals and similarity, and the same draw for equal arguments."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.workloads import (
    Generator,
    RecordedToolLatencies,
    Replay,
    Step,
    Trace,
    TraceError,
    Workload,
    WorkloadParameters,
    batch,
    names,
    open_workload,
    parameters,
    read_trace,
)
from rljob_runtime.workloads.distribution import DistributionParameters
from rljob_runtime.workloads.fit import fit
from rljob_runtime.workloads.parameters import ToolUse
from rljob_runtime.workloads.phases import Phases
from rljob_runtime.workloads.quantile_distribution import Distribution, TurnCounts, fit_distribution
from rljob_runtime.workloads.summary import intraclass_correlation
from tests.support.traces import distribution_file, lengths, multi_turn_folder, single_turn_folder, write

SCORE_OF_75, SCORE_OF_90 = (statistics.NormalDist().inv_cdf(at) for at in (0.75, 0.9))
PLACE = st.integers(min_value=0, max_value=10**6)


def workloads(tmp_path: Path) -> list[Workload]:
    single = read_trace(single_turn_folder(tmp_path / "single"))
    multi = read_trace(multi_turn_folder(tmp_path / "multi"))
    return [Replay(single, 3), Replay(multi, 3), *(Generator(parameters(name), 3) for name in names())]


def with_correlation(correlation: float) -> WorkloadParameters:
    distribution = Distribution.lognormal(median=500, sigma=0.7)
    return WorkloadParameters(
        task="toy",
        source="",
        input_tokens=distribution,
        output_tokens=distribution,
        correlation=correlation,
        input_correlation=-0.8,
    )


def test_lognormal_distribution() -> None:
    distribution = Distribution.lognormal(median=600, sigma=0.5)
    assert distribution.at_score(np.array([0.0, 1.0, -2.0])) == pytest.approx(600 * np.exp([0, 0.5, -1.0]))
    assert distribution.at_score(np.array([9.0])) == pytest.approx(600 * np.exp(2.0)), "it ends at four deviations"


def test_distribution_of_a_distribution_function_with_a_cap() -> None:
    # Uniform on 0 to 100 with a fifth more above 80: all of it at 80.
    distribution = Distribution.from_cdf(lambda value: value / 100, low=1e-6, high=80)
    drawn = distribution.draw(np.random.default_rng(0), 40_000)
    assert (drawn > 79.999).mean() == pytest.approx(0.2, abs=0.01)
    assert np.quantile(drawn, 0.5) == pytest.approx(50, rel=0.03)


@given(
    st.lists(st.floats(min_value=0.01, max_value=1e5), min_size=1, max_size=300).map(np.array),
)
def test_fitted_distribution_stays_inside_its_sample(sample: np.ndarray) -> None:
    distribution = fit_distribution(sample)
    drawn = distribution.draw(np.random.default_rng(0), 100)
    assert drawn.min() >= sample.min() * (1 - 1e-5)
    assert drawn.max() <= sample.max() * (1 + 1e-5)
    assert Distribution.model_validate_json(distribution.model_dump_json()) == distribution


def test_fitted_distribution_keeps_a_plateau_and_the_gap_below_it() -> None:
    sample = np.concatenate([np.linspace(100, 200, 950), np.full(50, 16_000.0)])
    drawn = fit_distribution(sample).draw(np.random.default_rng(0), 20_000)
    assert (drawn > 15_999).mean() == pytest.approx(0.05, abs=0.005)
    assert ((drawn > 201) & (drawn < 15_999)).mean() < 0.002


@pytest.mark.parametrize("at", [(0.5, 0.4), (0.5, 0.5), (0.0,), (1.0,), (0.5,)])
def test_distributions_that_are_none(at: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"rise|greater|less|as many"):
        Distribution(at=at, values=(1.0, 2.0) if at == (0.5,) else (1.0,) * len(at))


def test_turn_counts() -> None:
    counts = TurnCounts(weights=(1, 0, 3))
    drawn = counts.at_score(np.random.default_rng(0).standard_normal(20_000))
    assert (drawn == 1).mean() == pytest.approx(0.25, abs=0.01)
    assert set(drawn.tolist()) == {1, 3}
    with pytest.raises(ValueError, match="all weights are 0"):
        TurnCounts(weights=(0.0, 0.0))


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.9, 1.0])
def test_similarity_and_marginals(correlation: float) -> None:
    drawn = batch(Generator(with_correlation(correlation)), 0, 1500, 8)
    logs = np.log(drawn.output_tokens)
    assert intraclass_correlation(list(logs)) == pytest.approx(correlation, abs=0.04)
    assert np.median(drawn.output_tokens) == pytest.approx(500, rel=0.06)
    assert np.exp(np.quantile(logs, 0.9)) == pytest.approx(500 * np.exp(0.7 * SCORE_OF_90), rel=0.08)
    if correlation == 1:
        assert np.corrcoef(np.log(drawn.input_tokens), logs[:, 0])[0, 1] == pytest.approx(-0.8, abs=0.04)


def test_the_same_arguments_give_the_same_prompt(tmp_path: Path) -> None:
    for workload in workloads(tmp_path):
        first = workload.prompt(5, 7, 8)
        workload.prompt(6, 1, 3)
        assert workload.prompt(5, 7, 8) == first
    for first_run, second_run in zip(workloads(tmp_path), workloads(tmp_path), strict=True):
        assert batch(first_run, 2, 3, 4) == batch(second_run, 2, 3, 4)


@settings(max_examples=30)
@given(step=PLACE, index=PLACE, few=st.integers(1, 5), more=st.integers(0, 20), attempt=st.integers(0, 3))
def test_more_responses_keep_the_first(
    tmp_path_factory: pytest.TempPathFactory, step: int, index: int, few: int, more: int, attempt: int
) -> None:
    for workload in workloads(tmp_path_factory.mktemp("more")):
        small = workload.prompt(step, index, few, attempt)
        large = workload.prompt(step, index, few + more, attempt)
        assert len(large.responses) == few + more
        assert large.responses[:few] == small.responses
        assert (large.index, large.input_tokens, large.kept) == (small.index, small.input_tokens, small.kept)
        assert all(turn.tokens >= 1 for response in large.responses for turn in response.turns)


def test_other_seeds_steps_and_prompts_differ() -> None:
    made = [
        Generator(parameters("dapo-32b"), seed).prompt(step, index, 8)
        for seed in (0, 1)
        for step in (0, 1)
        for index in (0, 1)
    ]
    assert len({tuple(response.output_tokens for response in prompt.responses) for prompt in made}) == len(made)


def test_another_attempt_is_the_same_prompt_with_new_responses() -> None:
    generator = Generator(parameters("deepcoder-14b-16k"))
    pairs = [(generator.prompt(0, index, 8), generator.prompt(0, index, 8, attempt=1)) for index in range(300)]
    assert all(first.input_tokens == again.input_tokens for first, again in pairs)
    assert all(first.responses != again.responses for first, again in pairs)
    means = np.log([[np.mean([r.output_tokens for r in prompt.responses]) for prompt in pair] for pair in pairs])
    assert np.corrcoef(means[:, 0], means[:, 1])[0, 1] > 0.9, "as hard as before"


def test_a_batch_needs_prompts_and_responses() -> None:
    with pytest.raises(ValueError, match="1 x 1 or more"):
        batch(Generator(with_correlation(0)), 0, 0, 8)


def test_replay_of_the_recorded_size_is_the_recorded_step(tmp_path: Path) -> None:
    trace = read_trace(single_turn_folder(tmp_path))
    for number, step in enumerate(trace.steps):
        drawn = batch(Replay(trace, seed=9), number, len(step.prompts), 2)
        recorded = sorted(sorted(r.output_tokens for r in prompt.responses) for prompt in step.prompts)
        assert sorted(sorted(row) for row in drawn.output_tokens.tolist()) == recorded
        assert sorted(prompt.kept or False for prompt in drawn.prompts) == sorted(p.kept or False for p in step.prompts)


def test_replay_goes_round(tmp_path: Path) -> None:
    trace = read_trace(single_turn_folder(tmp_path))
    drawn = batch(Replay(trace), 2, 12, 2)
    counts = np.unique(drawn.input_tokens, return_counts=True)[1]
    assert counts.tolist() == [3, 3, 3, 3], "each recorded prompt once before any comes again"
    assert drawn.output_tokens.max() < 30, "step 2 of the replay is recorded step 0 again, not step 1"


def test_pooled_trace_draws_from_all_steps(tmp_path: Path) -> None:
    pooled = read_trace(single_turn_folder(tmp_path)).pooled()
    drawn = batch(Replay(pooled), 5, 8, 2)
    assert {length // 100 for length in drawn.output_tokens[:, :].max(axis=1)} == {0, 1}


def test_tool_latencies_are_the_recorded_ones(tmp_path: Path) -> None:
    trace = read_trace(multi_turn_folder(tmp_path / "tools"))
    drawn = RecordedToolLatencies(trace).draw(np.random.default_rng(0), 4000)
    values, counts = np.unique(drawn, return_counts=True)
    assert values.tolist() == [0.25, 0.5, 1.0, 3.0]
    assert (counts / 4000).tolist() == pytest.approx([0.25] * 4, abs=0.03)
    with pytest.raises(TraceError, match="records no tool calls"):
        RecordedToolLatencies(read_trace(single_turn_folder(tmp_path / "single")))


def test_multi_turn_generator() -> None:
    generator = Generator(parameters("search-r1-7b"))
    drawn = [response for prompt in batch(generator, 0, 300, 8).prompts for response in prompt.responses]
    assert all(len(turn.calls) == 1 for response in drawn for turn in response.turns[:-1])
    assert not any(response.turns[-1].calls for response in drawn), "the last turn answers"
    tool_use = generator.parameters.tool_use
    assert tool_use is not None
    shares = [np.mean([len(response.turns) == count for response in drawn]) for count in range(1, 6)]
    assert shares == pytest.approx(list(tool_use.turns.weights), abs=0.05)


def recorded(made: WorkloadParameters, steps: int, prompts: int) -> Trace:
    generator = Generator(made, seed=11)
    return Trace("made", tuple(Step(step, batch(generator, step, prompts, 8).prompts) for step in range(steps)))


def test_fit_finds_what_a_trace_was_made_from() -> None:
    made = with_correlation(0.6).model_copy(
        update={
            "reward_seconds": Distribution.lognormal(median=2, sigma=0.3),
            "kept_share": 0.25,
            "input_correlation": 0.5,
        }
    )
    found = fit(recorded(made, 4, 100), "a test")
    assert found.source == "a test"
    assert found.correlation == pytest.approx(0.6, abs=0.06)
    assert found.input_correlation == pytest.approx(0.5, abs=0.12)
    assert found.kept_share == pytest.approx(0.25, abs=0.08)
    assert found.reward_seconds is not None
    assert found.reward_seconds.at_score(np.array([0.0])) == pytest.approx([2], rel=0.05)
    assert found.output_tokens.at_score(np.array([0.0])) == pytest.approx([500], rel=0.12)
    assert found.tool_use is None


def test_fit_of_tool_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rljob_runtime.workloads.fit._PROMPTS", 200)  # generated in each of its trials
    tool_use = ToolUse(
        turns=TurnCounts(weights=(1, 2, 1)),
        turns_correlation=0.5,
        call_tokens=Distribution.lognormal(median=40, sigma=0.3),
        answer_tokens=Distribution.lognormal(median=500, sigma=0.2),
        seconds=Distribution.lognormal(median=0.3, sigma=0.8),
    )
    found = fit(recorded(with_correlation(0.4).model_copy(update={"tool_use": tool_use}), 3, 100), "").tool_use
    assert found is not None
    assert found.turns.weights == pytest.approx((0.25, 0.5, 0.25), abs=0.05)
    assert found.turns_correlation == pytest.approx(0.5, abs=0.15)
    for name in ("call_tokens", "answer_tokens", "seconds"):
        median = getattr(tool_use, name).at_score(np.array([0.0]))
        assert getattr(found, name).at_score(np.array([0.0])) == pytest.approx(median, rel=0.1)


def test_fit_needs_two_responses_of_a_prompt(tmp_path: Path) -> None:
    write(tmp_path / "packed_lengths_step_0.jsonl", [lengths(0, place, 9, [5 + place]) for place in range(3)])
    with pytest.raises(ValueError, match="no two responses of one prompt"):
        fit(read_trace(tmp_path), "")


def test_parameters_survive_a_file(tmp_path: Path) -> None:
    for name in names():
        parameters(name).save(tmp_path / "saved.json")
        assert WorkloadParameters.load(tmp_path / "saved.json") == parameters(name)


def test_bad_parameter_files(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text('{"task": "x", "source": "", "correlation": 2}')
    with pytest.raises(TraceError, match=r"bad\.json: field input_tokens is missing"):
        WorkloadParameters.load(path)
    distribution = {"at": [0.5], "values": [0.2]}
    good = {"task": "x", "source": "", "correlation": 0.5, "input_tokens": distribution, "output_tokens": distribution}
    path.write_text(str(good).replace("'", '"'))
    with pytest.raises(TraceError, match=r"input_tokens ends at 0\.2: 1 token or more"):
        WorkloadParameters.load(path)
    with pytest.raises(TraceError, match="cannot be read"):
        WorkloadParameters.load(tmp_path / "missing.json")


def test_opening_a_workload_by_what_it_is_called(tmp_path: Path) -> None:
    folder = single_turn_folder(tmp_path / "folder")
    parameters("dapo-32b").save(tmp_path / "own.json")
    assert isinstance(open_workload("rollpacker-7b-8k", 0), Generator)
    assert isinstance(open_workload(str(folder), 0), Replay)
    assert isinstance(open_workload(str(tmp_path / "own.json"), 0), Generator)
    with pytest.raises(TraceError, match=r"no workload 'nothing'; .*rollpacker-32b-32k"):
        open_workload("nothing", 0)
    with pytest.raises(TraceError, match="no generator 'nothing'; one of dapo-32b, "):
        parameters("nothing")


@pytest.mark.parametrize(
    ("name", "cap"), [("rollpacker-7b-8k", 8000), ("rollpacker-14b-16k", 16_000), ("rollpacker-32b-32k", 32_000)]
)
def test_rollpacker_like_lengths(name: str, cap: int) -> None:
    """RollPacker Fig. 2a: median about 600, third quartile about 950; a few runaways at the cap."""
    distribution = parameters(name).output_tokens
    assert distribution.at_score(np.array([0.0, SCORE_OF_75])) == pytest.approx([600, 950], rel=0.01)
    drawn = batch(Generator(parameters(name)), 0, 2500, 8).output_tokens
    assert drawn.max() == cap
    assert (drawn == cap).mean() == pytest.approx(0.004, abs=0.002)


def test_math_of_the_distribution_parameters(tmp_path: Path) -> None:
    found = DistributionParameters.load(distribution_file(tmp_path / "parameters.json")).math(correlation=0.5, cap=7000)
    drawn = batch(Generator(found), 0, 1500, 8)
    # Half N(2000, 500), half N(6000, 500): its 0.25 and 0.75 quantiles are the two means; 2.3 % of one half above 7000.
    assert np.quantile(drawn.output_tokens, [0.25, 0.75]) == pytest.approx([2000, 6000], rel=0.06)
    assert (drawn.output_tokens == 7000).mean() == pytest.approx(0.0114, abs=0.006)
    assert np.median(drawn.input_tokens[drawn.input_tokens < 150]) == pytest.approx(100, rel=0.03)


def test_tool_use_of_the_distribution_parameters(tmp_path: Path) -> None:
    seconds = Distribution.lognormal(median=0.3, sigma=0.8)
    found = DistributionParameters.load(distribution_file(tmp_path / "parameters.json"))
    made = found.tool_use(correlation=0.5, seconds=seconds, cap=1000)
    assert made.tool_use is not None
    assert made.tool_use.turns.weights == (10, 30)
    drawn = made.tool_use.call_tokens.draw(np.random.default_rng(0), 20_000)
    assert drawn.mean() == pytest.approx(100, rel=0.03), "the mean of the file"
    assert drawn.std() == pytest.approx(50, rel=0.06), "and its variance"
    assert made.tool_use.seconds == seconds


def test_phases_follow_one_another() -> None:
    short, long = open_workload("rollpacker-7b-8k", 1), open_workload("rollpacker-32b-32k", 1)
    phases = Phases(((0, short), (3, long), (5, short)))
    drawn = [phases.prompt(step, 7, 4, 1) for step in range(7)]
    assert drawn == [(long if step in (3, 4) else short).prompt(step, 7, 4, 1) for step in range(7)]
    for steps in ([], [1], [0, 0], [0, 3, 2]):
        with pytest.raises(ValueError, match="rising steps from 0 on"):
            Phases(tuple((step, short) for step in steps))
