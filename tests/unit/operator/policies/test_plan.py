"""`plan` under everything that may happen, in any order: a simulated API server whose operator dies where it likes."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import settings

from rljob_api.admission.last_accepted import accept
from rljob_api.status import Phase, TargetPhase
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.observation import Silence
from rljob_operator.policies.plan import REMOVED_SECONDS
from rljob_operator.policies.refusal import refused
from tests.support.examples import examples
from tests.support.operator.harness import NOW, make_job
from tests.support.operator.plan_cluster import Cluster, running
from tests.support.operator.plan_machine import CHOICE, Asynchronous, Machine, WithEnvironments

Machine.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40)
Asynchronous.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40)
TestPlan = Machine.TestCase
TestAsynchronousPlan = Asynchronous.TestCase
WithEnvironments.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40)
TestPlanWithEnvironments = WithEnvironments.TestCase


# --- what the machine above finds by chance, step by step -------------------------------------------------------------


def test_a_loss_is_counted_once_though_its_successor_is_refused() -> None:
    """Not even the pod that was lost is in the status yet."""
    cluster = Cluster(make_job())
    decided = cluster.decide()
    cluster.apply(decided, steps=bool(decided.children) + len(decided.creations))
    assert len(cluster.pods) == len(decided.creations)
    assert not cluster.status.members
    name = next(pod.name for pod in cluster.pods.values() if pod.machine == "rollout-1")
    cluster.pods[name] = replace(cluster.pods[name], phase="Failed")
    for _ in range(3):
        cluster.apply(cluster.decide(), refuses="rollout-1")
        assert cluster.status.replacements is not None
        assert cluster.status.replacements.total == 1
    cluster.settle()
    assert {m.machine: m.incarnation for m in cluster.status.members}["rollout-1"] == 2


@pytest.mark.parametrize("meanwhile", ["nothing", "the report is withdrawn"])
@pytest.mark.parametrize("steps", range(4))
def test_a_loss_is_counted_though_the_operator_dies_before_it_says_so(steps: int, meanwhile: str) -> None:
    """The successor is created and the status that would count the loss is not written: Kubernetes believes in both."""
    cluster = running()
    name = next(pod.name for pod in cluster.pods.values() if pod.machine == "rollout-0")
    cluster.pods[name] = replace(cluster.pods[name], node="node-0")
    suspect = {"machine": "rollout-0", "incarnation": 1, "witnesses": ["coordinator", "rollout-1"]}
    cluster.report(suspects=[suspect])
    decided = cluster.decide()
    assert [creation.new.machine for creation in decided.creations] == ["rollout-0"]
    cluster.apply(decided, steps)
    written = cluster.status.replacements is not None and cluster.status.replacements.total == 1
    withdrawn = len(cluster.observed().of_machine("rollout-0")) == 2 and meanwhile != "nothing"
    if withdrawn:
        cluster.report()
    told = []
    for _ in range(4):
        again = cluster.decide()
        told += [event.reason for event in again.events]
        cluster.apply(again)
    memory = cluster.status.replacements
    assert memory is not None
    assert memory.total == 1
    assert ("MachineLost" in told) is not written
    assert {m.machine: m.incarnation for m in cluster.status.members}["rollout-0"] == 2
    assert [pod.incarnation for pod in cluster.observed().of_machine("rollout-0") if pod.live] == [2]
    if written or not withdrawn:
        assert [node.name for node in memory.avoided_nodes] == ["node-0"]
        assert memory.by_machine == {"rollout-0": 1}
        assert memory.backoff["rollout-0"].doubted


def test_a_status_is_written_when_it_differs() -> None:
    cluster = running()
    assert cluster.decide().empty
    cluster.now += timedelta(hours=1)
    cluster.report(progress=0.5, reward=0.25, event=7)
    assert cluster.decide().status is None
    cluster.pods["demo-rollout-1-1"] = replace(cluster.pods["demo-rollout-1-1"], ready=False)
    assert cluster.decide().status is not None


def test_a_lost_pods_name_is_not_used_again() -> None:
    cluster = running()
    cluster.pods.clear()  # no pod is left to tell how many there were
    names = {creation.manifest["metadata"]["name"] for creation in cluster.decide().creations}
    assert names == {"demo-coordinator-0-2", "demo-trainer-0-2", "demo-rollout-0-2", "demo-rollout-1-2"}


def test_a_fresh_operator_keeps_the_pause_after_failures() -> None:
    cluster = running(failurePolicy={"backoff": {"initialSeconds": 10}})
    for incarnation in (1, 2):
        name = f"demo-rollout-0-{incarnation}"
        cluster.pods[name] = replace(cluster.pods[name], phase="Failed", ready=False)
        cluster.settle()
    assert "demo-rollout-0-3" not in cluster.pods
    assert cluster.decide().again_seconds == 10
    cluster.now += timedelta(seconds=10)
    cluster.settle()
    assert "demo-rollout-0-3" in cluster.pods


def test_what_was_removed_is_looked_at_again_though_no_event_may_tell() -> None:
    cluster = running()
    runtime = {"finished": {"outcome": "Complete", "reason": "RoundsFinished"}}
    cluster.report(**runtime)
    decided = cluster.decide()
    assert decided.removals
    assert decided.again_seconds == REMOVED_SECONDS
    cluster.settle()
    assert cluster.decide().again_seconds is None


def test_a_refused_edit_is_told_and_nothing_else_changes() -> None:
    cluster = running()
    cluster.refused_edit = ConditionReason("InvalidSpec", "spec.data.seed: 2 is immutable")
    decided = cluster.decide()
    assert (decided.creations, decided.removals) == ((), ())
    assert [event.reason for event in decided.events] == ["InvalidSpec"]
    cluster.settle()
    assert cluster.decide().empty
    found = {c.type: f"{c.status.value}/{c.reason}" for c in cluster.status.conditions}
    assert (found["Stalled"], found["Ready"]) == ("True/InvalidSpec", "False/InvalidSpec")
    assert cluster.status.phase is Phase.RUNNING
    cluster.refused_edit = ConditionReason("InvalidSpec", "spec.data.seed: 3 is immutable")
    assert [event.reason for event in cluster.decide().events] == ["InvalidSpec"]  # another mistake
    cluster.refused_edit = None
    assert [event.reason for event in cluster.decide().events] == ["SpecAccepted"]
    cluster.settle()
    assert cluster.status.is_true("Ready")
    assert not cluster.status.is_true("Stalled")


def test_the_same_refusal_at_the_next_try_writes_nothing() -> None:
    cluster = Cluster(make_job())
    cluster.apply(cluster.decide(), refuses="rollout-0")
    cluster.apply(cluster.decide(), refuses="rollout-0")
    stalled_since = cluster.status.condition("Stalled").last_transition_time
    cluster.now += timedelta(seconds=15)
    again = refused(cluster.decide(), cluster.job, {"rollout-0": ConditionReason("QuotaExceeded", "")}, cluster.now)
    assert stalled_since == NOW
    assert again.creations
    assert again.status is None
    assert again.events == ()


def test_a_pod_lost_during_a_refused_edit_is_replaced() -> None:
    cluster = running()
    assert cluster.status.accepted == accept(cluster.job)
    cluster.refused_edit = ConditionReason("InvalidSpec", "spec.data.seed: 2 is immutable")
    cluster.pods["demo-rollout-0-1"] = replace(cluster.pods["demo-rollout-0-1"], phase="Failed", ready=False)
    cluster.settle()
    assert cluster.pods["demo-rollout-0-2"].live
    assert cluster.status.accepted == accept(cluster.job)


def test_a_job_that_ends_during_a_refused_edit_has_ended() -> None:
    cluster = running()
    cluster.refused_edit = ConditionReason("InvalidSpec", "spec.data.seed: 2 is immutable")
    cluster.settle()
    cluster.report(finished={"outcome": "Complete", "reason": "RoundsFinished"})
    cluster.settle()
    assert cluster.status.is_true("Ready")
    assert not cluster.status.is_true("Stalled")


def test_a_job_without_a_sandbox_stalls_and_keeps_its_pods() -> None:
    cluster = running()
    pods = set(cluster.pods)
    cluster.report(warnings=[{"reason": "SandboxUnavailable", "message": "Landlock would be right"}])
    decided = cluster.decide()
    assert [(e.kind, e.reason, e.message) for e in decided.events] == [
        ("Warning", "SandboxUnavailable", "Landlock would be right")
    ]
    cluster.settle()
    assert cluster.status.is_true("Stalled")
    assert not cluster.status.is_true("Ready")
    cluster.report(warnings=[])
    cluster.settle()
    assert cluster.status.is_true("Ready")
    assert not cluster.status.is_true("Stalled")
    assert set(cluster.pods) == pods


def test_a_coordinator_that_survives_gets_its_address_back() -> None:
    """It could not renew its Lease while the API server was away; the address of its successor was written, and then
    the process that would have made that one lost its own Lease."""
    cluster = running()
    assert cluster.service == 1
    cluster.silence = Silence("demo-coordinator-0-1_x", 3.0)
    cluster.apply(cluster.decide(), steps=1)
    assert (cluster.service, sorted(cluster.pods)[0]) == (2, "demo-coordinator-0-1")
    cluster.silence = None
    cluster.settle()
    assert cluster.service == 1
    assert "demo-coordinator-0-2" not in cluster.pods
    assert cluster.decide().empty


def test_what_is_complete_stays_complete() -> None:
    cluster = running(runPolicy={"cleanPodPolicy": "All"})
    cluster.report(finished={"outcome": "Complete", "reason": "RoundsFinished"})
    cluster.settle()
    cluster.pods.clear()
    for said in ({}, {"finished": {"outcome": "Failed", "reason": "TrainerKeepsFailing"}}):
        cluster.report(**said)
        cluster.now += timedelta(hours=1)
        assert cluster.decide().creations == ()
        cluster.settle()
        assert cluster.status.is_true("Complete")
        assert not cluster.status.is_true("Failed")
        assert cluster.pods == {}


@pytest.mark.parametrize("policy", ["None", "Running", "All"])
def test_the_chain_of_an_ended_job_is_empty(policy: str) -> None:
    cluster = running(runPolicy={"cleanPodPolicy": policy})
    assert cluster.status.relay is not None
    epoch = cluster.status.relay.epoch
    cluster.report(finished={"outcome": "Complete", "reason": "RoundsFinished"})
    cluster.settle()
    assert (cluster.status.relay.chain, cluster.status.relay.master) == ((), None)
    assert cluster.status.relay.epoch == epoch
    assert cluster.decide().empty


def test_the_chain_that_counts_is_the_coordinators() -> None:
    """It closes the chain over machines that it cannot reach, whose pods may be as ready as ever."""
    cluster = running()

    def told() -> tuple[bool, str, str]:
        (found,) = [one for one in cluster.status.conditions if one.type == "RelayReady"]
        return found.status.value == "True", found.reason, found.message

    assert told() == (True, "ChainFormed", "2 of 2 rollout machines are in the chain"), "none is told of yet"
    for chain, reason in ((["rollout-0"], "MemberMissing"), (["rollout-1", "rollout-0"], "ChainFormed")):
        cluster.report(relay={"epoch": 1, "revision": len(chain), "master": chain[0], "chain": chain})
        cluster.settle()
        assert told() == (len(chain) == 2, reason, f"{len(chain)} of 2 rollout machines are in the chain")


def round_report(number: int, preemptions: int, size: int) -> dict[str, Any]:
    figures = {"round": number, "kind": "Short", "preemptions": preemptions, "tokens": 1, "tensorParallelSize": size}
    return {"applied": 1, "event": number, "lastRound": figures}


def test_a_surge_of_preemptions_sets_a_target_with_an_event() -> None:
    cluster = running(rollout=CHOICE)
    cluster.report(**round_report(1, 41, 2))
    cluster.settle()
    before = cluster.status.target
    cluster.report(**round_report(2, 57, 2))
    decided = cluster.decide()
    assert [(e.reason, e.message) for e in decided.events] == [
        ("TensorParallelChanged", "short rounds: from TP 2 to TP 4")
    ]
    cluster.settle()
    target = cluster.status.target
    assert (target.revision, target.machines) == (before.revision + 1, before.machines)
    assert (target.tensor_parallel.short, target.tensor_parallel.long) == (4, 2)
    assert target.reason == "short rounds: TP 4, preemptions 41 → 57 in round 2"
    assert cluster.status.rollout.tensor_parallel_size == 2  # what the last round ran with
    cluster.report(**round_report(3, 20, 4))
    cluster.settle()
    assert cluster.status.rollout.tensor_parallel_size == 4


def test_suspension_keeps_the_layouts_and_what_was_learned() -> None:
    cluster = running(rollout=CHOICE)
    for number, preemptions in ((1, 41), (2, 57)):
        cluster.report(**round_report(number, preemptions, 2))
        cluster.settle()
    learned = cluster.status.parallelism
    for suspend in (True, False):
        spec = cluster.job.spec.model_copy(update={"suspend": suspend})
        cluster.job = cluster.job.model_copy(update={"spec": spec})
        cluster.settle()
        assert cluster.status.target.tensor_parallel.short == 4
        assert cluster.status.parallelism == learned


def test_an_edit_under_a_suspension_reaches_new_pods() -> None:
    """Coordinator and trainer read the spec when they start: one that goes on would keep the former settings."""
    cluster = running()
    first = set(cluster.pods)
    for changes in ({"suspend": True}, {"suspend": True, "algorithm": {"learningRate": 2e-5}}, {}):
        spec = make_job(**{"algorithm": {"learningRate": 2e-5}, **changes}).spec
        cluster.job = cluster.job.model_copy(update={"spec": spec})
        cluster.settle()
        assert set(cluster.pods) == first, "the coordinator saves its state first"
        assert cluster.status.target.phase is TargetPhase.SUSPEND
    cluster.report(applied=cluster.status.target.revision, stage="Suspended", event=1)
    cluster.settle()
    assert {pod.incarnation for pod in cluster.pods.values() if pod.live} == {2}
    assert len([pod for pod in cluster.pods.values() if pod.live]) == len(first)
    assert cluster.status.target.phase is TargetPhase.RUN
    cluster.start_all()
    cluster.settle()
    assert cluster.status.is_true("Ready")
    assert '"learningRate":2e-05' in cluster.status.accepted.spec


def test_a_resumption_cut_short_before_its_status_keeps_its_pods() -> None:
    cluster = running()
    for suspend in (True, False):
        spec = cluster.job.spec.model_copy(update={"suspend": suspend})
        cluster.job = cluster.job.model_copy(update={"spec": spec})
        if suspend:
            cluster.settle()
            cluster.report(applied=cluster.status.target.revision, stage="Suspended", event=1)
            cluster.settle()
            cluster.pods.clear()
            cluster.settle()
            assert cluster.status.is_true("Suspended")
    resumed = cluster.decide()
    cluster.apply(resumed, steps=len(resumed.creations) - 1)  # one pod cannot be created yet: no status is written
    made = set(cluster.pods)
    assert made
    again = cluster.decide()
    assert not again.removals, "what is there already is not thrown away"
    assert len(again.creations) == len(resumed.creations) - len(made)
    cluster.settle()
    assert cluster.status.target.phase is TargetPhase.RUN
    assert made <= set(cluster.pods)


def test_scaling_and_layouts_change_in_one_target() -> None:
    cluster = running(rollout=CHOICE)
    cluster.report(**round_report(1, 41, 2))
    cluster.settle()
    cluster.report(**round_report(2, 57, 2))
    rollout = cluster.job.spec.rollout.model_copy(update={"machines": 3})
    cluster.job = cluster.job.model_copy(update={"spec": cluster.job.spec.model_copy(update={"rollout": rollout})})
    revision = cluster.status.target.revision
    cluster.settle()
    assert cluster.status.target.revision == revision + 1
    # Rounds on two machines are no measure of rounds on three.
    assert cluster.status.target.reason == "ScaledUp"
    assert cluster.status.target.tensor_parallel.short == 2


def test_one_rollout_machine_at_a_time_may_be_drained() -> None:
    cluster = running(rollout={"machines": 3})

    def budgets() -> list[int]:
        children = cluster.decide().children
        return [one["spec"]["minAvailable"] for one in children if one["kind"] == "PodDisruptionBudget"]

    assert budgets() == [], "it was made with the pods"
    rollout = cluster.job.spec.rollout
    for machines, least in ((5, 4), (2, 1), (1, 0)):
        spec = cluster.job.spec.model_copy(update={"rollout": rollout.model_copy(update={"machines": machines})})
        cluster.job = cluster.job.model_copy(update={"spec": spec})
        assert budgets() == [least]
        cluster.settle()
        assert budgets() == []
    cluster.children = False
    assert budgets() == [0]


def test_a_machine_lost_while_the_job_is_suspended_leaves_the_chain() -> None:
    cluster = running(rollout={"machines": 2})
    assert cluster.status.relay is not None
    epoch = cluster.status.relay.epoch
    cluster.job = cluster.job.model_copy(update={"spec": cluster.job.spec.model_copy(update={"suspend": True})})
    cluster.settle()
    assert cluster.status.relay.epoch == epoch
    cluster.pods["demo-rollout-0-1"] = replace(cluster.pods["demo-rollout-0-1"], phase="Failed", ready=False)
    cluster.settle()
    assert (cluster.status.relay.chain, cluster.status.relay.epoch) == (("rollout-1",), epoch + 1)
    assert cluster.decide().empty


def test_operators_that_die_before_each_status_leave_one_coordinator() -> None:
    cluster = running()
    for incarnation in (1, 2):
        cluster.silence = Silence(f"demo-coordinator-0-{incarnation}_x", 3.0)
        cluster.apply(cluster.decide(), steps=2)  # the address and the successor
    assert len([pod for pod in cluster.pods.values() if pod.machine == "coordinator-0" and pod.live]) == 3
    cluster.silence = None
    cluster.settle()
    left = [pod.incarnation for pod in cluster.pods.values() if pod.machine == "coordinator-0" and pod.live]
    assert left == [3]
    assert cluster.service == 3
