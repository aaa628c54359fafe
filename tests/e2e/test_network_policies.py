"""A namespace in which every connection is denied: a job trains there by the policies of the guide and its own."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from rljob_api import load
from rljob_api.constants import HEALTH_PORT, RAY_PORT
from rljob_operator.policies.pods import egress
from tests.support.e2e.kubectl import Kubectl
from tests.support.e2e.life import Clock, begin, ends_with_every_response_trained_on_once
from tests.support.e2e.policies import guide_policies

pytestmark = [pytest.mark.realnodes, pytest.mark.timeout(900)]

JOB = "denied"
PORT = 8080


@pytest.mark.slow  # agents train so in tests/e2e/test_agents.py
def test_a_job_trains_where_every_connection_is_denied(
    kubectl: Kubectl, minimal: dict[str, Any], real_nodes: Any, enforced: None
) -> None:
    deny, allow = guide_policies(real_nodes.api.server)
    kubectl.apply(_pod("web", "python", "-m", "http.server", str(PORT)), _pod("caller", "sleep", "3600"))
    web = _address(kubectl, "web")
    _address(kubectl, "caller")
    kubectl.wait("an answer", lambda: kubectl.reaches("caller", web, PORT), 60)
    kubectl.apply(deny)
    kubectl.wait("the same connection is refused", lambda: not kubectl.reaches("caller", web, PORT), 60)

    kubectl.apply(allow)
    clock = Clock()
    begin(kubectl, minimal, JOB, rollout={**minimal["spec"]["rollout"], "machines": 2})
    trained = clock.seconds
    (coordinator,) = kubectl.pods(JOB, "coordinator")
    address = coordinator["status"]["podIP"]
    with _elsewhere() as stranger:
        kubectl.wait("anybody reads health", lambda: stranger.reaches("caller", address, HEALTH_PORT), 60)
        assert not stranger.reaches("caller", address, RAY_PORT), "none but the job's own pods reach its Ray"
    assert not kubectl.reaches("caller", web, PORT)
    ends_with_every_response_trained_on_once(kubectl, JOB)
    print(f"three rounds after {trained:.0f} s")


def test_runners_reach_what_their_environment_names_alone(
    kubectl: Kubectl, minimal: dict[str, Any], enforced: None
) -> None:
    """Pods with the labels of runners stand for them: no job runs."""
    kubectl.apply(_pod("web", "python", "-m", "http.server", str(PORT)))
    web = _address(kubectl, "web")
    document = copy.deepcopy(minimal)
    document["metadata"] |= {"namespace": kubectl.namespace, "uid": "unused"}
    agent = {"kind": "Agent", "command": ["agent"]}
    document["spec"]["environments"] = [
        {"name": "named", **agent, "egress": {"cidrs": [{"cidr": f"{web}/32", "ports": [PORT]}]}},
        {"name": "other", **agent},
    ]
    job = load(document)
    contents = {"all": egress.of_all(job), **{one.name: egress.of_one(job, one) for one in job.spec.environments}}
    for name, spec in contents.items():
        head = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}}
        kubectl.apply({**head, "spec": spec})
    for environment in job.spec.environments:
        caller = _pod(environment.name, "sleep", "3600")
        caller["metadata"]["labels"] = egress.runner_labels(job, environment)
        kubectl.apply(caller)
        _address(kubectl, environment.name)
    kubectl.wait("the named address answers", lambda: kubectl.reaches("named", web, PORT), 60)
    kubectl.wait("the other environment is refused", lambda: not kubectl.reaches("other", web, PORT), 60)


def _pod(name: str, *command: str) -> dict[str, Any]:
    confined = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "main",
        "image": "rljob.local/runtime:dev",
        "command": list(command),
        "securityContext": confined,
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _address(kubectl: Kubectl, pod: str) -> str:
    def address() -> str:
        status = kubectl.get("pod", pod)["status"]
        return str(status["podIP"]) if status["phase"] == "Running" else ""

    return str(kubectl.wait(f"{pod} runs", address, 60))


@contextmanager
def _elsewhere() -> Iterator[Kubectl]:
    """A caller in a namespace without any policy."""
    kubectl = Kubectl(f"e2e-{uuid.uuid4().hex[:8]}")
    kubectl("create", "namespace", kubectl.namespace)
    try:
        kubectl.apply(_pod("caller", "sleep", "3600"))
        _address(kubectl, "caller")
        yield kubectl
    finally:
        kubectl("delete", "namespace", kubectl.namespace, "--wait=false")
