"""`plan` under everything that may happen, in any order: a simulated API server whose operator dies where it likes."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from operator_kit import NOW, make_job

from rljob_api.constants import LABEL_INCARNATION, LABEL_MACHINE
from rljob_api.last_accepted import accept
from rljob_api.spec import RLJob
from rljob_api.spec_training import Mode
from rljob_api.status import Phase, RLJobStatus, Role, RoundKind, RoundReport, RuntimeStatus, TargetPhase
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.observation import Node, Observed, Pod, Silence, parse_pod
from rljob_operator.policies.plan import REMOVED_SECONDS, Creation, Plan, plan
from rljob_operator.policies.pods.owned_objects import addressed_by
from rljob_operator.policies.refusal import in_order, refused

CONFIG = Config()
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

CHOICE = {"acceleratorsPerMachine": 4, "tensorParallelSize": 2, "allowedTensorParallelSizes": [1, 2, 4]}


class Cluster:
    """The API server's part: pods, the job and its status."""

    def __init__(self, job: RLJob) -> None:
        self.job = job
        self.now: datetime = NOW
        self.pods: dict[str, Pod] = {}
        self.silence: Silence | None = None
        self.nodes: dict[str, Node] = {}
        self.children = False
        self.service: int | None = None
        """The incarnation of the coordinator that is found under its name."""
        self.addressed: int | None = None
        """The same, as far as the operator knows: one that died knows nothing."""
        self.replaced = 0
        """Members of a job that runs which had started and gave their place to a successor in one write."""
        self.refused_edit: ConditionReason | None = None
        self.serial = 0
        self.unwritten: Counter[str] = Counter()
        """Pods of each machine that were made since the status was written."""

    @property
    def status(self) -> RLJobStatus:
        return self.job.status

    def observed(self) -> Observed:
        return Observed(tuple(self.pods.values()), (), self.silence, self.children, self.addressed, self.nodes)

    def decide(self) -> Plan:
        return plan(self.job, self.observed(), self.now, CONFIG, self.refused_edit)

    def apply(self, decided: Plan, steps: int = 1_000_000, refuses: str = "") -> None:
        """Do at most `steps` of the plan's writes in its order: then the operator dies."""
        made, refusals = _made(decided, refuses)
        writes: list[Callable[[], None]] = []
        selected = addressed_by(decided.children)
        if decided.children:
            writes.append(lambda: self._address(selected))
        writes += [lambda c=c: self._create(c.manifest) for c in made]
        decided = refused(decided, self.job, refusals, self.now)
        if decided.status is not None:
            writes.append(lambda: self._write(decided.status))
        writes += [lambda r=r: self._delete(r.pod, r.force) for r in decided.removals]
        for write in writes[:steps]:
            write()
        if steps < len(writes):
            self.addressed = None

    def settle(self) -> None:
        """Let the operator work until it has nothing more to say."""
        for _ in range(4):
            self.apply(self.decide())

    def start_all(self) -> None:
        """Every pod becomes ready."""
        for number, (name, pod) in enumerate(sorted(self.pods.items())):
            if pod.live:
                self.pods[name] = replace(pod, phase="Running", ready=True, ip=f"10.0.{pod.incarnation}.{number}")

    def report(self, **runtime: Any) -> None:
        """The coordinator's part of the status."""
        said = RuntimeStatus.model_validate(runtime)
        self.job = self.job.model_copy(update={"status": self.status.model_copy(update={"runtime": said})})

    def _create(self, manifest: dict[str, Any]) -> None:
        name = manifest["metadata"]["name"]
        known = self.status.incarnations.get(manifest["metadata"]["labels"][LABEL_MACHINE], 0)
        assert name not in self.pods
        # Only a pod that vanished before any operator lived to write it down may have had this name.
        assert int(manifest["metadata"]["labels"][LABEL_INCARNATION]) > known, f"{name} is used twice"
        self.serial += 1
        item = copy.deepcopy(manifest)
        item["metadata"] |= {"uid": f"uid-{self.serial}", "creationTimestamp": self.now.isoformat()}
        pod = parse_pod(item)
        assert pod is not None
        self.pods[name] = pod
        self.unwritten[pod.machine] += 1

    def _address(self, selected: int | None) -> None:
        self.children = True
        if selected is not None:
            self.service = self.addressed = selected

    def _write(self, status: RLJobStatus | None) -> None:
        assert status is not None
        self.unwritten.clear()
        mine = RLJobStatus.model_validate(status.to_dict())  # as it comes back over the wire
        runs = mine.target is not None and mine.target.phase is TargetPhase.RUN
        successors = {member.machine: member.incarnation for member in mine.members if runs}
        # One that never started may have been outdated, which is no loss.
        pending = {(pod.machine, pod.incarnation) for pod in self.pods.values() if pod.phase == "Pending"}
        for member in self.status.members:
            started = (member.machine, member.incarnation) not in pending
            self.replaced += started and successors.get(member.machine, 0) > member.incarnation
        self.job = self.job.model_copy(update={"status": mine.model_copy(update={"runtime": self.status.runtime})})

    def _delete(self, pod: Pod, force: bool = False) -> None:
        """Ended pods vanish, others terminate for a while."""
        current = self.pods.get(pod.name)
        if current is None or current.uid != pod.uid:
            return
        if force or (current.terminal and not current.lingering):
            del self.pods[pod.name]
        else:
            self.pods[pod.name] = replace(current, deleting=True)


def _made(decided: Plan, refuses: str) -> tuple[list[Creation], dict[str, ConditionReason]]:
    """The pods that are made where one is refused, role by role, and the refusal."""
    made: list[Creation] = []
    for group in in_order(decided.creations):
        made += [creation for creation in group if creation.new.machine != refuses]
        if any(creation.new.machine == refuses for creation in group):
            break
    return made, {
        c.new.machine: ConditionReason("QuotaExceeded", "") for c in decided.creations if c.new.machine == refuses
    }


class Machine(RuleBasedStateMachine):
    """Everything that users, kubelets, coordinators and time do to a job."""

    job = staticmethod(make_job)

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

    @rule(number=st.integers(0, 20), disrupted=st.booleans(), code=st.sampled_from(["Failed", "Succeeded"]))
    def pod_ends(self, number: int, disrupted: bool, code: str) -> None:
        pod = self._some_pod(number, live=True)
        if pod is not None:
            self.failures += 1
            self._set(pod, phase=code, ready=False, disrupted=disrupted)

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


def asynchronous(**changes: Any) -> RLJob:
    """The same job in mode Asynchronous."""
    job = make_job(**changes)
    return job.model_copy(update={"spec": job.spec.model_copy(update={"mode": Mode.ASYNCHRONOUS})})


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


Machine.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
Asynchronous.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestPlan = Machine.TestCase
TestAsynchronousPlan = Asynchronous.TestCase


# --- what the machine above finds by chance, step by step -------------------------------------------------------------


def running(**changes: Any) -> Cluster:
    """A job with all its pods at work."""
    cluster = Cluster(make_job(**changes))
    cluster.settle()
    cluster.start_all()
    cluster.settle()
    assert cluster.status.is_true("Ready")
    return cluster


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


def test_a_job_without_a_sandbox_is_stalled_keeps_its_pods_and_goes_on_when_there_is_one() -> None:
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


def test_a_coordinator_that_was_to_be_replaced_and_lives_gets_its_address_back() -> None:
    """It could not renew its Lease while the API server was away; the address of its successor was written, and then
    whoever would have made that one lost its own Lease."""
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
def test_nobody_is_in_the_chain_of_a_job_that_has_ended(policy: str) -> None:
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


def test_a_surge_of_preemptions_is_a_new_target_told_in_the_status_and_as_an_event() -> None:
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


def test_what_is_edited_under_a_suspension_reaches_new_pods_also_when_the_resume_overtakes_the_drain() -> None:
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


def test_operators_that_die_before_each_status_leave_coordinators_of_which_one_stays() -> None:
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
