"""Two jobs on real nodes share a quota that fits one and a half of them: machines go to and fro, and nothing is lost.

Kueue is the real one, installed by its own chart. The jobs write no checkpoint by themselves: what an eviction, a
suspension or a move does not save is lost.
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack import demo_faults
from hack.local_cluster import kube
from hack.local_cluster.private import kueue
from tests.support.e2e.kubectl import SYSTEM_NAMESPACE, Kubectl, claim, is_true
from tests.support.kueue_admission import Watch
from tests.support.paths import ROOT
from tests.support.rows import slow

pytestmark = [pytest.mark.realnodes, pytest.mark.timeout(2400)]

V = f"{kueue.GROUP}/v1beta2"
QUOTA = 700
"""Thousandths of a processor. Each pod asks for 100: a whole job for 500, a base for 300."""
UNTIL_TOLD = 100_000
ALL = 3
"""Rollout machines of a job that has the quota for itself."""
NAMES = ("one", "two")
RLJOBS = "apis/rljob.dev/v1alpha1"


# --- Kueue, and the quota ---------------------------------------------------------------------------------------------


@pytest.fixture
def kueue_on_nodes(real_nodes: Any, kubectl: Kubectl, tmp_path: Path) -> Iterator[Kubectl]:
    """Kueue, the operator's rights on it, and a queue for both jobs."""
    _install(real_nodes, tmp_path / "kueue.tar")
    kubectl.apply(*_quota())
    yield kubectl
    # While the manager runs: it takes its finalizers off what it knows.
    kubectl("delete", "rljobs", "--all", "--timeout=120s")
    kubectl.wait("no Workload is left", lambda: not kubectl.get("workloads")["items"], 60)
    kubectl("delete", "localqueue,clusterqueue,resourceflavor", "research", "--timeout=60s")
    _helm("uninstall", "kueue", "-n", kueue.NAMESPACE, "--wait")


def _install(real_nodes: Any, archive: Path) -> None:
    repository, _, tag = kueue.image(archive).rpartition(":")
    real_nodes.run("load-image", str(archive))
    of_image = {"repository": repository, "tag": tag, "pullPolicy": "Never"}
    image = [f"--set=controllerManager.manager.image.{key}={value}" for key, value in of_image.items()]
    chart = str(kueue.source() / "charts/kueue")
    _helm("install", "kueue", chart, "-n", kueue.NAMESPACE, "--create-namespace", "--wait", *image)
    rights = ["--reuse-values", "--set=kueue.enabled=true", "--wait"]
    _helm("upgrade", "rljob", str(ROOT / "charts/rljob"), "-n", SYSTEM_NAMESPACE, *rights)


def _helm(*arguments: str) -> None:
    done = subprocess.run(["helm", *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"helm {arguments[0]}: {done.stdout}{done.stderr}"


def _quota() -> list[dict[str, Any]]:
    quotas = [{"name": "cpu", "nominalQuota": f"{QUOTA}m"}, {"name": "memory", "nominalQuota": "1Ti"}]
    group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": "research", "resources": quotas}]}
    queue = {
        "namespaceSelector": {},
        "preemption": {"withinClusterQueue": "LowerPriority"},
        "resourceGroups": [group],
    }
    kinds: tuple[tuple[str, dict[str, Any]], ...] = (
        ("ResourceFlavor", {}),
        ("ClusterQueue", queue),
        ("LocalQueue", {"clusterQueue": "research"}),
    )
    return [{"apiVersion": V, "kind": kind, "metadata": {"name": "research"}, "spec": spec} for kind, spec in kinds]


def _job(name: str, rounds: int) -> list[dict[str, Any]]:
    """examples/addition-kueue.yaml under another name, with longer rounds and no checkpoint of its own accord."""
    documents = yaml.safe_load_all((ROOT / "examples/addition-kueue.yaml").read_text(encoding="utf-8"))
    job = copy.deepcopy(next(one for one in documents if one["kind"] == "RLJob"))
    job["metadata"]["name"] = name
    job["spec"] |= {"rounds": rounds, "checkpoint": {"volumeClaimName": name, "everyRounds": 1000}}
    job["spec"] |= {"runPolicy": {"cleanPodPolicy": "All"}}
    job["spec"]["algorithm"] |= {"promptsPerRound": 16}
    return [claim(name), job]


# --- what is seen -----------------------------------------------------------------------------------------------------


class Ledger:
    """What both jobs hold: a row for each change of their phases and of the machines that work."""

    def __init__(self, api: kube.Api, namespace: str) -> None:
        self.watch = Watch(api, namespace, "research", QUOTA, self._note)
        self.rounds: dict[str, list[int]] = {name: [] for name in NAMES}
        self._began = time.monotonic()
        self._rows: list[tuple[float, dict[str, Held]]] = []

    def _note(self) -> None:
        jobs = {job["metadata"]["name"]: job.get("status") or {} for job in self.watch.list(RLJOBS, "rljobs")}
        row = {name: Held.of(jobs[name]) for name in NAMES if name in jobs}
        for name, held in row.items():
            if self.rounds[name][-1:] != [held.round]:
                self.rounds[name].append(held.round)
        if not self._rows or any(held.differs(self._rows[-1][1].get(name)) for name, held in row.items()):
            self._rows.append((time.monotonic() - self._began, row))

    def machines(self, name: str) -> list[int]:
        """How many of a job's machines worked, one number after the other."""
        return [number for number, _ in groupby(row[name].machines for _, row in self._rows if name in row)]

    def table(self) -> str:
        lines = ["| s | " + " | ".join(NAMES) + " |", "|---|" + "---|" * len(NAMES)]
        for seconds, row in self._rows:
            lines.append(f"| {seconds:.0f} | " + " | ".join(str(row.get(name, "")) for name in NAMES) + " |")
        return "\n".join(lines)


@dataclass(frozen=True)
class Held:
    """What a job has at a moment."""

    phase: str
    machines: int
    round: int

    @classmethod
    def of(cls, status: dict[str, Any]) -> Held:
        machines = (status.get("rollout") or {}).get("ready") or 0
        return cls(status.get("phase", ""), machines, int((status.get("runtime") or {}).get("round") or 0))

    def differs(self, before: Held | None) -> bool:
        """In more than the round."""
        return before is None or (self.phase, self.machines) != (before.phase, before.machines)

    def __str__(self) -> str:
        return f"{self.machines}, {self.phase}, round {self.round}"


def _has(kubectl: Kubectl, name: str, machines: int) -> bool:
    """Whether a job trains on exactly so many machines."""
    job = kubectl.job(name)
    rollout = (job.get("status") or {}).get("rollout") or {}
    return is_true(job, "Ready") and rollout["ready"] == machines == rollout["desired"]


def _events(kubectl: Kubectl, name: str, reason: str) -> int:
    """How often Kueue told this of a Workload of a job's machine above its base."""
    found = kubectl.get("events")["items"]
    said = [one for one in found if one["involvedObject"]["kind"] == "Workload" and one["reason"] == reason]
    return sum(_count(one) for one in said if one["involvedObject"]["name"].startswith(f"{name}-rollout-"))


def _count(event: dict[str, Any]) -> int:
    return int((event.get("series") or {}).get("count") or event.get("count") or 1)


# --- the test ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "length",
    slow((12, 0), (50, 2)),  # in make test: tests/integration/operator/test_kueue.py
    ids=str,
)
def test_two_jobs_share_one_and_a_half_quotas(
    kueue_on_nodes: Kubectl, real_nodes: Any, length: tuple[int, int]
) -> None:
    """`length`: of so many rounds at least, where one rests for the other so often."""
    rounds, turns = length
    kubectl, ledger = kueue_on_nodes, Ledger(real_nodes.api, kueue_on_nodes.namespace)
    with ledger.watch:
        try:
            made = _share(kubectl, rounds, turns)
        finally:
            print(ledger.table())
    ledger.watch.check()
    told = {name: {reason: _events(kubectl, name, reason) for reason in ("Preempted", "Admitted")} for name in NAMES}
    print(f"surplus Workloads: {told}")
    # One loses a machine when two comes, and each loses one to the other when that is resumed.
    assert told["one"]["Preempted"] >= 1 + (turns + 1) // 2
    assert told["two"]["Preempted"] >= turns // 2
    assert told["one"]["Admitted"] >= ALL - 1 + (turns + 1) // 2
    assert ledger.machines("one").count(ALL) >= 1 + (turns + 1) // 2
    assert ALL - 1 in ledger.machines("one"), "and not the whole job"
    for name in NAMES:
        assert all(before < after for before, after in pairwise(ledger.rounds[name])), "no round was made twice"
        assert kubectl.rounds(name) == made[name] >= rounds
        _nothing_is_lost(kubectl, name)


def _share(kubectl: Kubectl, rounds: int, turns: int) -> dict[str, int]:
    """Run the jobs; say how many rounds each job was to make. The first one goes on until both have shared."""
    kubectl.apply(*_job("one", UNTIL_TOLD))
    kubectl.wait("one has all machines", lambda: _has(kubectl, "one", ALL), 300)
    kubectl.apply(*_job("two", rounds))
    kubectl.wait("two has its base, and one the rest", lambda: _has(kubectl, "two", 1) and _has(kubectl, "one", 2), 300)
    for turn in range(turns):
        rests, grows = NAMES[1 - turn % 2], NAMES[turn % 2]
        _suspend(kubectl, rests, True)
        kubectl.wait(f"{grows} has all machines", lambda grows=grows: _has(kubectl, grows, ALL), 300)
        _suspend(kubectl, rests, False)
        kubectl.wait(f"{rests} has its base again", lambda rests=rests: _has(kubectl, rests, 1), 300)
    made = {"one": max(rounds, kubectl.rounds("one") + 5), "two": rounds}
    _patch(kubectl, "one", {"rounds": made["one"]})
    for name in NAMES:
        kubectl.wait(f"{name} completes", lambda name=name: is_true(kubectl.job(name), "Complete"), 900)
    return made


def _suspend(kubectl: Kubectl, name: str, suspend: bool) -> None:
    _patch(kubectl, name, {"suspend": suspend})


def _patch(kubectl: Kubectl, name: str, spec: dict[str, Any]) -> None:
    kubectl("patch", "rljob", name, "--type=merge", "-p", json.dumps({"spec": spec}))


def _nothing_is_lost(kubectl: Kubectl, name: str) -> None:
    """The audit of the job's history, once no process writes it."""
    kubectl.wait(f"{name}'s pods are gone", lambda: not kubectl.get("pods", "-l", f"rljob.dev/job={name}")["items"])
    cluster = demo_faults.local_cluster(os.environ["KUBECONFIG"])
    assert cluster is not None
    verdict = demo_faults.history(cluster, kubectl.get("pvc", name)["spec"]["volumeName"])
    assert verdict.get("findings") == [], verdict
    assert (verdict["lost"], verdict["duplicated"]) == (0, 0)
