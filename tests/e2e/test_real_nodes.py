"""The life of a job on real nodes: apply, describe, scale, suspend, resume, kills, edits, the end, and deletion.

Its rewards run programs, in a container beside the coordinator that has none of its rights.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml

from hack.chaos.faults.in_pod import TEXT
from tests.support.e2e.confinement import CONFINED, seen
from tests.support.e2e.kubectl import SYSTEM_NAMESPACE, Kubectl, claim, condition, is_true, runtime, variant
from tests.support.paths import ROOT

pytestmark = [pytest.mark.realnodes, pytest.mark.timeout(1800)]

JOB = "life"
GROUP = {"promptsPerRound": 2, "responsesPerPrompt": 8}
PROGRAMS = 2 * 8
"""One test for each response."""

SECRETS = ("/var/run/secrets", "/etc/rljob", "/var/lib/rljob")
BESIDE = f"""{TEXT}
commands = [text(process / "cmdline") for process in pathlib.Path("/proc").glob("[0-9]*")]
print(json.dumps({{
    "coordinator": any("rljob_runtime.entrypoints\\0coordinator" in command for command in commands),
    "socket": pathlib.Path("/run/rljob/rewards.sock").exists(),
}}))
"""
"""What connects the container with the coordinator's: no process, and a socket."""


@pytest.fixture
def programs() -> dict[str, Any]:
    """The job of examples/code-rewards.yaml, with small rounds."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "examples/code-rewards.yaml").read_text(encoding="utf-8"))
    found["spec"]["algorithm"] |= GROUP
    return found


def names(pods: list[dict[str, Any]]) -> set[str]:
    return {p["metadata"]["name"] for p in pods}


def incarnation(pod: dict[str, Any]) -> int:
    return int(pod["metadata"]["labels"]["rljob.dev/incarnation"])


def test_a_job_lives_through_everything_and_completes(kubectl: Kubectl, programs: dict[str, Any]) -> None:
    manifest = variant(programs, JOB, rounds=5000, checkpoint={"volumeClaimName": JOB, "everyRounds": 20})
    manifest["spec"]["rollout"] |= {"machines": 1}
    kubectl.apply(claim(JOB), manifest)
    kubectl.wait("rounds go on", lambda: kubectl.rounds(JOB) >= 2, 300)
    kubectl.wait("Ready", lambda: is_true(kubectl.job(JOB), "Ready"))  # the kubelet's word, not the coordinator's
    assert kubectl.job(JOB)["status"]["relay"]["chain"] == ["rollout-0"]
    _programs_are_run_without_the_coordinators_rights(kubectl)

    _scales_up_by_the_scale_subresource(kubectl)
    _reapplying_the_manifest_changes_no_pod(kubectl, manifest)
    _replaces_a_killed_rollout_pod(kubectl)
    _goes_on_while_the_operator_is_killed(kubectl)
    _suspends_and_resumes_where_it_was(kubectl)

    kubectl("patch", "rljob", JOB, "--type=merge", "-p", f'{{"spec":{{"rounds":{kubectl.rounds(JOB) + 3}}}}}')
    kubectl.wait("the job completes", lambda: is_true(kubectl.job(JOB), "Complete"))
    story = kubectl("describe", "rljob", JOB)
    for told in ("RolloutScaledUp", "Suspended", "Resumed", "Complete"):
        assert told in story
    assert runtime(kubectl.job(JOB))["reward"] > 0


def _programs_are_run_without_the_coordinators_rights(kubectl: Kubectl) -> None:
    (coordinator,) = kubectl.pods(JOB, "coordinator")
    name = coordinator["metadata"]["name"]
    assert {status["name"] for status in coordinator["status"]["containerStatuses"]} == {"main", "rewards"}
    assert seen(kubectl, name, *SECRETS, container="rewards") == {"sees": [], **CONFINED}
    beside = json.loads(kubectl("exec", name, "-c", "rewards", "--", "python", "-c", BESIDE))
    assert beside == {"coordinator": False, "socket": True}
    assert runtime(kubectl.job(JOB))["lastRound"]["programRuns"] == PROGRAMS


def _scales_up_by_the_scale_subresource(kubectl: Kubectl) -> None:
    epoch = kubectl.job(JOB)["status"]["relay"]["epoch"]
    kubectl("scale", "rljob", JOB, "--replicas=2")
    kubectl.wait("two machines ready", lambda: kubectl.job(JOB)["status"]["rollout"].get("ready") == 2)
    kubectl.wait("both in the chain", lambda: len(kubectl.job(JOB)["status"]["relay"]["chain"]) == 2)
    assert kubectl.job(JOB)["status"]["relay"]["epoch"] > epoch
    target = kubectl.job(JOB)["status"]["target"]["revision"]
    kubectl.wait("the runtime applied it", lambda: (runtime(kubectl.job(JOB)).get("applied") or 0) >= target)


def _reapplying_the_manifest_changes_no_pod(kubectl: Kubectl, manifest: dict[str, Any]) -> None:
    """As a GitOps tool does that leaves `machines` to the scaler: the field is not in what it applies."""
    before = names(kubectl.pods(JOB))
    again = copy.deepcopy(manifest)
    again["spec"]["rollout"]["machines"] = 2
    kubectl.apply(again)
    done = kubectl.rounds(JOB)
    kubectl.wait("another round", lambda: kubectl.rounds(JOB) > done)
    assert names(kubectl.pods(JOB)) == before


def _replaces_a_killed_rollout_pod(kubectl: Kubectl) -> None:
    victim = next(
        p for p in kubectl.pods(JOB, "rollout") if p["metadata"]["labels"]["rljob.dev/machine"] == "rollout-1"
    )
    kubectl("delete", "pod", victim["metadata"]["name"], "--grace-period=0", "--force", "--wait=false")

    def replaced() -> bool:
        return any(
            p["metadata"]["labels"]["rljob.dev/machine"] == "rollout-1" and incarnation(p) > incarnation(victim)
            for p in kubectl.pods(JOB, "rollout")
        )

    kubectl.wait("a pod with a higher incarnation", replaced)
    done = kubectl.rounds(JOB)
    kubectl.wait("rounds go on", lambda: kubectl.rounds(JOB) > done)


def _goes_on_while_the_operator_is_killed(kubectl: Kubectl) -> None:
    before, done = names(kubectl.pods(JOB)), kubectl.rounds(JOB)
    system = Kubectl(SYSTEM_NAMESPACE)
    system("delete", "pods", "-l", "app.kubernetes.io/name=rljob", "--grace-period=0", "--force", "--wait=false")
    kubectl.wait("rounds go on", lambda: kubectl.rounds(JOB) >= done + 2)
    system("rollout", "status", "deployment/rljob", "--timeout=120s")
    assert names(kubectl.pods(JOB)) == before


def _suspends_and_resumes_where_it_was(kubectl: Kubectl) -> None:
    kubectl("patch", "rljob", JOB, "--type=merge", "-p", '{"spec":{"suspend":true}}')
    kubectl.wait("Suspended", lambda: is_true(kubectl.job(JOB), "Suspended"))
    assert kubectl.pods(JOB) == []
    reached = kubectl.rounds(JOB)
    kubectl("patch", "rljob", JOB, "--type=merge", "-p", '{"spec":{"suspend":false}}')
    kubectl.wait("the round after", lambda: kubectl.rounds(JOB) > reached)
    assert condition(kubectl.job(JOB), "Suspended").get("status") != "True"


@pytest.mark.slow  # on nodes of kwok it is in tests/integration/operator/test_fake_nodes.py
def test_a_namespace_goes_while_the_operator_is_away(kubectl: Kubectl, minimal: dict[str, Any]) -> None:
    kubectl.apply(variant(minimal, JOB))
    kubectl.wait("pods", lambda: kubectl.pods(JOB))
    system = Kubectl(SYSTEM_NAMESPACE)
    system("scale", "deployment/rljob", "--replicas=0")
    try:
        kubectl("delete", "namespace", kubectl.namespace, "--timeout=120s")
    finally:
        system("scale", "deployment/rljob", "--replicas=1")
    assert "NotFound" in kubectl("get", "namespace", kubectl.namespace, check=False)
