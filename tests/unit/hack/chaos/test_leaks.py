"""What a job leaves behind after its end, and after its deletion."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from hack.chaos import leaks
from hack.chaos.faults.pods import NotPossible
from hack.chaos.leaks import LABELS, SECONDS, of_deleted, of_ended

JOB, UID = "chaos", "uid-1"


def thing(kind: str, name: str, label: str | None = LABELS[0], owner: str | None = None, **more: Any) -> dict[str, Any]:
    owners = [{"uid": owner}] if owner is not None else []
    metadata = {"name": name, "labels": {label: JOB} if label else {}, "ownerReferences": owners}
    return {"kind": kind, "metadata": metadata, **more}


SECRET = thing("Secret", "chaos-auth", owner=UID)
ENDED = thing("Pod", "chaos-trainer-0", status={"phase": "Succeeded"})
SCALED = thing("Deployment", "chaos-calc", spec={"replicas": 0})
OTHERS = [
    thing("Pod", "tools", None, status={"phase": "Running"}),
    thing("Deployment", "tools", None, spec={"replicas": 1}),
]


@pytest.mark.parametrize(
    ("objects", "found"),
    [
        ([], []),
        ([ENDED, SECRET, SCALED, *OTHERS], []),
        ([thing("Pod", "chaos-rollout-1", status={"phase": "Running"})], ["pod/chaos-rollout-1"]),
        ([thing("Pod", "chaos-calc-x", LABELS[1], status={"phase": "Pending"})], ["pod/chaos-calc-x"]),
        ([thing("Deployment", "chaos-calc", spec={"replicas": 2})], ["deployment/chaos-calc"]),
        ([thing("Deployment", "chaos-egress", spec={})], ["deployment/chaos-egress"]),
    ],
    ids=["nothing", "what may be looked at", "a machine", "a runner", "runners to come", "a proxy"],
)
def test_an_ended_job_has_no_pod_that_runs(objects: list[dict[str, Any]], found: list[str]) -> None:
    assert of_ended(objects, JOB) == found


@pytest.mark.parametrize(
    ("objects", "found"),
    [
        (OTHERS, []),
        ([SECRET], ["secret/chaos-auth"]),
        ([ENDED], ["pod/chaos-trainer-0"]),
        ([thing("Service", "chaos", None, UID)], ["service/chaos"]),
        ([thing("Service", "chaos", None, "uid-2")], []),
        ([thing("ReplicaSet", "chaos-egress-1", LABELS[2])], ["replicaset/chaos-egress-1"]),
    ],
    ids=[
        "nothing of it",
        "a Secret",
        "a pod that ended",
        "what it owns",
        "what another job owns",
        "what its proxy owns",
    ],
)
def test_nothing_is_left_of_a_deleted_job(objects: list[dict[str, Any]], found: list[str]) -> None:
    assert of_deleted(objects, JOB, UID) == found


class Cluster:
    """The API server's answers: what each look finds."""

    def __init__(self, *looks: list[dict[str, Any]], refuses: str = "none") -> None:
        self.looks = list(looks)
        self.told: list[str] = []
        self._refuses = refuses

    def kubectl(self, *args: str) -> str:
        self.told.append(args[0])
        if args[0] == self._refuses:
            raise NotPossible("no answer")
        if args[:2] == ("get", "rljob"):
            return UID
        if args[0] == "delete":
            return ""
        return json.dumps({"items": self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that only sleeping takes."""
    passed = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: passed[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: passed.__setitem__(0, passed[0] + seconds))
    return passed


def test_what_goes_within_the_time_is_no_leak(clock: list[float]) -> None:
    running = thing("Pod", "chaos-rollout-1", status={"phase": "Running"})
    assert leaks.count(Cluster([running, SECRET], [SECRET], [SECRET], []), JOB, ended=True) == 0  # type: ignore[arg-type]
    assert clock[0] == 2.0


def test_what_stays_is_told_and_counted(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    running = thing("Pod", "chaos-rollout-1", status={"phase": "Running"})
    assert leaks.count(Cluster([running, SECRET]), JOB, ended=True) == 3  # type: ignore[arg-type]
    told = capsys.readouterr().out.splitlines()
    assert told == [
        "chaos: leaked: pod/chaos-rollout-1 of the ended job",
        "chaos: leaked: pod/chaos-rollout-1 of the deleted job",
        "chaos: leaked: secret/chaos-auth of the deleted job",
    ]
    assert 2 * SECONDS <= clock[0] < 2 * SECONDS + 3


def test_a_job_that_did_not_end_is_deleted_only(clock: list[float]) -> None:
    cluster = Cluster([])
    assert leaks.count(cluster, JOB, ended=False) == 0  # type: ignore[arg-type]
    assert cluster.told == ["get", "delete", "get"]


def test_without_an_answer_leaks_are_unknown(clock: list[float]) -> None:
    assert leaks.count(Cluster([], refuses="delete"), JOB, ended=True) == "unknown"  # type: ignore[arg-type]
