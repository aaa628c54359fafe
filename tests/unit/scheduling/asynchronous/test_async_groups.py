"""Groups in flight: where responses are, what is launched, moved, aborted and given up."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.protocols.trajectory import Lease, PromptKey, TrajectoryKey
from rljob_runtime.scheduling.asynchronous.async_groups import GroupDone, GroupTracker
from rljob_runtime.scheduling.reward_failure import RewardFailure
from rljob_runtime.scheduling.round_plan import ENVIRONMENT_FAILED, EQUAL_REWARDS, REWARD_FAILED, Launch, RestoredSample

ONE, TWO = PromptKey(0, 1), PromptKey(0, 2)


def key(prompt: PromptKey, sample: int) -> TrajectoryKey:
    return TrajectoryKey(prompt, sample)


def launched(flight: GroupTracker, holders: dict[str, int]) -> dict[TrajectoryKey, Lease]:
    return {launch.key: launch.lease for launch in flight.launch(holders)}


def end(flight: GroupTracker, which: TrajectoryKey, reward: float = 1.0) -> None:
    lease = flight.lease(which)
    assert flight.generated(which, lease)
    assert flight.scored(which, lease.attempt, reward)


@pytest.fixture
def flight() -> GroupTracker:
    flight = GroupTracker(group_size=2)
    flight.add(ONE, 5, "a")
    return flight


def test_a_group_runs_where_it_was_drawn_and_is_over_with_its_last_reward(flight):
    leases = launched(flight, {"a": 5, "b": 5})
    assert leases == {key(ONE, 0): Lease("a", 1), key(ONE, 1): Lease("a", 1)}
    assert flight.load("a") == 2
    end(flight, key(ONE, 0), 0.5)
    assert flight.drain_done() == ()
    end(flight, key(ONE, 1), 1.0)
    assert flight.drain_done() == (GroupDone(ONE, 5, (0.5, 1.0)),)
    assert len(flight) == flight.load("a") == 0
    assert flight.drain_done() == flight.drain_aborts() == ()


def test_what_a_lost_replica_generated_goes_on_with_the_same_weights_only(flight):
    launched(flight, {"a": 5})
    flight.mark_replica_lost("a")
    assert launched(flight, {"b": 6, "c": 4}) == {}
    assert launched(flight, {"b": 6, "c": 5}) == {key(ONE, 0): Lease("c", 2), key(ONE, 1): Lease("c", 2)}
    assert not flight.generated(key(ONE, 0), Lease("a", 1)), "its lease is void"


def test_a_group_goes_to_the_least_loaded_replica_and_stays_together(flight):
    flight.add(TWO, 5, "gone")
    launched(flight, {"a": 5})
    leases = {launch.key: launch.lease.replica for launch in flight.launch({"a": 5, "b": 5})}
    assert leases == {}, "all was launched: to the only holder"
    flight.mark_replica_lost("a")
    assert {lease.replica for k, lease in launched(flight, {"b": 5, "c": 5}).items() if k.prompt == ONE} == {"b"}
    assert {flight.lease(key(TWO, sample)).replica for sample in range(2)} == {"c"}


def test_a_group_whose_weights_no_machine_holds_is_orphaned(flight):
    assert flight.orphaned({5}) == []
    assert flight.orphaned({4, 6}) == [ONE]
    launched(flight, {"a": 5})
    assert flight.orphaned(set()) == [], "it is being generated: its weights are held"
    flight.mark_replica_lost("a")
    assert flight.orphaned({6}) == [ONE]
    flight.drop(ONE)
    assert len(flight) == 0
    assert flight.orphaned(set()) == []


def test_a_mixed_group_continues_on_newer_weights_but_not_on_older_ones():
    flight = GroupTracker(group_size=2, mixed=True)
    flight.add(ONE, 5, "a")
    assert launched(flight, {"a": 4, "b": 4}) == {}
    assert flight.orphaned({4}) == [ONE]
    assert flight.orphaned({4, 6}) == []
    assert set(launched(flight, {"a": 6, "b": 5})) == {key(ONE, 0), key(ONE, 1)}
    assert flight.load("a") == 2, "its home has newer weights, and keeps it"
    flight.mark_replica_lost("a")
    assert {lease.replica for lease in launched(flight, {"b": 4, "c": 7}).values()} == {"c"}
    assert flight.version(ONE) == 5, "the oldest counts"


def test_a_group_that_waits_for_rewards_alone_is_not_orphaned(flight):
    launched(flight, {"a": 5})
    for sample in range(2):
        assert flight.generated(key(ONE, sample), Lease("a", 1))
    flight.mark_replica_lost("a")
    assert flight.orphaned(set()) == []
    assert flight.scored(key(ONE, 0), 1, 1.0)


def test_dropping_a_group_aborts_what_runs(flight):
    launched(flight, {"a": 5})
    assert flight.generated(key(ONE, 0), Lease("a", 1))
    flight.drop(ONE)
    assert flight.drain_aborts() == (Launch(key(ONE, 1), Lease("a", 1)),)
    assert not flight.scored(key(ONE, 0), 1, 1.0)


def test_equal_rewards_are_filtered_where_they_teach_nothing():
    flight = GroupTracker(group_size=2, drop_equal=True)
    flight.add(ONE, 5, "a")
    launched(flight, {"a": 5})
    for sample in range(2):
        end(flight, key(ONE, sample))
    assert flight.drain_done() == (GroupDone(ONE, 5, (1.0, 1.0), EQUAL_REWARDS),)


@pytest.mark.parametrize("reason", [REWARD_FAILED, ENVIRONMENT_FAILED])
def test_a_failed_reward_is_generated_again_until_the_group_is_filtered(flight, reason):
    for attempt in range(1, 4):
        leases = launched(flight, {"a": 5})
        assert leases[key(ONE, 0)] == Lease("a", attempt)
        assert flight.generated(key(ONE, 0), Lease("a", attempt))
        assert flight.reward_failed(key(ONE, 0), attempt, RewardFailure(reason=reason))
    assert [over.reason for over in flight.drain_done()] == [reason]
    assert flight.drain_aborts() == (Launch(key(ONE, 1), Lease("a", 1)),)


def test_an_uncounted_failure_is_generated_again_and_filters_no_group(flight):
    for attempt in range(1, 6):
        assert launched(flight, {"a": 5})[key(ONE, 0)] == Lease("a", attempt)
        assert flight.generated(key(ONE, 0), Lease("a", attempt))
        assert flight.reward_failed(key(ONE, 0), attempt, RewardFailure(counts=False))
    assert (flight.failures(key(ONE, 0)), flight.drain_done()) == (0, ())


def test_a_restart_filters_a_failed_group_for_the_same_reason():
    flight = GroupTracker(group_size=2)
    flight.add(ONE, 5, "a", {key(ONE, 1): RestoredSample(3, failures=3, failure=ENVIRONMENT_FAILED)})
    assert [over.reason for over in flight.drain_done()] == [ENVIRONMENT_FAILED]


def test_what_the_store_kept_is_restored():
    flight = GroupTracker(group_size=3)
    saved = {key(ONE, 0): RestoredSample(4, generated=True, reward=0.5), key(ONE, 1): RestoredSample(2, generated=True)}
    flight.add(ONE, 5, "a", saved)
    assert launched(flight, {"a": 5}) == {key(ONE, 2): Lease("a", 1)}
    assert flight.scored(key(ONE, 1), 2, 1.0)
    end(flight, key(ONE, 2))
    assert [over.rewards for over in flight.drain_done()] == [(0.5, 1.0, 1.0)]


# --- moves ---


def test_the_destinations_first_token_is_the_commit(flight):
    launched(flight, {"a": 5})
    moved = flight.begin_move("a", "b")
    assert moved == [Launch(key(ONE, sample), Lease("b", 2)) for sample in range(2)]
    assert flight.lease(key(ONE, 0)) == Lease("a", 1), "the source goes on"
    assert flight.commit_move(key(ONE, 0), Lease("b", 2))
    assert flight.lease(key(ONE, 0)) == Lease("b", 2)
    assert flight.drain_aborts() == (Launch(key(ONE, 0), Lease("a", 1)),)
    assert not flight.commit_move(key(ONE, 0), Lease("b", 2)), "once"
    assert (flight.load("a"), flight.load("b")) == (1, 2)


def test_a_source_that_ends_first_keeps_its_response(flight):
    launched(flight, {"a": 5})
    flight.begin_move("a", "b")
    assert flight.generated(key(ONE, 0), Lease("a", 1))
    assert flight.drain_aborts() == (Launch(key(ONE, 0), Lease("b", 2)),)
    assert not flight.commit_move(key(ONE, 0), Lease("b", 2))
    assert flight.scored(key(ONE, 0), 1, 1.0), "its reward is that of the attempt which made it"


def test_a_source_that_dies_before_the_commit_is_followed_by_a_new_lease(flight):
    launched(flight, {"a": 5})
    flight.begin_move("a", "b")
    flight.mark_replica_lost("a")
    assert Counter(launch.lease for launch in flight.drain_aborts()) == {Lease("b", 2): 2}
    assert set(launched(flight, {"b": 5}).values()) == {Lease("b", 3)}


def test_a_destination_that_dies_changes_nothing(flight):
    launched(flight, {"a": 5})
    flight.begin_move("a", "b")
    flight.mark_replica_lost("b")
    assert flight.drain_aborts() == ()
    assert flight.lease(key(ONE, 0)) == Lease("a", 1)
    assert flight.load("b") == 0
    assert [launch.lease for launch in flight.begin_move("a", "c")] == [Lease("c", 3)] * 2


def test_what_moves_already_does_not_move_again(flight):
    launched(flight, {"a": 5})
    flight.begin_move("a", "b")
    assert flight.begin_move("a", "c") == []


def test_episodes_are_handed_over_immediately_and_the_former_leases_end(flight):
    launched(flight, {"a": 5})
    ended, launches = flight.relaunch("a", "b")
    assert ended == [Launch(key(ONE, sample), Lease("a", 1)) for sample in range(2)]
    assert launches == [Launch(key(ONE, sample), Lease("b", 2)) for sample in range(2)]
    assert [flight.lease(key(ONE, sample)) for sample in range(2)] == [Lease("b", 2)] * 2
    assert (flight.load("a"), flight.load("b"), flight.has_move("a"), flight.has_move("b")) == (0, 2, False, False)
    assert not flight.generated(key(ONE, 0), Lease("a", 1)), "a late end of the source"
    flight.mark_replica_lost("a")
    assert launched(flight, {"b": 5}) == {}, "the source holds nothing"
    flight.mark_replica_lost("b")
    assert set(launched(flight, {"a": 5}).values()) == {Lease("a", 3)}


# --- any order of events ---


@given(st.integers(0, 10**9), st.integers(1, 3), st.booleans())
def test_any_order_of_events_leads_every_group_to_one_end(seed, group_size, drop_equal):
    random_ = random.Random(seed)
    flight = GroupTracker(group_size, max_failures=1, drop_equal=drop_equal)
    versions = {"a": 1, "b": 1, "c": 2}
    attempts: Counter[TrajectoryKey] = Counter()
    over: Counter[PromptKey] = Counter()
    dropped: set[PromptKey] = set()
    for index in range(4):
        flight.add(PromptKey(0, index), random_.choice([1, 2]), random_.choice("abc"))
    for _ in range(200):
        keys = [key(prompt, sample) for prompt in flight for sample in range(group_size)]
        if not keys:
            break
        which, name = random_.choice(keys), random_.choice("abc")
        match random_.randrange(9):
            case 0 | 1:
                for launch in flight.launch(versions):
                    assert versions[launch.lease.replica] == flight.version(launch.key.prompt), "one version"
                    assert launch.lease.attempt > attempts[launch.key], "attempts rise"
                    attempts[launch.key] = launch.lease.attempt
            case 2:
                flight.mark_replica_lost(name)
            case 3:
                for launch in flight.begin_move("a", "b"):
                    assert launch.lease.attempt > attempts[launch.key]
                    attempts[launch.key] = launch.lease.attempt
            case 8:
                for launch in flight.relaunch("b", "c")[1]:
                    assert launch.lease.attempt > attempts[launch.key]
                    attempts[launch.key] = launch.lease.attempt
            case 4 if (lease := flight.moving_to(which)) is not None:
                assert flight.commit_move(which, lease)
                assert flight.lease(which) == lease
            case 5 if (lease := flight.lease(which)) is not None:
                assert flight.generated(which, lease)
                if random_.random() < 0.8:
                    assert flight.scored(which, lease.attempt, random_.choice([0.0, 1.0]))
                else:
                    assert flight.reward_failed(which, lease.attempt, RewardFailure())
            case 6 if random_.random() < 0.1:
                flight.drop(which.prompt)
                dropped.add(which.prompt)
            case _:
                pass
        over.update(one.prompt for one in flight.drain_done())
        held = sum(flight.load(name) for name in "abc")
        leases = [flight.lease(one) for prompt in flight for one in (key(prompt, s) for s in range(group_size))]
        moving = sum(
            flight.moving_to(key(prompt, sample)) is not None for prompt in flight for sample in range(group_size)
        )
        assert held == sum(lease is not None for lease in leases) + moving, "what is held is leased or moves"
    assert all(count == 1 for count in over.values())
    assert not over.keys() & dropped
    assert len(over) + len(dropped) + len(flight) == 4
