"""A simulated API server for `plan`: pods, the job and its status."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from rljob_api.constants import LABEL_INCARNATION, LABEL_MACHINE
from rljob_api.spec import RLJob
from rljob_api.spec.training import Mode
from rljob_api.status import RLJobStatus, RuntimeStatus, TargetPhase
from rljob_kube.manifests import pods as manifests
from rljob_kube.manifests.objects import Deployment
from rljob_kube.resources import Json
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.observation import Node, Observed, Pod, Silence, parse_pod
from rljob_operator.policies.base.runners import PROXY, Runners, parse_runners
from rljob_operator.policies.creation import Creation
from rljob_operator.policies.phases.steps import Plan
from rljob_operator.policies.plan import plan
from rljob_operator.policies.pods.owned_objects import addressed_by
from rljob_operator.policies.refusal import in_order, refused
from tests.support.operator.harness import NOW, make_job

CONFIG = Config()


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
        self.runners: dict[str, Runners] = {}
        self.applied: list[tuple[str, int]] = []
        """Each apply of a Deployment: environment and number of pods."""
        self.unwritten: Counter[str] = Counter()
        """Pods of each machine that were made since the status was written."""

    @property
    def status(self) -> RLJobStatus:
        return self.job.status

    def observed(self) -> Observed:
        pods = tuple(self.pods.values())
        runners = dict(self.runners)
        proxy = runners.pop(PROXY, None)
        return Observed(pods, (), self.silence, self.children, self.addressed, self.nodes, runners=runners, proxy=proxy)

    def decide(self) -> Plan:
        return plan(self.job, self.observed(), self.now, CONFIG, self.refused_edit)

    def apply(self, decided: Plan, steps: int = 1_000_000, refuses: str = "") -> None:
        """Do at most `steps` of the plan's writes in its order: then the operator dies."""
        made, refusals = _made(decided, refuses)
        writes: list[Callable[[], None]] = []
        selected = addressed_by(decided.children)
        if decided.children:
            writes.append(lambda: self._address(selected))
        writes += [partial(self._create, one.manifest) for one in made]
        writes += [partial(self._apply, manifest) for manifest in decided.deployments if not refusals]
        decided = refused(decided, self.job, refusals, self.now)
        if decided.status is not None:
            writes.append(partial(self._write, decided.status))
        writes += [partial(self._delete, one.pod, one.force) for one in decided.removals]
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
        self.run_runners()

    def run_runners(self) -> None:
        """The controller of Deployments and the kubelets have done what each Deployment says."""
        for name, one in self.runners.items():
            self.runners[name] = replace(one, pods=one.wanted, ready=one.wanted, current=True)

    def report(self, **runtime: Any) -> None:
        """The coordinator's part of the status."""
        said = RuntimeStatus.model_validate(runtime)
        self.job = self.job.model_copy(update={"status": self.status.model_copy(update={"runtime": said})})

    def _create(self, manifest: manifests.Pod) -> None:
        name = manifest["metadata"]["name"]
        known = self.status.incarnations.get(manifest["metadata"]["labels"][LABEL_MACHINE], 0)
        assert name not in self.pods
        # Only a pod that vanished before any operator lived to write it down may have had this name.
        assert int(manifest["metadata"]["labels"][LABEL_INCARNATION]) > known, f"{name} is used twice"
        self.serial += 1
        item: Json = {**copy.deepcopy(manifest)}
        item["metadata"] |= {"uid": f"uid-{self.serial}", "creationTimestamp": self.now.isoformat()}
        pod = parse_pod(item)
        assert pod is not None
        self.pods[name] = pod
        self.unwritten[pod.machine] += 1

    def _apply(self, manifest: Deployment) -> None:
        """Server-side apply: the status stays, as its controller wrote it."""
        self.serial += 1
        item: Json = {**manifest, "metadata": {**manifest["metadata"], "uid": f"uid-{self.serial}"}}
        made = parse_runners(item)
        assert made is not None
        before = self.runners.get(made.name, made)
        self.runners[made.name] = replace(made, uid=before.uid, ready=before.ready, pods=before.pods, current=False)
        self.applied.append((made.name, made.wanted))

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
        if force or not (current.occupies or current.lingering):
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


def asynchronous(**changes: Any) -> RLJob:
    """The same job in mode Asynchronous."""
    job = make_job(**changes)
    return job.model_copy(update={"spec": job.spec.model_copy(update={"mode": Mode.ASYNCHRONOUS})})


def running(**changes: Any) -> Cluster:
    """A job with all its pods at work."""
    cluster = Cluster(make_job(**changes))
    cluster.settle()
    cluster.start_all()
    cluster.settle()
    assert cluster.status.is_true("Ready")
    return cluster
