"""Placement: the responses of a group are spread over replicas, and replicas are even."""

from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey
from rljob_runtime.scheduling.response_placement import spread

A = PromptKey(0, 1)


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
