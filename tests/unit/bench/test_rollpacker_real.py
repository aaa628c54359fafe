"""Jobs whose lengths are replayed: what is asked of replicas, a trainer that stands still, what is made of reports."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec.training import AUTO
from rljob_api.status import RoundReport
from rljob_bench import rollpacker_real as rollpacker_bench
from rljob_bench.lib.replay import ReplayedLengths, ReplayingReplica, StillTrainer
from rljob_bench.rollpacker_real import QUICK, Plan, RollPackerExperiment, figures, job_of, rollpacker_real, workload_of
from rljob_runtime.protocols import Chain, Delta, GenerateRequest, Refused, RelayMember, ReplicaReport
from rljob_runtime.protocols.trajectory import FinishReason, PromptKey, Sampling, TrajectoryKey
from rljob_runtime.scheduling.round_planner.planner import FIRST_ROUNDS
from rljob_runtime.workloads import Generator, TraceError, parameters
from rljob_runtime.workloads.scaled import Scaled

WORKLOAD = Scaled(Generator(parameters("dapo-32b"), 0), 10_000, 200)
CHAIN = Chain(1, 1, (RelayMember("rollout-0", 1, "127.0.0.1", 1),))


def key(index: int, sample: int) -> TrajectoryKey:
    return TrajectoryKey(PromptKey(0, index), sample)


def request(index: int, sample: int, version: int, prefix: tuple[int, ...] = (), most: int = 1000) -> GenerateRequest:
    sampling = Sampling(most, 0.7, 5, stop_token_ids=(2,))
    return GenerateRequest(key(index, sample), 1, (1, 2, 3), sampling, version, prefix)


class Recorder:
    name = "rollout-0/replica-0"

    def __init__(self) -> None:
        self.asked: list[GenerateRequest] = []

    async def submit(self, term: int, requests: list[GenerateRequest]) -> None:
        self.asked += requests


def test_replicas_are_asked_for_the_lengths_of_the_workload():
    recorder = Recorder()
    replica: Any = ReplayingReplica(recorder, ReplayedLengths(WORKLOAD, 6))  # type: ignore[arg-type]
    whole, moved = request(3, 1, version=7), request(3, 2, version=7, prefix=(9, 9))
    asyncio.run(replica.submit(1, [whole, moved, request(3, 4, version=7, most=2)]))
    drawn = [one.output_tokens for one in WORKLOAD.prompt(0, 3, 6, 0).responses]
    assert [one.sampling.max_tokens for one in recorder.asked[:2]] == [drawn[1], drawn[2]], "a prefix counts"
    assert recorder.asked[2].sampling.max_tokens == 2, "never more than was asked for"
    for asked in recorder.asked:
        assert asked.sampling.ignore_eos
        assert asked.sampling.stop_token_ids == ()
        assert (asked.sampling.temperature, asked.sampling.seed) == (0.7, 5)
    assert recorder.asked[0].key == whole.key


def test_what_ends_where_the_workload_says_has_ended_by_itself():
    drawn = [one.output_tokens for one in WORKLOAD.prompt(0, 3, 6, 0).responses]

    def delta(sample: int, tokens: int, finish: FinishReason | None) -> Delta:
        """The last two of so many tokens."""
        return Delta(key(3, sample), 1, tokens - 2, (5, 5), (0.0, 0.0), 7, finish)

    class Polled(Recorder):
        async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
            deltas = (
                delta(0, drawn[0], FinishReason.LENGTH),
                delta(1, drawn[1] - 1, FinishReason.LENGTH),
                delta(2, drawn[2], None),
            )
            return ReplicaReport("boot", 3, deltas, 7, stats=None)  # type: ignore[arg-type]

    replica: Any = ReplayingReplica(Polled(), ReplayedLengths(WORKLOAD, 6))  # type: ignore[arg-type]
    report = asyncio.run(replica.poll(1, 0, 0.0))
    reasons = [one.finish_reason for one in report.deltas]
    assert reasons == [FinishReason.STOP, FinishReason.LENGTH, None], "the second one came to the job's own limit"
    assert [(one.offset, one.token_ids) for one in report.deltas] == [
        (n - 2, (5, 5)) for n in (drawn[0], drawn[1] - 1, drawn[2])
    ]


def test_other_weights_draw_new_lengths_for_a_prompt():
    lengths = ReplayedLengths(WORKLOAD, 6)
    first = [lengths.of(key(3, sample), 7) for sample in range(6)]
    again = [lengths.of(key(3, sample), 9) for sample in range(6)]
    assert first == [one.output_tokens for one in WORKLOAD.prompt(0, 3, 6, 0).responses]
    assert again == [one.output_tokens for one in WORKLOAD.prompt(0, 3, 6, 1).responses]
    assert [lengths.of(key(3, sample), 7) for sample in range(6)] == first, "a response that moved goes on"
    # Another job, in which the prompt is launched first by version 30.
    other = ReplayedLengths(WORKLOAD, 6)
    assert [other.of(key(3, sample), 30) for sample in range(6)] == first


def test_scaled_lengths_keep_their_ratios():
    drawn, source = WORKLOAD.prompt(0, 3, 50), Generator(parameters("dapo-32b"), 0).prompt(0, 3, 50)
    for scaled, original in zip(drawn.responses, source.responses, strict=True):
        assert scaled.output_tokens == max(1, min(200, round(original.output_tokens / 50)))
    assert drawn.input_tokens == source.input_tokens


class Folder:
    path = Path("model")

    def weights(self) -> list[tuple[str, Any]]:
        import torch

        return [("a", torch.ones(3))]

    def model_files(self) -> dict[str, bytes]:
        return {"config.json": b"{}"}


class Press:
    def __init__(self) -> None:
        self.printed: list[int] = []

    def publish(self, version: int, tensors: dict[str, Any]) -> str:
        self.printed.append(version)
        return f"{version} of {sorted(tensors)}"

    def ship(self, term: int, chain: Chain) -> None:
        assert chain is CHAIN


def test_the_still_trainer_counts_steps_and_publishes_the_same_weights():
    async def run() -> None:
        press = Press()
        trainer = StillTrainer(Folder(), press)  # type: ignore[arg-type]
        assert (await trainer.start(1)).step == 0
        assert await trainer.publish(1, 5, 0, CHAIN) == "5 of ['a']"  # type: ignore[comparison-overlap]
        assert (await trainer.train(1, 1, [])).step == 1
        assert (await trainer.train(1, 1, [])).step == 1, "again"
        with pytest.raises(Refused, match="step 3 is not the next: 1 are done"):
            await trainer.train(1, 3, [])
        with pytest.raises(Refused, match="version 6 of step 0: 1 is at hand"):
            await trainer.publish(1, 6, 0, CHAIN)
        with pytest.raises(Refused):
            await trainer.contribute(1, 2, [])
        await trainer.publish(1, 6, 1, CHAIN)
        assert press.printed == [5, 6]
        assert await trainer.checkpoint(1, 1, "{}") == "step-1"

    asyncio.run(run())


def experiment(technique: str, *rounds: tuple[float, float, float | None]) -> RollPackerExperiment:
    """Of (closed at, seconds, predicted)."""
    reports = [
        RoundReport(round=number, seconds=seconds, predicted_seconds=predicted)
        for number, (_, seconds, predicted) in enumerate(rounds, start=1)
    ]
    return RollPackerExperiment(technique, reports, [closed for closed, _, _ in rounds])


def test_jobs_are_charged_whole_and_predictions_by_round():
    plain = experiment("plain", (110.0, 10.0, None), (130.0, 18.0, None))
    tail = experiment("tail batching", (10.0, 5.0, None), (15.0, 5.0, None))
    auto = experiment("Auto", (8.0, 8.0, None), (12.0, 4.0, 5.0), (16.0, 4.0, 3.8), (20.0, 4.0, 4.4))
    assert (plain.seconds, tail.seconds, auto.seconds) == (30.0, 10.0, 20.0), "what passes between rounds counts"
    assert auto.errors == pytest.approx([0.25, -0.05, 0.1])
    assert [row["between_rounds"] for row in plain.rows()] == [0.0, 2.0]
    found = {one["name"]: one["value"] for one in figures([plain, tail, auto], Plan(rounds=2, prompts=5))}
    assert found["plain.prompt_seconds"] == 3.0
    assert found["tail_batching_over_plain"] == 3.0
    assert found["auto_over_plain"] == 1.5
    assert found["what_if_error"] == pytest.approx(0.1)
    assert found["what_if_bias"] == pytest.approx(0.1)


def test_all_three_jobs_are_accepted_and_differ_in_their_technique_alone():
    plain, tail, auto = (job_of(Plan(), technique, 3, 9) for technique in ("plain", "tail batching", "Auto"))
    assert (plain.spec.tail_batching.enabled, tail.spec.tail_batching.enabled) == (False, True)
    assert (auto.spec.tail_batching.enabled, auto.spec.tail_batching.response_factor) == (AUTO, AUTO)
    same = plain.spec.tail_batching
    for other in (tail, auto):
        assert other.spec.model_copy(update={"tail_batching": same}) == plain.spec
    assert plain.status.runtime is not None
    assert plain.status.runtime.weight_version == 9


def test_a_folder_of_traces_is_refused_with_their_names(tmp_path: Path) -> None:
    for name in ("dapo", "video"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "packed_lengths_step_0.jsonl").touch()
    with pytest.raises(TraceError, match="holds no trace: its folders do; one of dapo, video would be right"):
        workload_of(Plan(), 0, tmp_path)


@pytest.mark.engine
@pytest.mark.slow  # other benchmarks do: test_trainer_data, test_engine_switch
def test_the_benchmark_runs_on_real_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollpacker_bench, "QUICK", replace(QUICK, machines=1, longest=48))
    result = rollpacker_real(quick=True, seed=0)
    found = {one["name"]: one["value"] for one in result["figures"]}
    assert found["tail_batching_over_plain"] > 0
    rows = {
        name: [row for row in result["rows"] if row["technique"] == name] for name in ("plain", "tail batching", "Auto")
    }
    for name, its in rows.items():
        assert len(its) == QUICK.rounds
        assert sum(row["responses"] for row in its) == QUICK.rounds * QUICK.prompts * QUICK.responses, name
        assert its[-1]["deferredPrompts"] == 0, "all jobs trained on as many prompts"
    assert [row["kind"] for row in rows["tail batching"]] == ["Short"] * 4 + ["Long"]
    assert all(row["discardedTokens"] == 0 for row in rows["plain"])
    chosen = rows["Auto"][FIRST_ROUNDS]
    assert chosen["predictedSeconds"] > 0
    for row in rows["Auto"][FIRST_ROUNDS:]:
        held_up = "since lengths changed in round" in row["planReason"]  # by other work, as far as this job can tell
        assert held_up or row["predictedSeconds"] > 0, row
    first = QUICK.prompts * QUICK.responses * FIRST_ROUNDS
    assert f"by {first} responses (0 of them stopped)" in chosen["planReason"], "plain rounds"
