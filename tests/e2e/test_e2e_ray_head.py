"""The coordinator's pod is the Ray head. It dies, first without a word, then with its pod; no engine may notice.

The rules are in docs/design/ray-head.md.
"""

from __future__ import annotations

from typing import Any

import pytest
from e2e_kubectl import Kubectl, claim, is_true, runtime, variant

from rljob_runtime.coordinator.actors import COMPUTING_NICENESS

pytestmark = [pytest.mark.realnodes, pytest.mark.timeout(900)]

JOB = "head"
KILL_ALL = "import os, signal; os.kill(-1, signal.SIGKILL)"
Workers = dict[str, tuple[str, frozenset[tuple[int, int]]]]
"""By name of a worker's pod: the pod's uid and the processes of its actors."""


def test_the_ray_head_dies_and_no_engine_notices(kubectl: Kubectl, minimal: dict[str, Any]) -> None:
    kubectl.apply(claim(JOB), _job(minimal))
    kubectl.wait("rounds go on", lambda: kubectl.rounds(JOB) >= 2, 300)
    workers = _workers(kubectl)
    assert sorted(len(actors) for _, actors in workers.values()) == [1, 2], "a trainer rank; a relay and a replica"
    niceness = sorted(kubectl.niceness(pod) for pod in workers)
    assert niceness == [[0, COMPUTING_NICENESS], [COMPUTING_NICENESS]], "relays come first"

    for death in (_crash, _pod_vanishes):
        term, done = _term(kubectl), kubectl.rounds(JOB)
        death(kubectl, _coordinator(kubectl))
        kubectl.wait(f"a later term after {death.__name__}", lambda term=term: _term(kubectl) > term)
        kubectl.wait(f"rounds go on after {death.__name__}", lambda done=done: kubectl.rounds(JOB) >= done + 2)
        assert _workers(kubectl) == workers, death.__name__

    _ends_with_every_response_trained_on_once(kubectl)
    assert "coordinator-0 is filled again by incarnation 3" in kubectl("describe", "rljob", JOB)


def _job(minimal: dict[str, Any]) -> dict[str, Any]:
    """Its coordinator shares the pod's process namespace: its program is then not the namespace's first process, which
    nobody inside can kill."""
    template = {"spec": minimal["spec"]["coordinator"]["template"]["spec"] | {"shareProcessNamespace": True}}
    checkpoint = {"volumeClaimName": JOB, "everyRounds": 20}
    return variant(minimal, JOB, rounds=5000, checkpoint=checkpoint, coordinator={"template": template})


def _coordinator(kubectl: Kubectl) -> str:
    """The present one's pod; the last one that ended may still lie beside it, for its log."""
    (name,) = [p["metadata"]["name"] for p in kubectl.pods(JOB, "coordinator") if p["status"]["phase"] == "Running"]
    return str(name)


def _term(kubectl: Kubectl) -> int:
    return int(runtime(kubectl.job(JOB))["term"])


def _crash(kubectl: Kubectl, pod: str) -> None:
    # With its main process the container ends, and may take this command along before it can return.
    kubectl("exec", pod, "--", "python", "-c", KILL_ALL, check=False)


def _pod_vanishes(kubectl: Kubectl, pod: str) -> None:
    kubectl("delete", "pod", pod, "--grace-period=0", "--force", "--wait=false")


def _workers(kubectl: Kubectl) -> Workers:
    pods = [*kubectl.pods(JOB, "trainer"), *kubectl.pods(JOB, "rollout")]
    return {p["metadata"]["name"]: (p["metadata"]["uid"], kubectl.actors(p["metadata"]["name"])) for p in pods}


def _ends_with_every_response_trained_on_once(kubectl: Kubectl) -> None:
    kubectl("patch", "rljob", JOB, "--type=merge", "-p", f'{{"spec":{{"rounds":{kubectl.rounds(JOB) + 3}}}}}')
    kubectl.wait("the job completes", lambda: is_true(kubectl.job(JOB), "Complete"))
    spec, report = kubectl.job(JOB)["spec"], runtime(kubectl.job(JOB))
    of_a_round = spec["algorithm"]["promptsPerRound"] * spec["algorithm"]["responsesPerPrompt"]
    totals = report["totals"]
    assert totals["trainedTrajectories"] + totals["discardedTrajectories"] == report["round"] * of_a_round
    assert totals["coordinatorRestarts"] == 2
