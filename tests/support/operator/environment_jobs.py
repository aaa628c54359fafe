"""Jobs with environments, for the operator's tests, and the part of the controller of Deployments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljob_api.constants import LABEL_ENVIRONMENT, LABEL_JOB
from rljob_api.spec import RLJob
from rljob_kube.resources import DEPLOYMENT
from tests.support.operator.harness import Server, make_job, merged, patch

Json = dict[str, Any]

CALC: Json = {
    "name": "calc",
    "kind": "Tools",
    "tools": [{"function": "calculator.py:add"}, {"mcp": {"url": "http://search.tools.svc:9000/mcp"}}],
    "runners": 2,
}
SHELL: Json = {"name": "shell", "kind": "Agent", "command": ["python", "agent.py"]}


def with_environments(*environments: Json, status: Mapping[str, Any] | None = None, **changes: Any) -> RLJob:
    """A job with these environments, or with one called `calc` that has two runners."""
    return make_job(status, environments=list(environments or (CALC,)), **changes)


def calc(**changes: Any) -> Json:
    """The environment `calc` with changes."""
    return merged(CALC, changes)


async def deployments(server: Server, job: str = "demo") -> dict[str, Json]:
    """The Deployments of a job, by environment."""
    items = await server.kube.list(DEPLOYMENT, server.namespace, labels=f"{LABEL_JOB}={job}")
    return {item["metadata"]["labels"][LABEL_ENVIRONMENT]: item for item in items}


async def set_runners(server: Server, name: str, ready: int, **more: Any) -> None:
    """The controller's report about the newest Deployment of this name."""
    live = await server.kube.get(DEPLOYMENT, server.namespace, name)
    pods = {"replicas": ready, "updatedReplicas": ready, "readyReplicas": ready, "availableReplicas": ready}
    path = DEPLOYMENT.path(server.namespace, name, "status")
    await patch(
        server.kube,
        path,
        {"status": {**pods, "observedGeneration": live["metadata"]["generation"], **more}},
        "application/merge-patch+json",
    )


async def run_runners(server: Server, job: str = "demo") -> None:
    """All pods that the Deployments of a job want exist and are ready, or are gone."""
    for item in (await deployments(server, job)).values():
        await set_runners(server, item["metadata"]["name"], item["spec"]["replicas"])
