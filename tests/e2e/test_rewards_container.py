"""Rewards that run programs, on real nodes: in a container beside the coordinator that has none of its rights."""

from __future__ import annotations

import json

import pytest
import yaml

from tests.support.e2e.kubectl import Kubectl, is_true, runtime, variant
from tests.support.paths import ROOT

pytestmark = [pytest.mark.realnodes, pytest.mark.timeout(900)]

EXAMPLE = ROOT / "examples/code-rewards.yaml"
JOB = "code"

SEEN = """
import json, os, pathlib
def command(process):
    try:
        return (process / "cmdline").read_text()
    except OSError:  # it has ended meanwhile
        return ""
secret = ["/var/run/secrets", "/etc/rljob", "/var/lib/rljob"]
print(json.dumps({
    "secrets": [path for path in secret if pathlib.Path(path).exists() and any(pathlib.Path(path).iterdir())],
    "variables": [name for name in os.environ if name.startswith(("RLJOB_", "RAY_"))],
    "capabilities": pathlib.Path("/proc/self/status").read_text().split("CapEff:")[1].split()[0],
    "coordinator": any("rljob_runtime.entrypoints\\0coordinator" in command(process)
                       for process in pathlib.Path("/proc").glob("[0-9]*")),
    "socket": pathlib.Path("/run/rljob/rewards.sock").exists(),
}))
"""


def test_programs_are_run_without_the_coordinators_rights(kubectl: Kubectl) -> None:
    kubectl.apply(variant(yaml.safe_load(EXAMPLE.read_text(encoding="utf-8")), JOB, rounds=5000))
    kubectl.wait("its first round", lambda: kubectl.rounds(JOB) >= 1)
    (coordinator,) = kubectl.pods(JOB, "coordinator")
    name = coordinator["metadata"]["name"]
    assert {status["name"] for status in coordinator["status"]["containerStatuses"]} == {"main", "rewards"}
    assert json.loads(kubectl("exec", name, "-c", "rewards", "--", "python", "-c", SEEN)) == {
        "secrets": [],
        "variables": [],
        "capabilities": "0000000000000000",
        "coordinator": False,
        "socket": True,
    }
    report = runtime(kubectl.job(JOB))["lastRound"]
    assert report["programRuns"] == 64, "a test for each response"
    kubectl("patch", "rljob", JOB, "--type=merge", "-p", f'{{"spec":{{"rounds":{kubectl.rounds(JOB) + 2}}}}}')
    kubectl.wait("it completes", lambda: is_true(kubectl.job(JOB), "Complete"))
    assert runtime(kubectl.job(JOB))["reward"] > 0
