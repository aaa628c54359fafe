"""What replicas with nothing to do are given: a table, and what holds for any of them and any room."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.scheduling.experience import admitted
from rljob_runtime.scheduling.occupation import Draw, Idle, Load, batch_size, occupy

A, B, C = Idle("a", 5), Idle("b", 5), Idle("c", 4)


def test_a_batch_is_a_share_of_an_update():
    assert [batch_size(*case) for case in [(128, 16), (100, 16), (1, 5), (3, 0)]] == [8, 7, 1, 3]


@pytest.mark.parametrize(
    ("idle", "wanted", "room", "loads", "draws", "closed"),
    [
        pytest.param([A, B], 99, {5: 9}, [], [("a", 5, 4), ("b", 5, 4)], [], id="room for both"),
        pytest.param([A, B], 99, {5: 5}, [], [("a", 5, 4), ("b", 5, 1)], [], id="room for one and a bit"),
        pytest.param([A, B, C], 99, {5: 4}, [], [("a", 5, 4)], ["b", "c"], id="what is begun takes the room"),
        pytest.param([A, C], 99, {5: 0, 4: 3}, [], [("c", 4, 3)], ["a"], id="room by weights"),
        pytest.param([A, B, C], 6, {5: 9, 4: 9}, [], [("a", 5, 4), ("b", 5, 2)], [], id="no more is wanted"),
        pytest.param([A, B], 0, {5: 9}, [], [], [], id="nothing is wanted: nobody waits for room"),
        pytest.param([A, B], -3, {5: 9}, [], [], [], id="fewer are wanted than there are"),
        pytest.param([Idle("a", 4, 5), B], 99, {5: 9}, [("a", 5)], [("b", 5, 4)], [], id="newer weights first"),
        pytest.param([Idle("a", None, 5)], 0, {}, [("a", 5)], [], [], id="weights are taken whatever is wanted"),
        pytest.param([Idle("a", None)], 99, {5: 9}, [], [], [], id="one that holds nothing is not kept from drawing"),
        pytest.param([], 99, {5: 9}, [], [], [], id="nobody is idle"),
    ],
)
def test_what_idle_replicas_are_given(idle, wanted, room, loads, draws, closed):
    found = occupy(idle, 4, wanted, lambda version, begun: room.get(version, 0) - len(begun))
    assert found.loads == tuple(Load(*load) for load in loads)
    assert found.draws == tuple(Draw(*draw) for draw in draws)
    assert found.closed == tuple(closed)


VERSION = st.integers(0, 6)


@given(
    st.lists(st.tuples(st.none() | VERSION, st.none() | VERSION), max_size=8),
    st.lists(VERSION, max_size=20),
    st.integers(1, 5),
    st.integers(-2, 30),
    st.integers(1, 30),
    st.none() | st.integers(0, 4),
)
def test_whoever_is_idle_gets_at_most_one_thing_and_the_bounds_hold(seats, opened, share, wanted, capacity, bound):
    """`opened`: versions of the open groups; version 6 is the newest."""

    def admit(version, begun):
        return admitted([6 - one for one in (*opened, *begun)], 6 - version, capacity, share, bound)

    idle = [Idle(f"r{number}", *seat) for number, seat in enumerate(seats)]
    found = occupy(idle, share, wanted, admit)
    given_to = Counter([*(one.replica for one in (*found.loads, *found.draws)), *found.closed])
    by_name = {one.replica: one for one in idle}
    assert all(count == 1 for count in given_to.values())
    assert given_to.keys() <= by_name.keys()
    assert {one.replica: one.newer for one in idle if one.newer is not None} == {
        load.replica: load.version for load in found.loads
    }
    begun: list[int] = []
    for draw in found.draws:
        assert draw.version == by_name[draw.replica].version
        assert 1 <= draw.groups <= min(share, admit(draw.version, begun))
        begun += [draw.version] * draw.groups
    assert len(begun) <= max(0, wanted)
    assert not found.draws or len(opened) + len(begun) <= capacity
    if len(begun) < wanted:
        # Nobody who could begin something now is left out.
        left = [one for one in idle if one.newer is None and one.version is not None and one.replica not in given_to]
        assert left == []
