"""The relay chain: survivors keep their order, and machines of one place stand side by side."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.status import Member, RelayTopology, Role
from rljob_operator.policies.base.observation import Node, Observed
from rljob_operator.policies.pods.relay_membership import locations, next_topology
from tests.support.operator.harness import make_job
from tests.support.operator.observed_pods import running_pod
from tests.support.operator.plan_nodes import Nodes


def _members(**incarnations: int) -> list[Member]:
    return [
        Member(machine=m.replace("_", "-"), incarnation=n, ip=f"10.0.{n}.1", role=Role.ROLLOUT)
        for m, n in incarnations.items()
    ]


MACHINES = ["rollout-0", "rollout-1", "rollout-2"]


@pytest.mark.parametrize(
    ("before", "then", "now", "epoch", "chain"),
    [
        (None, {}, {"rollout_0": 1}, 0, ()),  # waits for the smallest number
        (None, {}, {"rollout_1": 1, "rollout_0": 1}, 1, ("rollout-0", "rollout-1")),
        (("rollout-0", "rollout-1"), {"rollout_0": 1, "rollout_1": 1}, {"rollout_1": 1}, 4, ("rollout-1",)),
        (
            ("rollout-0", "rollout-1"),
            {"rollout_0": 1, "rollout_1": 1},
            {"rollout_0": 2, "rollout_1": 1},
            4,
            ("rollout-0", "rollout-1"),
        ),
        (
            ("rollout-1", "rollout-0"),
            {"rollout_0": 2, "rollout_1": 1},
            {"rollout_0": 2, "rollout_1": 1, "rollout_2": 1},
            4,
            ("rollout-1", "rollout-0", "rollout-2"),
        ),
        (("rollout-0",), {"rollout_0": 1}, {"rollout_0": 1}, 3, ("rollout-0",)),
        (("rollout-0",), {"rollout_0": 1}, {}, 3, ()),
    ],
)
def test_chain(
    before: tuple[str, ...] | None, then: dict[str, int], now: dict[str, int], epoch: int, chain: tuple[str, ...]
) -> None:
    old = None if before is None else RelayTopology(epoch=3, master=before[0], chain=before)
    found = next_topology(old, _members(**then), _members(**now), MACHINES, 2, highest_epoch=0)
    assert (found.epoch, found.chain) == (epoch, chain)
    assert found.master == (chain[0] if chain else None)


def test_the_epoch_is_above_any_label() -> None:
    found = next_topology(None, [], _members(rollout_0=4), ["rollout-0"], 1, highest_epoch=17)
    assert found.epoch == 18


@given(
    st.lists(st.dictionaries(st.sampled_from(["rollout_0", "rollout_1", "rollout_2"]), st.integers(1, 3)), max_size=8)
)
def test_survivors_keep_their_order(history: list[dict[str, int]]) -> None:
    topology: RelayTopology | None = None
    then: list[Member] = []
    for members in history:
        now = _members(**members)
        found = next_topology(topology, then, now, MACHINES, 1, 0)
        old = topology.chain if topology is not None else ()
        stayed = [m for m in old if m in found.chain]
        assert list(found.chain[: len(stayed)]) == stayed
        assert set(found.chain) == {m.machine for m in now}
        assert found.epoch >= (topology.epoch if topology is not None else 0)
        assert next_topology(found, now, now, MACHINES, 1, 0) == found
        topology, then = found, now


# Racks a and b, with nodes of their own.
A1, A2, B1, B2 = ("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2")


@pytest.mark.parametrize(
    ("before", "then", "where", "chain"),
    [
        # A first chain: by racks, and in them by nodes; the trainer's rack comes first.
        ((), {}, {"rollout-0": A1, "rollout-1": B1, "rollout-2": A1, "rollout-3": B1}, (0, 2, 1, 3)),
        ((), {}, {"rollout-0": A1, "rollout-1": A2, "rollout-2": A1, "rollout-3": A2}, (0, 2, 1, 3)),
        ((), {}, {"trainer-0": B2, "rollout-0": A1, "rollout-1": B1, "rollout-2": A1, "rollout-3": B2}, (3, 1, 0, 2)),
        ((), {}, {}, (0, 1, 2, 3)),
        # Survivors keep their order; who joins stands beside its node, else its rack, else at the end.
        (
            (2, 1, 0),
            {2: 1, 1: 1, 0: 1},
            {"rollout-0": B1, "rollout-1": A2, "rollout-2": A1, "rollout-3": A1},
            (2, 3, 1, 0),
        ),
        (
            (2, 1, 0),
            {2: 1, 1: 1, 0: 1},
            {"rollout-0": B1, "rollout-1": A2, "rollout-2": A1, "rollout-3": B2},
            (2, 1, 0, 3),
        ),
        (
            (0, 1, 2),
            {0: 1, 1: 1, 2: 1},
            {"rollout-0": A1, "rollout-1": B1, "rollout-2": B2, "rollout-3": A2},
            (0, 3, 1, 2),
        ),
        # Another pod of a machine takes its place again, unless it came to another rack.
        (
            (0, 1, 2, 3),
            {0: 1, 1: 9, 2: 1, 3: 1},
            dict.fromkeys(["rollout-0", "rollout-1", "rollout-2"], A1),
            (0, 1, 2, 3),
        ),
        (
            (0, 1, 2, 3),
            {0: 1, 1: 9, 2: 1, 3: 1},
            {"rollout-0": A1, "rollout-1": B1, "rollout-2": A1, "rollout-3": B2},
            (0, 2, 3, 1),
        ),
    ],
)
def test_machines_of_one_place_stand_side_by_side(
    before: tuple[int, ...], then: dict[int, int], where: dict[str, Any], chain: tuple[int, ...]
) -> None:
    names = [f"rollout-{number}" for number in range(4)]
    old = RelayTopology(epoch=3, chain=tuple(names[number] for number in before)) if before else None
    former = _members(**{f"rollout_{number}": incarnation for number, incarnation in then.items()})
    now = _members(**{f"rollout_{number}": 1 for number in range(4)})
    assert next_topology(old, former, now, names, 1, 0, where).chain == tuple(names[number] for number in chain)


_PLACES = st.tuples(st.sampled_from("ab"), st.sampled_from("12"), st.sampled_from("xy"))


@given(_PLACES, st.lists(st.dictionaries(st.integers(0, 7), _PLACES), min_size=1, max_size=6))
def test_weights_enter_every_place_once(trainer: Any, history: list[dict[int, Any]]) -> None:
    """However machines come, go, and come back elsewhere: from the trainer on, those of one place, wide or narrow,
    stand side by side, and who stays keeps the order."""
    names = [f"rollout-{number}" for number in range(8)]
    topology: RelayTopology | None = None
    then: list[Member] = []
    incarnations: dict[int, tuple[int, Any]] = {}
    for places in history:
        for number, place in places.items():
            number_before, place_before = incarnations.get(number, (0, None))
            incarnations[number] = (number_before + (place != place_before), place)
        now = _members(**{f"rollout_{number}": incarnations[number][0] for number in places})
        where = {"trainer-0": trainer, **{f"rollout-{number}": place for number, place in places.items()}}
        found = next_topology(topology, then, now, names, 1, 0, where)
        way = [trainer, *(where[machine] for machine in found.chain)]
        for depth in (1, 2, 3):
            entered = [place[:depth] for place, _ in groupby(way, key=lambda one, depth=depth: one[:depth])]
            assert len(entered) == len(set(entered))
        addresses = {(member.machine, member.incarnation) for member in then}
        stayed = {member.machine for member in now if (member.machine, member.incarnation) in addresses}
        old = topology.chain if topology is not None else ()
        assert [m for m in found.chain if m in stayed] == [m for m in old if m in stayed]
        topology, then = found, now


def test_where_machines_are() -> None:
    pods = (
        replace(running_pod("rollout-0"), node="n1"),
        replace(running_pod("rollout-1"), node="n2"),
        replace(running_pod("rollout-2"), node="unknown-node"),
        running_pod("rollout-3"),
        replace(running_pod("rollout-0"), incarnation=2, node="n2"),
    )
    nodes = {"n1": Node("n1", labels={"zone": "z", "rack": "r1"}), "n2": Node("n2", labels={"rack": "r2"})}
    assert locations(Observed(pods, nodes=nodes), ("zone", "rack")) == {
        "rollout-0": ("", "r2", "n2"),
        "rollout-1": ("", "r2", "n2"),
        "rollout-2": ("", "", "unknown-node"),
    }
    assert locations(Observed(pods[1:3]), ()) == {"rollout-1": ("n2",), "rollout-2": ("unknown-node",)}


@pytest.mark.parametrize(
    ("keys", "chain"),
    [
        (["example.com/rack"], ("rollout-1", "rollout-3", "rollout-0", "rollout-2")),  # the trainer's comes first
        ([], ("rollout-0", "rollout-1", "rollout-2", "rollout-3")),
    ],
)
def test_the_chain_goes_through_one_rack_after_the_other(keys: list[str], chain: tuple[str, ...]) -> None:
    cluster = Nodes(make_job(rollout={"machines": 4}, relay={"topologyKeys": keys}))
    cluster.settle()
    cluster.start_all()
    for name, rack in {"n0": "a", "n1": "b", "n2": "a", "n3": "b", "n4": "b"}.items():
        cluster.nodes[name] = Node(name, labels={"example.com/rack": rack})
    cluster.place(rollout_0="n0", rollout_1="n1", rollout_2="n2", rollout_3="n3", trainer_0="n4")
    cluster.settle()
    assert cluster.status.relay is not None
    assert cluster.status.relay.chain == chain
