"""What a namespace has to do with its jobs: it goes and takes them along, and what it does not allow is told."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.e2e.kubectl import SYSTEM_NAMESPACE, Kubectl, claim, condition, variant
from tests.support.e2e.life import Clock, begin

pytestmark = [pytest.mark.realnodes, pytest.mark.timeout(900)]

JOB = "tenant"
SYSTEM = Kubectl(SYSTEM_NAMESPACE)
KINDS = (
    "rljobs,pods,services,serviceaccounts,secrets,configmaps,roles,rolebindings,leases,networkpolicies,"
    "poddisruptionbudgets,persistentvolumeclaims,events"
)


@pytest.mark.slow  # on nodes of kwok it is in tests/integration/operator/test_fake_nodes.py
def test_a_namespace_goes_with_its_running_job(kubectl: Kubectl, minimal: dict[str, Any], real_nodes: Any) -> None:
    """Nothing of it is left: no object, no volume, no process. The operator takes no harm."""
    begin(kubectl, minimal, JOB)
    operator = _operator()
    assert _processes(kubectl.namespace)
    clock = Clock()
    kubectl("delete", "namespace", kubectl.namespace, "--timeout=120s")
    gone = clock.seconds
    assert "NotFound" in kubectl("get", "namespace", kubectl.namespace, check=False)
    left = [item for item in SYSTEM.get(KINDS, "-A")["items"] if item["metadata"]["namespace"] == kubectl.namespace]
    assert left == []
    kubectl.wait("no process is left", lambda: not _processes(kubectl.namespace), 30)
    kubectl.wait("its volume is offered again", lambda: kubectl.namespace not in _claimed(), 60)
    assert _operator() == operator, "it is the same process"
    print(f"the namespace was gone after {gone:.0f} s")


def _operator() -> list[tuple[str, int]]:
    """Uid and restarts of the operator's pods."""
    found = SYSTEM.get("pods", "-l", "app.kubernetes.io/name=rljob")["items"]
    return [(pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"]) for pod in found]


def _processes(namespace: str) -> list[int]:
    """Of jobs in the namespace: the nodes are this machine."""
    found, mark = [], f"RLJOB_NAMESPACE={namespace}\0".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if mark in (process / "environ").read_bytes():
                found.append(int(process.name))
    return found


def _claimed() -> set[str]:
    """Namespaces of the claims that volumes are bound to."""
    volumes = SYSTEM.get("persistentvolumes")["items"]
    return {(volume["spec"].get("claimRef") or {}).get("namespace", "") for volume in volumes}


@dataclass(frozen=True)
class Obstacle:
    """Something that keeps a job from its pods, and how that is told."""

    reason: str
    words: str
    """A pattern of what `kubectl describe` says."""
    objects: tuple[dict[str, Any], ...] = ()
    """What the namespace has."""
    container: dict[str, Any] = field(default_factory=dict)
    """Of the trainer."""
    claim: str | None = None


def _object(kind: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "tenant"}, "spec": spec}


OBSTACLES = {
    "pod security": Obstacle(
        "PodForbidden",
        r'violates PodSecurity "restricted:latest": .*container "main" must not include "NET_ADMIN"',
        container={"securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}},
    ),
    "quota": Obstacle(
        "QuotaExceeded",
        "exceeded quota: tenant, requested: pods=1, used: pods=0, limited: pods=0",
        (_object("ResourceQuota", hard={"pods": "0"}),),
    ),
    "limit range": Obstacle(
        "PodForbidden",
        "maximum memory usage per Container is 256Mi, but limit is 1Gi",
        (_object("LimitRange", limits=[{"type": "Container", "max": {"memory": "256Mi"}}]),),
    ),
    "missing image": Obstacle(
        "ImagePullFailed",
        "container main, image rljob.local/nowhere:dev",
        container={"image": "rljob.local/nowhere:dev"},
    ),
    "unbound claim": Obstacle(
        "Unschedulable",
        "pod has unbound immediate PersistentVolumeClaims",
        ({**claim("tenant"), "spec": {**claim("tenant")["spec"], "storageClassName": "not-served"}},),
        claim="tenant",
    ),
    "missing claim": Obstacle("Unschedulable", 'persistentvolumeclaim "tenant" not found', claim="tenant"),
    "impossible request": Obstacle(
        "Unschedulable",
        "Insufficient cpu",
        container={"resources": {"requests": {"cpu": "1000", "memory": "512Mi"}}},
    ),
}


def test_what_stands_in_the_way_is_told(installed: None, minimal: dict[str, Any]) -> None:
    with contextlib.ExitStack() as stack:
        clock = Clock()
        tenants = {name: stack.enter_context(_tenant(one, minimal)) for name, one in OBSTACLES.items()}
        for name, obstacle in OBSTACLES.items():
            kubectl = tenants[name]
            kubectl.wait(name, lambda k=kubectl, o=obstacle: _tells(k, o), 90)
            row = kubectl("get", "rljob", JOB)
            assert re.search(rf"Stalled\s+{obstacle.reason}", row), row
            print(f"{name}: {condition(kubectl.job(JOB), 'Stalled')['message']} ({clock.seconds:.0f} s)")


def _tells(kubectl: Kubectl, obstacle: Obstacle) -> bool:
    """Whether the job is stalled for that reason, in those words: the scheduler may have others at first."""
    found = condition(kubectl.job(JOB), "Stalled")
    if (found.get("status"), found.get("reason")) != ("True", obstacle.reason):
        return False
    # Of a long message `describe` breaks no line.
    return re.search(obstacle.words, kubectl("describe", "rljob", JOB)) is not None


@contextlib.contextmanager
def _tenant(obstacle: Obstacle, minimal: dict[str, Any]) -> Iterator[Kubectl]:
    """A namespace with the obstacle and a job in it."""
    kubectl = Kubectl(f"e2e-{uuid.uuid4().hex[:8]}")
    kubectl("create", "namespace", kubectl.namespace)
    try:
        kubectl("label", "namespace", kubectl.namespace, "pod-security.kubernetes.io/enforce=restricted")
        if obstacle.objects:
            kubectl.apply(*obstacle.objects)
        spec: dict[str, Any] = {"checkpoint": {"volumeClaimName": obstacle.claim}} if obstacle.claim else {}
        (main,) = minimal["spec"]["trainer"]["template"]["spec"]["containers"]
        template = {"spec": {"containers": [{**main, **obstacle.container}]}}
        kubectl.apply(variant(minimal, JOB, **spec, trainer={"template": template}))
        yield kubectl
    finally:
        kubectl("delete", "namespace", kubectl.namespace, "--wait=false")
