"""The experience buffer's policies: tables for the samplers, brute force for the bound, a model of the whole loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.spec.training import Sampler
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.scheduling.asynchronous.experience_buffer import (
    BufferLimits,
    Experience,
    capacity_after,
    evict,
    inflight_limit,
    over_staleness_bound,
    sample,
)
from tests.support.examples import examples

KINDS = st.sampled_from(Sampler)
ROW = [(0, 5, 1.0), (1, 9, 0.0), (2, 5, 3.0), (3, 7, 2.0), (4, 0, 2.0), (5, 1, 0.5)]
"""The order in which they became ready, staleness, spread."""


def ready_groups(rows: Iterable[tuple[int, int, float]]) -> list[Experience]:
    return [Experience(PromptKey(0, ready), ready, staleness, spread) for ready, staleness, spread in rows]


def indices(prompts: Iterable[PromptKey]) -> list[int]:
    return [prompt.index for prompt in prompts]


# --- the samplers, where nothing is urgent ---


@pytest.mark.parametrize(
    ("kind", "count", "bound", "taken"),
    [
        (Sampler.FIFO, 3, None, [0, 1, 2]),
        (Sampler.FIFO, 6, None, [0, 1, 2, 3, 4, 5]),
        (Sampler.FIFO, 7, None, []),
        # One of four places is the oldest's, then by spread; 3 and 4 are equal, and 3 was ready first.
        (Sampler.PRIORITY, 4, None, [0, 2, 3, 4]),
        (Sampler.PRIORITY, 3, None, [0, 2, 3]),
        (Sampler.PRIORITY, 5, None, [0, 1, 2, 3, 4]),
        (Sampler.STALENESS_AWARE, 4, None, [1, 3, 0, 2]),
        # What is at the bound goes first, then the sampler chooses.
        (Sampler.FIFO, 2, 9, [1, 0]),
        (Sampler.PRIORITY, 2, 9, [1, 0]),
        # What is over it is never taken.
        (Sampler.FIFO, 4, 8, [0, 2, 3, 4]),
        (Sampler.FIFO, 6, 8, []),
        (Sampler.STALENESS_AWARE, 2, 5, [0, 2]),
    ],
)
def test_which_groups_a_sampler_takes(kind, count, bound, taken):
    assert indices(sample(kind, ready_groups(ROW), count, 1, bound, [])) == taken


@given(KINDS, st.permutations(ROW), st.integers(1, 7), st.integers(0, 99), st.none() | st.integers(0, 10))
def test_a_sample_is_complete_unique_and_independent_of_buffer_order(kind, rows, count, seed, bound):
    taken = sample(kind, ready_groups(rows), count, seed, bound, [])
    assert len(taken) in (0, count)
    assert len(set(taken)) == len(taken)
    assert taken == sample(kind, ready_groups(ROW), count, seed, bound, [])
    assert bool(taken) == (sum(bound is None or row[1] <= bound for row in ROW) >= count)


def test_uniform_gives_every_group_the_same_chance():
    tries = 3000
    taken = [
        prompt for seed in range(tries) for prompt in sample(Sampler.UNIFORM, ready_groups(ROW), 2, seed, None, [])
    ]
    for row in ROW:
        assert taken.count(PromptKey(0, row[0])) == pytest.approx(tries * 2 / len(ROW), rel=0.1)


@given(st.sampled_from([Sampler.FIFO, Sampler.PRIORITY]), st.integers(1, 8), st.randoms())
def test_none_starves_however_much_others_teach(kind, count, random):
    last = Experience(PromptKey(0, 20), 20, 0, 0.0)
    buffer = [*ready_groups((ready, 0, 1.0) for ready in range(20)), last]
    for update in range(21):
        taken = sample(kind, buffer, count, random.randrange(99), None, [])
        if last.prompt in taken:
            return
        buffer = [one for one in buffer if one.prompt not in taken]
        buffer += ready_groups((100 * (update + 1) + one, 0, 2.0 + random.random()) for one in range(count))
    raise AssertionError("it was never taken")


# --- the bound, against all that could be done ---


def in_time(staleness: Sequence[int], bound: int, count: int) -> bool:
    """Whether updates of `count` groups, the oldest first, take all of these in time."""
    return all(age + place // count <= bound for place, age in enumerate(sorted(staleness, reverse=True)))


@st.composite
def open_groups(draw) -> tuple[int, int, list[int]]:
    """A bound, a batch, and the staleness of groups that can all be taken in time."""
    bound, count = draw(st.integers(0, 3)), draw(st.integers(1, 3))
    opened: list[int] = []
    for age in draw(st.lists(st.integers(0, bound), max_size=10)):
        if in_time([*opened, age], bound, count):
            opened.append(age)
    return bound, count, opened


@given(KINDS, open_groups(), st.lists(st.booleans(), min_size=10, max_size=10), st.integers(0, 9))
@settings(max_examples=examples(300))
def test_an_update_is_made_exactly_when_it_keeps_all_others_fresh(kind, opened, ended, seed):
    bound, count, groups = opened
    ages = [age for age, has_ended in zip(groups, ended, strict=False) if has_ended]
    in_flight = [age for age, has_ended in zip(groups, ended, strict=False) if not has_ended]
    ready = ready_groups((place, age, float(place % 3)) for place, age in enumerate(ages))

    def leaves_in_time(chosen: Iterable[int]) -> bool:
        left = [age for place, age in enumerate(ages) if place not in set(chosen)]
        return in_time([age + 1 for age in (*left, *in_flight)], bound, count)

    possible = [chosen for chosen in combinations(range(len(ages)), count) if leaves_in_time(chosen)]
    taken = sample(kind, ready, count, seed, bound, in_flight)
    assert bool(taken) == bool(possible)
    assert not taken or leaves_in_time(indices(taken))
    if len(ages) >= count:
        assert over_staleness_bound(in_flight, bound, count) == (not possible)


@given(open_groups(), st.integers(0, 4), st.integers(1, 12))
@settings(max_examples=examples(300))
def test_as_many_groups_are_begun_as_can_be_taken_in_time(already, weights, capacity):
    bound, count, opened = already
    more = inflight_limit(opened, weights, capacity, count, bound)

    def fits(groups: int) -> bool:
        return len(opened) + groups <= capacity and in_time([*opened, *[weights] * groups], bound, count)

    assert more == 0 or fits(more)
    assert not fits(more + 1)
    # No update waits for a group that is not admitted.
    assert more > 0 or len(opened) >= min(count, capacity) or weights > bound


@pytest.mark.parametrize(
    ("in_flight", "bound", "count", "waits"),
    [
        ([], 0, 1, False),
        ([0, 5, 9], None, 1, False),
        ([0], 0, 4, True),
        ([0], 1, 4, False),
        ([1], 1, 4, True),
        # Four of them can go with the next update but one, a fifth cannot.
        ([0] * 4, 1, 4, False),
        ([0] * 5, 1, 4, True),
        # Over the bound by an edit: lost already.
        ([3], 1, 4, False),
    ],
)
def test_when_the_trainer_waits(in_flight, bound, count, waits):
    assert over_staleness_bound(in_flight, bound, count) is waits


@pytest.mark.parametrize(
    ("opened", "weights", "capacity", "bound", "more"),
    [
        ([], 0, 16, None, 16),
        ([9] * 10, 7, 16, None, 6),
        ([0] * 17, 0, 16, None, 0),
        ([], 0, 100, 0, 8),
        ([], 1, 100, 0, 0),
        ([], 0, 100, 3, 32),
        ([], 0, 20, 3, 20),
        ([], 3, 100, 3, 8),
        ([3] * 5, 3, 100, 3, 3),
        # Newer weights have later dates, and those dates have other groups too.
        ([3] * 5, 0, 100, 3, 27),
        ([0] * 20, 3, 100, 3, 8),
        ([0] * 30, 3, 100, 3, 2),
        # Groups that are lost already hold room in the buffer and none before a date.
        ([7] * 5, 0, 100, 0, 8),
    ],
)
def test_how_many_groups_are_begun(opened, weights, capacity, bound, more):
    assert inflight_limit(opened, weights, capacity, 8, bound) == more


def test_only_what_is_over_the_bound_is_evicted():
    ready = ready_groups(ROW)
    assert indices(evict(ready, 5)) == [1, 3]
    assert evict(ready, 9) == evict(ready, None) == ()


# --- the whole loop ---


@dataclass
class Loop:
    """Replicas that begin and finish groups in any order, with whatever weights they have, and a trainer."""

    kind: Sampler
    count: int
    capacity: int
    bound: int | None
    random: Random
    replicas: list[int] = field(default_factory=lambda: [0, 0, 0])
    """The step of each one's weights."""
    taken: int = 0
    published: int = 0
    begun: int = 0
    in_flight: dict[int, int] = field(default_factory=dict)
    """The step of the weights of each group; groups are named by the order in which they began."""
    ready: list[tuple[int, int, float]] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    stalest: int = 0

    def ages(self) -> list[int]:
        return [self.taken - step for step in self.in_flight.values()]

    def buffer(self) -> list[Experience]:
        return [
            Experience(PromptKey(0, group), ready, self.taken - step, spread)
            for ready, (group, step, spread) in enumerate(self.ready)
        ]

    def begin(self, replica: int, share: float = 1.0) -> None:
        step = self.replicas[replica]
        opened = [*self.ages(), *(one.staleness for one in self.buffer())]
        more = inflight_limit(opened, self.taken - step, self.capacity, self.count, self.bound)
        for _ in range(round(share * more)):
            self.in_flight[self.begun] = step
            self.begun += 1

    def finish(self, group: int) -> None:
        step = self.in_flight.pop(group)
        self.ready.append((group, step, self.random.choice([0.0, 0.5, 1.0])))

    def update(self) -> bool:
        """The trainer takes a batch, if it may. The weights are published at some time after."""
        buffer = self.buffer()
        assert evict(buffer, self.bound) == ()
        batch = sample(self.kind, buffer, self.count, self.taken, self.bound, self.ages())
        if not batch:
            return False
        groups = indices(batch)
        self.stalest = max(self.stalest, *(one.staleness for one in buffer if one.prompt in batch))
        self.trained += groups
        self.ready = [one for one in self.ready if one[0] not in groups]
        self.taken += 1
        return True

    def any_step(self) -> None:
        replica = self.random.randrange(len(self.replicas))
        match self.random.randrange(6):
            case 0 | 1:
                self.begin(replica, self.random.random())
            case 2 | 3 if self.in_flight:
                # Now and then the youngest: long ones stay for ever.
                groups = sorted(self.in_flight)
                self.finish(self.random.choice([self.random.choice(groups), groups[-1]]))
            case 4:
                self.update()
            case 5:
                self.published = self.random.randint(self.published, self.taken)
                self.replicas[replica] = self.random.randint(self.replicas[replica], self.published)

    def undisturbed_update(self) -> bool:
        """Whether an update comes, once all that is in flight finishes and weights arrive."""
        self.published = self.taken
        self.replicas = [self.taken] * len(self.replicas)
        for group in sorted(self.in_flight):
            self.finish(group)
        self.begin(0)
        for group in sorted(self.in_flight):
            self.finish(group)
        return self.update()


@given(KINDS, st.integers(1, 4), st.integers(0, 12), st.none() | st.integers(0, 4), st.integers(0, 10**6))
@settings(max_examples=examples(300))
def test_no_group_is_lost_or_over_the_staleness_bound(kind, count, more, bound, seed):
    loop = Loop(kind, count, count + more, bound, Random(seed))
    for _ in range(120):
        loop.any_step()
        assert len(loop.in_flight) + len(loop.ready) <= loop.capacity
    assert loop.undisturbed_update()
    assert bound is None or loop.stalest <= bound
    everything = [*loop.trained, *loop.in_flight, *(group for group, _, _ in loop.ready)]
    assert sorted(everything) == list(range(loop.begun))


# --- how many groups may be open ---


@pytest.mark.parametrize(
    ("capacity", "waited", "left", "fullness", "after"),
    [
        (16, 0.5, 0, 0.1, 18),
        (31, 0.5, 0, 0.1, 32),
        # Engines that are full get no further by holding more.
        (16, 0.5, 0, 0.81, 16),
        # Starved all the same: what lies ready came while it waited for a bound.
        (16, 0.5, 8, 0.1, 18),
        # A wait too short to mean anything.
        (16, 0.05, 0, 0.1, 16),
        (16, 0.0, 2, 0.1, 16),
        (16, 0.0, 8, 0.1, 13),
        (16, 0.0, 8, 0.9, 13),
        (10, 0.0, 8, 0.9, 10),
    ],
)
def test_the_capacity_follows_the_trainer(capacity, waited, left, fullness, after):
    assert capacity_after(capacity, BufferLimits.of(8, None), 8, waited, left, fullness) == after


def test_the_capacity_begins_at_two_updates_and_stays_in_its_bounds():
    assert BufferLimits.of(8, None) == BufferLimits(first=16, least=10, most=32)
    assert BufferLimits.of(1, None) == BufferLimits(first=2, least=2, most=4)


SEEN = st.tuples(st.floats(0, 1), st.integers(0, 99), st.floats(0, 1))


@given(st.integers(1, 40), st.lists(SEEN, max_size=30))
def test_the_capacity_stays_within_its_limits_and_takes_small_steps_up(count, seen):
    limits = BufferLimits.of(count, None)
    capacity = limits.first
    for waited, left, fullness in seen:
        before, capacity = capacity, capacity_after(capacity, limits, count, waited, left, fullness)
        assert limits.least <= capacity <= limits.most
        assert capacity > count, "an update's worth and some more"
        assert capacity - before <= -(-count // 4)
        assert (capacity <= before) or waited > 0


@given(st.integers(1, 40), st.integers(0, 99), st.lists(SEEN, min_size=1, max_size=9))
def test_a_capacity_that_was_given_never_moves(count, more, seen):
    limits = BufferLimits.of(count, count + more)
    assert {capacity_after(limits.first, limits, count, *one) for one in seen} == {count + more}


@given(st.integers(1, 40), st.booleans())
def test_a_trainer_that_always_waits_or_never_does_comes_to_the_limit(count, starved):
    limits = BufferLimits.of(count, None)
    capacity = limits.first
    for _ in range(40):
        seen = (1.0, 0, 0.0) if starved else (0.0, capacity - count, 0.0)
        capacity = capacity_after(capacity, limits, count, *seen)
    near = -(-count // 4) + 1
    assert capacity == limits.most if starved else capacity <= limits.least + near
