"""Auto against the truth: jobs on engines that are off their model choose plans, and none loses by it."""

from random import Random

import pytest

from rljob_bench.simulated.what_if import PERTURBATION, Job, against, perturbed
from rljob_runtime.perf_model.hardware import H800
from rljob_runtime.perf_model.model_shape import QWEN2_5_7B
from rljob_runtime.perf_model.roofline import roofline
from rljob_runtime.scheduling.round_planner.planner import Costs
from rljob_runtime.scheduling.round_planner.plans import Plan, candidate_plans
from rljob_runtime.scheduling.round_planner.round_simulator import EngineFleet
from rljob_runtime.workloads import open_workload
from tests.support.rows import slow

LATENCY = roofline(QWEN2_5_7B, H800)
AUTO = candidate_plans(None, None, None, None)


def job(workload: str, seed: int) -> Job:
    engines = EngineFleet(perturbed(LATENCY, Random(seed)), replicas=2, kv_tokens=200_000)
    costs = Costs(reward=0.5, update=2.0, token=1e-6, broadcast=1.0)
    drawn = open_workload(workload, seed)
    return Job(
        drawn, 8, 4, rounds=16, limit=32_000, model=EngineFleet(LATENCY, 2, 200_000), engines=engines, costs=costs
    )


def test_a_perturbed_engine_is_off_in_every_coefficient():
    for seed in range(20):
        latency = perturbed(LATENCY, Random(seed))
        ratio = latency.context_token_seconds / LATENCY.context_token_seconds
        assert abs(ratio - 1) <= PERTURBATION
        assert ratio != latency.prefill_token_seconds / LATENCY.prefill_token_seconds
        assert all(abs(a / b - 1) <= 0.301 for (_, a), (_, b) in zip(latency.knots, LATENCY.knots, strict=True))


@pytest.mark.parametrize("seed", [0, *slow(1)])
@pytest.mark.parametrize("workload", ["deepcoder-14b-16k", *slow("video-7b")])
def test_no_workload_is_slower_by_auto(workload, seed):
    auto, plain = against(job(workload, seed), AUTO)
    assert plain.total / auto.total > 0.98, auto.plans


@pytest.mark.slow
def test_a_job_whose_lengths_change_loses_little():
    """A race that pays, and from round 13 of 32 on lengths with which it does not."""
    engines, model = (
        EngineFleet(latency, replicas=4, kv_tokens=400_000) for latency in (perturbed(LATENCY, Random(0)), LATENCY)
    )
    first, second = open_workload("dapo-32b", 0), open_workload("deepcoder-14b-16k", 0)
    changing = Job(first, 32, 8, 32, 32_000, model, engines, Costs(1.0, 8.0, 2e-6, 2.0), then=(13, second))
    auto, plain = against(changing, candidate_plans(None, None, None, stream=False))
    assert auto.plans[12] != Plan()
    assert auto.plans[13] == Plan()
    assert plain.total / auto.total > 0.98, [*map(str, auto.plans)]


@pytest.mark.parametrize("workload", ["dapo-32b", *slow("rollpacker-32b-32k")])
def test_a_long_tail_is_faster_by_auto(workload):
    auto, plain = against(job(workload, 0), AUTO)
    assert plain.total / auto.total > 1.2, auto.plans
    assert auto.plans[:8] == plain.plans[:8]
    predicted = [(p, s) for p, s in zip(auto.predicted, auto.seconds, strict=True) if p is not None]
    assert 0.5 < sum(p for p, _ in predicted) / sum(s for _, s in predicted) < 2


def test_the_same_job_is_played_the_same():
    first, second = (against(job("search-r1-7b", 3), AUTO)[0] for _ in range(2))
    assert first == second
