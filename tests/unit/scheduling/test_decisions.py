"""Tables and properties of the data plane's decisions: no I/O, no clock."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.status import CheckpointStatus, RelayTopology, RoundReport, RuntimeStatus, RuntimeTotals
from rljob_runtime.protocols.trajectory import FinishReason, Lease, PromptKey, TrajectoryKey
from rljob_runtime.scheduling.backoff import Backoff
from rljob_runtime.scheduling.fault_detection.relay_chain import ChainOrder, repair
from rljob_runtime.scheduling.partial_responses import DeltaStatus, Partials
from rljob_runtime.scheduling.response_placement import spread
from rljob_runtime.scheduling.status_cadence import Reported, resumed_status, reward_ends, seconds_until_report
from rljob_runtime.scheduling.weight_versions import Versions

A, B = PromptKey(0, 1), PromptKey(0, 2)


# --- placement ---


@given(
    st.integers(1, 12),
    st.integers(1, 9),
    st.lists(st.sampled_from("abcdef"), min_size=1, unique=True),
)
def test_groups_are_spread_and_replicas_are_even(prompts, responses, replicas):
    keys = [TrajectoryKey(PromptKey(0, prompt), sample) for prompt in range(prompts) for sample in range(responses)]
    chosen = spread(keys, replicas, {})
    assert set(chosen) == set(keys)
    loads = [sum(replica == name for replica in chosen.values()) for name in replicas]
    assert max(loads) - min(loads) <= 1
    for prompt in range(prompts):
        siblings = [chosen[key] for key in keys if key.prompt.index == prompt]
        shares = [siblings.count(name) for name in replicas]
        assert max(shares) - min(shares) <= 1


def test_what_a_lost_replica_leaves_goes_where_its_siblings_are_not():
    running = {TrajectoryKey(A, 1): "b"}
    assert spread([TrajectoryKey(A, 0)], ["b", "c"], running) == {TrajectoryKey(A, 0): "c"}


def test_without_replicas_nothing_is_placed():
    assert spread([TrajectoryKey(A, 0)], [], {}) == {}


KEYS = [TrajectoryKey(PromptKey(0, index), sample) for index in range(4) for sample in range(5)]


@given(
    st.permutations(KEYS),
    st.lists(st.sampled_from("abcdefg"), min_size=1, unique=True),
    st.dictionaries(st.sampled_from(KEYS), st.sampled_from("abcxyz")),
)
def test_placement_is_by_siblings_then_load_then_name(keys, replicas, running):
    waiting = [key for key in keys if key not in running]
    placed = {key: replica for key, replica in running.items() if replica in replicas}
    for key, replica in spread(waiting, replicas, running).items():
        held = {name: [one for one, at in placed.items() if at == name] for name in replicas}
        assert replica == min(
            replicas, key=lambda name: (sum(one.prompt == key.prompt for one in held[name]), len(held[name]), name)
        )
        placed[key] = replica
    assert placed.keys() >= set(waiting)


# --- partial responses ---


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), max_size=30))
def test_polls_may_repeat_and_overlap_and_the_tokens_come_out_once(deltas):
    """Any delivery of slices of one true response: what is held is always its beginning."""
    truth = list(range(20))
    partials, key, lease = Partials(), TrajectoryKey(A, 0), Lease("r", 1)
    partials.open(key, lease, 7)
    for start, length in deltas:
        held = len(partials.tokens_of(key)[0])
        piece = truth[start : start + length]
        verdict = partials.accept(key, lease, start, piece, [-0.5] * len(piece), 7, finished=False)
        tokens, logprobs = partials.tokens_of(key)
        assert list(tokens) == truth[: len(tokens)]
        assert len(logprobs) == len(tokens) >= held
        assert (verdict is DeltaStatus.GAP) == (start > held)


@pytest.mark.parametrize(
    ("lease", "version", "verdict"),
    [
        (Lease("r", 1), 7, DeltaStatus.STALE),
        (Lease("q", 2), 7, DeltaStatus.STALE),
        (Lease("r", 2), 8, DeltaStatus.WRONG_VERSION),
        (Lease("r", 2), 7, DeltaStatus.ACCEPTED),
    ],
)
def test_only_the_lease_and_the_version_in_force_extend_a_response(lease, version, verdict):
    partials, key = Partials(), TrajectoryKey(A, 0)
    partials.open(key, Lease("r", 1), 7)
    partials.open(key, Lease("r", 2), 7)
    assert partials.accept(key, lease, 0, [5], [-1.0], version, finished=False) is verdict
    assert len(partials.tokens_of(key)[0]) == (1 if verdict is DeltaStatus.ACCEPTED else 0)


def test_a_response_continues_with_a_new_lease_and_restarts_with_a_version():
    partials, key = Partials(), TrajectoryKey(A, 0)
    partials.open(key, Lease("r", 1), 7)
    partials.accept(key, Lease("r", 1), 0, [5, 6], [-1.0, -2.0], 7, finished=False)
    partials.open(key, Lease("q", 2), 7)
    assert partials.tokens_of(key) == ((5, 6), (-1.0, -2.0))
    assert partials.accept(key, Lease("q", 2), 2, [9], [-3.0], 7, finished=True) is DeltaStatus.FINISHED
    response = partials.close(key, FinishReason.STOP)
    assert (response.token_ids.tolist(), response.replica, response.attempt) == ([5, 6, 9], "q", 2)
    partials.open(key, Lease("q", 3), 8)
    assert partials.tokens_of(key) == ((), ())
    with pytest.raises(ValueError, match="attempt 3 is not above 3"):
        partials.open(key, Lease("r", 3), 8)


# --- chain ---

machines = st.lists(st.sampled_from([f"rollout-{index}" for index in range(5)]), unique=True)


@given(machines, st.dictionaries(st.sampled_from([f"rollout-{i}" for i in range(5)]), st.none() | st.integers(1, 3)))
def test_the_chain_holds_the_live_once_and_begins_with_the_newest_whole(order, holds):
    chain = repair(None, 3, order, holds)
    assert sorted(chain.machines) == sorted(holds)
    held = [version for version in holds.values() if version is not None]
    if held:
        assert holds[chain.master] == max(held)
    elif holds and set(order) >= set(holds):
        assert list(chain.machines) == [machine for machine in order if machine in holds]


@given(st.lists(st.tuples(st.integers(0, 3), st.sets(st.sampled_from("abcd")), st.booleans()), max_size=12))
def test_chain_numbers_never_fall_and_rise_with_every_change(steps):
    chain = None
    for epoch, live, moved in steps:
        new = repair(chain, epoch, sorted(live), dict.fromkeys(live, 1), moved=live if moved else ())
        if chain is not None:
            assert (new.epoch, new.revision) >= (chain.epoch, chain.revision)
            same = new.machines == chain.machines and new.epoch == chain.epoch and not (moved and live)
            assert ((new.epoch, new.revision) == (chain.epoch, chain.revision)) == same
        chain = new


def test_a_new_coordinator_numbers_its_chain_above_what_the_relays_know():
    assert repair(None, 2, ["a"], {"a": None}, seen=(2, 5)) == ChainOrder(2, 6, ("a",))
    assert repair(None, 3, ["a"], {"a": None}, seen=(2, 5)) == ChainOrder(3, 0, ("a",))
    assert ChainOrder(1, 0, ("a", "b")).predecessor("b") == "a"
    assert ChainOrder(1, 0, ("a", "b")).predecessor("a") is None


# --- versions ---


@given(st.lists(st.integers(-3, 1), max_size=40))
def test_versions_are_never_used_twice_whatever_is_undone(moves):
    """1: the next step; 0: publish again after the same step; negative: rewind so far."""
    versions, step, used = Versions(), 0, set()
    for move in moves:
        if move < 0:
            step = max(0, step + move)
            versions = versions.rewind(step)
        step += max(move, 0)
        number = versions.next_version()
        assert number not in used
        used.add(number)
        versions = versions.publish(number, step)
        assert versions.of_step(step) == number
        assert versions.step_of(number) == step
        assert not versions.is_abandoned(number)
        assert all(versions.is_abandoned(e.version) for e in versions.history if e.step > step)


def test_a_version_seen_elsewhere_is_not_used_again():
    versions = Versions().with_observed(8)
    assert versions.next_version() == 9
    with pytest.raises(ValueError, match="at least 9"):
        versions.publish(8, 0)


# --- reports ---

BASE = RuntimeStatus(term=1, event=3, round=2, stage="Training")


@pytest.mark.parametrize(
    ("changes", "age", "wait"),
    [
        ({}, 0.0, None),
        ({}, 1000.0, None),
        ({"event": 4}, 0.0, 0.0),
        ({"term": 2}, 0.0, 0.0),
        ({"stage": "Publishing"}, 0.0, 5.0),
        ({"stage": "Publishing"}, 4.0, 1.0),
        ({"stage": "Publishing"}, 9.0, 0.0),
        ({"progress": 0.5}, 0.0, 30.0),
        ({"progress": 0.5, "kv_cache_use": 0.2}, 10.0, 20.0),
        ({"progress": 0.5, "stage": "Publishing"}, 0.0, 5.0),
    ],
)
def test_when_a_report_is_due(changes, age, wait):
    assert seconds_until_report(Reported(BASE, at=100.0), BASE.model_copy(update=changes), 100.0 + age) == wait


def test_the_first_report_is_due_immediately():
    assert seconds_until_report(Reported(), BASE, 0.0) == 0.0


def test_first_and_last_fifth():
    def ends(*rewards: float) -> tuple[float | None, float | None]:
        return reward_ends(len(rewards), lambda first: sum(rewards[:first]))

    assert ends() == (None, None)
    assert ends(0.5) == (0.5, 0.5)
    assert ends(0.0, 0.2, *[9.0] * 6, 0.8, 1.0) == (0.1, 0.9)
    assert ends(1 / 3) == (0.3333, 0.3333)


# --- back-off ---


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_back_off_stays_in_its_bounds(failures, uniform):
    policy = Backoff(initial=0.5, maximum=20.0)
    delay = policy.delay(failures, uniform)
    assert 0.25 <= delay <= 20.0
    assert policy.delay(failures + 1, uniform) >= delay


def test_back_off_ends_at_its_limit():
    assert Backoff(limit=3).delay(2) is not None
    assert Backoff(limit=3).delay(3) is None
    with pytest.raises(ValueError, match="initial"):
        Backoff(initial=0.0)


def test_a_new_coordinator_takes_up_what_lasts_and_nothing_else() -> None:
    before = RuntimeStatus(
        term=3,
        event=9,
        round=4,
        rounds=9,
        applied=2,
        drained=("rollout-1",),
        stage="Training",
        progress=0.5,
        relay=RelayTopology(epoch=2, chain=("rollout-0",)),
        last_round=RoundReport(round=4),
        totals=RuntimeTotals(tokens=70),
        checkpoint=CheckpointStatus(round=4, name="step-00000004"),
    )
    after = resumed_status(before, term=5)
    assert (after.term, after.rounds, after.stage) == (5, 9, "Starting")
    assert (after.event, after.round) == (9, 4)
    assert (after.applied, after.drained, after.progress) == (None, (), None)
    written, rewritten = before.to_dict(), after.to_dict()
    assert {key for key, value in written.items() if isinstance(value, dict)} <= rewritten.keys()
