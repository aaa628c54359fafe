"""A status is written past a coordinator that reports all the time, and not past any other change of the job."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_kube.connection import Connection
from rljob_operator.policies.status.write_conflict import only_reported
from tests.support.operator.harness import Server, make_job, manifest, merged
from tests.support.operator.process_lives import process, settle

STATUS = {
    "phase": "Running",
    "members": [{"machine": "rollout-0", "incarnation": 1, "role": "Rollout"}],
    "runtime": {"round": 3},
}
CHANGES: dict[str, tuple[dict[str, Any], bool]] = {
    "nothing": ({}, True),
    "another version": ({"metadata": {"resourceVersion": "8"}}, True),
    "a report": (
        {"metadata": {"resourceVersion": "8"}, "status": {"runtime": {"round": 4, "stage": "Training"}}},
        True,
    ),
    "another spec": ({"metadata": {"generation": 2}}, False),
    "another job": ({"metadata": {"uid": "other"}}, False),
    "a deletion": ({"metadata": {"deletionTimestamp": "2026-01-31T12:00:00Z"}}, False),
    "a label": ({"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team"}}}, False),
    "another operator": ({"status": {"members": []}}, False),
    "a status that is none": ({"status": {"members": "many"}}, False),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_counts_as_a_report_alone(what: str) -> None:
    job = make_job(STATUS)
    now = manifest() | {"metadata": {"name": "demo", "namespace": "default"}, "status": STATUS}
    now["metadata"] |= {"uid": "11111111-2222", "generation": 1, "resourceVersion": "7"}
    change, alone = CHANGES[what]
    assert only_reported(job, merged(now, change)) is alone


@pytest.mark.cluster
async def test_frequent_reports_block_no_write(connection: Connection, server: Server) -> None:
    """Before each write of the operator comes a report, twice in a row."""
    await server.apply_job("j")
    reports = 0

    async with process(connection, server.namespace) as (kube, reconcile):
        send = kube._send

        async def reported(method: str, path: str, *args: Any) -> Any:
            nonlocal reports
            if method == "PATCH" and path.endswith("/status") and reports % 3 < 2:
                reports += 1
                await server.report("j", event=reports)
            elif method == "PATCH" and path.endswith("/status"):
                reports += 1
            return await send(method, path, *args)

        kube._send = reported  # type: ignore[method-assign]
        await settle(reconcile, (server.namespace, "j"), rounds=1)
    job = await server.job("j")
    assert reports == 3
    assert len(job["status"]["members"]) == 4
    assert job["status"]["runtime"]["event"] == 2
