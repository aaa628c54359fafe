"""The parallelism planner: the paper's rule, each round once, no flapping, and nothing kept but in the status."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec import Rollout
from rljob_api.status import (
    LayoutForecast,
    ParallelismHistory,
    RLJobStatus,
    RoundKind,
    RoundReport,
    Target,
    TargetPhase,
    TargetTensorParallel,
)
from rljob_operator.policies.scaling.parallelism_planner import QUIET_ROUNDS, REFUSED_ROUNDS, RELIEF, Choice, choose_tp
from rljob_operator.policies.scaling.target import next_target
from rljob_operator.policies.status.events import transitions
from tests.support.operator.harness import make_job

TOKENS = 1_000_000


def rollout(start: int = 1, sizes: tuple[int, ...] = (1, 2, 4, 8)) -> Rollout:
    # Not through `load`: what the planner does does not depend on which choices this version accepts.
    given_ = make_job(rollout={"acceleratorsPerMachine": 8}).spec.rollout
    return given_.model_copy(update={"tensor_parallel_size": start, "allowed_tensor_parallel_sizes": sizes})


def forecasts(seconds: dict[int, float]) -> tuple[LayoutForecast, ...]:
    return tuple(LayoutForecast(tensor_parallel_size=size, seconds=taken) for size, taken in seconds.items())


class Job:
    """The status as it goes over the wire, and the rounds that are played under it."""

    def __init__(self, spec: Rollout, machines: int = 2, rounds: int = 1000) -> None:
        self.spec = spec
        self.rounds = rounds
        self.machines = machines
        self.status = RLJobStatus()
        self.round = 0
        self.applied = 0
        """What the coordinator says is in force."""
        self.reasons: list[str] = []
        self.decide(None)

    @property
    def target(self) -> Target:
        assert self.status.target is not None
        return self.status.target

    @property
    def sizes(self) -> tuple[int, int]:
        return self.target.tensor_parallel.short, self.target.tensor_parallel.long

    def decide(self, last: RoundReport | None, applied: int | None = None) -> Choice:
        status = self.status
        choice = choose_tp(self.spec, status.target, status.parallelism, last, self.machines, self.rounds, applied)
        names = [f"rollout-{index}" for index in range(self.machines)]
        reason = "; ".join(choice.reasons)
        target = next_target(self.status.target, names, choice.sizes, TargetPhase.RUN, reason)
        after = self.status.model_copy(update={"target": target, "parallelism": choice.history})
        self.reasons += [event.message for event in transitions(self.status, after, ())]
        self.status = RLJobStatus.model_validate(after.to_dict())
        return choice

    def play(self, preemptions: int, kind: RoundKind = RoundKind.LONG, tokens: int = TOKENS, **changes: Any) -> int:
        """One round; the size of the next one of its kind."""
        self.round += 1
        size = self.target.tensor_parallel.short if kind is RoundKind.SHORT else self.target.tensor_parallel.long
        facts: dict[str, Any] = {"round": self.round, "kind": kind, "preemptions": preemptions, "tokens": tokens}
        if predicted := changes.pop("predicted", None):
            facts["layout_forecasts"] = forecasts(predicted)
        self.decide(RoundReport(**{**facts, "tensor_parallel_size": size, **changes}), self.applied)
        return self.sizes[kind is not RoundKind.SHORT]


@pytest.mark.parametrize(
    ("start", "preemptions", "sizes"),
    [
        (1, [40, 57], [1, 2]),
        (1, [100, 105], [1, 1]),  # more than 1.05 x, not as much
        (1, [100, 106], [1, 2]),
        (1, [100, 106, 90, 80, 85], [1, 2, 2, 2, 4]),  # each against the one before
        (1, [0, 1], [1, 2]),
        (1, [500], [1]),  # nothing to compare with
        (8, [1, 2], [8, 8]),
        (4, [0, 0, 0, 0], [4, 4, 4, 2]),
        (4, [0, 0, 0, 1, 0, 0, 0, 0], [4, 4, 4, 8, 8, 8, 8, 4]),  # four in a row
        (4, [0] * 12, [4, 4, 4, 2, 2, 2, 2, 1, 1, 1, 1, 1]),
    ],
)
def test_the_papers_rule(start: int, preemptions: list[int], sizes: list[int]) -> None:
    job = Job(rollout(start))
    assert [job.play(count) for count in preemptions] == sizes


def test_sizes_between_the_powers_of_two_are_steps_too() -> None:
    job = Job(rollout(1, (6, 3, 1)))
    assert [job.play(count) for count in (1, 2, 4, 8)] == [1, 3, 6, 6]


def test_short_and_long_rounds_are_judged_apart() -> None:
    job = Job(rollout(2))
    job.play(10, RoundKind.SHORT)
    job.play(0, RoundKind.LONG)
    job.play(20, RoundKind.SHORT)
    assert job.sizes == (4, 2)
    for _ in range(QUIET_ROUNDS - 1):
        job.play(20, RoundKind.SHORT)
        job.play(0, RoundKind.LONG)
    assert job.sizes == (4, 1)


def test_a_change_is_explained_and_told_once() -> None:
    job = Job(rollout(1))
    job.play(41, RoundKind.SHORT)
    revision = job.target.revision
    job.play(57, RoundKind.SHORT)
    assert job.target.revision == revision + 1
    assert job.target.reason == "short rounds: TP 2, preemptions 41 → 57 in round 2"
    assert job.reasons == ["short rounds: from TP 1 to TP 2"]
    for _ in range(QUIET_ROUNDS):
        job.play(0, RoundKind.SHORT)
    assert job.target.reason == "short rounds: TP 1, no preemptions in 4 rounds up to round 6"


def test_a_round_from_before_the_target_teaches_nothing() -> None:
    job = Job(rollout(1))
    job.play(40)
    job.play(57)
    for late in (None, 1):
        assert job.play(900, tensor_parallel_size=late) == 2
    assert job.play(50) == 2  # against 57
    assert job.play(53) == 4  # against 50


def test_a_round_counts_once() -> None:
    job = Job(rollout(2))
    for _ in range(QUIET_ROUNDS - 1):
        job.play(0)
    said = RoundReport(round=job.round, preemptions=0, tokens=1, tensor_parallel_size=2)
    before = job.status
    for _ in range(QUIET_ROUNDS):
        job.decide(said)
    assert job.status == before


def test_after_a_rewind_the_repeated_rounds_count() -> None:
    job = Job(rollout(2))
    for _ in range(QUIET_ROUNDS - 1):
        job.play(0)
    job.round = 1
    job.decide(RoundReport(round=1, preemptions=0, tokens=1, tensor_parallel_size=2))  # the checkpoint's
    assert job.sizes == (2, 2)
    assert job.play(0) == 1


def test_a_step_down_that_preempts_waits_for_smaller_rounds() -> None:
    job = Job(rollout(2))

    def load(size: int, tokens: int) -> int:
        return max(0, tokens - size * 800_000)

    sizes = []
    for tokens in [TOKENS] * 40 + [700_000] * 10:
        size = job.sizes[1]
        sizes.append(job.play(load(size, tokens), tokens=tokens))
    assert sizes[:6] == [2, 2, 2, 1, 2, 2]
    assert set(sizes[5:40]) == {2}
    assert sizes[-1] == 1


def test_one_small_round_does_not_lift_the_floor() -> None:
    job = Job(rollout(2))
    for count in (0, 0, 0, 0, 9):
        job.play(count)
    for tokens in (int(RELIEF * TOKENS) - 1,) * (QUIET_ROUNDS - 1) + (TOKENS,):
        job.play(0, tokens=tokens)
    assert job.sizes == (2, 2)
    for _ in range(QUIET_ROUNDS):
        job.play(0, tokens=int(RELIEF * TOKENS) - 1)
    assert job.sizes == (2, 1)


def test_another_number_of_machines_makes_old_rounds_no_measure() -> None:
    job = Job(rollout(2))
    job.play(40)
    job.machines = 1
    assert job.play(400) == 2
    assert job.play(500) == 4


def test_an_edit_of_the_size_starts_again() -> None:
    job = Job(rollout(1))
    job.play(1)
    job.play(2)
    job.spec = rollout(4)
    job.decide(None)
    assert job.sizes == (4, 4)
    assert job.play(9) == 4  # the first of its kind again
    job.spec = rollout(4, (4,))
    assert [job.play(count) for count in (10, 20, 0, 0, 0, 0)] == [4] * 6
    job.spec = rollout(2, (2, 8))
    job.decide(None)
    assert job.sizes == (2, 2)


def test_without_a_choice_there_is_nothing_to_remember() -> None:
    job = Job(rollout(2, (2,)))
    assert [job.play(count) for count in (1, 2, 0, 0, 0, 0)] == [2] * 6
    assert job.status.parallelism is None


# --- sizes that engines refuse ---


def test_a_refused_size_is_left_and_not_tried_again_for_a_while() -> None:
    job = Job(rollout(1))
    job.play(40)
    job.play(57)
    assert job.sizes == (1, 2)
    job.applied = job.target.revision
    # The word that it is in force may have come after this round's launch; the next one was to run so.
    assert job.play(58, tensor_parallel_size=1) == 2
    assert job.play(59, tensor_parallel_size=1) == 1
    assert job.target.reason == "long rounds: TP 1, TP 2 was refused in round 4, which ran at TP 1"
    job.applied = job.target.revision
    tried = [job.play(int(64 * 1.1**count)) for count in range(REFUSED_ROUNDS)]
    assert tried == [1] * (REFUSED_ROUNDS - 1) + [2]


def test_a_smaller_size_that_engines_refuse_is_a_floor() -> None:
    job = Job(rollout(4))
    for _ in range(QUIET_ROUNDS):
        job.play(0)
    assert job.sizes == (4, 2)
    job.applied = job.target.revision
    assert [job.play(0, tensor_parallel_size=4) for _ in range(2)] == [2, 4]
    assert [job.play(0) for _ in range(3 * QUIET_ROUNDS)] == [4] * 3 * QUIET_ROUNDS
    assert [job.play(0, tokens=TOKENS // 2) for _ in range(QUIET_ROUNDS)][-1] == 2


def test_a_refusal_in_one_kind_of_round_says_nothing_of_the_other() -> None:
    job = Job(rollout(1))
    for count in (10, 20):
        job.play(count, RoundKind.SHORT)
        job.play(count, RoundKind.LONG)
    assert job.sizes == (2, 2)
    job.applied = job.target.revision
    job.play(20, RoundKind.LONG)
    job.play(30, RoundKind.SHORT, tensor_parallel_size=1)
    assert job.sizes == (1, 2)
    assert job.play(30, RoundKind.LONG) == 4


def test_a_job_whose_new_size_is_refused_keeps_its_former_size() -> None:
    """An edit of tensorParallelSize, on machines whose engines do not start in it."""
    job = Job(rollout(1))
    job.spec = rollout(4)
    job.decide(None)
    job.applied = job.target.revision
    job.play(5, tensor_parallel_size=1)
    assert job.play(5, tensor_parallel_size=1) == 2
    job.applied = job.target.revision
    assert [job.play(5, tensor_parallel_size=1) for _ in range(2)] == [2, 1]
    assert [job.play(count) for count in (6, 8)] == [1, 1]


# --- rounds that were predicted in other sizes ---


@pytest.mark.parametrize(
    ("start", "rounds", "sizes"),
    [
        # No step to a slower size, in either direction.
        (1, [(40, {1: 30.0, 2: 31.0}), (57, {1: 30.0, 2: 31.0})], [1, 1]),
        (2, [(0, {1: 31.0, 2: 30.0})] * 4, [2, 2, 2, 2]),
        # A faster one is no reason to wait.
        (2, [(0, {1: 26.0, 2: 30.0})], [1]),
        (4, [(9, {1: 20.0, 2: 40.0, 4: 30.0})], [1]),
        # Nor is a hair's breadth a reason to go.
        (2, [(0, {1: 27.5, 2: 30.0})], [2]),
        (2, [(0, {1: 27.5, 2: 30.0})] * 4, [2, 2, 2, 1]),
        # What was not predicted is found out by the paper's rule.
        (1, [(40, {1: 30.0}), (57, {1: 30.0})], [1, 2]),
        (1, [(40, {2: 1.0}), (57, {4: 1.0})], [1, 2]),
        # A size that is not allowed is none.
        (2, [(0, {2: 30.0, 3: 1.0})], [2]),
    ],
)
def test_predicted_seconds_have_the_last_word(
    start: int, rounds: list[tuple[int, dict[int, float]]], sizes: list[int]
) -> None:
    job = Job(rollout(start))
    assert [job.play(preemptions, predicted=predicted) for preemptions, predicted in rounds] == sizes


def test_a_faster_size_is_explained_and_its_first_round_not_compared() -> None:
    job = Job(rollout(2))
    job.play(10)
    job.play(413, predicted={1: 26.0, 2: 30.0})
    assert job.target.reason == "long rounds: TP 1, 26 s a round predicted, 30 s at TP 2"
    assert [job.play(count) for count in (800, 830)] == [1, 1]


def test_a_faster_size_that_engines_refuse_is_not_taken_again_for_a_while() -> None:
    job = Job(rollout(1))
    predicted = {1: 30.0, 2: 20.0}
    assert job.play(0, predicted=predicted) == 2
    job.applied = job.target.revision
    assert [job.play(0, tensor_parallel_size=1, predicted=predicted) for _ in range(2)] == [2, 1]
    job.applied = job.target.revision
    tried = [job.play(0, predicted=predicted) for _ in range(REFUSED_ROUNDS)]
    assert tried == [1] * (REFUSED_ROUNDS - 1) + [2]


SLIGHT = {1: 29.0, 2: 30.0}


@pytest.mark.parametrize(
    ("predicted", "sizes"),
    [
        ([SLIGHT] * 4, [2, 2, 2, 1]),
        ([*[SLIGHT] * 3, {1: 31.0, 2: 30.0}, *[SLIGHT] * 4], [2] * 7 + [1]),  # four in a row
        ([*[SLIGHT] * 3, {}, *[SLIGHT] * 4], [2] * 7 + [1]),  # a round that was not predicted ends the row
        ([*[SLIGHT] * 3, {2: 30.0, 4: 29.0}, *[SLIGHT] * 4], [2] * 7 + [1]),  # the same size each time
        ([{1: 98.0, 2: 100.0}] * 4, [2, 2, 2, 1]),  # exactly 2 %
        ([{1: 29.625, 2: 30.0}] * 7, [2] * 6 + [1]),  # 1.25 %: 4 x 2 / 1.25 rounds
        ([{1: 29.9, 2: 30.0}] * 40, [2] * 40),  # too little
        ([*[SLIGHT] * 4, *[{1: 30.0, 2: 29.0}] * 4], [2, 2, 2, 1, 1, 1, 1, 2]),  # back again, with the same patience
    ],
)
def test_a_slightly_faster_size_is_chosen_after_four_rounds(
    predicted: list[dict[int, float]], sizes: list[int]
) -> None:
    job = Job(rollout(2))
    assert [job.play(10, predicted=seconds) for seconds in predicted] == sizes


def test_short_and_long_rounds_count_slightly_faster_sizes_apart() -> None:
    job = Job(rollout(2))
    for kind in [RoundKind.SHORT, RoundKind.LONG] * 3:
        assert job.play(10, kind, predicted=SLIGHT) == 2
    assert job.play(10, RoundKind.LONG, predicted=SLIGHT) == 1
    assert job.sizes == (2, 1)


@pytest.mark.parametrize(("rounds", "size"), [(33, 2), (34, 1)])
def test_a_slightly_faster_size_must_repay_a_round(rounds: int, size: int) -> None:
    job = Job(rollout(2), rounds=rounds)
    assert [job.play(10, predicted=SLIGHT) for _ in range(4)][-1] == size


# --- properties -------------------------------------------------------------------------------------------------------

sizes_of = st.sets(st.sampled_from([1, 2, 4, 8]), min_size=1).map(lambda sizes: tuple(sorted(sizes)))
rounds_of = st.lists(
    st.tuples(
        st.sampled_from(RoundKind),
        st.integers(0, 200) | st.none(),  # preemptions
        st.sampled_from([0, TOKENS // 2, TOKENS]) | st.none(),
        st.sampled_from([0, 0, 0, 0, -2, 1]),  # what became of the round's number
        st.sampled_from([1, 2, 4, 8, None]) | st.just(0),  # the size it ran at; 0: its target's
        st.sampled_from([1, 2, 2, 2]),  # machines
        st.booleans(),  # whether the target is said to be in force
        st.dictionaries(st.sampled_from([1, 2, 4, 8]), st.sampled_from([0.0, 9.0, 10.0, 20.0])),  # predicted seconds
    ),
    max_size=40,
)


@given(sizes_of, rounds_of, st.data())
def test_it_is_total_and_moves_one_kind_by_one_step(
    sizes: tuple[int, ...], rounds: list[Any], data: st.DataObject
) -> None:
    spec = rollout(data.draw(st.sampled_from(sizes)), sizes)
    job, number = Job(spec), 0
    for kind, preemptions, tokens, jump, size, machines, heard, predicted in rounds:
        number = max(1, number + 1 + jump)
        before = job.sizes
        ran = before[kind is not RoundKind.SHORT] if size == 0 else size
        job.machines = machines
        said = RoundReport(
            round=number,
            kind=kind,
            preemptions=preemptions,
            tokens=tokens,
            tensor_parallel_size=ran,
            layout_forecasts=forecasts(predicted) or None,
        )
        applied, known = job.target.revision if heard else 0, job.status.parallelism
        choice = job.decide(said, applied)
        moved = [(sizes.index(was), sizes.index(now)) for was, now in zip(before, job.sizes, strict=True) if was != now]
        assert set(job.sizes) <= set(sizes)
        assert len(moved) == len(choice.reasons) <= 1
        for was, now in moved:
            faster = predicted.get(sizes[now], 1) < predicted.get(sizes[was], 0)
            # Engines that refuse a size are not argued with, whatever is predicted.
            refused = ran != before[kind is not RoundKind.SHORT]
            slower = predicted.get(sizes[now], 0) > predicted.get(sizes[was], 99)
            assert faster or (abs(now - was) == 1 and (refused or not slower))
        if moved and ran != before[kind is not RoundKind.SHORT]:
            # Towards the size that it ran at, and only after a round before it was said to be under this target.
            assert known is not None
            assert known.heard is not None
            assert known.heard < number
            assert ran is not None
            assert (moved[0][1] < moved[0][0]) == (ran < sizes[moved[0][0]])
        # Decided again from what was written, nothing changes: an operator that was restarted agrees.
        settled = job.status
        assert job.decide(said, applied).reasons == ()
        assert job.status == settled
        assert len(settled.model_dump_json(exclude_none=True)) < 2000


@given(st.integers(0, 1 << 30), st.sampled_from([1, 2, 4, 8]), st.integers(100_000, 9_000_000))
def test_a_load_that_does_not_change_lets_it_rest(seed: int, start: int, demand: int) -> None:
    """Whatever the noise of the lengths (less than the relief): it goes up at most from the bottom to the top, and each
    step down that brings preemptions back is the last one there."""
    draw = random.Random(seed)
    job, changes = Job(rollout(start)), 0
    for _ in range(300):
        before = job.sizes[1]
        tokens = int(demand * draw.uniform(0.92, 1.08))
        changes += before != job.play(max(0, (tokens - before * 800_000) // 1000), tokens=tokens)
    assert changes <= 3 + 2 * (3 + 2)


def test_the_history_of_an_ended_choice_stays_in_the_status() -> None:
    """The choice may come back."""
    job = Job(rollout(2))
    job.play(3)
    job.spec = rollout(2, (2,))
    job.decide(None)
    assert isinstance(job.status.parallelism, ParallelismHistory)
    assert job.target.tensor_parallel == TargetTensorParallel(short=2, long=2)
