"""The coordinator's pod has the Ray head. It dies, first without a word, then with its pod; no engine may notice. The
head dies alone, in its container without a token of the API server: that costs one coordinator.

The rules are in docs/internals/coordinator/ray-head.md.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from hack.chaos.faults.in_pod import TEXT
from rljob_api.constants import HEAD_CONTAINER as HEAD
from rljob_runtime.ray_backend.actors import COMPUTING_NICENESS
from tests.support.e2e.kubectl import Kubectl, claim, is_true, runtime, variant

pytestmark = [
    pytest.mark.realnodes,
    pytest.mark.slow,  # in make test: tests/integration/entrypoints/test_ray_head.py
    pytest.mark.timeout(900),
]

JOB = "head"
APART = "apart"
KILL_ALL = "import os, signal; os.kill(-1, signal.SIGKILL)"
SEEN = f"""{TEXT}
def files(folder):
    found = [path for path in pathlib.Path(folder).rglob("*") if path.is_file() and not path.name.startswith("..")]
    return sorted(str(path) for path in found if os.access(path, os.R_OK))

secrets = [*files("/var/run/secrets"), *files("/run/secrets"), *files("/etc/rljob"), *files("/var/lib/rljob")]
commands = [text(process / "cmdline") for process in pathlib.Path("/proc").glob("[0-9]*")]
print(json.dumps({{
    "secrets": [path for path in secrets if not path.startswith("/var/lib/rljob/ray/") and "/..20" not in path],
    "coordinator": any("rljob_runtime.entrypoints\\0coordinator" in command for command in commands),
    "raylet": any(command.split("\\0")[0].endswith("/raylet") for command in commands),
}}))
"""
Workers = dict[str, tuple[str, frozenset[tuple[int, int]]]]
"""By name of a worker's pod: the pod's uid and the processes of its actors."""


def test_the_head_has_no_token_and_its_end_costs_one_coordinator(kubectl: Kubectl, minimal: dict[str, Any]) -> None:
    checkpoint = {"volumeClaimName": APART, "everyRounds": 20}
    kubectl.apply(claim(APART), variant(minimal, APART, rounds=5000, checkpoint=checkpoint))
    kubectl.wait("rounds go on", lambda: kubectl.rounds(APART) >= 2, 300)
    pod = _coordinator(kubectl, APART)
    seen = {name: json.loads(kubectl("exec", pod, "-c", name, "--", "python", "-c", SEEN)) for name in ("main", HEAD)}
    assert seen[HEAD] == {"secrets": ["/etc/rljob/auth/ray-token"], "coordinator": False, "raylet": True}
    assert "/var/run/secrets/kubernetes.io/serviceaccount/token" in seen["main"]["secrets"], "the test can see one"
    assert (seen["main"]["coordinator"], seen["main"]["raylet"]) == (True, False)

    workers, term, done = _workers(kubectl, APART), _term(kubectl, APART), kubectl.rounds(APART)
    # All but the first process of the container, which ends with them.
    kubectl("exec", pod, "-c", HEAD, "--", "python", "-c", KILL_ALL, check=False)
    kubectl.wait("a later term", lambda: _term(kubectl, APART) > term)
    kubectl.wait("rounds go on with another head", lambda: kubectl.rounds(APART) >= done + 2)
    assert _workers(kubectl, APART) == workers
    assert _coordinator(kubectl, APART) != pod
    assert "ray's head ended: see container ray-head" in kubectl("logs", pod, "-c", "main")
    _ends_with_every_response_trained_on_once(kubectl, APART, restarts=1)


def test_the_ray_head_dies_and_no_engine_notices(kubectl: Kubectl, minimal: dict[str, Any]) -> None:
    kubectl.apply(claim(JOB), _job(minimal))
    kubectl.wait("rounds go on", lambda: kubectl.rounds(JOB) >= 2, 300)
    workers = _workers(kubectl, JOB)
    assert sorted(len(actors) for _, actors in workers.values()) == [1, 2], "a trainer rank; a relay and a replica"
    niceness = sorted(kubectl.niceness(pod) for pod in workers)
    assert niceness == [[0, COMPUTING_NICENESS], [COMPUTING_NICENESS]], "relays come first"

    for death in (_crash, _pod_vanishes):
        term, done = _term(kubectl, JOB), kubectl.rounds(JOB)
        death(kubectl, _coordinator(kubectl, JOB))
        kubectl.wait(f"a later term after {death.__name__}", lambda term=term: _term(kubectl, JOB) > term)
        kubectl.wait(f"rounds go on after {death.__name__}", lambda done=done: kubectl.rounds(JOB) >= done + 2)
        assert _workers(kubectl, JOB) == workers, death.__name__

    _ends_with_every_response_trained_on_once(kubectl, JOB, restarts=2)
    assert "coordinator-0 is replaced by incarnation 3" in kubectl("describe", "rljob", JOB)


def _job(minimal: dict[str, Any]) -> dict[str, Any]:
    """Its coordinator's pod shares one process namespace: its programs are then not the namespace's first process,
    which no process inside can kill."""
    template = {"spec": minimal["spec"]["coordinator"]["template"]["spec"] | {"shareProcessNamespace": True}}
    checkpoint = {"volumeClaimName": JOB, "everyRounds": 20}
    return variant(minimal, JOB, rounds=5000, checkpoint=checkpoint, coordinator={"template": template})


def _coordinator(kubectl: Kubectl, job: str) -> str:
    """The present one's pod; the last one that ended may still lie beside it, for its log."""
    (name,) = [p["metadata"]["name"] for p in kubectl.pods(job, "coordinator") if p["status"]["phase"] == "Running"]
    return str(name)


def _term(kubectl: Kubectl, job: str) -> int:
    return int(runtime(kubectl.job(job))["term"])


def _crash(kubectl: Kubectl, pod: str) -> None:
    # With its main process the container ends, and may take this command along before it can return.
    kubectl("exec", pod, "--", "python", "-c", KILL_ALL, check=False)


def _pod_vanishes(kubectl: Kubectl, pod: str) -> None:
    kubectl("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")


def _workers(kubectl: Kubectl, job: str) -> Workers:
    pods = [*kubectl.pods(job, "trainer"), *kubectl.pods(job, "rollout")]
    return {p["metadata"]["name"]: (p["metadata"]["uid"], kubectl.actors(p["metadata"]["name"])) for p in pods}


def _ends_with_every_response_trained_on_once(kubectl: Kubectl, job: str, restarts: int) -> None:
    kubectl("patch", "rljob", job, "--type=merge", "-p", f'{{"spec":{{"rounds":{kubectl.rounds(job) + 3}}}}}')
    kubectl.wait("the job completes", lambda: is_true(kubectl.job(job), "Complete"))
    spec, report = kubectl.job(job)["spec"], runtime(kubectl.job(job))
    of_a_round = spec["algorithm"]["promptsPerRound"] * spec["algorithm"]["responsesPerPrompt"]
    totals = report["totals"]
    assert totals["trainedTrajectories"] + totals["discardedTrajectories"] == report["round"] * of_a_round
    assert totals["coordinatorRestarts"] == restarts
