"""The cluster model of asynchronous training: small cases by hand, and what holds whatever is played."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rljob_bench.async_systems.asynchronous import Job, Policy
from rljob_bench.async_systems.groups import Prompts
from rljob_bench.async_systems.hardware import Hardware, Layout
from rljob_bench.async_systems.ideal import token_seconds
from rljob_bench.async_systems.outcome import Outcome
from rljob_bench.async_systems.partial import PartialJob
from rljob_bench.async_systems.staged import Batches, generate, one_step, stream, synchronous
from rljob_bench.async_systems.systems import System, Window, layouts, play, printed_layout
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.model_shape import QWEN2_5_32B
from rljob_runtime.scheduling.asynchronous.repack import RepackRules
from rljob_runtime.scheduling.asynchronous.repack_gain import merges_that_fit, merges_that_pay
from rljob_runtime.simulator.peers.assumptions import LAMINAR_MODELS
from rljob_runtime.workloads import Prompt, Response, Turn
from tests.support.examples import examples

SECOND = LatencyModel(((1.0, 1.0),), 0.0, 0.0, 0.0, 0.0)
"""A token a second for every sequence, whatever the batch; prefill takes no time."""
WIDE = LatencyModel(((1.0, 1.0), (2.0, 1.0), (100.0, 2.0)), 1e-4, 0.1, 1e-3, 0.0)

PLANS = (merges_that_pay, merges_that_fit)

Lengths = Callable[[int], Sequence[int]]


@dataclass(frozen=True)
class Written:
    """A workload by a function from the number of a prompt, as it is drawn, to its lengths."""

    lengths: Lengths
    round_prompts: int
    task: str = "written"

    def prompt(self, step: int, index: int, responses: int, attempt: int = 0) -> Prompt:
        lengths = self.lengths(step * self.round_prompts + index)
        return Prompt(index, 1, tuple(Response((Turn(tokens),)) for tokens in lengths[:responses]))


def prompts(lengths: Lengths, round_prompts: int = 2, responses: int = 2, longest: int = 50) -> Prompts:
    return Prompts(Written(lengths, round_prompts), round_prompts, responses, 10, longest)


def hardware(replicas: int = 2, latency: LatencyModel = SECOND, update: float = 0.0, **changes: float) -> Hardware:
    return replace(Hardware(replicas, latency, 10_000, token_seconds=0.0, update_seconds=update), **changes)  # type: ignore[arg-type]


def ends(outcome: Outcome) -> list[float]:
    return [update.end for update in outcome.updates]


def tailed(number: int) -> Sequence[int]:
    return (40, 2, 2, 2) if number % 8 == 0 else (2, 3, 2, 3)


# --- small cases, by hand ---


def test_a_synchronous_round_is_its_longest_response_and_its_update() -> None:
    batches = Batches(hardware(update=3.0, token_seconds=0.1), prompts(lambda number: (4, 8) if number % 2 else (2, 6)))
    outcome = synchronous(batches, 2)
    # 4 + 8 + 2 + 6 tokens, and a prompt's token for each response.
    assert ends(outcome) == pytest.approx([8 + 3 + 2.4, 2 * (8 + 3 + 2.4)])
    assert outcome.throughput == pytest.approx(24 / 13.4)
    assert outcome.staleness().worst == 0


@pytest.mark.parametrize(("update", "round_seconds"), [(3.0, 8.0), (11.0, 11.0)])
def test_one_step_staleness_takes_the_longer_of_the_two(update: float, round_seconds: float) -> None:
    batches = Batches(hardware(update=update, load_seconds=0.5), prompts(lambda _: (4, 8)))
    outcome = one_step(batches, 3)
    assert outcome.round_seconds == pytest.approx(round_seconds + 0.5)
    assert outcome.staleness().counts.keys() == {1}


def test_stream_generation_trains_on_what_is_whole_before_the_batch_is() -> None:
    """Two minibatches of 5 s each: the first waits for the short group, the second for the long one."""
    batches = Batches(hardware(update=10.0), prompts(lambda number: (20, 20) if number % 2 else (2, 2)))
    outcome = stream(batches, 2, minibatches=2, warm_up=1)
    # Batches are whole at 20, 40, 60: the update of each ends 5 s later.
    assert outcome.begin == pytest.approx(25.0)
    assert ends(outcome) == pytest.approx([45.0, 65.0])
    assert outcome.staleness().worst <= 1


def test_stream_generation_runs_one_update_ahead_at_most() -> None:
    """Updates take longer than batches: each batch waits for the update before the last one."""
    outcome = stream(Batches(hardware(update=30.0), prompts(lambda _: (10, 10))), 4, minibatches=2)
    assert outcome.round_seconds == pytest.approx(30.0)
    assert outcome.staleness().counts.keys() == {1}


def test_a_batch_spreads_each_prompt_over_the_replicas() -> None:
    """One long response each: with a replica a prompt both would be on one."""
    slow = LatencyModel(((1.0, 1.0), (2.0, 2.0), (3.0, 3.0)), 0.0, 0.0, 0.0, 0.0)
    whole = generate(hardware(latency=slow), prompts(lambda number: (10, 10) if number else (1, 1)).batch(0))
    assert whole.seconds == pytest.approx(2 + 9)


def test_partial_rollout_interrupts_and_goes_on() -> None:
    """Groups of one response of 10 tokens on one replica, two of them open. Weights come at 15 and 20, while the third
    has 5 and 8 tokens; each time it stands for 2 s."""
    job = PartialJob(hardware(1, update=5.0, load_seconds=2.0), prompts(lambda _: (10,), 1, 1), capacity=2)
    outcome = job.play(0, 3)
    assert ends(outcome)[:2] == pytest.approx([15.0, 20.0])
    assert ends(outcome)[2] == pytest.approx(24.0 + 5.0)
    assert list(outcome.latencies)[:3] == pytest.approx([10.0, 10.0, 14.0])


def test_partial_rollout_pays_for_the_context_it_computes_again() -> None:
    dear = replace(SECOND, prefill_token_seconds=0.5)
    outcome = PartialJob(hardware(1, dear, update=5.0), prompts(lambda _: (10,), 1, 1), capacity=2).play(0, 4)
    assert outcome.recomputed_share > 0.1


def test_two_tails_are_packed_on_one_replica_and_the_other_goes_on() -> None:
    """After 2 s both replicas have one of two responses left. One of these goes on for 4 s where it is and then moves;
    its replica takes the next group when the step that was running is over, at 7 s. That step's token is made again."""
    job = Job(
        hardware(), prompts(lambda _: (2, 20)), Policy(repack=RepackRules(0.99, 2), interval=1.0, move_seconds=4.0)
    )
    outcome = job.play(0, 1)
    assert list(outcome.latencies) == pytest.approx([2.0, 2.0, 3.0, 20.0, 1.0 + 20.0])
    assert outcome.updates[0].end == pytest.approx(1.0 + 20.0)
    assert (outcome.releases, outcome.moved) == (1, 1)


def test_prompts_are_drawn_with_the_newest_loaded_weights() -> None:
    """Two updates of 1 s begin when the first two groups end, at 10 and 20 s. Then the replica loads the first one's
    weights until 22 s, finds newer ones, loads these until 24 s, and generates for 10 s."""
    job = Job(hardware(1, update=1.0, load_seconds=2.0), prompts(lambda _: (10,), 1, 1), Policy(1.0, repack=None))
    outcome = job.play(0, 3)
    assert ends(outcome) == pytest.approx([11.0, 21.0, 24.0 + 10.0 + 1.0])
    assert [group.version for update in outcome.updates for group in update.groups] == [0, 0, 2]


def test_nothing_moves_where_it_saves_no_time() -> None:
    """A step takes a second for each response: two tails take as long on one replica as on two."""
    each = LatencyModel(((1.0, 1.0), (2.0, 2.0)), 0.0, 0.0, 0.0, 0.0)
    policy = Policy(repack=RepackRules(0.99, 2), interval=1.0)
    job, papers = (
        Job(hardware(latency=each), prompts(lambda _: (2, 20)), replace(policy, plan=plan)) for plan in PLANS
    )
    assert job.play(0, 1).moved == 0 < papers.play(0, 1).moved


@pytest.mark.parametrize(("batchwise", "drawn"), [(False, 5), (True, 2)])
def test_a_replica_draws_again_while_its_weights_are_the_newest(batchwise: bool, drawn: int) -> None:
    """Two groups of two fit, and the second has a response of 20 s. Updates of a group begin at 2 s and at 17 s."""
    lengths: Lengths = lambda number: (2, 20) if number == 1 else (2, 2)  # noqa: E731
    job = Job(hardware(1, update=15.0), prompts(lengths, 1, 2), Policy(3.0, batchwise, repack=None))
    assert job.play(0, 1).updates[0].end == pytest.approx(17.0)
    assert job.drawn == drawn


def test_nothing_moves_between_versions() -> None:
    """Asserted at every merge and at every end of a response; here there are many of both, in several versions."""
    outcome = Job(hardware(4), prompts(tailed, 4, 4), Policy(2.0, repack=RepackRules(0.99, 8), interval=1.0)).play(
        4, 24
    )
    assert outcome.moved > 4
    assert len({group.version for update in outcome.updates for group in update.groups}) > 4


# --- against each other ---


@pytest.mark.parametrize("update", [5.0, 15.0])
def test_ours_is_as_fast_as_one_step_where_all_responses_are_alike(update: float) -> None:
    machine = hardware(2, update=update)
    ours = Job(machine, prompts(lambda _: (10, 10), 4), Policy(2.0, batchwise=True)).play(4, 6)
    other = one_step(Batches(machine, prompts(lambda _: (10, 10), 4)), 6)
    assert ours.throughput == pytest.approx(other.throughput)


def test_ours_is_faster_where_lengths_have_a_tail() -> None:
    machine, drawn = hardware(8, WIDE, update=1.0), prompts(tailed, 16, 4)
    ours, without = (
        Job(machine, drawn, Policy(capacity=3.0, repack=rules, interval=1.0)).play(4, 12)
        for rules in (RepackRules(0.99, 4), None)
    )
    other = one_step(Batches(machine, drawn), 12)
    assert without.throughput > 2 * other.throughput
    assert ours.throughput > 1.3 * without.throughput


def test_as_much_is_open_as_the_trainer_needs() -> None:
    """A fast trainer is waited for less than with two rounds' worth, a slow one gets younger groups at no loss."""
    fast, slow = hardware(8, WIDE, update=1.0), hardware(8, WIDE, update=60.0)

    def played(machine: Hardware, capacity: float | None) -> Outcome:
        policy = Policy(capacity, repack=RepackRules(0.99, 16), interval=1.0)
        return Job(machine, prompts(tailed, 16, 4), policy).play(8, 12)

    assert played(fast, None).throughput > 1.1 * played(fast, 2.0).throughput
    assert played(slow, None).throughput > 0.99 * played(slow, 2.0).throughput
    assert played(slow, None).staleness().mean < 0.9 * played(slow, 2.0).staleness().mean


def test_the_bound_on_staleness_is_kept_and_costs_speed() -> None:
    machine = hardware(8, WIDE, update=4.0)
    policy = Policy(repack=RepackRules(0.99, 16), interval=1.0)
    free = Job(machine, prompts(tailed, 8, 4), policy).play(4, 12)
    assert free.staleness().worst > 2
    for bound in (1, 2):
        bounded = Job(machine, prompts(tailed, 8, 4), replace(policy, max_staleness=bound)).play(4, 12)
        assert bounded.staleness().worst <= bound
        assert bounded.throughput < free.throughput


# --- what always holds ---


@settings(max_examples=examples(60))
@given(
    replicas=st.integers(1, 6),
    lengths=st.lists(st.lists(st.integers(1, 40), min_size=3, max_size=3), min_size=1, max_size=9),
    update=st.sampled_from([0.5, 5.0, 30.0]),
    kv_tokens=st.sampled_from([60, 200, 10_000]),
    capacity=st.sampled_from([None, 1.0, 2.0, 4.0]),
    batchwise=st.booleans(),
    bound=st.sampled_from([None, 0, 1, 3]),
    repack=st.booleans(),
)
def test_every_group_is_trained_on_once_with_all_its_tokens(
    replicas: int, lengths: list[list[int]], update: float, kv_tokens: int, capacity: float | None, batchwise: bool,
    bound: int | None, repack: bool,
) -> None:  # fmt: skip
    machine = hardware(replicas, WIDE, update=update, load_seconds=0.3, stall_seconds=0.1, broadcast_seconds=0.2)
    machine = replace(machine, kv_tokens=kv_tokens)
    policy = Policy(capacity, batchwise, RepackRules(0.9, 8) if repack else None, 1.0, 0.2, bound)
    drawn = prompts(lambda number: lengths[number % len(lengths)], 3, 3)
    job = Job(machine, drawn, policy)
    outcome = job.play(0, 6)
    groups = [group for one in outcome.updates for group in one.groups]
    numbers = [group.number for group in groups]
    unfinished = [*job.open_groups, *job.assigned]
    assert len(numbers) == 18
    assert sorted([*numbers, *(group.number for group in unfinished)]) == list(range(job.drawn))
    assert [one.tokens for one in outcome.updates] == [
        sum(drawn[group.number].tokens for group in one.groups) for one in outcome.updates
    ]
    trained = sum(sum(drawn[number].response_tokens) for number in numbers)
    begun = trained + sum(sum(group.response_tokens) for group in unfinished)
    # What moves in the middle of a step makes that step's token again.
    assert trained <= outcome.generated_tokens <= begun + outcome.moved
    assert all(0 <= group.inherent <= group.staleness for group in groups)
    if bound is not None:
        assert outcome.staleness().worst <= bound


@settings(max_examples=examples(40))
@given(
    replicas=st.integers(1, 4),
    lengths=st.lists(st.lists(st.integers(1, 40), min_size=3, max_size=3), min_size=1, max_size=9),
    update=st.sampled_from([0.5, 5.0, 30.0]),
    capacity=st.sampled_from([None, 1.0, 2.0, 4.0]),
)
@example(replicas=2, lengths=[[1, 1, 1]], update=0.5, capacity=4.0)  # both replicas end at the same time
def test_partial_rollout_trains_on_every_group_once(
    replicas: int, lengths: list[list[int]], update: float, capacity: float | None
) -> None:
    machine = hardware(replicas, WIDE, update=update, load_seconds=0.3, stall_seconds=0.1, broadcast_seconds=0.2)
    drawn = prompts(lambda number: lengths[number % len(lengths)], 3, 3)
    outcome = PartialJob(replace(machine, max_sequences=16), drawn, capacity).play(0, 6)
    numbers = [group.number for one in outcome.updates for group in one.groups]
    assert len(set(numbers)) == len(numbers) == 18
    assert outcome.generated_tokens >= sum(sum(drawn[number].response_tokens) for number in numbers)


@pytest.mark.parametrize("system", System)
def test_a_job_repeats_exactly(system: System) -> None:
    machine = hardware(4, WIDE, update=4.0)
    first, second = (play(system, machine, prompts(tailed, 8, 4), Window(2, 4)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("system", System)
def test_no_system_generates_faster_than_full_engines(system: System) -> None:
    machine = replace(hardware(2, WIDE), kv_tokens=120)
    drawn = prompts(tailed, 8, 4)
    # Long responses end late: a few updates after the start are of short ones, which are cheaper.
    outcome = play(system, machine, drawn, Window(8, 24))
    groups = [drawn[number] for number in range(8 * 8)]
    assert outcome.generation < 1.02 * machine.replicas / token_seconds(machine, groups)


# --- layouts ---


def test_the_papers_splits_are_whole_machines() -> None:
    for model in LAMINAR_MODELS:
        for scale, total in enumerate(model.accelerators):
            for system in System:
                layout = printed_layout(system, model, scale)
                assert layout.accelerators == total
                assert layout.replicas * layout.tensor_parallel == layout.generating
                tried = list(layouts(system, model, scale))
                assert tried[0] == layout
                assert len(tried) == len(set(tried))


def test_the_papers_repack_setting_is_sixteen_replicas() -> None:
    assert printed_layout(System.OURS, LAMINAR_MODELS[1], 2).replicas == 16


def test_a_split_that_breaks_machines_is_refused() -> None:
    with pytest.raises(ValueError, match="60 of them the trainer's; multiples of 8"):
        Layout(QWEN2_5_32B, 128, 60, 4)
