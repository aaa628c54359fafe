"""The relay chain: who is in it and in which order, and its numbers."""

from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.scheduling.fault_detection.relay_chain import ChainOrder, repair

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
