"""A profile finds the latency model that an engine keeps, in a bounded time, and is refused for anything else."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner

from rljob_runtime.cli import app
from rljob_runtime.models.folder import ModelFolder
from rljob_runtime.perf_model.fitting import fit, predict_round, round_errors
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.model_shape import SMOLLM2_135M
from rljob_runtime.perf_model.profile import Profile, ProfiledRound, ProfileError, Subject
from rljob_runtime.rollout.profiling.harness import ProfilingHarness
from rljob_runtime.rollout.profiling.profiler import CORNERS, PASSES, Limits, ProfilingObserver, measure
from rljob_runtime.rollout.profiling.target import Target
from rljob_runtime.rollout.profiling.timed_engine import Step, decode_timing, prefill_timing
from tests.support.paths import ROOT
from tests.support.rollout.latency_engine import Clock, LatencyEngine

pytestmark = pytest.mark.timeout(60)

LATENCY = LatencyModel(((1.0, 0.050), (64.0, 0.200)), 3e-6, 0.020, 6e-4, 2e-8)
LOOK = 0.001
SUBJECT = Subject(model=SMOLLM2_135M, engine="Latency", engine_version="1", hardware="none")


def profiled(
    limits: Limits,
    off: Callable[[], float] = lambda: 1.0,
    stop_after: int | None = None,
    sizes: tuple[int, ...] = (1,),
    latencies: dict[int, LatencyModel] | None = None,
) -> tuple[Profile, Clock, list[str]]:
    clock, told = Clock(), []

    def tell(doing: str, spent: float) -> None:
        told.append(doing)

    async def run() -> Profile:
        harness = ProfilingHarness(
            lambda size, devices: LatencyEngine((latencies or {1: LATENCY})[size], clock, 12_000 * size, LOOK, off),
            lambda: None,
            vocabulary=1000,
            clock=clock,
        )
        try:
            observer = ProfilingObserver(tell, lambda: stop_after is not None and len(told) > stop_after, clock)
            return await measure(harness, SUBJECT, sizes, limits, observer)
        finally:
            await harness.close()

    return asyncio.run(run()), clock, told


def near(found: float, true: float, share: float) -> bool:
    return abs(found / true - 1) < share


def test_the_coefficients_of_an_engine_are_found():
    profile, _, _ = profiled(Limits(64, 512, 600.0))
    fitted = fit(profile, 1)
    latency, (replica,) = fitted.latency, {round(one.replica_seconds, 9) for one in profile.decode}
    assert replica >= LOOK, "what the replica takes is part of a step, and told"
    assert fitted.kv_tokens == 12_000
    for batch, seconds in latency.knots:
        assert near(seconds, LATENCY.base(int(batch)) + replica, 0.02), batch
    assert near(latency.context_token_seconds, LATENCY.context_token_seconds, 0.02)
    assert near(latency.prefill_token_seconds, LATENCY.prefill_token_seconds, 0.02)
    assert near(latency.prefill_square_seconds, LATENCY.prefill_square_seconds, 0.02)
    assert near(latency.prefill_seconds, LATENCY.prefill_seconds + replica, 0.02)


def test_rounds_outside_the_fit_are_predicted():
    profile, _, _ = profiled(Limits(64, 512, 600.0))
    errors = round_errors(profile, fit(profile, 1), 1)
    assert len(errors) >= 3
    assert max(map(abs, errors)) < 0.03
    assert len({len(one.lengths) for one in profile.rounds}) >= 3, "of several sizes"


@pytest.mark.parametrize("context", [40, 148, 2000])
def test_rounds_stay_inside_the_context_and_the_cache(context):
    profile, _, _ = profiled(Limits(64, context, 300.0))
    for one in profile.rounds:
        assert one.prompt_tokens + max(one.lengths) <= context
        assert sum(one.prompt_tokens + tokens for tokens in one.lengths) <= profile.kv_tokens[1]


@pytest.mark.parametrize("seed", range(3))
def test_noise_and_pauses_are_borne(seed):
    """Every step is off by up to 10 %, and in one of twenty the machine does something else meanwhile."""
    chance = random.Random(seed)
    profile, _, _ = profiled(
        Limits(64, 512, 600.0), lambda: chance.uniform(0.9, 1.1) * (6.0 if chance.random() < 0.05 else 1.0)
    )
    latency = fit(profile, 1).latency
    for batch, context in ((1, 100), (5, 300), (24, 200), (64, 100)):
        assert near(latency.step(batch, batch * context), LATENCY.step(batch, batch * context) + 2 * LOOK, 0.06)


def test_a_load_that_was_disturbed_in_all_its_repeats_weighs_little():
    profile, _, _ = profiled(Limits(64, 512, 600.0))
    spoilt = next(one for one in profile.decode if one.batch == 8)
    samples = tuple(
        one.model_copy(update={"seconds": 4 * one.seconds}) if one is spoilt else one for one in profile.decode
    )
    latency = fit(profile.model_copy(update={"decode": samples}), 1).latency
    assert near(latency.step(8, 8 * 200), LATENCY.step(8, 8 * 200) + 2 * LOOK, 0.05)


@pytest.mark.parametrize("seconds", [60.0, 200.0, 1000.0])
def test_it_ends_in_time_and_repeats_what_it_visits(seconds):
    profile, clock, told = profiled(Limits(64, 512, seconds))
    assert len(profile.decode) >= CORNERS
    assert len(profile.rounds) >= PASSES
    longest = 30.0  # of one load or round, which is not interrupted; and the warm-up
    assert clock.now < seconds + PASSES * longest
    visits = [line for line in told if " 1 x 16 " in line]
    assert len(visits) == PASSES


def test_each_layout_has_its_own_latency():
    wide = LatencyModel(((1.0, 0.030), (64.0, 0.120)), 2e-6, 0.015, 3e-4, 1e-8)
    profile, _, _ = profiled(Limits(32, 256, 400.0), sizes=(1, 2), latencies={1: LATENCY, 2: wide})
    assert profile.kv_tokens == {1: 12_000, 2: 24_000}
    assert near(fit(profile, 1).latency.base(1), LATENCY.base(1) + 2 * LOOK, 0.05)
    assert near(fit(profile, 2).latency.base(1), wide.base(1) + 2 * LOOK, 0.05)


def test_stopped_early_it_is_of_what_was_measured():
    profile, _, told = profiled(Limits(64, 512, 600.0), stop_after=8)
    assert len(told) == 9
    assert len(profile.decode) == 7
    assert fit(profile, 1).latency.base(1) > 0
    nothing, _, _ = profiled(Limits(64, 512, 600.0), stop_after=2)
    with pytest.raises(ProfileError, match=r"profile\.decode: batch"):
        fit(nothing, 1)


def test_only_whole_steps_of_the_whole_batch_count():
    def steps(*sequences: int) -> list[Step]:
        return [Step(float(at), at + 0.75, count) for at, count in enumerate(sequences)]

    timing = decode_timing(steps(2, 2, 4, 4, 4, 4), batch=4, context=100, count=2)
    assert timing is not None
    # Before the first of the two steps 12 tokens were made, 3 of each; between the two another one.
    assert (timing.context, timing.seconds, timing.replica_seconds) == (round(103 - 1 + 0.5), 1.0, 0.25)
    assert decode_timing(steps(4, 4, 4), batch=4, context=100, count=2) is None, "the last one has no end"
    assert decode_timing(steps(3, 3, 3, 3), batch=4, context=100, count=1) is None
    first = prefill_timing(steps(0, 3, 4), context=50)
    assert first is not None
    assert (first.batch, first.context, first.seconds) == (3, 50, 2.0), "a pass that was cut in two is one"


# --- the command -----------------------------------------------------------------------------------------------------


def rljob(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["profile", *arguments])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "package://rljob/toy"), "--out FILE writes a profile, --check FILE reads one; exactly one"),
        (("--out", "p.json"), "-f JOB.yaml or --model SOURCE; exactly one of the two would be right"),
        (("--model", "x", "--out", "no/such/p.json"), "--out no/such/p.json:"),
        (("--model", "x", "--out", "p.json", "--engine", "sgl"), "--engine sgl: vllm or reference would be right"),
        (("--model", "x", "--out", "p.json", "--tensor-parallel", "1,a"), "--tensor-parallel 1,a: sizes of 1 or more"),
        (("--model", "x", "--out", "p.json", "--workload", "dapo-32b"), "--workload dapo-32b: lengths of a job's"),
        (("--model", "/no/model", "--out", "p.json"), "there is no folder /no/model"),
        (("-f", "no.yaml", "--out", "p.json"), "no.yaml: cannot be read"),
    ],
)  # fmt: skip
def test_what_cannot_be_profiled_is_told(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = rljob(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert list(tmp_path.iterdir()) == []


WIDE = LatencyModel(((1.0, 0.030), (64.0, 0.120)), 2e-6, 0.015, 3e-4, 1e-8)
"""Of two accelerators: nearly twice as fast as `LATENCY`."""
NO_GAIN = LatencyModel(((1.0, 0.049), (64.0, 0.198)), 3e-6, 0.020, 6e-4, 2e-8)


def saying(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wide: LatencyModel,
    slots: int = 2,
    sizes: str = "1,2",
    longest: int = 16,
) -> tuple[str, ...]:
    """`rljob profile` for a job of 4 x 8 on two machines, where engines keep these latency models."""
    spec = yaml.safe_load((ROOT / "examples" / "addition-rollpacker.yaml").read_text())
    spec["spec"]["algorithm"] |= {"promptsPerRound": 4, "responsesPerPrompt": 8, "maxTokensPerMicrobatch": 40_000}
    spec["spec"]["rollout"] |= {"slotsPerMachine": slots}
    spec["spec"]["data"] |= {"maxResponseTokens": longest}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(spec))
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 64, "num_hidden_layers": 1}
    config = {**heads, "intermediate_size": 64, "vocab_size": 128, "model_type": "llama"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("rljob_runtime.models.source.resolve", lambda source, cache: ModelFolder(tmp_path))

    def measured(self: Target, observer: ProfilingObserver) -> Profile:
        profile, _, _ = profiled(Limits(32, 128, 200.0), sizes=self.sizes, latencies={1: LATENCY, 2: wide})
        return profile.model_copy(update={"subject": self.subject})

    monkeypatch.setattr(Target, "profile", measured)
    return ("-f", str(tmp_path / "job.yaml"), "--tensor-parallel", sizes)


@pytest.mark.parametrize(("wide", "best"), [(WIDE, 2), (NO_GAIN, 1)])
def test_the_size_to_start_at_is_told_and_written(tmp_path, monkeypatch, wide, best):
    arguments, file = saying(tmp_path, monkeypatch, wide), tmp_path / "p.json"
    result = rljob(*arguments, "--out", str(file))
    assert result.exit_code == 0, result.output
    assert f"spec.rollout.tensorParallelSize: {best} (the job has 1)" in result.output
    start = Profile.from_json(file.read_text()).start
    assert start is not None
    assert (start.tensor_parallel, start.machines, start.prompts, start.responses) == (best, 2, 4, 8)
    assert start.lengths == "maxResponseTokens"
    assert [(one.tensor_parallel, one.replicas) for one in start.rounds] == [(1, 4), (2, 2)]
    assert min(start.rounds, key=lambda one: one.seconds or 0.0).tensor_parallel == best
    # As long as the job's responses may be, all on engines of the fitted latency model.
    latency = fit(Profile.from_json(file.read_text()), 1).latency
    seconds = latency.prefill(8 * 64, 8 * 64**2) + latency.decode(8, 8 * 65, 15)
    assert near(start.rounds[0].seconds or 0.0, seconds, 0.1)


def test_the_round_may_have_the_lengths_of_a_workload(tmp_path, monkeypatch):
    arguments, file = saying(tmp_path, monkeypatch, WIDE, longest=300), tmp_path / "p.json"
    told = {}
    for more in ((), ("--workload", "search-r1-7b")):
        assert rljob(*arguments, "--out", str(file), *more).exit_code == 0
        start = Profile.from_json(file.read_text()).start
        assert start is not None
        told[start.lengths] = [one.seconds for one in start.rounds]
    assert all(drawn < longest for drawn, longest in zip(told["search-r1-7b"], told["maxResponseTokens"], strict=True))


def test_a_profile_of_earlier_tells_it_for_the_job_as_it_is_now(tmp_path, monkeypatch):
    arguments, file = saying(tmp_path, monkeypatch, WIDE), tmp_path / "p.json"
    played = (ProfiledRound(tensor_parallel=1, prompt_tokens=8, lengths=(4,), seconds=1.0),)
    monkeypatch.setattr(Target, "run_rounds", lambda self, observer: played)
    assert rljob(*arguments, "--out", str(file)).exit_code == 0
    again = rljob(*arguments, "--check", str(file))
    assert "spec.rollout.tensorParallelSize: 2 (the job has 1)" in again.output, again.output


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--workload", "nowhere"), "--workload nowhere: no workload 'nowhere'; a folder of a trace"),
        (("--tensor-parallel", "1,a"), "--tensor-parallel 1,a: sizes of 1 or more"),
    ],
)
def test_nothing_is_measured_for_a_round_that_cannot_be_played(tmp_path, monkeypatch, more, said):
    arguments = saying(tmp_path, monkeypatch, WIDE)
    monkeypatch.delattr(Target, "profile")
    result = rljob(*arguments, *more, "--out", str(tmp_path / "p.json"))
    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize(
    ("longest", "best", "said"),
    [(20_000, 2, "spec.rollout.tensorParallelSize: 2 (the job has 1)"),
     (30_000, None, "No tensor parallel size to start at is named: no KV cache holds the longest response")],
)  # fmt: skip
def test_a_size_that_holds_no_response_is_none_to_start_at(tmp_path, monkeypatch, longest, best, said):
    arguments, file = saying(tmp_path, monkeypatch, NO_GAIN, longest=longest), tmp_path / "p.json"
    result = rljob(*arguments, "--out", str(file))
    assert result.exit_code == 0, result.output
    assert said in result.output
    start = Profile.from_json(file.read_text()).start
    assert start is not None
    assert start.tensor_parallel == best
    assert [one.seconds is None for one in start.rounds] == [True, best is None]


@pytest.mark.parametrize(("slots", "sizes", "said"), [
    (2, "1", "of those measured (1) the job's machines of 2 can have 1; two or more would be right"),
    (1, "1,2", "of those measured (1, 2) the job's machines of 1 can have 1; two or more would be right"),
])  # fmt: skip
def test_one_size_leaves_nothing_to_choose(tmp_path, monkeypatch, slots, sizes, said):
    arguments, file = saying(tmp_path, monkeypatch, WIDE, slots, sizes), tmp_path / "p.json"
    result = rljob(*arguments, "--out", str(file))
    assert result.exit_code == 0, result.output
    assert said in result.output
    assert "start" not in json.loads(file.read_text())


@pytest.mark.engine
@pytest.mark.timeout(300)
def test_a_profile_of_a_real_engine_is_refused_for_another(tmp_path: Path) -> None:
    file, toy = tmp_path / "toy.json", ("--model", "package://rljob/toy", "--engine", "reference")
    result = rljob(*toy, "--seconds", "3", "--out", str(file))
    assert result.exit_code == 0, result.output
    profile = Profile.from_json(file.read_text())
    fitted = fit(profile, 1)
    assert profile.subject.engine == "Reference"
    assert len(profile.decode) >= CORNERS
    assert len(profile.rounds) >= 1
    assert fitted.latency.base(64) < 64 * fitted.latency.base(1), "a batch is cheaper than its sequences one by one"
    assert median(predict_round(fitted.latency, fitted.kv_tokens, one) / one.seconds for one in profile.rounds) < 10

    again = rljob(*toy, "--seconds", "1", "--check", str(file))
    assert again.exit_code == 0, again.output
    assert "median error" in again.stdout

    other = json.loads(file.read_text())
    other["subject"]["model"]["layers"] = 9
    file.write_text(json.dumps(other))
    refused = rljob(*toy, "--check", str(file))
    assert refused.exit_code == 2
    assert "profile.subject.model.layers: measured with 9" in refused.stderr
    assert "wanted for 2 (package://rljob/toy)" in refused.stderr
