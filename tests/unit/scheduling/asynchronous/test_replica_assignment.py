"""What replicas are given: tables, and what holds for any of them and any room."""

from collections import Counter
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.scheduling.asynchronous.experience_buffer import inflight_limit
from rljob_runtime.scheduling.asynchronous.replica_assignment import (
    PromptQuota,
    ReplicaLimits,
    ReplicaState,
    WeightLoad,
    assign,
    exceeds_refusals,
    load_delay,
    next_version,
    split_quota,
)

A, B, C = ReplicaState("a", 5), ReplicaState("b", 5), ReplicaState("c", 4)


@pytest.mark.parametrize(
    ("prompts", "replicas", "capacity", "share", "most"),
    [
        (128, 16, 128, 8, 8),
        (128, 16, 256, 8, 8),
        (100, 16, 200, 7, 7),
        (128, 16, 320, 8, 12),
        (128, 16, 512, 8, 24),
        # However much may be open, three shares are the most.
        (128, 16, 1 << 20, 8, 24),
        (1, 5, 4, 1, 1),
        (3, 0, 6, 3, 3),
    ],
)
def test_a_quota_is_a_part_of_what_may_be_open_beside_an_update(prompts, replicas, capacity, share, most):
    assert ReplicaLimits.of(2, prompts, replicas, capacity) == ReplicaLimits(2, share, most)


@pytest.mark.parametrize(
    ("replicas", "wanted", "room", "loads", "draws", "closed"),
    [
        pytest.param([A, B], 99, {5: 9}, [], [("a", 5, 4), ("b", 5, 4)], [], id="room for both"),
        pytest.param([A, B], 99, {5: 5}, [], [("a", 5, 4), ("b", 5, 1)], [], id="room for one and a bit"),
        pytest.param([A, B, C], 99, {5: 4}, [], [("a", 5, 4)], ["b", "c"], id="what is begun takes the room"),
        pytest.param([A, C], 99, {5: 0, 4: 3}, [], [("c", 4, 3)], ["a"], id="room by weights"),
        pytest.param([A, B, C], 6, {5: 9, 4: 9}, [], [("a", 5, 4), ("b", 5, 2)], [], id="no more is wanted"),
        pytest.param([C, A], 5, {5: 9, 4: 9}, [], [("a", 5, 4), ("c", 4, 1)], [], id="new weights before older ones"),
        pytest.param([A, B], 0, {5: 9}, [], [], [], id="nothing is wanted: no replica waits for room"),
        pytest.param([A, B], -3, {5: 9}, [], [], [], id="fewer are wanted than there are"),
        pytest.param([ReplicaState("a", 4, 5), B], 99, {5: 9}, [("a", 5)], [("b", 5, 4)], [], id="newer weights first"),
        pytest.param(
            [ReplicaState("a", None, 5)], 0, {}, [("a", 5)], [], [], id="weights are taken whatever is wanted"
        ),
        pytest.param(
            [ReplicaState("a", None)], 99, {5: 9}, [], [], [], id="one that holds nothing is not kept from drawing"
        ),
        pytest.param([], 99, {5: 9}, [], [], [], id="no replica is there"),
        pytest.param(
            [ReplicaState("a", 4, 5, load=1)], 99, {4: 9}, [], [], [], id="who has something left keeps its weights"
        ),
        pytest.param(
            [ReplicaState("a", 4, 5, load=1, mixes=True)],
            99,
            {4: 9},
            [("a", 5)],
            [],
            [],
            id="between two turns",
        ),
        pytest.param(
            [ReplicaState("a", 4, 5, load=2, evaluations=1, mixes=True)],
            99,
            {4: 9},
            [],
            [],
            [],
            id="an evaluation has one version",
        ),
        pytest.param(
            [ReplicaState("a", 5, load=5, mixes=True)], 99, {5: 9}, [], [("a", 5, 1)], [], id="none are newer"
        ),
        pytest.param([ReplicaState("a", 5, load=5)], 99, {5: 9}, [], [("a", 5, 1)], [], id="a group's worth has ended"),
        pytest.param(
            [ReplicaState("a", 5, load=5)], 99, {5: 0}, [], [], [], id="who has something left does not stand still"
        ),
    ],
)
def test_what_replicas_are_given(replicas, wanted, room, loads, draws, closed):
    """Groups of two responses; a share is four, and no replica holds more."""
    found = assign(replicas, ReplicaLimits(2, 4, 4), wanted, lambda version, begun: room.get(version, 0) - len(begun))
    assert found.loads == tuple(WeightLoad(*load) for load in loads)
    assert found.draws == tuple(PromptQuota(*draw) for draw in draws)
    assert found.blocked == tuple(closed)


VERSION = st.integers(0, 6)
QUOTA = st.builds(
    lambda size, share, more: ReplicaLimits(size, share, share + more), *(st.integers(1, 5),) * 2, st.integers(0, 6)
)


@given(
    st.lists(
        st.tuples(
            st.none() | VERSION,
            st.none() | VERSION,
            st.sampled_from([0, 0, 1, 7, 30]),
            st.integers(0, 1),
            st.booleans(),
        ),
        max_size=8,
    ),
    st.lists(VERSION, max_size=20),
    QUOTA,
    st.integers(-2, 30),
    st.integers(1, 30),
    st.none() | st.integers(0, 4),
)
def test_everybody_gets_at_most_one_thing_and_the_bounds_hold(replicas, opened, quota, wanted, capacity, bound):
    """`opened`: versions of the open groups; version 6 is the newest."""

    def admit(version, begun):
        return inflight_limit([6 - one for one in (*opened, *begun)], 6 - version, capacity, quota.share, bound)

    replicas = [ReplicaState(f"r{number}", *replica) for number, replica in enumerate(replicas)]
    found = assign(replicas, quota, wanted, admit)
    given_to = Counter([*(one.replica for one in (*found.loads, *found.draws)), *found.blocked])
    by_name = {one.replica: one for one in replicas}
    assert all(count == 1 for count in given_to.values())
    assert given_to.keys() <= by_name.keys()
    assert {one.replica: one.newer for one in replicas if one.newer is not None and one.may_load} == {
        load.replica: load.version for load in found.loads
    }
    begun: list[int] = []
    for draw in found.draws:
        replica = by_name[draw.replica]
        assert (draw.version, replica.newer) == (replica.version, None)
        assert 1 <= draw.groups <= admit(draw.version, begun)
        assert replica.load + draw.groups * quota.group_size <= quota.most * quota.group_size
        begun += [draw.version] * draw.groups
    assert len(begun) <= max(0, wanted)
    assert not found.draws or len(opened) + len(begun) <= capacity
    if len(begun) < wanted:
        # No idle replica that could begin something now is left out.
        able = [one for one in replicas if one.newer is None and one.version is not None and not one.load]
        assert all(one.replica in given_to for one in able)


@pytest.mark.parametrize(
    ("room", "loads", "most", "shares"),
    [
        (0, {"a": 0}, 4, {}),
        (-1, {"a": 0}, 4, {}),
        (9, {}, 4, {}),
        # A share each, to the one that is at work first; "c" stands still.
        (5, {"a": 0, "b": 4, "c": 0}, 4, {"b": 2, "a": 3}),
        (9, {"a": 0, "b": 4, "c": 0}, 4, {"b": 2, "a": 4, "c": 3}),
        (99, {"a": 0, "b": 4}, 4, {"b": 2, "a": 4}),
        # Twice as much may be held: what is left when all have their share goes to the least loaded.
        (9, {"a": 0, "b": 4, "c": 10}, 8, {"b": 3, "a": 6}),
        (99, {"a": 0, "b": 4}, 8, {"b": 6, "a": 8}),
        # Two responses of a group have ended, or only one.
        (9, {"a": 6, "b": 7}, 4, {"a": 1}),
        # What came by moves may be more than its share.
        (9, {"a": 30}, 4, {}),
    ],
)
def test_each_draws_its_share_and_then_the_least_loaded(room, loads, most, shares):
    """Groups of two responses, a share is four."""
    assert split_quota(room, loads, ReplicaLimits(2, 4, most)) == shares


@given(
    st.integers(0, 80),
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 30)),
    QUOTA,
    st.randoms(use_true_random=False),
)
def test_what_is_shared_out(room, loads, quota, random):
    size, shares = quota.group_size, split_quota(room, loads, quota)
    after = {name: load + size * shares.get(name, 0) for name, load in loads.items()}

    def full(name: str, groups: int) -> bool:
        return after[name] + size > groups * size

    assert sum(shares.values()) <= room
    assert all(after[name] <= quota.most * size for name in shares)
    if sum(shares.values()) < room:
        assert all(full(name, quota.most) for name in loads), "room is left only where no replica can take more"
    beyond = [name for name in shares if after[name] > quota.share * size]
    if beyond:
        assert all(full(name, quota.share) for name in loads), (
            "no replica gets more than a share before all have theirs"
        )
    for name, other in product(beyond, loads):
        assert full(other, quota.most) or after[name] - size <= after[other], "then the least loaded come first"
    for name, other in product(shares, loads):
        if loads[other] > loads[name]:
            assert full(other, quota.share), "a share goes to those first that have most to do"
    shuffled = list(loads.items())
    random.shuffle(shuffled)
    assert split_quota(room, dict(shuffled), quota) == shares


@pytest.mark.parametrize(
    ("held", "newest", "loads"),
    [
        pytest.param(None, 3, 3, id="it holds nothing"),
        pytest.param(2, 3, 3, id="newer weights are there"),
        pytest.param(3, 3, None, id="it holds the newest"),
        pytest.param(4, 3, None, id="it holds newer weights than its relay"),
        pytest.param(2, None, None, id="its relay holds nothing"),
    ],
)
def test_an_idle_replica_loads_only_newer_weights(held, newest, loads):
    assert next_version(held, newest) == loads


@pytest.mark.parametrize(
    ("refusals", "seconds", "exceeded"), [(0, 0.0, False), (1, 0.5, False), (5, 2.5, False), (6, 3.0, True)]
)
def test_each_refusal_delays_the_next_load_and_the_sixth_loses_the_machine(refusals, seconds, exceeded):
    assert (load_delay(refusals), exceeds_refusals(refusals)) == (seconds, exceeded)
