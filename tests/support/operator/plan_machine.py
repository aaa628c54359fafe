"""State machines for `plan`: everything that may happen to a job, in any order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rljob_api.spec import RLJob
from rljob_api.status import Role, RoundKind, RoundReport, RuntimeStatus, TargetPhase
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.observation import Node, Pod, Silence
from rljob_operator.policies.phases.steps import Plan
from tests.support.operator.environment_jobs import CALC, SHELL, with_environments
from tests.support.operator.harness import make_job
from tests.support.operator.plan_cluster import Cluster, asynchronous

LEAVES = {
    "NodeNotAvoided",
    "NodeFenced",
    "NodeNotReady",
    "ScaledDown",
    "Suspended",
    "JobEnded",
    "TemplateChanged",
    "Superseded",
    "Ended",
    "ContainerEnded",
}
CHANGES_OF_RUNNERS: list[dict[str, Any]] = [
    {"ready": 0},
    {"pods": 2, "ready": 1},
    {"pods": 0, "current": True},
    {"wanted": 5},
    {"shape": "of an earlier operator"},
    {"deleting": True},
    {"refused": "pods is forbidden: exceeded quota"},
    {"refused": None},
    {"overdue": "timed out"},
    {"overdue": None},
]
CHOICE: dict[str, Any] = {"acceleratorsPerMachine": 4, "tensorParallelSize": 2, "allowedTensorParallelSizes": [1, 2, 4]}


class Machine(RuleBasedStateMachine):
    """Everything that users, kubelets, coordinators and time do to a job."""

    job: Callable[..., RLJob] = staticmethod(make_job)

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster(
            self.job(
                rollout={"machines": 2, "minMachines": 1, "maxMachines": 4, **CHOICE},
                runPolicy={"backoffLimit": 2, "drainSeconds": 30, "activeDeadlineSeconds": 100_000},
                failurePolicy={"maxReplacementsPerMachine": 2},
                checkpoint={"volumeClaimName": "state"},
            )
        )
        self.epochs: list[int] = [0]
        self.totals: list[int] = [0]
        self.failures = 0
        self.terminal: str | None = None

    # --- the operator -------------------------------------------------------------------------------------------------

    @rule(steps=st.integers(0, 12), refuses=st.sampled_from(["", "", "", "rollout-1", "coordinator-0"]))
    def reconcile_and_die(self, steps: int, refuses: str) -> None:
        decided = self.cluster.decide()
        self._check_removals(decided)
        self.cluster.apply(decided, steps, refuses)

    @rule()
    def settle(self) -> None:
        """Left alone, the plan soon has nothing to say: it converges and is idempotent."""
        for _ in range(4):
            decided = self.cluster.decide()
            self._check_removals(decided)
            self.cluster.apply(decided)
        again = self.cluster.decide()
        assert again.empty, f"still {again}"

    def _check_removals(self, decided: Plan) -> None:
        """A machine that works and is wanted is never deleted, but for a loss that was counted."""
        wanted = set(decided.status.target.machines) if decided.status and decided.status.target else None
        if wanted is None and self.cluster.status.target is not None:
            wanted = set(self.cluster.status.target.machines)
        lost = {loss.pod.uid for loss in decided.losses if loss.pod is not None}
        for removal in decided.removals:
            pod = removal.pod
            assert removal.reason in LEAVES or pod.uid in lost, removal
            if removal.reason == "ScaledDown" and pod.role.value == "Rollout" and wanted is not None:
                assert pod.machine not in wanted

        created = {creation.new.machine for creation in decided.creations}
        for pod in self._saving():
            assert pod.machine not in created - {loss.machine for loss in decided.losses}, f"{pod.name} is not gone yet"
            assert pod.uid not in {loss.pod.uid for loss in decided.losses if loss.pod and loss.reason == "PodDeleted"}

    def _saving(self) -> list[Pod]:
        """Pods of the coordinator and the trainer that were asked to go and save the job's state."""
        cluster = self.cluster
        members = {(member.machine, member.incarnation) for member in cluster.status.members}
        asked = [
            pod
            for pod in cluster.pods.values()
            if pod.role is not Role.ROLLOUT and pod.deleting and pod.phase == "Running" and pod.deletion is not None
        ]
        return [
            pod
            for pod in asked
            if (pod.machine, pod.incarnation) in members
            and pod.deletion is not None
            and cluster.now < pod.deletion
            and cluster.nodes.get(pod.node or "", Node("")).ready
        ]

    # --- users --------------------------------------------------------------------------------------------------------

    @rule(machines=st.integers(1, 4))
    def scale(self, machines: int) -> None:
        rollout = self.cluster.job.spec.rollout.model_copy(update={"machines": machines})
        self._edit(rollout=rollout)

    @rule(suspend=st.booleans())
    def suspend(self, suspend: bool) -> None:
        self._edit(suspend=suspend)

    @rule(field=st.sampled_from(["", "spec.model.source", "spec.data.seed"]))
    def refused_edit(self, field: str) -> None:
        """The spec is edited into one that is refused, or back."""
        self.cluster.refused_edit = ConditionReason("InvalidSpec", f"{field}: is immutable") if field else None
        self._edit()

    def _edit(self, **update: Any) -> None:
        job = self.cluster.job
        meta = job.metadata.model_copy(update={"generation": job.metadata.generation + 1})
        self.cluster.job = job.model_copy(update={"spec": job.spec.model_copy(update=update), "metadata": meta})

    # --- kubelets and nodes -------------------------------------------------------------------------------------------

    def _some_pod(self, number: int, live: bool) -> Pod | None:
        found = [p for _, p in sorted(self.cluster.pods.items()) if not live or (not p.terminal and not p.deleting)]
        return found[number % len(found)] if found else None

    def _set(self, pod: Pod | None, **changes: Any) -> None:
        if pod is not None:
            self.cluster.pods[pod.name] = replace(pod, **changes)

    @rule(number=st.integers(0, 20))
    def pod_becomes_ready(self, number: int) -> None:
        pod = self._some_pod(number, live=True)
        if pod is not None:
            address = f"10.0.{pod.incarnation % 250}.{sum(pod.name.encode()) % 250}"
            node = self.cluster.nodes.get(f"node-{number % 3}")
            # Where the node fails before anybody has seen the pod on it, or an outdated pod starts after all.
            siblings = [p for p in self.cluster.pods.values() if p.machine == pod.machine]
            self.failures += (node is not None and not node.ready) or any(
                p.incarnation > pod.incarnation for p in siblings
            )
            self._set(pod, phase="Running", ready=True, ip=address, node=f"node-{number % 3}")

    @rule(
        number=st.integers(0, 20),
        disrupted=st.booleans(),
        code=st.sampled_from(["Failed", "Succeeded"]),
        ending=st.booleans(),
    )
    def pod_ends(self, number: int, disrupted: bool, code: str, ending: bool) -> None:
        pod = self._some_pod(number, live=True)
        if pod is not None:
            self.failures += 1
            self._set(pod, phase=code, ready=False, disrupted=disrupted, ending=ending)

    @rule(number=st.integers(0, 20))
    def kubelet_ends_the_pod(self, number: int) -> None:
        found = [pod for _, pod in sorted(self.cluster.pods.items()) if pod.ending]
        self._set(found[number % len(found)] if found else None, ending=False)

    @rule(number=st.integers(0, 20))
    def pod_is_deleted(self, number: int) -> None:
        self.failures += 1
        self._set(self._some_pod(number, live=True), deleting=True, ready=False)

    @rule(number=st.integers(0, 20))
    def pod_is_evicted(self, number: int) -> None:
        """Its containers run on until its grace is over."""
        self.failures += 1
        deletion = self.cluster.now + timedelta(seconds=30)
        self._set(self._some_pod(number, live=True), deleting=True, deletion=deletion)

    @rule(number=st.integers(0, 20))
    def pod_vanishes(self, number: int) -> None:
        pod = self._some_pod(number, live=False)
        if pod is not None:
            self.failures += 1
            del self.cluster.pods[pod.name]

    @rule(number=st.integers(0, 20))
    def pod_finds_no_node(self, number: int) -> None:
        pod = self._some_pod(number, live=True)
        if pod is not None and pod.phase == "Pending":
            self._set(pod, unschedulable="0/3 nodes are available")

    @rule(number=st.integers(0, 2), state=st.sampled_from(["ready", "down", "fenced", "gone", "unknown"]))
    def node_changes(self, number: int, state: str) -> None:
        name = f"node-{number}"
        if state == "unknown":
            self.cluster.nodes.pop(name, None)
            return
        self.failures += 0 if state == "ready" else len(self.cluster.pods)
        self.cluster.nodes[name] = Node(name, state == "ready", gone=state == "gone", fenced=state == "fenced")

    @rule(seconds=st.sampled_from([1, 7, 40, 700]))
    def time_passes(self, seconds: int) -> None:
        self.cluster.now += timedelta(seconds=seconds)
        for pod in list(self.cluster.pods.values()):
            if pod.deleting and seconds >= 40:
                del self.cluster.pods[pod.name]

    # --- the coordinator ----------------------------------------------------------------------------------------------

    def _report(self, **update: Any) -> None:
        runtime = self.cluster.status.runtime or RuntimeStatus()
        status = self.cluster.status.model_copy(update={"runtime": runtime.model_copy(update=update)})
        self.cluster.job = self.cluster.job.model_copy(update={"status": status})

    @precondition(lambda self: self.cluster.status.target is not None)
    @rule(drained=st.sets(st.sampled_from(["rollout-0", "rollout-1", "rollout-2", "rollout-3"])))
    def coordinator_answers(self, drained: set[str]) -> None:
        target = self.cluster.status.target
        assert target is not None
        stage = "Suspended" if target.phase is TargetPhase.SUSPEND else "Generating"
        self._report(applied=target.revision, drained=tuple(sorted(drained - set(target.machines))), stage=stage)

    @rule(
        kind=st.sampled_from(RoundKind),
        preemptions=st.sampled_from([0, 0, 0, 10, 20]),
        size=st.sampled_from([1, 2, 4]),
        further=st.integers(-1, 2),
    )
    def coordinator_finishes_a_round(self, kind: RoundKind, preemptions: int, size: int, further: int) -> None:
        last = self.cluster.status.runtime.last_round if self.cluster.status.runtime is not None else None
        number = max(1, further + (last.round if last is not None else 0))
        report = RoundReport(round=number, kind=kind, preemptions=preemptions, tokens=1, tensor_parallel_size=size)
        self._report(last_round=report)

    @rule(number=st.integers(0, 20))
    def coordinator_suspects(self, number: int) -> None:
        pod = self._some_pod(number, live=True)
        if pod is not None:
            self.failures += 1
            suspect = {
                "machine": pod.machine,
                "incarnation": pod.incarnation,
                "witnesses": ["coordinator", "rollout-0"],
            }
            self._report(suspects=RuntimeStatus.model_validate({"suspects": [suspect]}).suspects)

    @rule(silent=st.booleans())
    def coordinator_falls_silent(self, silent: bool) -> None:
        current = self.cluster.observed().current("coordinator-0")
        self.failures += 1
        self.cluster.silence = Silence(f"{current.name}_x", 3.0) if silent and current is not None else None

    # --- what must always hold ----------------------------------------------------------------------------------------

    @invariant()
    def one_live_incarnation_of_a_machine(self) -> None:
        """At most the newest is alive for the job; an older one that was given up is no member of any chain."""
        members = {m.machine: m.incarnation for m in self.cluster.status.members}
        judged = self.cluster.observed().with_condemned(self.cluster.status)
        for machine in {pod.machine for pod in judged.pods}:
            live = [pod for pod in judged.of_machine(machine) if pod.live]
            known = [pod for pod in live if members.get(machine) == pod.incarnation]
            assert len(known) <= 1
            # A new one may be there before the status that gives up the old one, for each operator that died between.
            assert len(live) <= 1 + max(1, self.cluster.unwritten[machine])

    @invariant()
    def a_coordinator_that_is_left_alone_is_found_under_its_name(self) -> None:
        """Whatever ended the operator between an address and the pod that it was meant for."""
        cluster = self.cluster
        assert cluster.addressed in (None, cluster.service)
        coordinator = cluster.observed().with_condemned(cluster.status).current("coordinator-0")
        ended = cluster.status.is_true("Complete") or cluster.status.is_true("Failed")
        if coordinator is not None and not ended and cluster.decide().empty:
            assert cluster.service == coordinator.incarnation

    @invariant()
    def epochs_rise_and_chains_are_members(self) -> None:
        relay = self.cluster.status.relay
        if relay is None:
            return
        assert relay.epoch >= self.epochs[-1]
        self.epochs.append(relay.epoch)
        rollout = {m.machine for m in self.cluster.status.members if m.ip is not None}
        assert set(relay.chain) <= rollout
        assert relay.master == (relay.chain[0] if relay.chain else None)

    @invariant()
    def losses_are_counted_once(self) -> None:
        replacements = self.cluster.status.replacements
        total = replacements.total if replacements is not None else 0
        assert self.totals[-1] <= total <= self.failures
        assert self.cluster.replaced <= total
        self.totals.append(total)

    @invariant()
    def layouts_are_among_the_choices(self) -> None:
        target = self.cluster.status.target
        if target is not None:
            assert {target.tensor_parallel.short, target.tensor_parallel.long} <= set(
                CHOICE["allowedTensorParallelSizes"]
            )

    @invariant()
    def the_end_is_sticky(self) -> None:
        status = self.cluster.status
        ends = [type_ for type_ in ("Complete", "Failed") if status.is_true(type_)]
        assert len(ends) <= 1
        assert self.terminal is None or ends == [self.terminal]
        self.terminal = ends[0] if ends else None

    @invariant()
    def conditions_keep_the_kstatus_contract(self) -> None:
        types = [c.type for c in self.cluster.status.conditions]
        assert len(types) == len(set(types))
        if types:
            assert "Ready" in types
        assert not {"Stalled", "Reconciling"} <= set(types)


class Asynchronous(Machine):
    """Machines hand over before they go, and their number is the operator's to choose."""

    job = staticmethod(asynchronous)

    @rule(waited=st.sampled_from([0.0, 0.0, 5.0]), stood=st.sampled_from([0.0, 0.0, 9.0]))
    def coordinator_makes_updates(self, waited: float, stood: float) -> None:
        """Four of them, so that they count."""
        for _ in range(4):
            last = self.cluster.status.runtime.last_round if self.cluster.status.runtime is not None else None
            report = RoundReport(
                round=(last.round if last is not None else 0) + 1,
                seconds=10,
                trainer_wait_seconds=waited,
                buffer_full_seconds=stood,
            )
            target = self.cluster.status.target
            self._report(last_round=report, applied=target.revision if target is not None else None)
            self.cluster.apply(self.cluster.decide())
            self.cluster.now += timedelta(seconds=20)

    @invariant()
    def the_number_of_machines_is_within_its_bounds(self) -> None:
        target = self.cluster.status.target
        assert target is None or 1 <= len(target.machines) <= 4


class WithEnvironments(Machine):
    """A job with runners: their controller is slow, refuses pods, and other clients change its Deployments."""

    job = staticmethod(partial(with_environments, CALC, SHELL))

    @rule()
    def runners_are_as_wanted(self) -> None:
        self.cluster.run_runners()

    @rule(name=st.sampled_from(["calc", "shell"]), change=st.sampled_from(CHANGES_OF_RUNNERS))
    def runners_change(self, name: str, change: dict[str, Any]) -> None:
        if name in self.cluster.runners:
            self.cluster.runners[name] = replace(self.cluster.runners[name], **change)

    @rule(name=st.sampled_from(["calc", "shell"]))
    def a_deployment_is_gone(self, name: str) -> None:
        self.cluster.runners.pop(name, None)

    @invariant()
    def runners_are_as_the_job_is_once_the_plan_is_empty(self) -> None:
        cluster, status = self.cluster, self.cluster.status
        seen = [one for one in cluster.runners.values() if not one.deleting]
        if any(one.deleting for one in cluster.runners.values()) or not cluster.decide().empty:
            return
        if status.is_true("Complete") or status.is_true("Failed") or status.is_true("Suspended"):
            assert all(one.wanted == 0 for one in seen)
        if status.is_true("Suspended") and status.start_time is not None:
            assert cluster.observed().runner_pods == 0
        target = status.target
        ended = status.is_true("Complete") or status.is_true("Failed")
        if target is not None and target.phase is TargetPhase.RUN and not ended:
            assert {one.name: one.wanted for one in seen} == {"calc": 2, "shell": 1}
