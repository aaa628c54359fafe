"""Tables and properties of each policy by itself."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import FieldError
from rljob_api.spec import ReplacementBackOff
from rljob_api.status import (
    BackOff,
    Member,
    Phase,
    RelayTopology,
    Replacements,
    RLJobStatus,
    Role,
    Target,
    TargetPhase,
    TargetTensorParallel,
)
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.deadlines import earliest_wait
from rljob_operator.policies.base.observation import Node, Observed, Pod, Silence, parse_pod, sort_pods
from rljob_operator.policies.failure import losses as machine_losses
from rljob_operator.policies.lifecycle import drain
from rljob_operator.policies.pods import pod_set
from rljob_operator.policies.pods.relay_membership import locations, next_topology
from rljob_operator.policies.scaling import machines as machine_scaling
from rljob_operator.policies.scaling.target import next_target
from rljob_operator.policies.status import conditions
from rljob_operator.policies.status.invalid_spec import plan_invalid
from rljob_operator.policies.status.stalled import find_stall_reason
from tests.support.operator.harness import NOW, make_job

# --- scale ------------------------------------------------------------------------------------------------------------

machine_names = st.lists(st.integers(0, 12).map(lambda n: f"rollout-{n}"), unique=True, max_size=10)


@pytest.mark.parametrize(
    ("current", "count", "broken", "chosen"),
    [
        ([], 2, [], ["rollout-0", "rollout-1"]),
        (["rollout-0", "rollout-1"], 3, [], ["rollout-0", "rollout-1", "rollout-2"]),
        (["rollout-0", "rollout-1", "rollout-2"], 2, [], ["rollout-0", "rollout-1"]),
        (["rollout-0", "rollout-1", "rollout-2"], 2, ["rollout-0"], ["rollout-1", "rollout-2"]),
        (["rollout-1", "rollout-2"], 3, [], ["rollout-0", "rollout-1", "rollout-2"]),
        (["rollout-10", "rollout-9"], 1, [], ["rollout-9"]),  # by number, not by letter
    ],
)
def test_choice_of_machines(current: list[str], count: int, broken: list[str], chosen: list[str]) -> None:
    assert machine_scaling.choose_machines(current, count, broken) == tuple(chosen)


@given(machine_names, st.integers(0, 12), machine_names)
def test_choice_changes_as_little_as_possible(current: list[str], count: int, broken: list[str]) -> None:
    chosen = machine_scaling.choose_machines(current, count, broken)
    assert len(chosen) == len(set(chosen)) == count
    kept = set(chosen) & set(current)
    assert len(kept) == min(count, len(current))
    dropped = set(current) - kept
    if dropped - set(broken):  # a working machine goes only when no broken one is left
        assert not kept & set(broken)
    assert machine_scaling.choose_machines(chosen, count, broken) == chosen


@pytest.mark.parametrize(("machines", "wanted"), [(1, 2), (3, 3), (9, 5)])
def test_count_stays_inside_the_bounds(machines: int, wanted: int) -> None:
    rollout = make_job(rollout={"machines": 3, "minMachines": 2, "maxMachines": 5}).spec.rollout
    assert machine_scaling.wanted_count(rollout.model_copy(update={"machines": machines})) == wanted


# --- failure ----------------------------------------------------------------------------------------------------------

POLICY = ReplacementBackOff()


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 0), (1, 0), (2, 5), (3, 10), (4, 20), (8, 300), (500, 300), (10_000, 300)]
)
def test_back_off_doubles_up_to_its_longest(failures: int, seconds: float) -> None:
    assert machine_losses.pause_seconds(failures, POLICY) == seconds


def _loss(counts: bool = True, machine: str = "rollout-0") -> machine_losses.MachineLoss:
    return machine_losses.MachineLoss(machine, Role.ROLLOUT, 1, "PodFailed", "exit code 1", None, counts, True)


def test_a_stable_machine_starts_again_at_zero() -> None:
    once = machine_losses.update_history(None, [_loss()], ["rollout-0"], POLICY, NOW)
    twice = machine_losses.update_history(once, [_loss()], ["rollout-0"], POLICY, NOW + timedelta(seconds=30))
    assert twice.by_machine == {"rollout-0": 2}
    assert twice.backoff["rollout-0"].until == NOW + timedelta(seconds=35)
    later = machine_losses.update_history(twice, [_loss()], ["rollout-0"], POLICY, NOW + timedelta(seconds=700))
    assert later.by_machine == {"rollout-0": 1}
    assert later.backoff["rollout-0"].failures == 1
    assert later.total == 3


def test_the_clusters_doing_costs_no_budget_but_slows() -> None:
    found = machine_losses.update_history(None, [_loss(counts=False)] * 3, ["rollout-0"], POLICY, NOW)
    assert found.by_machine == {}
    assert found.backoff["rollout-0"].failures == 3
    assert found.total == 3


def test_machines_that_left_are_forgotten() -> None:
    before = Replacements(total=4, by_machine={"rollout-9": 2}, backoff={"rollout-9": BackOff(failures=2)})
    after = machine_losses.update_history(before, [], ["rollout-0"], POLICY, NOW)
    assert (after.by_machine, after.backoff, after.total) == ({}, {}, 4)


@pytest.mark.parametrize(
    ("counted", "told"),
    [
        ({"coordinator-0": 5}, None),
        ({"coordinator-0": 6}, "the coordinator failed 6 times in a row"),
        ({"trainer-0": 3, "trainer-1": 3}, "the trainer failed 6 times in a row"),  # they live and fail as one group
        ({"trainer-0": 3, "coordinator-0": 3}, None),
        ({"rollout-0": 50}, None),
    ],
)
def test_budget_of_coordinator_and_trainer(counted: dict[str, int], told: str | None) -> None:
    why = machine_losses.backoff_limit_exceeded(Replacements(by_machine=counted), make_job().spec)
    assert (why is None) == (told is None)
    assert told is None or (why is not None and why.startswith(told))


def _pod(machine: str = "rollout-0", incarnation: int = 1, **changes: Any) -> Pod:
    role = Role(machine.partition("-")[0].capitalize())
    name = f"demo-{machine}-{incarnation}"
    defaults: dict[str, Any] = {"phase": "Running", "ready": True, "ip": f"10.0.0.{incarnation}"}
    return Pod(name, f"uid-{name}", role, machine, incarnation, **{**defaults, **changes})


def _status(**changes: Any) -> RLJobStatus:
    return RLJobStatus.model_validate(
        {
            "members": [{"machine": "rollout-0", "incarnation": 1, "role": "Rollout", "ip": "10.0.0.1"}],
            "incarnations": {"rollout-0": 1},
            **changes,
        }
    )


PLACED = {"rollout-0": Role.ROLLOUT}


@pytest.mark.parametrize(
    ("pods", "reason", "counts"),
    [
        ([_pod()], None, None),
        ([_pod(phase="Failed", ready=False)], "PodFailed", True),
        ([_pod(phase="Failed", disrupted=True)], "Disrupted", False),
        ([_pod(phase="Succeeded")], "PodExited", True),
        ([_pod(deleting=True)], "PodDeleted", False),
        # However it ends: it was asked to go.
        ([_pod(phase="Failed", deleting=True)], "PodDeleted", False),
        ([_pod(phase="Succeeded", deleting=True)], "PodDeleted", False),
        ([], "PodDeleted", False),
    ],
)
def test_what_counts_as_a_loss(pods: list[Pod], reason: str | None, counts: bool | None) -> None:
    losses = machine_losses.find_losses(PLACED, Observed(tuple(pods)), _status())
    assert [(loss.reason, loss.counts) for loss in losses] == ([] if reason is None else [(reason, counts)])


def test_a_loss_that_the_status_knows_is_not_counted_again() -> None:
    failed = _pod(phase="Failed")
    told = _status(members=[], incarnations={"rollout-0": 1})
    assert machine_losses.find_losses(PLACED, Observed((failed,)), told) == []
    newer = _pod(incarnation=2, phase="Failed")  # created by an operator that died before it could say so
    (loss,) = machine_losses.find_losses(PLACED, Observed((failed, newer)), told)
    assert loss.incarnation == 2


@pytest.mark.parametrize(("witnesses", "lost"), [(["coordinator"], 0), (["coordinator", "rollout-1"], 1)])
def test_a_suspect_needs_two_witnesses(witnesses: list[str], lost: int) -> None:
    suspect = {"machine": "rollout-0", "incarnation": 1, "reason": "HeartbeatLost", "witnesses": witnesses}
    status = _status(runtime={"suspects": [suspect]})
    losses = machine_losses.find_losses(PLACED, Observed((_pod(),)), status)
    assert len(losses) == lost
    assert all(loss.must_delete and loss.reason == "HeartbeatLost" for loss in losses)
    newer = _status(runtime={"suspects": [{**suspect, "incarnation": 0}]})
    assert machine_losses.find_losses(PLACED, Observed((_pod(),)), newer) == []


def test_a_machine_that_keeps_failing_needs_no_second_witness() -> None:
    suspect = {"machine": "rollout-0", "incarnation": 1, "reason": "KeepsFailing", "witnesses": ["coordinator"]}
    (loss,) = machine_losses.find_losses(PLACED, Observed((_pod(),)), _status(runtime={"suspects": [suspect]}))
    assert (loss.reason, loss.must_delete, loss.counts, loss.slows) == ("KeepsFailing", True, True, True)
    renewed = {"runtime": {"suspects": [suspect]}, "incarnations": {"rollout-0": 2}}
    newer = _status(members=[{"machine": "rollout-0", "incarnation": 2, "role": "Rollout"}], **renewed)
    assert machine_losses.find_losses(PLACED, Observed((_pod(incarnation=2),)), newer) == []


@pytest.mark.parametrize(
    ("holder", "lost"),
    [("demo-coordinator-0-1_ab12", 1), ("demo-coordinator-0-1", 1), ("demo-coordinator-0-12", 0), ("", 0)],
)
def test_only_the_holder_of_an_expired_lease_is_silent(holder: str, lost: int) -> None:
    status = RLJobStatus.model_validate(
        {"members": [{"machine": "coordinator-0", "incarnation": 1, "role": "Coordinator"}]}
    )
    seen = Observed((_pod("coordinator-0"),), silence=Silence(holder, 4.0) if holder else None)
    losses = machine_losses.find_losses({"coordinator-0": Role.COORDINATOR}, seen, status)
    assert [loss.reason for loss in losses] == ["CoordinatorSilent"] * lost


# --- relay ------------------------------------------------------------------------------------------------------------


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
        replace(_pod("rollout-0"), node="n1"),
        replace(_pod("rollout-1"), node="n2"),
        replace(_pod("rollout-2"), node="unknown-node"),
        _pod("rollout-3"),
        replace(_pod("rollout-0"), incarnation=2, node="n2"),
    )
    nodes = {"n1": Node("n1", labels={"zone": "z", "rack": "r1"}), "n2": Node("n2", labels={"rack": "r2"})}
    assert locations(Observed(pods, nodes=nodes), ("zone", "rack")) == {
        "rollout-0": ("", "r2", "n2"),
        "rollout-1": ("", "r2", "n2"),
        "rollout-2": ("", "", "unknown-node"),
    }
    assert locations(Observed(pods[1:3]), ()) == {"rollout-1": ("n2",), "rollout-2": ("unknown-node",)}


# --- drain ------------------------------------------------------------------------------------------------------------

COORDINATOR = _pod("coordinator-0")
TOLD = {"revision": 7, "machines": ["rollout-0"], "phase": "Run"}


@pytest.mark.parametrize(
    ("pods", "runtime", "since", "gone"),
    [
        ([COORDINATOR], None, NOW, set()),
        ([COORDINATOR], {"applied": 7, "drained": ["rollout-1"]}, NOW, {"rollout-1"}),
        ([COORDINATOR], {"applied": 6, "drained": ["rollout-1"]}, NOW, set()),  # speaks of an older target
        ([COORDINATOR], None, NOW - timedelta(seconds=61), {"rollout-1"}),
        ([], None, NOW, {"rollout-1"}),  # no coordinator to drain it
        ([replace(COORDINATOR, ready=False)], None, NOW, {"rollout-1"}),
    ],
)
def test_when_a_machine_may_leave(pods: list[Pod], runtime: Any, since: Any, gone: set[str]) -> None:
    status = RLJobStatus.model_validate({"target": TOLD, "drainSince": since.isoformat()})
    if runtime is not None:
        status = RLJobStatus.model_validate({**status.to_dict(), "runtime": runtime})
    seen = Observed((*pods, _pod("rollout-0"), _pod("rollout-1")))
    assert drain.drained_machines(seen, status, make_job().spec, NOW) == gone


TRAINER = _pod("trainer-0")
STARTING = replace(COORDINATOR, ready=False)
UNSAVED = {"round": 5, "checkpoint": {"round": 5, "name": "step-5"}, "stage": "Training"}
"""One update more may have been made."""
SUSPEND = {**TOLD, "phase": "Suspend"}
STOPPED = {**UNSAVED, "applied": 7, "stage": "Suspended"}
SAVED = {**STOPPED, "applied": 3}
"""The suspension before."""


@pytest.mark.parametrize(
    ("pods", "target", "runtime", "seconds", "stops"),
    [
        ([COORDINATOR, TRAINER], SUSPEND, UNSAVED, 0, False),
        ([COORDINATOR, TRAINER], SUSPEND, STOPPED, 0, True),
        ([COORDINATOR, TRAINER], SUSPEND, {**STOPPED, "applied": 6}, 0, False),
        ([COORDINATOR, TRAINER], SUSPEND, UNSAVED, 61, True),
        # No process is there to save it.
        ([TRAINER], SUSPEND, UNSAVED, 0, True),
        ([replace(STARTING, phase="Failed"), TRAINER], SUSPEND, UNSAVED, 0, True),
        ([replace(STARTING, deleting=True), TRAINER], SUSPEND, UNSAVED, 0, True),
        # A coordinator that starts will save what the trainer holds.
        ([STARTING, TRAINER], SUSPEND, UNSAVED, 0, False),
        ([STARTING, TRAINER], SUSPEND, {"stage": "Starting"}, 0, False),
        ([STARTING, TRAINER], TOLD, UNSAVED, 61, False),  # it has not been asked yet
        ([STARTING, TRAINER], SUSPEND, UNSAVED, 61, True),
        # It has nothing to save, or hardly will start.
        ([STARTING, TRAINER], SUSPEND, SAVED, 0, True),
        ([STARTING, TRAINER], SUSPEND, None, 0, True),
        ([STARTING, replace(TRAINER, ready=False)], SUSPEND, UNSAVED, 0, True),
        ([replace(STARTING, unschedulable="0/3 nodes"), TRAINER], SUSPEND, UNSAVED, 0, True),
        ([replace(STARTING, waiting=ConditionReason("ErrImagePull", "")), TRAINER], SUSPEND, UNSAVED, 0, True),
    ],
)
def test_when_a_suspended_jobs_pods_may_go(
    pods: list[Pod], target: Any, runtime: Any, seconds: float, stops: bool
) -> None:
    since = (NOW - timedelta(seconds=seconds)).isoformat()
    told = {"target": target, "drainSince": since, **({} if runtime is None else {"runtime": runtime})}
    status = RLJobStatus.model_validate(told)
    assert drain.may_suspend(Observed((*pods, _pod("rollout-0"))), status, make_job().spec, NOW) is stops


def test_the_revision_rises_with_changes_only() -> None:
    one, two = TargetTensorParallel(), TargetTensorParallel(short=2, long=1)
    first = next_target(None, ["rollout-0"], one, TargetPhase.RUN, "Started")
    same = next_target(first, ["rollout-0"], one, TargetPhase.RUN, "another reason")
    assert (first.revision, same) == (1, first)
    for machines, sizes, phase in (
        (["rollout-0"], one, TargetPhase.SUSPEND),
        (["rollout-0"], two, TargetPhase.RUN),
        (["rollout-1"], one, TargetPhase.RUN),
    ):
        assert next_target(first, machines, sizes, phase, "").revision == 2
    assert next_target(Target(), [], one, TargetPhase.RUN, "").revision == 0


# --- placement, observation -------------------------------------------------------------------------------------------


def test_ended_pods_go_but_for_the_last() -> None:
    pods = [_pod(incarnation=n, phase="Failed") for n in (1, 2)] + [_pod(incarnation=3)]
    removals = pod_set.to_remove(PLACED, Observed(tuple(pods)), [], [], frozenset())
    assert [(removal.pod.incarnation, removal.reason) for removal in removals] == [(1, "Ended")]


def _item(**status: Any) -> dict[str, Any]:
    labels = {"rljob.dev/role": "rollout", "rljob.dev/machine": "rollout-0", "rljob.dev/incarnation": "3"}
    return {"metadata": {"name": "demo-rollout-0-3", "uid": "u", "labels": labels}, "status": status}


def test_a_sidecar_that_lives_on_does_not_hide_the_end() -> None:
    ended = {"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    side = {"name": "logs", "state": {"running": {}}}
    pod = parse_pod(_item(phase="Running", containerStatuses=[side, ended]))
    assert pod is not None
    assert (pod.phase, pod.lingering, pod.terminal, pod.occupies) == ("Failed", True, True, True)
    alone = parse_pod(_item(phase="Running", containerStatuses=[ended]))
    assert alone is not None
    assert (alone.lingering, alone.terminal, alone.occupies) == (False, True, True), "the kubelet still ends it"
    gone = parse_pod(_item(phase="Failed", containerStatuses=[ended]))
    assert gone is not None
    assert (gone.terminal, gone.occupies) == (True, False)
    assert "OOMKilled, exit code 137" in pod.exit


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    )
)
def test_labels_that_are_not_ours_are_no_pods(value: Any) -> None:
    labels = {"rljob.dev/role": str(value), "rljob.dev/machine": "m", "rljob.dev/incarnation": str(value)}
    assert parse_pod({"metadata": {"name": "x", "labels": labels}}) is None
    assert parse_pod({"metadata": {"name": "x", "labels": None}, "status": None}) is None


def test_pods_of_an_earlier_job_are_told_apart() -> None:
    mine, theirs = _item(), _item()
    mine["metadata"]["ownerReferences"] = [{"uid": "job"}]
    theirs["metadata"]["ownerReferences"] = [{"uid": "old job"}]
    owned, foreign = sort_pods("job", [mine, theirs, {"metadata": {"name": "other"}}])
    assert (len(owned), len(foreign)) == (1, 1)
    seen = Observed(owned, foreign)
    assert seen.highest_incarnation("rollout-0") == 3
    assert seen.current("rollout-1") is None


# --- trouble and conditions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod", "blocked", "reason"),
    [
        (_pod(), [], None),
        (_pod(phase="Pending", waiting=ConditionReason("ErrImagePull", "no such image")), [], "ImagePullFailed"),
        (
            _pod(phase="Pending", waiting=ConditionReason("CreateContainerConfigError", "no secret")),
            [],
            "ContainerConfigError",
        ),
        (_pod(phase="Pending", unschedulable="0/3 nodes", created=NOW), [], None),  # a moment's patience
        (_pod(phase="Pending", unschedulable="0/3 nodes", created=NOW - timedelta(minutes=1)), [], "Unschedulable"),
        (_pod(), ["rollout-1"], "ReplacementBudgetExhausted"),
    ],
)
def test_what_stalls_a_job(pod: Pod, blocked: list[str], reason: str | None) -> None:
    found = find_stall_reason(Observed((pod,)), blocked, bool(blocked), Config(), NOW)
    assert (found.reason if found is not None else None) == reason


facts = st.builds(
    conditions.Facts,
    generation=st.integers(1, 3),
    coordinator_ready=st.booleans(),
    trainers_wanted=st.integers(0, 2),
    trainers_ready=st.integers(0, 2),
    rollouts_wanted=st.integers(0, 3),
    rollouts_ready=st.integers(0, 3),
    rollouts_smallest=st.integers(0, 3),
    chain_length=st.integers(0, 3),
    leaving=st.integers(0, 1),
    replacing=st.sampled_from([(), ("rollout-0",)]),
    pods=st.integers(0, 3),
    suspending=st.booleans(),
    started=st.booleans(),
    stall=st.sampled_from([None, ConditionReason("Unschedulable", "0/3")]),
)


@given(facts)
def test_conditions_are_kstatus(found: conditions.Facts) -> None:
    derived = conditions.derive(found, RLJobStatus(), NOW)
    by_type = {condition.type: condition.status.value for condition in derived}
    assert len(by_type) == len(derived)
    assert "Ready" in by_type
    assert not {"Stalled", "Reconciling"} <= by_type.keys()
    assert all(by_type[t] == "True" for t in ("Stalled", "Reconciling") if t in by_type)
    assert all(c.reason and c.observed_generation == found.generation for c in derived)
    # What `kubectl get` shows of a job that waits for a human is what Stalled says.
    if "Stalled" in by_type and by_type["Ready"] == "False":
        stalled, ready = ({c.type: c for c in derived}[t] for t in ("Stalled", "Ready"))
        assert (ready.reason, ready.message) == (stalled.reason, stalled.message)
        assert conditions.phase(found) is Phase.STALLED
    # What kstatus calls Current: Ready, and nothing under way.
    if by_type["Ready"] == "True" and found.leaving == 0 and not found.replacing and found.started:
        assert found.stall is not None or found.rollouts_ready < found.rollouts_wanted or "Reconciling" not in by_type


def test_a_transition_time_changes_only_with_its_status() -> None:
    first = conditions.derive(conditions.Facts(generation=1), RLJobStatus(), NOW)
    later = NOW + timedelta(hours=1)
    again = conditions.derive(conditions.Facts(generation=2), RLJobStatus(conditions=first), later)
    assert {c.last_transition_time for c in again} == {NOW}
    ready = conditions.Facts(generation=2, coordinator_ready=True, started=True)
    changed = conditions.derive(ready, RLJobStatus(conditions=again), later)
    times = {c.type: c.last_transition_time for c in changed}
    assert times["Ready"] == later
    assert times["Complete"] == NOW


TRAINER_WAITS = conditions.Facts(generation=1, coordinator_ready=True, trainers_wanted=1, pods=3)
RUNS = conditions.Facts(generation=1, coordinator_ready=True, started=True, pods=3)
NO_IMAGE = ConditionReason("ImagePullFailed", "trainer-0: container main, image nowhere:1: not found")
NO_SANDBOX = (ConditionReason("SandboxUnavailable", "Landlock would be right"),)
WRONG = ConditionReason("InvalidSpec", "spec.rounds: 0 must be at least 1")


@pytest.mark.parametrize(
    ("found", "state", "reason"),
    [
        (replace(TRAINER_WAITS, pods=0), "Pending", "TrainerNotReady"),
        (TRAINER_WAITS, "Starting", "TrainerNotReady"),
        (replace(TRAINER_WAITS, stall=NO_IMAGE), "Stalled", "ImagePullFailed"),
        (replace(TRAINER_WAITS, refused=WRONG), "Starting", "InvalidSpec"),
        (replace(TRAINER_WAITS, refused=WRONG, stall=NO_IMAGE), "Stalled", "InvalidSpec"),
        (replace(TRAINER_WAITS, suspending=True, stall=NO_IMAGE), "Suspending", "Suspended"),
        (RUNS, "Running", "RoundsProgressing"),
        # With fewer machines than there should be, and enough of them.
        (replace(RUNS, stall=NO_IMAGE), "Running", "RoundsProgressing"),
        (replace(RUNS, problems=NO_SANDBOX), "Stalled", "SandboxUnavailable"),
        (replace(RUNS, refused=WRONG), "Running", "InvalidSpec"),
    ],
)
def test_state_and_reason_show_what_stands_in_the_way(found: conditions.Facts, state: str, reason: str) -> None:
    (ready,) = (c for c in conditions.derive(found, RLJobStatus(), NOW) if c.type == "Ready")
    assert (conditions.phase(found).value, ready.reason) == (state, reason)


@pytest.mark.parametrize(("found", "state"), [(TRAINER_WAITS, "Stalled"), (RUNS, "Running")])
def test_a_refusal_found_on_the_way_is_shown_where_the_job_waits_for_it(found: conditions.Facts, state: str) -> None:
    before = RLJobStatus(conditions=conditions.derive(found, RLJobStatus(), NOW), phase=conditions.phase(found))
    quota = ConditionReason("QuotaExceeded", "exceeded quota: pods")
    after = conditions.stalled_now(before, before, quota, 1, NOW)
    reason = "QuotaExceeded" if state == "Stalled" else "RoundsProgressing"
    assert (after.phase.value, after.condition("Ready").reason) == (state, reason)
    assert after.condition("Stalled").reason == "QuotaExceeded"
    assert conditions.stalled_now(after, after, quota, 1, NOW + timedelta(hours=1)) == after


@pytest.mark.parametrize("reason", ["SandboxUnavailable", "RewardsUnavailable", "EngineMismatch"])
def test_a_missing_sandbox_stalls_the_job_and_nothing_else_does(reason: str) -> None:
    running = conditions.Facts(generation=1, coordinator_ready=True, started=True)
    lacking = ConditionReason(reason, "reward tests needs a sandbox: Landlock would be right")
    full = ConditionReason("CheckpointFailed", "no space left")

    def told(*problems: ConditionReason, **changes: Any) -> dict[str, tuple[str, str]]:
        found = conditions.derive(replace(running, problems=problems, **changes), RLJobStatus(), NOW)
        shown = ("Ready", "Reconciling", "Stalled", "Degraded", "Failed")
        return {c.type: (c.status.value, c.reason) for c in found if c.type in shown}

    alone = told(lacking)
    assert alone["Ready"] == ("False", reason)
    assert alone["Stalled"] == ("True", reason)
    assert alone["Degraded"] == ("False", "AsDesired")
    assert alone["Failed"] == ("False", "InProgress")
    assert "Reconciling" not in alone
    both = told(full, lacking)
    assert (both["Stalled"], both["Degraded"]) == (("True", reason), ("True", "CheckpointFailed"))
    assert told(lacking, stall=ConditionReason("Unschedulable", ""))["Stalled"] == ("True", "Unschedulable")
    assert "Stalled" not in told(full)
    assert "Stalled" not in told(lacking, suspending=True), "suspension is the way out"


def test_an_invalid_spec_keeps_the_rest_of_the_status() -> None:
    raw = {"members": [{"machine": "rollout-0"}], "runtime": {"round": 3}, "conditions": []}
    document = {"metadata": {"generation": 4}, "status": raw}
    errors = [FieldError("spec.rounds", 0, "must be at least 1")]
    status, events = plan_invalid(document, errors, NOW)
    assert status is not None
    assert status["members"] == raw["members"]
    assert "runtime" not in status
    assert status["observedGeneration"] == 4
    assert [(e.kind, e.reason) for e in events] == [("Warning", "InvalidSpec")]
    again = plan_invalid({**document, "status": status}, errors, NOW + timedelta(hours=1))
    assert again == (None, [])


@given(st.lists(st.none() | st.integers(-100, 100), max_size=5))
def test_waits_lie_ahead(offsets: list[int | None]) -> None:
    moments = [None if o is None else NOW + timedelta(seconds=o) for o in offsets]
    wait = earliest_wait(moments, NOW)
    ahead = [o for o in offsets if o is not None and o > 0]
    assert wait == (min(ahead) if ahead else None)
