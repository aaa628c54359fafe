"""Whether a merge saves time, by the latency model of the engines at hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.scheduling.asynchronous.repack import RepackRules, ReplicaLoad
from rljob_runtime.scheduling.asynchronous.repack_gain import Tails, merges_that_fit, merges_that_pay, within
from rljob_runtime.scheduling.lending.gain import EngineSpeed
from rljob_runtime.scheduling.lending.policy import ExpectedLengths, Unfinished
from rljob_runtime.scheduling.round_planner.survival import Survival

RULES = RepackRules(0.99, 64)


def speed(
    step: float = 0.01, each: float = 0.0, context: float = 0.0, prefill: float = 1e-6, most: int = 64
) -> EngineSpeed:
    """A step takes `step` seconds and `each` for every response of it."""
    knots = ((1.0, step + each), (1024.0, step + 1024 * each))
    return EngineSpeed(LatencyModel(knots, context, 0.0, prefill, 0.0), 1, most)


def tails(latency: EngineSpeed, longest: int = 2000, **replicas: int) -> Tails:
    """Responses of 1,000 tokens and more, so many on each replica; they become up to `longest` tokens long."""
    lengths = ExpectedLengths(Survival(range(0, longest, 10)), longest)
    return Tails(latency, lengths, {name: [Unfinished(100, 1000)] * many for name, many in replicas.items()})


@pytest.mark.parametrize(
    ("latency", "pays"),
    [
        # Steps that are as long for few as for many: an accelerator bound by its memory.
        (speed(), True),
        # Every response has its own share of a step, and nothing else takes time: a processor.
        (speed(step=1e-6, each=0.002), False),
        # Steps are alike, but to compute the context again takes as long as the tail.
        (speed(prefill=0.005), False),
        # The engine was never seen with more than one simultaneously: it is not taken to be faster than it was.
        (speed(most=1), False),
    ],
)
def test_a_merge_pays_by_the_latency_of_the_engines(latency, pays):
    assert tails(latency, a=2, b=3).pays("a", ["b"]) is pays


def test_what_a_receiver_was_given_already_makes_its_steps_longer():
    latency = speed(step=0.010, each=0.010)
    its = tails(latency, a=2, b=2, c=60)
    assert its.pays("a", ["b"])
    assert not its.pays("a", ["b", "c"])


@pytest.mark.parametrize(
    ("latency", "batch"),
    [
        (speed(), 64),
        (speed(step=0.010, each=0.0001), 26),
        (speed(step=0.010, each=0.010), 1),
        (speed(step=0.001, each=0.010), 1),
        # As vLLM was measured on two cores: a step takes 22 ms, and 2 ms for each response.
        (speed(step=0.022, each=0.002), 4),
    ],
)
def test_the_packed_batch_decodes_with_hardly_more_latency(latency, batch):
    assert within(RULES, latency) == RepackRules(0.99, batch)


@given(st.floats(1e-4, 1.0), st.floats(0, 1.0), st.integers(1, 512))
def test_the_bound_is_the_largest_such_batch(step, each, most):
    latency = speed(step, each).latency
    bound = within(RepackRules(0.9, most), EngineSpeed(latency, 1, 64)).max_batch
    assert 1 <= bound <= most
    assert latency.base(bound) <= 1.25 * latency.base(1) * (1 + 1e-6)
    assert bound == most or latency.base(bound + 1) > 1.25 * latency.base(1) * (1 - 1e-6)


@given(st.integers(1, 8), st.integers(1, 8), st.floats(1e-4, 0.1))
def test_what_takes_its_own_share_of_a_step_never_pays(a, b, each):
    assert not tails(speed(step=1e-9, each=each), a=a, b=b).pays("a", ["b"])


# --- plans ---


def loads(**replicas: int) -> list[ReplicaLoad]:
    """Idle replicas of one version, with room for all of these responses."""
    return [ReplicaLoad(name, 1, many, 0, many * 1100, many * 1600, 10**6, 10**6) for name, many in replicas.items()]


@pytest.mark.parametrize(
    ("latency", "merges"),
    [
        (speed(), "a>d b>d c>d"),
        # The batch of four that this engine decodes with hardly more latency.
        (speed(step=0.022, each=0.002), "a>c"),
        (speed(step=1e-6, each=0.002), ""),
        (speed(prefill=0.005), ""),
    ],
)
def test_what_is_merged_depends_on_the_engines_but_not_by_the_papers_rule(latency, merges):
    replicas = {"a": 1, "b": 2, "c": 3, "d": 4}
    plan, papers = (
        " ".join(
            f"{one.source}>{one.destination}" for one in made(loads(**replicas), RULES, tails(latency, **replicas))
        )
        for made in (merges_that_pay, merges_that_fit)
    )
    assert (plan, papers) == (merges, "a>d b>d c>d")


@given(st.lists(st.integers(1, 12), min_size=2, max_size=6), st.floats(1e-5, 0.1), st.floats(0, 0.01))
def test_every_merge_saves_time_and_fits_the_engines_batch(many, step, each):
    latency, replicas = speed(step, each), {f"r{place}": count for place, count in enumerate(many)}
    its = tails(latency, **replicas)
    plan = merges_that_pay(loads(**replicas), RULES, its)
    most = within(RULES, latency).max_batch
    for receiver in {merge.destination for merge in plan}:
        sources = [merge.source for merge in plan if merge.destination == receiver]
        assert replicas[receiver] + sum(replicas[source] for source in sources) <= most
        for place, source in enumerate(sources):
            assert its.pays(source, [receiver, *sources[:place]])
