"""Losses: what counts as one, who must confirm it, and how long the pause before a replacement is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from rljob_api.spec import ReplacementBackOff
from rljob_api.status import BackOff, Replacements, RLJobStatus, Role
from rljob_operator.policies.base.observation import Observed, Pod, Silence
from rljob_operator.policies.failure import losses as machine_losses
from tests.support.operator.harness import NOW, make_job
from tests.support.operator.observed_pods import running_pod

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
        ([running_pod()], None, None),
        ([running_pod(phase="Failed", ready=False)], "PodFailed", True),
        ([running_pod(phase="Failed", disrupted=True)], "Disrupted", False),
        ([running_pod(phase="Succeeded")], "PodExited", True),
        ([running_pod(deleting=True)], "PodDeleted", False),
        # However it ends: it was asked to go.
        ([running_pod(phase="Failed", deleting=True)], "PodDeleted", False),
        ([running_pod(phase="Succeeded", deleting=True)], "PodDeleted", False),
        ([], "PodDeleted", False),
    ],
)
def test_what_counts_as_a_loss(pods: list[Pod], reason: str | None, counts: bool | None) -> None:
    losses = machine_losses.find_losses(PLACED, Observed(tuple(pods)), _status())
    assert [(loss.reason, loss.counts) for loss in losses] == ([] if reason is None else [(reason, counts)])


def test_a_loss_that_the_status_knows_is_not_counted_again() -> None:
    failed = running_pod(phase="Failed")
    told = _status(members=[], incarnations={"rollout-0": 1})
    assert machine_losses.find_losses(PLACED, Observed((failed,)), told) == []
    newer = running_pod(incarnation=2, phase="Failed")  # created by an operator that died before it could say so
    (loss,) = machine_losses.find_losses(PLACED, Observed((failed, newer)), told)
    assert loss.incarnation == 2


@pytest.mark.parametrize(("witnesses", "lost"), [(["coordinator"], 0), (["coordinator", "rollout-1"], 1)])
def test_a_suspect_needs_two_witnesses(witnesses: list[str], lost: int) -> None:
    suspect = {"machine": "rollout-0", "incarnation": 1, "reason": "HeartbeatLost", "witnesses": witnesses}
    status = _status(runtime={"suspects": [suspect]})
    losses = machine_losses.find_losses(PLACED, Observed((running_pod(),)), status)
    assert len(losses) == lost
    assert all(loss.must_delete and loss.reason == "HeartbeatLost" for loss in losses)
    newer = _status(runtime={"suspects": [{**suspect, "incarnation": 0}]})
    assert machine_losses.find_losses(PLACED, Observed((running_pod(),)), newer) == []


def test_a_machine_that_keeps_failing_needs_no_second_witness() -> None:
    suspect = {"machine": "rollout-0", "incarnation": 1, "reason": "KeepsFailing", "witnesses": ["coordinator"]}
    (loss,) = machine_losses.find_losses(PLACED, Observed((running_pod(),)), _status(runtime={"suspects": [suspect]}))
    assert (loss.reason, loss.must_delete, loss.counts, loss.slows) == ("KeepsFailing", True, True, True)
    renewed = {"runtime": {"suspects": [suspect]}, "incarnations": {"rollout-0": 2}}
    newer = _status(members=[{"machine": "rollout-0", "incarnation": 2, "role": "Rollout"}], **renewed)
    assert machine_losses.find_losses(PLACED, Observed((running_pod(incarnation=2),)), newer) == []


@pytest.mark.parametrize(
    ("holder", "lost"),
    [("demo-coordinator-0-1_ab12", 1), ("demo-coordinator-0-1", 1), ("demo-coordinator-0-12", 0), ("", 0)],
)
def test_only_the_holder_of_an_expired_lease_is_silent(holder: str, lost: int) -> None:
    status = RLJobStatus.model_validate(
        {"members": [{"machine": "coordinator-0", "incarnation": 1, "role": "Coordinator"}]}
    )
    seen = Observed((running_pod("coordinator-0"),), silence=Silence(holder, 4.0) if holder else None)
    losses = machine_losses.find_losses({"coordinator-0": Role.COORDINATOR}, seen, status)
    assert [loss.reason for loss in losses] == ["CoordinatorSilent"] * lost
