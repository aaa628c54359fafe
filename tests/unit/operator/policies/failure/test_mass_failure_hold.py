"""Many machines lost at a time are likely the network's fault: their replacement is delayed, within a bound."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.status import Replacements
from rljob_operator.policies.failure import mass_failure_hold
from tests.support.examples import examples
from tests.support.operator.plan_nodes import GRACE, live, reasons, working


def test_many_nodes_together_are_more_likely_the_network() -> None:
    cluster = working(5)
    cluster.suspect("rollout-0", "rollout-1", "rollout-2")
    decided = cluster.decide()
    assert decided.losses == ()
    assert "ReplacementPaused" in [event.reason for event in decided.events]
    assert decided.again_seconds == mass_failure_hold.GRACES * GRACE
    cluster.settle()
    assert cluster.status.condition("Degraded").reason == "ReplacementPaused"  # type: ignore[union-attr]
    assert cluster.decide().empty
    cluster.suspect("rollout-0")  # two of them are back
    assert "ReplacementResumed" in reasons(cluster)
    cluster.settle()
    assert [live(cluster, f"rollout-{n}") for n in range(5)] == [[2], [1], [1], [1], [1]]


def test_after_the_pause_they_are_replaced_one_by_one() -> None:
    cluster = working(4)
    cluster.fall(*(f"node-of-rollout-{n}-1" for n in range(4)))
    cluster.settle()
    began = cluster.now
    replaced: list[float] = []
    for _ in range(200):
        cluster.wait(1)
        before = len(cluster.pods)
        cluster.settle()
        cluster.place()
        replaced += [(cluster.now - began).total_seconds()] * (len(cluster.pods) - before)
    assert len(replaced) == 4
    assert replaced[0] == GRACE + mass_failure_hold.GRACES * GRACE
    assert [b - a for a, b in pairwise(replaced[:3])] == [GRACE] * 2


def test_one_node_with_all_machines_is_one_failure() -> None:
    cluster = working(3, where=dict.fromkeys(("rollout_0", "rollout_1", "rollout_2"), "one"))
    cluster.suspect("rollout-0", "rollout-1", "rollout-2")
    assert len(cluster.decide().losses) == 3


def test_machines_of_one_node_that_fail_in_sequence_are_one_failure() -> None:
    cluster = working(3, where={"rollout_0": "one", "rollout_1": "one", "rollout_2": "two"})
    for number in range(2):
        cluster.suspect(f"rollout-{number}")
        cluster.wait(2)
        cluster.settle()
    assert [live(cluster, f"rollout-{n}") for n in range(3)] == [[2], [2], [1]]


def test_the_last_of_a_wave_does_not_pass_for_a_single_failure() -> None:
    """A fault of the network reaches the operator one machine after the other."""
    cluster = working(4)
    for number in range(4):
        cluster.suspect(f"rollout-{number}")
        cluster.wait(2)
        cluster.settle()
    assert [live(cluster, f"rollout-{n}") for n in range(4)] == [[2], [2], [1], [1]]


def test_failures_one_after_the_other_do_not_pause() -> None:
    """Each machine is up again before the next one falls."""
    cluster = working(3)
    for number in range(3):
        cluster.suspect(f"rollout-{number}")
        cluster.settle()
        cluster.start_all()
        cluster.place()
        cluster.wait(5)
        cluster.settle()
    assert [live(cluster, f"rollout-{n}") for n in range(3)] == [[2]] * 3


def test_what_has_ended_waits_for_no_pause() -> None:
    cluster = working(3)
    cluster.suspect("rollout-0", "rollout-1")
    name = "demo-rollout-2-1"
    cluster.pods[name] = replace(cluster.pods[name], phase="Failed", ready=False)
    cluster.settle()
    assert [live(cluster, f"rollout-{n}") for n in range(3)] == [[1], [1], [2]]


def test_a_successor_that_the_status_lacks_causes_no_hold() -> None:
    """The operator died after it had created the pod; it counts the loss, and among those that fell together."""
    cluster = working(3)
    cluster.suspect("rollout-0")
    decided = cluster.decide()
    cluster.apply(decided, steps=bool(decided.children) + len(decided.creations))
    assert live(cluster, "rollout-0") == [1, 2]
    cluster.suspect("rollout-0", "rollout-1")
    decided = cluster.decide()
    assert [loss.machine for loss in decided.losses] == ["rollout-0"]
    assert "ReplacementPaused" in [event.reason for event in decided.events]
    cluster.settle()
    assert [live(cluster, f"rollout-{n}") for n in range(3)] == [[2], [1], [1]]
    assert cluster.status.replacements is not None
    assert cluster.status.replacements.total == 1


def test_a_fresh_operator_waits_as_long() -> None:
    """Everything is in the status: the same cluster, decided by a process without memory."""
    cluster = working(3)
    cluster.suspect("rollout-0", "rollout-1")
    cluster.settle()
    memory = cluster.status.replacements
    assert isinstance(memory, Replacements)
    assert memory.pause is not None
    cluster.wait(20)
    cluster.settle()
    assert cluster.status.replacements == memory


@settings(max_examples=examples(30))
@given(st.integers(2, 6), st.data())
def test_a_pause_never_outlasts_its_bound(machines: int, data: st.DataObject) -> None:
    """Whatever falls, and however nodes are shared: everything is replaced in bounded time, and never by two
    simultaneously while more than half are in doubt."""
    where = {f"rollout_{n}": data.draw(st.sampled_from(["a", "b", "c", f"own-{n}"])) for n in range(machines)}
    cluster = working(machines, where=where)
    fallen = data.draw(st.sets(st.integers(0, machines - 1), min_size=1))
    cluster.suspect(*(f"rollout-{n}" for n in fallen))
    for _ in range(30):
        many = 2 * len(fallen) > machines and len({where[f"rollout_{n}"] for n in fallen}) >= 2
        losses = cluster.decide().losses
        assert not many or len(losses) <= 1
        cluster.settle()
        cluster.start_all()
        fallen -= {n for n in fallen if live(cluster, f"rollout-{n}") != [1]}
        cluster.wait(GRACE)
    assert not fallen
