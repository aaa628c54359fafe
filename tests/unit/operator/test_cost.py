"""What one job may cost the operator: a plan of the largest job, its memory, and the turns of the event loop."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from rljob_api import RLJob, load
from rljob_api.constants import MAX_SPEC_LENGTH
from rljob_api.status import Role
from rljob_operator import reconciler as reconciler_module
from rljob_operator.api_access import ApiAccess
from rljob_operator.metrics import Metrics
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.kueue_objects import ASKS, Kueue, base_name, parse_workload, surplus_name
from rljob_operator.policies.base.observation import Node, Observed, Pod
from rljob_operator.policies.kueue import workloads
from rljob_operator.policies.phases.steps import Plan
from rljob_operator.policies.plan import plan
from rljob_operator.reconciler import Reconciler
from rljob_operator.workqueue import WorkQueue
from tests.support.operator.harness import NOW, manifest
from tests.support.operator.large_jobs import MACHINES, largest
from tests.support.paths import ROOT
from tests.support.processor_time import growth

CONFIG = Config(runtime_image="example/runtime:1")


FEW, MANY = MACHINES // 4, MACHINES
GROWTH = 12.0
"""Four times the machines take at most that many times as long: a cost per machine is 4, one per pair is 16."""


def planned(case: Callable[[int], tuple[RLJob, Observed]]) -> tuple[Plan, float]:
    """The plan of many machines, and how many times as long it takes as that of few."""
    few, many = (partial(plan, *case(machines), NOW, CONFIG) for machines in (FEW, MANY))
    return many(), growth(few, many)


def everything_runs(job: RLJob) -> Observed:
    """What is seen once all pods of the first plan run."""
    pods = [
        Pod(
            creation.manifest["metadata"]["name"],
            f"uid-{creation.new.machine}",
            creation.new.role,
            creation.new.machine,
            1,
            shape=creation.manifest["metadata"]["labels"]["rljob.dev/shape"],
            phase="Running",
            ready=True,
            ip="10.9.9.9",
            node="n",
        )
        for creation in plan(job, Observed(), NOW, CONFIG).creations
    ]
    return Observed(tuple(pods), children_present=True)


def queued(job: RLJob, machines: int, admitted: bool) -> Observed:
    """A job that asks Kueue for quota: its base is admitted, and perhaps the Workload of each machine above it."""
    base = base_name(job.name)
    asks = {name: workloads.asks(job, roles, CONFIG) for name, roles in ((base, tuple(Role)), ("", (Role.ROLLOUT,)))}

    def workload(name: str, counts: dict[str, int]) -> Any:
        admission = {
            "clusterQueue": "cq",
            "podSetAssignments": [{"name": one, "count": n} for one, n in counts.items()],
        }
        conditions = [{"type": one, "status": "True"} for one in ("QuotaReserved", "Admitted")]
        return parse_workload(
            {
                "metadata": {"name": name, "uid": name, "annotations": {ASKS: asks.get(name, asks[""])}},
                "spec": {"queueName": "lq", "podSets": [{"name": one, "count": n} for one, n in counts.items()]},
                "status": {"admission": admission, "conditions": conditions},
            }
        )

    found = {base: workload(base, {"coordinator": 1, "trainer": 1, "rollout": 1})}
    if admitted:
        found |= {
            name: workload(name, {"rollout": 1}) for k in range(1, machines) if (name := surplus_name(job.name, k))
        }
    return Observed(kueue=Kueue("lq", None, found), children_present=True)


def document_of(machines: int, **changes: Any) -> dict[str, Any]:
    """A job without a long template, whose cost would be the same for few and many."""
    document = largest(machines, **changes)
    del document["spec"]["rollout"]["template"]
    return document


def first_status(document: dict[str, Any]) -> dict[str, Any]:
    """The status of the first plan, as the server has it."""
    first = plan(load(document), Observed(), NOW, CONFIG).status
    assert first is not None
    return dict(json.loads(json.dumps(first.to_dict())))


def test_the_largest_job_has_a_plan() -> None:
    job = load(largest())
    assert 0.97 * MAX_SPEC_LENGTH < len(job.spec.to_json()) <= MAX_SPEC_LENGTH
    assert len(plan(job, Observed(), NOW, CONFIG).creations) == MACHINES + 2


def test_a_first_plan_costs_so_much_a_machine() -> None:
    found, times = planned(lambda machines: (load(document_of(machines)), Observed()))
    assert len(found.creations) == MANY + 2
    assert times < GROWTH


def test_so_does_every_later_one() -> None:
    def case(machines: int) -> tuple[RLJob, Observed]:
        document = document_of(machines)
        return load({**document, "status": first_status(document)}), everything_runs(load(document))

    found, times = planned(case)
    assert found.creations == ()
    assert found.status is not None
    assert len(found.status.relay.chain) == MANY
    assert times < GROWTH


def suspected_everywhere(machines: int) -> tuple[RLJob, Observed]:
    """Every machine is suspected, in every one of 20 racks."""
    document = document_of(machines)
    document["spec"]["relay"] = {"topologyKeys": ["rack"]}
    status = first_status(document)
    since, said = "2026-01-31T11:00:00Z", ["coordinator", "rollout-1000"]
    suspects = [
        {"machine": f"rollout-{number}", "incarnation": 1, "reason": "HeartbeatLost", "witnesses": said, "since": since}
        for number in range(machines)
    ]
    status["runtime"] = {"suspects": suspects}
    seen = everything_runs(load(document))
    hosts = machines * 300 // MACHINES
    pods = tuple(replace(pod, node=f"n{number % hosts}") for number, pod in enumerate(seen.pods))
    nodes = {f"n{number}": Node(f"n{number}", labels={"rack": f"r{number % 20}"}) for number in range(hosts)}
    return load({**document, "status": status}), replace(seen, pods=pods, nodes=nodes)


def test_so_does_one_for_which_every_machine_is_suspected_in_every_rack() -> None:
    found, times = planned(suspected_everywhere)
    assert found.status is not None
    assert len(found.status.relay.chain) == MANY
    assert times < GROWTH


@pytest.mark.parametrize("admitted", [False, True], ids=["asks", "has"])
def test_so_does_one_that_asks_for_many_quotas(admitted: bool) -> None:
    def case(machines: int) -> tuple[RLJob, Observed]:
        document = document_of(machines, minMachines=1, maxMachines=machines)
        document["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "lq"}
        job = load(document)
        return job, queued(job, machines, admitted)

    found, times = planned(case)
    assert found.settled or found.asked
    assert times < GROWTH


def test_a_manifest_is_made_when_it_is_asked_for() -> None:
    found = plan(load(largest()), Observed(), NOW, CONFIG)
    one, other = (creation for creation in found.creations if creation.new.machine in ("rollout-7", "rollout-8"))
    assert one.manifest is not one.manifest
    for creation in (one, other):
        main = creation.manifest["spec"]["containers"][0]
        names = {entry["name"]: entry.get("value") for entry in main["env"]}
        assert names["RLJOB_MACHINE"] == creation.new.machine
        assert creation.manifest["metadata"]["labels"]["rljob.dev/machine"] == creation.new.machine
        assert creation.manifest["metadata"]["name"] == f"demo-{creation.new.machine}-1"


MEMORY = """
import json, resource, sys
sys.path.insert(0, {root!r})
from {module} import CONFIG, NOW, Observed, largest, load, plan
document = largest()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for creation in plan(load(document), Observed(), NOW, CONFIG).creations[::8]:
    json.dumps(creation.manifest)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_the_largest_job_takes_less_than_200_megabytes() -> None:
    """Loaded, planned, and its pods written as they would be sent, one after the other."""
    program = MEMORY.format(root=str(ROOT), module=__name__)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert int(done.stdout) * 1024 < 200e6


# --- the event loop ---------------------------------------------------------------------------------------------------


class FakeCluster:
    """The client's, the observer's and the actor's part: one job that is there."""

    def __init__(self, documents: dict[str, dict[str, Any]]) -> None:
        self.documents = documents
        self.planned: list[str] = []
        self.both = asyncio.Event()

    async def find(self, resource: Any, namespace: str, name: str) -> dict[str, Any]:
        return self.documents[name]

    async def observe(self, job: RLJob) -> Observed:
        return Observed()

    async def restored(self, document: dict[str, Any]) -> dict[str, Any]:
        return document

    async def apply(self, job: RLJob, found: Plan, now: Any) -> Plan:
        self.planned.append(job.name)
        if len(self.planned) == 2:
            self.both.set()
        return found

    def set_address(self, job: RLJob, incarnation: int | None) -> None:
        return

    def mark_created(self, job: RLJob) -> None:
        return


async def _longest_turn(stop: asyncio.Event) -> float:
    """The most processor time that this thread took between two looks."""
    longest, last = 0.0, time.thread_time()
    while not stop.is_set():
        await asyncio.sleep(0.001)
        now = time.thread_time()
        longest, last = max(longest, now - last), now
    return longest


async def test_other_jobs_and_the_loop_go_on_while_the_largest_job_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[threading.Thread] = []

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            computed.append(threading.current_thread())
            return function(*args)

        return call

    for name in ("admit", "plan"):
        monkeypatch.setattr(reconciler_module, name, noted(getattr(reconciler_module, name)))
    small = manifest()
    small["metadata"] |= {"uid": "2", "generation": 1, "resourceVersion": "7"}
    cluster: Any = FakeCluster(
        {"large": {**largest(), "metadata": {**largest()["metadata"], "name": "large"}}, "small": small}
    )
    small["metadata"]["name"] = "small"
    reconciler = Reconciler(ApiAccess(cluster, cluster, Metrics()), cluster, cluster, CONFIG)
    queue: WorkQueue[tuple[str, str]] = WorkQueue(reconciler)
    stop = asyncio.Event()
    serving = asyncio.create_task(queue.run(stop))
    watching = asyncio.create_task(_longest_turn(stop))
    queue.add(("default", "large"))
    await asyncio.sleep(0.01)
    queue.add(("default", "small"))
    async with asyncio.timeout(60):
        await cluster.both.wait()
    stop.set()
    await serving
    assert await watching < 0.05
    assert cluster.planned[0] == "small"
    assert len(computed) == 4
    assert threading.current_thread() not in computed
