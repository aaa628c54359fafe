"""The play of a drawn outcome: exact where a formula is known, and what is carried keeps its tokens."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.scheduling.adaptive_tp.draws import Draw, draws_of, stops_in_lockstep
from rljob_runtime.scheduling.adaptive_tp.packing import pack
from rljob_runtime.scheduling.adaptive_tp.snapshot import MachineSnapshot, OtherEngine, Running, SizedEngine
from rljob_runtime.scheduling.adaptive_tp.stage import Asked, generate
from rljob_runtime.scheduling.adaptive_tp.switch_plan import PlannedSwitch
from rljob_runtime.scheduling.adaptive_tp.tail import _Engine, play
from rljob_runtime.scheduling.lending.gain import OpenGroup
from rljob_runtime.scheduling.round_planner.survival import Survival
from tests.support.adaptive_tp import ENGINES, LENGTHS, costs, machine


def flat(seconds: float) -> SizedEngine:
    return SizedEngine(LatencyModel(((1.0, seconds),), 0.0, 0.0, 0.0, 0.0), 10**6, 1)


ONE_SECOND = {1: flat(1.0), 2: flat(0.5)}
PAIRS = costs(3.0).table(ONE_SECOND, 2)


def pair(*groups: int, **more) -> MachineSnapshot:
    replicas = tuple((Running(1, 0, group),) for group in groups)
    return MachineSnapshot(1, 2, replicas, Survival(LENGTHS), 1000, **more)


def test_without_a_switch_the_longest_response_decides():
    assert play(pair(0, 0), Draw(((7,), (20,))), ONE_SECOND, PAIRS) == pytest.approx(20.0)


def test_responses_that_exceed_a_cache_take_turns():
    """Two of 12 tokens on the average in a cache of 6: each runs half of the time."""
    both = replace(pair(0), replicas=((Running(1, 0),) * 2,))
    assert play(both, Draw(((10, 10),)), {1: flat(1.0)}, {}) == pytest.approx(10.0)
    assert play(both, Draw(((10, 10),)), {1: replace(flat(1.0), kv_tokens=6)}, {}) == pytest.approx(20.0)


def test_a_switch_costs_its_seconds_and_halves_the_rest():
    assert play(pair(0, 0), Draw(((7,), (20,))), ONE_SECOND, PAIRS, [PlannedSwitch(2, 2)]) == pytest.approx(3 + 10)


def test_a_switch_one_end_later_keeps_what_was_made():
    assert play(pair(0, 0), Draw(((7,), (20,))), ONE_SECOND, PAIRS, [PlannedSwitch(2, 1)]) == pytest.approx(7 + 3 + 6.5)


def test_a_switch_after_the_last_end_costs_nothing():
    assert play(pair(0, 0), Draw(((7,), (20,))), ONE_SECOND, PAIRS, [PlannedSwitch(2, 0)]) == pytest.approx(20.0)


def test_switches_follow_each_other():
    back = [PlannedSwitch(2, 2), PlannedSwitch(1, 1)]
    assert play(pair(0, 0), Draw(((7,), (20,))), ONE_SECOND, PAIRS, back) == pytest.approx(3 + 3.5 + 3 + 13)


def test_a_second_switch_begins_after_the_first():
    back = [PlannedSwitch(2, 2), PlannedSwitch(1, 2)]
    assert play(pair(0, 0), Draw(((7,), (20,))), ONE_SECOND, PAIRS, back) == pytest.approx(3 + 3 + 20)


def test_a_race_stops_what_lost_its_place():
    race = pair(0, 0, groups=[OpenGroup(1)], wanted=1)
    assert play(race, Draw(((7,), (20,))), ONE_SECOND, PAIRS) == pytest.approx(7.0)
    rounds = pair(0, 1, groups=[OpenGroup(1), OpenGroup(1)], wanted=1)
    assert play(rounds, Draw(((7,), (20,))), ONE_SECOND, PAIRS) == pytest.approx(7.0)
    assert stops_in_lockstep(rounds, Draw(((7,), (20,)))) == [7.0, 7.0]


def test_responses_of_other_machines_win_places():
    other = OtherEngine(2, (Running(1, 0, 0),))
    race = pair(0, 0, groups=[OpenGroup(1)], wanted=1, elsewhere=(other,))
    assert play(race, Draw(((17,), (20,)), ((8,),)), ONE_SECOND, PAIRS) == pytest.approx(4.0)
    two = OtherEngine(2, (Running(1, 0, 0), Running(1, 0, 1)))
    open_still = pair(0, groups=[OpenGroup(1), OpenGroup(1)], wanted=2, elsewhere=(two,))
    assert play(open_still, Draw(((20,),), ((8, 99),)), ONE_SECOND, PAIRS) == pytest.approx(4.0)
    alone = pair(0, 0, elsewhere=(other,))
    assert play(alone, Draw(((7,), (20,)), ((90,),)), ONE_SECOND, PAIRS) == pytest.approx(20.0)


def test_engines_of_an_unknown_size_win_places_too():
    """They are as fast as those of the nearest size."""
    for size, seconds in ((1, 8.0), (4, 4.0), (8, 4.0)):
        other = OtherEngine(size, (Running(1, 0, 0),))
        race = pair(0, 0, groups=[OpenGroup(1)], wanted=1, elsewhere=(other,))
        assert play(race, Draw(((17,), (20,)), ((8,),)), ONE_SECOND, PAIRS) == pytest.approx(seconds)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=24), st.sampled_from([1, 2, 4]))
def test_a_play_is_as_long_as_the_engines_are(lengths, size):
    """The engine simulator counts whole steps and has a prefill; both are equal otherwise."""
    replicas = [[] for _ in range(4 // size)]
    lefts = [[] for _ in replicas]
    for number, length in enumerate(lengths):
        replicas[number % len(replicas)].append(Running(100, 0))
        lefts[number % len(replicas)].append(length)
    snapshot = MachineSnapshot(size, 4, tuple(map(tuple, replicas)), Survival(LENGTHS), 8000)
    pairs = costs().table(ENGINES, 4)
    played = play(snapshot, Draw(tuple(map(tuple, lefts))), ENGINES, pairs)
    real = generate([Asked(100, length) for length in lengths], size, ENGINES, 4, pairs).seconds
    most = ENGINES[size].latency.prefill(100 * len(lengths), 0)
    assert played - 1e-6 <= real <= played + most + 1e-6


def test_what_is_carried_does_not_tell_which_response_ends_first():
    load = [(Running(1, 0, group), float(left)) for group, left in ((0, 9), (1, 3), (2, 6))]
    carried = _Engine(ONE_SECOND[1].latency, load).rest(1.0)
    assert [one.group for one, _ in carried] == [0, 1, 2]
    assert [left for _, left in carried] == pytest.approx([8, 2, 5])
    assert {one.generated for one, _ in carried} == {1}


def test_draws_are_the_same_for_all_alternatives_and_spread_evenly():
    snapshot = machine((4, 4, 4, 4))
    first, second = draws_of(snapshot, 2), draws_of(snapshot, 2)
    assert first == second
    assert first[0] != first[1]
    for draw in first:
        ends = sorted(left for replica in draw.here for left in replica)
        assert ends[0] < 1000 < ends[-1]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3)), max_size=40), st.integers(1, 8))
def test_packing_keeps_all_and_counts_even(drawn, replicas):
    running = [Running(5, generated, group) for generated, group in drawn]
    packed = pack(running, replicas, lambda one: one)
    assert sorted((one for replica in packed for one in replica), key=repr) == sorted(running, key=repr)
    counts = [len(replica) for replica in packed]
    assert max(counts) - min(counts) <= 1


def test_siblings_and_the_longest_are_kept_apart():
    packed = pack([Running(1, 9, 0), Running(1, 8, 1), Running(1, 7, 1), Running(1, 6, 0)], 2, lambda one: one)
    assert [sorted(one.group for one in replica) for replica in packed] == [[0, 1], [0, 1]]
    with pytest.raises(ValueError, match="replicas is 0"):
        pack([], 0, lambda one: one)
