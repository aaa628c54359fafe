"""What the API server refuses: whose pods are made all the same, and who gives a place back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec import RLJob
from rljob_api.status import Role
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.observation import Observed, Pod, parse_pod
from rljob_operator.policies.phases.steps import Plan
from rljob_operator.policies.plan import plan
from rljob_operator.policies.refusal import PATIENCE_SECONDS, in_order, refused
from tests.support.operator.harness import NOW, make_job

QUOTA = ConditionReason("QuotaExceeded", "exceeded quota: q, requested: pods=1")
ALL = ["coordinator-0", "trainer-0", "trainer-1", "rollout-0", "rollout-1"]


def job() -> RLJob:
    return make_job(trainer={"replicas": 2})


def decide(found: RLJob, pods: Mapping[str, Pod], seconds: float = 0.0) -> Plan:
    return plan(found, Observed(tuple(pods.values())), NOW + timedelta(seconds=seconds), Config())


def after(decided: Plan, found: RLJob, seconds: float, *refuse: str) -> tuple[Plan, RLJob]:
    """The plan with these machines refused, and the job with its status."""
    done = refused(decided, found, dict.fromkeys(refuse, QUOTA), NOW + timedelta(seconds=seconds))
    return done, found.model_copy(update={"status": done.status or found.status})


def started(decided: Plan) -> dict[str, Pod]:
    """All its pods, Running and Ready."""
    pods = [parse_pod(creation.manifest) for creation in decided.creations]
    return {p.machine: replace(p, uid=p.name, phase="Running", ready=True, ip="10.0.0.1") for p in pods if p}


@pytest.fixture
def alone() -> tuple[RLJob, dict[str, Pod]]:
    """A job that runs, and that has just lost its coordinator for good."""
    decided = decide(job(), {})
    pods = started(decided)
    _, found = after(decided, job(), 0.0)
    _, found = after(decide(found, pods), found, 0.0)
    assert found.status.is_true("Ready")
    del pods["coordinator-0"]
    return found, pods


@pytest.mark.parametrize(
    ("refuse", "members"),
    [
        ([], ALL),
        (["coordinator-0"], []),
        (["trainer-1"], ALL[:2]),
        (["rollout-0"], [*ALL[:3], "rollout-1"]),
    ],
)
def test_who_is_made_where_one_is_refused(refuse: list[str], members: list[str]) -> None:
    done, _ = after(decide(job(), {}), job(), 0.0, *refuse)
    assert done.status is not None
    assert [member.machine for member in done.status.members] == members
    assert done.status.incarnations == dict.fromkeys(members, 1), "the other numbers stay free"
    waiting = len(ALL) - len(members) - len(refuse)
    stalled = done.status.condition("Stalled")
    assert (stalled is not None) == bool(refuse)
    if stalled is not None:
        more = f"; {waiting} more pods are not created before it" if waiting else ""
        assert stalled.message == f"{refuse[0]}: {QUOTA.message}{more}"


@given(st.permutations(ALL))
def test_roles_come_one_after_the_other(order: list[str]) -> None:
    creations = sorted(decide(job(), {}).creations, key=lambda creation: order.index(creation.new.machine))
    groups = [{creation.new.role for creation in group} for group in in_order(creations)]
    assert groups == [{Role.COORDINATOR}, {Role.TRAINER}, {Role.ROLLOUT}]
    assert sorted(c.new.machine for group in in_order(creations) for c in group) == sorted(ALL)


@pytest.mark.parametrize(
    ("seconds", "given_back"),
    [(0, []), (29, []), (31, ALL[3:]), (119, ALL[3:]), (121, ALL[1:])],
)
def test_what_waits_for_a_refused_coordinator_gives_its_place_back(
    alone: tuple[RLJob, dict[str, Pod]], seconds: float, given_back: list[str]
) -> None:
    found, pods = alone
    _, found = after(decide(found, pods), found, 0.0, "coordinator-0")
    assert found.status.phase == "Stalled"
    done, found = after(decide(found, pods, seconds), found, seconds, "coordinator-0")
    assert [removal.pod.machine for removal in done.removals] == given_back
    assert ("MachinesGivenBack" in [event.reason for event in done.events]) == bool(given_back)
    kept = {machine: pod for machine, pod in pods.items() if machine not in given_back}
    assert [member.machine for member in found.status.members] == list(kept)
    assert not set(found.status.relay.chain) - set(kept)
    again = decide(found, kept, seconds)
    assert {creation.new.machine for creation in again.creations} == {"coordinator-0", *given_back}
    assert {loss.machine for loss in again.losses} == set(), "what was given back is no loss"


@pytest.mark.parametrize("state", [{"deleting": True}, {"phase": "Pending", "ready": False}])
def test_no_machine_gives_way_while_an_old_coordinator_holds_a_place(
    alone: tuple[RLJob, dict[str, Pod]], state: dict[str, object]
) -> None:
    """A pod that is on its way out counts until it has gone; one that is there may not be refused."""
    found, pods = alone
    pods["coordinator-0"] = replace(decided_coordinator(found), **state)
    _, found = after(decide(found, pods), found, 0.0, "coordinator-0")
    done, _ = after(decide(found, pods, 500), found, 500, "coordinator-0")
    assert not [removal for removal in done.removals if removal.reason == "NoCoordinator"]


def decided_coordinator(found: RLJob) -> Pod:
    name = f"{found.name}-coordinator-0-1"
    return Pod(name, name, Role.COORDINATOR, "coordinator-0", 1, phase="Running", ready=True, ip="10.0.0.9")


@given(st.sets(st.sampled_from(ALL[1:])), st.floats(0, 300))
def test_only_a_refused_coordinator_makes_others_give_way(refuse: set[str], seconds: float) -> None:
    decided = decide(job(), {})
    pods = started(decided)
    _, found = after(decided, job(), 0.0)
    lost = {machine: pod for machine, pod in pods.items() if machine not in refuse and machine != "coordinator-0"}
    for moment in (0.0, seconds):
        done, found = after(decide(found, lost, moment), found, moment, *sorted(refuse))
        assert not [removal for removal in done.removals if removal.reason == "NoCoordinator"]


def test_the_trainer_waits_longer_than_machines_in_its_place() -> None:
    assert PATIENCE_SECONDS[Role.TRAINER] > 2 * PATIENCE_SECONDS[Role.ROLLOUT]
