"""Objects as large, and as deep, as an API server takes them: the operator reads them, and serves the others beside."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from typer.testing import CliRunner

from rljob_kube.resources import RLJOB
from rljob_runtime.cli import app
from tests.support.operator.harness import Server, condition, manifest, merged, patch
from tests.support.operator.large_jobs import largest

pytestmark = pytest.mark.cluster

APPLY = "application/apply-patch+yaml"


async def apply(server: Server, body: dict[str, Any]) -> None:
    await patch(server.kube, RLJOB.path(server.namespace, body["metadata"]["name"]), body, APPLY, manager="kubectl")


def document(server: Server, **changes: Any) -> dict[str, Any]:
    """A job of two machines whose spec and annotations are as long as they may be."""
    found = merged(largest(machines=2), {"spec": changes})
    notes = {f"example.com/note-{number}": "x" * 50_000 for number in range(5)}
    found["metadata"] = {"name": "large", "namespace": server.namespace, "annotations": notes}
    return found


async def test_a_job_as_large_as_it_may_be_is_looked_after(
    server: Server, operator: Any, apiserver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await apply(server, document(server))
    await server.until(lambda j: (j.get("status") or {}).get("members"), "large")
    await server.start_all("large")
    job = await server.until(lambda j: condition(j, "Ready") == "True/RoundsProgressing", "large")
    assert len(json.dumps(job)) > 850_000
    await apply(server, document(server, rounds=5))
    await server.until(lambda j: j["status"]["observedGeneration"] == 2, "large")
    monkeypatch.setenv("KUBECONFIG", str(apiserver.kubeconfig))
    shown = await asyncio.to_thread(CliRunner().invoke, app, ["status", "large", "-n", server.namespace])
    assert shown.exit_code == 0, shown.output


@pytest.mark.parametrize("depth", [300, 9000])
async def test_a_deeply_nested_job_stops_no_other_job(server: Server, operator: Any, depth: int) -> None:
    deep = "[" * depth + "]" * depth
    body = json.dumps(manifest("deep", server.namespace)).replace(
        '"rollout": {', f'"rollout": {{"template": {{"spec": {{"aNewField": {deep}}}}}, ', 1
    )
    path = f"{RLJOB.path(server.namespace, 'deep')}?fieldManager=kubectl"
    await server.kube._send("PATCH", path, body.encode(), {}, {"Content-Type": APPLY})
    await server.until(lambda j: condition(j, "Stalled") == "True/InvalidSpec", "deep")
    await server.apply_job("other")
    await server.until(lambda j: (j.get("status") or {}).get("members"), "other")
