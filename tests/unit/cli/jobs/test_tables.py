"""Tables of jobs and events, and which pod's log is read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.cli.jobs.tables import age, aligned, event_rows, job_rows, newest_pods

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (59, "59s"), (60, "1m"), (3_599, "59m"), (7_200, "2h"), (86_400 * 3, "3d"), (-5, "0s")],
)
def test_an_age_is_in_its_largest_unit(seconds, shown):
    assert age((NOW - timedelta(seconds=seconds)).isoformat(), NOW) == shown
    assert age(None, NOW) == ""


def job(name: str, namespace: str = "lab", **status: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": namespace, "creationTimestamp": "2026-01-31T10:00:00Z"}
    return {"metadata": meta, "spec": {"rounds": 30}, "status": status}


def test_jobs_are_rows_by_namespace_and_name():
    jobs = [
        job("b", phase="Running", runtime={"round": 3, "reward": 0.4321}, rollout={"desired": 4, "ready": 3}),
        job("a", "zoo"),
        job("a"),
    ]
    assert job_rows(jobs, NOW, False) == [
        ("NAME", "PHASE", "ROUND", "REWARD", "MACHINES", "AGE"),
        ("a", "Pending", "0/30", "", "0/0", "2h"),
        ("b", "Running", "3/30", "0.432", "3/4", "2h"),
        ("a", "Pending", "0/30", "", "0/0", "2h"),
    ]
    assert [row[0] for row in job_rows(jobs, NOW, True)] == ["NAMESPACE", "lab", "lab", "zoo"]


def test_events_of_other_jobs_are_left_out_and_newer_forms_are_read():
    new = {
        "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "name": "demo-trainer-0-2"},
        "series": {"count": 4, "lastObservedTime": "2026-01-31T11:59:00Z"},
        "note": "a note",
        "type": "Warning",
        "reason": "Bad",
    }
    other = {**new, "regarding": {"kind": "Pod", "name": "demo-trainers-0-2"}}
    assert event_rows([new, other], "demo", NOW)[1:] == [
        ("1m (x4)", "Warning", "Bad", "pod/demo-trainer-0-2", "a note")
    ]


def pod(machine: str, incarnation: str) -> dict[str, Any]:
    labels = {"rljob.dev/role": machine.rpartition("-")[0], "rljob.dev/machine": machine}
    return {
        "metadata": {"name": f"demo-{machine}-{incarnation}", "labels": labels | {"rljob.dev/incarnation": incarnation}}
    }


def test_the_newest_pod_of_each_machine_is_read():
    pods = [pod("rollout-1", "1"), pod("rollout-0", "10"), pod("rollout-0", "9"), pod("rollout-0", "x")]
    assert [one["metadata"]["name"] for one in newest_pods(pods)] == ["demo-rollout-0-10", "demo-rollout-1-1"]


cell = st.text("abc ", max_size=6)


@given(st.lists(st.tuples(cell, cell, cell), min_size=1, max_size=6))
def test_columns_begin_at_the_same_place(rows):
    lines = aligned(rows)
    second = max(len(row[0]) for row in rows) + 2
    for line, row in zip(lines, rows, strict=True):
        assert line.ljust(40)[second : second + len(row[1])] == row[1]
