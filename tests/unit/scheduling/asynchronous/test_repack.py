"""Repack: what is idle, what a plan may never do, and how it compares with the best of all plans."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.scheduling.asynchronous.async_groups import GroupTracker
from rljob_runtime.scheduling.asynchronous.repack import (
    Merge,
    RepackRules,
    ReplicaLoad,
    has_work,
    is_due,
    is_idle,
    plan_repack,
)
from rljob_runtime.scheduling.round_plan import Launch
from tests.support.examples import examples

RULES = RepackRules(kv_cache_threshold=0.9, max_batch=8)


def ALWAYS(source: str, receiver: Sequence[str]) -> bool:
    """Every merge saves time."""
    return True


def load(name: str, tokens: int = 20, trajectories: int = 2, **other) -> ReplicaLoad:
    """A replica in its tail, with room for 100 tokens."""
    fields = {"version": 1, "waiting": 0, "expected_tokens": tokens, "kv_tokens": 100, "kv_before": tokens} | other
    return ReplicaLoad(name=name, trajectories=trajectories, tokens=tokens, **fields)


@pytest.mark.parametrize(
    ("changed", "idle"),
    [
        ({}, True),
        ({"tokens": 89, "kv_before": 95}, True),
        ({"tokens": 90, "kv_before": 95}, False),
        ({"kv_before": 21}, True),
        ({"kv_before": 19}, False),
        ({"kv_before": None}, False),
        # Its own trajectories grow; more than that was moved to it, or began.
        ({"kv_before": 12, "generated": 8}, True),
        ({"kv_before": 11, "generated": 8}, False),
        ({"waiting": 1}, False),
        ({"trajectories": 7}, True),
        ({"trajectories": 8}, False),
        ({"trajectories": 0}, False),
        # What it will hold when the moves are made is not known yet.
        ({"moving": True}, False),
        # Whether it may receive is another question.
        ({"receives": False}, True),
    ],
)
def test_what_is_idle(changed, idle):
    assert is_idle(replace(load("a"), **changed), RULES) is idle


@pytest.mark.parametrize(
    ("weights_published", "seconds", "due"),
    [(False, 4.9, False), (False, 5.0, True), (True, 0.0, True), (False, 0.0, False)],
)
def test_a_plan_is_due_after_new_weights_or_an_interval(weights_published, seconds, due):
    assert is_due(weights_published, seconds, interval=5.0) is due


@pytest.mark.parametrize(
    ("requested", "admitted", "work"), [(1, 1, True), (0, 1, False), (-2, 1, False), (1, 0, False), (3, 8, True)]
)
def test_a_released_replica_has_work_if_groups_are_requested_and_admitted(requested, admitted, work):
    assert has_work(requested, admitted) is work


@pytest.mark.parametrize(
    ("loads", "merges"),
    [
        ([], []),
        ([load("a")], []),
        ([load("a"), load("b")], ["a>b"]),
        ([load("a", 30), load("b", 20)], ["b>a"]),
        # Other weights.
        ([load("a"), load("b", version=2)], []),
        ([load("a"), load("b", version=2), load("c"), load("d", version=2)], ["a>c", "b>d"]),
        # The source goes where it leaves least room.
        ([load("a", 10), load("b", 60), load("c", 40)], ["a>b"]),
        # As a share of what there is: 60 of 100 is fuller than 100 of 400, and the fuller does not go to the other.
        ([load("a", 10), load("b", 60), load("c", 100, kv_tokens=400)], ["a>b"]),
        # One that is full does not receive, and one that is filling does neither.
        ([load("a", 10), load("b", 85), load("c", 75)], ["a>c"]),
        ([load("a", 10), load("b", 60, kv_before=59)], []),
        # Exactly up to the limits, and no further.
        ([load("a", 30), load("b", 60)], ["a>b"]),
        ([load("a", 31), load("b", 60)], []),
        ([load("a", trajectories=4), load("b", trajectories=4)], ["a>b"]),
        ([load("a", trajectories=4), load("b", trajectories=5)], []),
        # What they will come to counts, not what they hold.
        ([load("a", expected_tokens=50), load("b", expected_tokens=41)], []),
        ([load("a", expected_tokens=50), load("b", expected_tokens=40)], ["a>b"]),
        # Who drains hands over, and receives nothing.
        ([load("a", 30, receives=False), load("b", 20)], ["a>b"]),
        ([load("a", receives=False), load("b", receives=False)], []),
        # All onto one.
        ([load(name, 10, 1) for name in "abcd"], ["a>b", "c>b", "d>b"]),
    ],
)
def test_plans(loads, merges):
    assert [f"{merge.source}>{merge.destination}" for merge in plan_repack(loads, RULES, ALWAYS)] == merges


def as_printed(loads: Sequence[ReplicaLoad], rules: RepackRules) -> list[Merge]:
    """Algorithm 1 of the paper, lines 4 to 17, of replicas of one version that are idle."""
    plan: list[Merge] = []
    by_name = {one.name: one for one in loads}

    def tokens(of: ReplicaLoad) -> int:
        return of.tokens + sum(by_name[merge.source].tokens for merge in plan if merge.destination == of.name)

    def requests(of: ReplicaLoad) -> int:
        given_to_it = (by_name[merge.source] for merge in plan if merge.destination == of.name)
        return of.trajectories + sum(one.trajectories for one in given_to_it)

    for source in sorted(loads, key=lambda one: one.tokens):
        fitting = [
            one
            for one in loads
            if one is not source
            and one.name not in {merge.source for merge in plan}
            and tokens(one) + source.tokens <= rules.kv_cache_threshold * one.kv_tokens
            and requests(one) + source.trajectories <= rules.max_batch
        ]
        if fitting:
            plan.append(Merge(source.name, max(fitting, key=tokens).name))
    return plan


@pytest.mark.parametrize(
    ("loads", "printed", "ours"),
    [
        # Of equally full ones it took the first.
        ([load("a", 40), load("b", 40), load("c", 40)], "a>b b>c", "a>b"),
        # The fullest has no room for so many.
        ([load("a", 10, 5), load("b", 20, 1), load("c", 30, 4)], "a>b b>c", "a>b"),
    ],
)
def test_a_replica_that_receives_is_not_released_by_the_same_plan(loads, printed, ours):
    assert " ".join(f"{one.source}>{one.destination}" for one in as_printed(loads, RULES)) == printed
    assert " ".join(f"{one.source}>{one.destination}" for one in plan_repack(loads, RULES, ALWAYS)) == ours


def test_rules_must_make_sense():
    with pytest.raises(ValueError, match=r"kv_cache_threshold is 0; it must be above 0 and at most 1"):
        RepackRules(0, 8)
    with pytest.raises(ValueError, match=r"kv_cache_threshold is 1\.1"):
        RepackRules(1.1, 8)
    with pytest.raises(ValueError, match="max_batch is 0; it must be at least 1"):
        RepackRules(0.9, 0)


@st.composite
def fleets(draw, size=8, versions=3):
    loads = []
    for place in range(draw(st.integers(0, size))):
        tokens = draw(st.integers(0, 100))
        loads.append(
            ReplicaLoad(
                name=f"r{place}",
                version=draw(st.integers(1, versions)),
                trajectories=draw(st.integers(0, 9)),
                waiting=draw(st.sampled_from([0, 0, 0, 0, 1])),
                tokens=tokens,
                expected_tokens=tokens + draw(st.integers(0, 30)),
                kv_tokens=draw(st.sampled_from([100, 100, 200])),
                kv_before=draw(st.sampled_from([None, tokens - 1, tokens, tokens, tokens, tokens + 9])),
                receives=draw(st.sampled_from([True, True, True, False])),
                moving=draw(st.sampled_from([False, False, False, True])),
            )
        )
    return loads


ALL_RULES = st.builds(RepackRules, st.sampled_from([0.5, 0.9, 1.0]), st.integers(1, 16))


@given(fleets(), ALL_RULES)
@settings(max_examples=examples(400))
def test_what_no_plan_does(loads, rules):
    plan = plan_repack(loads, rules, ALWAYS)
    by_name = {one.name: one for one in loads}
    sources = [merge.source for merge in plan]
    received = defaultdict(list)
    for merge in plan:
        received[merge.destination].append(by_name[merge.source])
    # Each is released once and whole, and none that receives.
    assert len(sources) == len(set(sources))
    assert not set(sources) & set(received)
    for merge in plan:
        assert by_name[merge.source].version == by_name[merge.destination].version
        assert is_idle(by_name[merge.source], rules)
    for name, given_to_it in received.items():
        receiver = by_name[name]
        assert is_idle(receiver, rules)
        assert receiver.receives
        together = [receiver, *given_to_it]
        assert sum(one.trajectories for one in together) <= rules.max_batch
        assert sum(one.expected_tokens for one in together) <= rules.kv_cache_threshold * receiver.kv_tokens


@given(fleets(), ALL_RULES, st.randoms())
def test_the_order_of_the_replicas_is_of_no_matter(loads, rules, random):
    shuffled = random.sample(loads, len(loads))
    assert plan_repack(shuffled, rules, ALWAYS) == plan_repack(loads, rules, ALWAYS)


@given(fleets(), ALL_RULES)
def test_no_further_merge_fits_after_a_plan(loads, rules):
    plan = plan_repack(loads, rules, ALWAYS)
    by_name = {one.name: one for one in loads}
    released = {merge.source for merge in plan}
    receivers = {merge.destination for merge in plan}
    left = []
    for one in loads:
        given_to_it = [by_name[merge.source] for merge in plan if merge.destination == one.name]
        if is_idle(one, rules) and one.name not in released:
            left.append((one, [one, *given_to_it]))
    for source, _ in left:
        for receiver, together in left:
            if source is receiver or source.name in receivers or source.version != receiver.version:
                continue
            fits = (
                sum(one.trajectories for one in (source, *together)) <= rules.max_batch
                and sum(one.expected_tokens for one in (source, *together))
                <= rules.kv_cache_threshold * receiver.kv_tokens
            )
            assert not (fits and receiver.receives)


def best_plan(loads: Sequence[ReplicaLoad], rules: RepackRules) -> int:
    """The most replicas that any plan releases, found by trying all."""
    idle = [one for one in loads if is_idle(one, rules)]
    most = 0
    for goes_to in product(range(len(idle)), repeat=len(idle)):
        stays = [place == to for place, to in enumerate(goes_to)]
        allowed = all(
            stays[place] or (stays[to] and idle[to].receives and idle[to].version == idle[place].version)
            for place, to in enumerate(goes_to)
        )
        peak, batch = Counter(), Counter()
        for place, to in enumerate(goes_to):
            peak[to] += idle[place].expected_tokens
            batch[to] += idle[place].trajectories
        if allowed and all(
            stays.count(True) == len(idle)
            or sum(other == to for other in goes_to) == 1
            or (peak[to] <= rules.kv_cache_threshold * idle[to].kv_tokens and batch[to] <= rules.max_batch)
            for to in set(goes_to)
        ):
            most = max(most, stays.count(False))
    return most


@given(fleets(size=5, versions=1), ALL_RULES)
@settings(max_examples=examples(200))
def test_at_least_one_is_released_and_half_where_all_are_alike(loads, rules):
    released, best = len(plan_repack(loads, rules, ALWAYS)), best_plan(loads, rules)
    assert min(1, best) <= released <= best
    alike = [replace(one, kv_tokens=100, receives=True) for one in loads]
    released, best = len(plan_repack(alike, rules, ALWAYS)), best_plan(alike, rules)
    assert best / 2 <= released <= best


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_where_all_fit_onto_one_all_but_one_are_released(tokens):
    loads = [load(f"r{place}", held, 1) for place, held in enumerate(tokens)]
    plan = plan_repack(loads, replace(RULES, kv_cache_threshold=1.0), ALWAYS)
    assert len(plan) == len(loads) - 1
    assert len({merge.destination for merge in plan}) == min(1, len(plan))


def test_what_does_not_pay_stays_and_what_a_receiver_was_given_counts():
    asked = []

    def pays(source: str, receiver: Sequence[str]) -> bool:
        asked.append((source, *receiver))
        return source != "a"

    loads = [load("a", 10, 1), load("b", 20, 1), load("c", 25, 1), load("d", 30, 1)]
    assert plan_repack(loads, RULES, pays) == (Merge("b", "d"), Merge("c", "d"))
    assert asked == [("a", "d"), ("b", "d"), ("c", "d", "b")]


# --- look after look ---


@given(st.data(), st.integers(2, 5), st.integers(2, 12))
@settings(max_examples=examples(200))
def test_no_check_gives_a_replica_more_than_it_may_hold(data, replicas, most):
    """Moves take their time: each look finds some of the last one's made, and others not. When all are made, none has
    more than the limits allow, and none was emptied that was being filled."""
    rules = RepackRules(kv_cache_threshold=1.0, max_batch=most)
    flight, names = GroupTracker(1), [f"r{number}" for number in range(replicas)]
    numbers = count()
    for name in names:
        for _ in range(data.draw(st.integers(0, most - 1))):
            flight.add(PromptKey(0, next(numbers)), 1, name)
    flight.launch(dict.fromkeys(names, 1))
    held = Counter({name: flight.load(name) for name in names})
    moving: list[Launch] = []
    for _ in range(data.draw(st.integers(2, 4))):
        loads = [
            load(name, len(flight.running_on(name)), len(flight.running_on(name)), moving=flight.has_move(name))
            for name in names
        ]
        fed, emptied = {one.lease.replica for one in moving}, {flight.lease(one.key).replica for one in moving}
        for merge in plan_repack(loads, rules, ALWAYS):
            assert not {merge.source, merge.destination} & (fed | emptied)
            moving += flight.begin_move(merge.source, merge.destination)
        made = data.draw(st.lists(st.sampled_from(moving), unique=True)) if moving else []
        for one in made:
            assert flight.commit_move(one.key, one.lease)
            moving.remove(one)
        ended = [launch for name in names for launch in flight.running_on(name)]
        for launch in data.draw(st.lists(st.sampled_from(ended), unique=True, max_size=2)) if ended else []:
            flight.generated(launch.key, launch.lease)
            moving = [one for one in moving if one.key != launch.key]
    for one in moving:
        assert flight.commit_move(one.key, one.lease)
    assert all(flight.load(name) <= max(most, held[name]) for name in names)
