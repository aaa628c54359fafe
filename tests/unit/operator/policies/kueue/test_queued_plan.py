"""A job on quota under events in any order: no pod runs outside of its quota."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from rljob_operator.policies.base.kueue_objects import parse_workload, workload_of
from rljob_operator.policies.base.observation import Pod
from tests.support.examples import examples
from tests.support.operator.environment_jobs import CALC, SHELL
from tests.support.operator.plan_cluster import asynchronous
from tests.support.operator.plan_machine import Asynchronous
from tests.support.operator.plan_queue import UID, ZONE, Queued


class QueuedMachine(Asynchronous):
    """The same job on quota: Kueue admits and evicts what it likes, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster: Queued = Queued(self.cluster.job)

    def _one(self, number: int, reserved: bool) -> str | None:
        names = [name for name in self.cluster.workloads if self.cluster.parsed(name).reserved is reserved]
        return names[number % len(names)] if names else None

    @rule(number=st.integers(0, 5))
    def kueue_admits(self, number: int) -> None:
        name = self._one(number, reserved=False)
        if name is not None and not self.cluster.parsed(name).holds("Finished"):
            self.cluster.admit(name)

    @rule(number=st.integers(0, 5))
    def kueue_evicts(self, number: int) -> None:
        name = self._one(number, reserved=True)
        if name is not None:
            self.cluster.evict(name)

    @rule()
    def the_flavor_is_made_again_or_deleted(self) -> None:
        self.cluster.flavors = {} if self.cluster.flavors else {"zone-1": ZONE}

    @invariant()
    def no_pod_runs_outside_of_its_quota(self) -> None:
        """A pod that may run, or has not gone, stands for quota that is held; and never are there more than fit."""
        kueue = self.cluster.observed().kueue
        assert kueue is not None
        pods: dict[str, list[Pod]] = {}
        judged = self.cluster.observed().with_condemned(self.cluster.status)
        for pod in judged.pods:
            if pod.occupies:
                found = workload_of(self.cluster.job.name, pod.machine, kueue)
                assert found is not None, f"{pod.name} makes no request"
                assert found.reserved, f"{pod.name} runs for {found.name}, which holds no quota"
                pods.setdefault(found.name, []).append(pod)
        for name, some in pods.items():
            one = kueue.workloads[name]
            live = {pod.machine for pod in some if pod.live and not pod.deleting}
            for pod_set in one.counts:
                members = {machine for machine in live if machine.startswith(f"{pod_set}-")}
                target = set(self.cluster.machines()) if self.cluster.status.target else set()
                wanted = members & target if pod_set == "rollout" else members
                assert len(wanted) <= one.slots(pod_set), f"{sorted(wanted)} for {name}"

    @invariant()
    def every_workload_is_the_jobs_and_named_for_what_it_is(self) -> None:
        names = {"demo-base", *(f"demo-rollout-{index}" for index in range(9))}
        for name, item in self.cluster.workloads.items():
            assert name in names
            assert [owner["uid"] for owner in item["metadata"]["ownerReferences"]] == [UID]


QueuedMachine.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=30)
TestQueuedPlan = QueuedMachine.TestCase


class QueuedWithEnvironments(QueuedMachine):
    """The same with runners, whose controller is late: it may still create pods that are not wanted any more."""

    job = staticmethod(partial(asynchronous, environments=[CALC, SHELL]))

    @initialize()
    def it_is_at_work(self) -> None:
        """Few random steps lead there, and what quota covers begins there."""
        self.cluster.settle()
        self.cluster.admit_all()
        self.cluster.settle()
        self.cluster.start_all()

    @rule(answers=st.booleans())
    def the_base_is_evicted(self, answers: bool) -> None:
        """The coordinator saves its state, or there is none."""
        if "demo-base" not in self.cluster.workloads:
            return
        self.cluster.evict("demo-base")
        self.cluster.settle()
        if answers:
            target = self.cluster.status.target
            self._report(applied=target.revision if target is not None else None, stage="Suspended")
            self.cluster.settle()
            self.cluster.bury()

    @rule()
    def the_controller_catches_up(self) -> None:
        self.cluster.run_runners()

    @rule(name=st.sampled_from(["calc", "shell"]))
    def the_controller_creates_pods_for_an_earlier_number(self, name: str) -> None:
        one = self.cluster.runners.get(name)
        if one is not None and not one.current:
            self.cluster.runners[name] = replace(one, pods=2)

    @invariant()
    def no_runner_runs_outside_of_its_quota(self) -> None:
        base = self.cluster.workloads.get("demo-base")
        if base is None or not parse_workload(base).reserved:
            assert {name: one.pods for name, one in self.cluster.runners.items() if one.pods} == {}


QueuedWithEnvironments.TestCase.settings = settings(max_examples=examples(50), stateful_step_count=30)
TestQueuedPlanWithEnvironments = QueuedWithEnvironments.TestCase
