"""An agents' job on real nodes: what its pods may see and reach, and that it survives the loss of every new part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.chaos.faults.agents import GATEWAY, KILL
from hack.chaos.history import check_volume
from rljob_api.constants import (
    GATEWAY_CONTAINER,
    GATEWAY_PORT,
    HEALTH_PORT,
    LABEL_ENVIRONMENTS_OF,
    RAY_PORT,
)
from tests.support.e2e.confinement import CONFINED, seen
from tests.support.e2e.kubectl import Kubectl, claim, condition, is_true, runtime, variant
from tests.support.e2e.life import goes_on
from tests.support.e2e.policies import guide_policies
from tests.support.paths import ROOT

pytestmark = [pytest.mark.realnodes, pytest.mark.timeout(900)]

EXAMPLES = ROOT / "examples"
JOB = "agents"

PLACES = ("/var/run/secrets", "/etc/rljob/auth", "/etc/rljob/gateway-keys", "/etc/rljob/environment", "/var/lib/rljob")


@pytest.fixture
def example() -> dict[str, Any]:
    documents = yaml.safe_load_all((EXAMPLES / "calculator-agent.yaml").read_text(encoding="utf-8"))
    found: dict[str, Any] = next(one for one in documents if one["kind"] == "RLJob")
    return found


def runners(kubectl: Kubectl) -> list[str]:
    """Names of the runners' pods that are ready and not being deleted."""
    found = kubectl.get("pods", "-l", f"{LABEL_ENVIRONMENTS_OF}={JOB}")["items"]
    present = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
    return sorted(pod["metadata"]["name"] for pod in present if is_true(pod, "Ready"))


def ready(kubectl: Kubectl) -> tuple[int, int]:
    """Runners that the status counts as ready, and as wanted."""
    (environment,) = kubectl.job(JOB)["status"]["environments"]
    return environment.get("ready", 0), environment["runners"]


@pytest.fixture
def agents(kubectl: Kubectl, example: dict[str, Any], real_nodes: Any, enforced: None) -> None:
    """The job after its first round, in a namespace that denies every connection but what the guide allows."""
    kubectl.apply(*guide_policies(real_nodes.api.server))
    kubectl("create", "configmap", "calculator", f"--from-file={EXAMPLES / 'calculator.py'}")
    kubectl.apply(claim(JOB), variant(example, JOB, rounds=5000, checkpoint={"volumeClaimName": JOB}))
    kubectl.wait("its first round", lambda: kubectl.rounds(JOB) >= 1, 600)
    kubectl.wait("both runners are counted", lambda: ready(kubectl) == (2, 2))


def test_agents_train_confined_through_the_death_of_gateway_and_runner(
    kubectl: Kubectl, agents: None, real_nodes: Any
) -> None:
    # What the lost runner had waits for half a minute: the time for the rest.
    victim = runners(kubectl)[0]
    kubectl("delete", "pod", victim, "--grace-period=0", "--force")
    _no_part_has_more_than_it_needs(kubectl)

    (coordinator,) = kubectl.pods(JOB, "coordinator")
    name = coordinator["metadata"]["name"]
    killed = kubectl("exec", name, "-c", GATEWAY_CONTAINER, "--", "python", "-c", KILL, *GATEWAY)
    assert json.loads(killed)["pids"]
    goes_on(kubectl, JOB)
    (now,) = kubectl.pods(JOB, "coordinator")
    assert now["metadata"]["uid"] == coordinator["metadata"]["uid"], "a gateway is started again in its container"
    kubectl.wait("another runner is there", lambda: ready(kubectl) == (2, 2) and victim not in runners(kubectl))

    _episodes_cost_no_writes(kubectl)
    _completes_with_proof(kubectl, real_nodes)


@pytest.mark.slow
def test_agents_train_through_the_death_of_engine_and_coordinator(
    kubectl: Kubectl, agents: None, real_nodes: Any
) -> None:
    for role in ("rollout", "coordinator"):
        victim = kubectl.pods(JOB, role)[0]["metadata"]["name"]
        kubectl("delete", "pod", victim, "--grace-period=0", "--force")
        goes_on(kubectl, JOB, seconds=600)
    _completes_with_proof(kubectl, real_nodes)


@pytest.mark.slow
def test_an_image_without_the_runner_is_told_by_name(kubectl: Kubectl, example: dict[str, Any]) -> None:
    (environment,) = example["spec"]["environments"]
    (main,) = environment["template"]["spec"]["containers"]
    main["command"] = ["rljob-env-of-no-image"]
    kubectl("create", "configmap", "calculator", f"--from-file={EXAMPLES / 'calculator.py'}")
    kubectl.apply(claim(JOB), variant(example, JOB, rounds=5000, checkpoint={"volumeClaimName": JOB}))

    def stalled() -> dict[str, Any]:
        return condition(kubectl.job(JOB), "Stalled")

    # While the claim is unbound, the pods' want of a node stalls it.
    told = {"status": "True", "reason": "RunnerMissing"}
    kubectl.wait("the runner is missing", lambda: told.items() <= stalled().items(), 200)
    assert f"environment {environment['name']}: container main" in stalled()["message"]


LOOKS = """
import json, os, pathlib, random, urllib.request

def solve(task):
    trace = pathlib.Path("/tmp/an-episode-was-here")
    found = trace.exists()
    trace.touch()
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": task["messages"]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    urllib.request.urlopen(urllib.request.Request(url, body, headers)).close()
    return {"reward": -100.0 if found else random.uniform(0.5, 1.0)}
"""


@pytest.mark.slow
def test_each_episode_has_a_pod_of_its_own(kubectl: Kubectl, example: dict[str, Any], tmp_path: Path) -> None:
    (environment,) = example["spec"]["environments"]
    own = {"kind": "Agent", "function": "looks.py:solve", "reset": "Pod", "episodesPerRunner": 1}
    looks = {key: one for key, one in environment.items() if key not in ("tools", "maxTurns")} | own
    (tmp_path / "looks.py").write_text(LOOKS)
    kubectl("create", "configmap", "calculator", f"--from-file={tmp_path / 'looks.py'}")
    few = {**example["spec"]["algorithm"], "promptsPerRound": 4, "responsesPerPrompt": 3}
    changes = {"environments": [looks], "algorithm": few, "rounds": 1, "checkpoint": {"volumeClaimName": JOB}}
    kubectl.apply(claim(JOB), variant(example, JOB, **changes))
    seen: set[str] = set()

    def complete() -> bool:
        found = kubectl.get("pods", "-l", f"{LABEL_ENVIRONMENTS_OF}={JOB}")["items"]
        seen.update(pod["metadata"]["uid"] for pod in found)
        return is_true(kubectl.job(JOB), "Complete")

    kubectl.wait("it completes", complete, 600)
    report = runtime(kubectl.job(JOB))
    assert report["totals"]["trainedTrajectories"] == 12
    assert len(seen) >= 12
    assert report["reward"] >= 0.5, "no episode has found another one"


def _completes_with_proof(kubectl: Kubectl, real_nodes: Any) -> None:
    kubectl("patch", "rljob", JOB, "--type=merge", "-p", f'{{"spec":{{"rounds":{kubectl.rounds(JOB) + 2}}}}}')
    kubectl.wait("it completes", lambda: is_true(kubectl.job(JOB), "Complete"))
    assert runtime(kubectl.job(JOB))["reward"] > 0
    kubectl.wait("its runners end with it", lambda: not runners(kubectl))
    verdict = check_volume(real_nodes.volumes / kubectl.get("pvc", JOB)["spec"]["volumeName"])
    assert (verdict["lost"], verdict["duplicated"], verdict["findings"]) == (0, 0, [])
    assert verdict["episodes"]["turns"] > verdict["episodes"]["proved"] > 0, "some called the tool"
    assert verdict["episodes"]["unproved"] == 0, "every trained token is one that an engine emitted"


def _episodes_cost_no_writes(kubectl: Kubectl) -> None:
    """The coordinator writes its report by rounds, whatever number of episodes there is, and its Lease by seconds."""
    totals = runtime(kubectl.job(JOB))["totals"]
    requests = "rljob_coordinator_api_requests_total"
    samples = [sample for sample in kubectl.metrics(JOB) if sample.name == requests]
    written = {
        (sample.labels["verb"], sample.labels["resource"]): sample.value
        for sample in samples
        if sample.labels["verb"] not in ("get", "list", "watch")
    }
    assert set(written) == {("patch", "rljobs"), ("update", "leases")}
    assert written["patch", "rljobs"] <= 0.1 * totals["trainedTrajectories"], written


def _no_part_has_more_than_it_needs(kubectl: Kubectl) -> None:
    (coordinator,) = kubectl.pods(JOB, "coordinator")
    name, address = coordinator["metadata"]["name"], coordinator["status"]["podIP"]
    gateway = seen(kubectl, name, *PLACES, container=GATEWAY_CONTAINER)
    assert gateway == {"sees": ["/etc/rljob/gateway-keys"], **CONFINED}
    runner = runners(kubectl)[0]
    assert seen(kubectl, runner, *PLACES) == {"sees": ["/etc/rljob/environment"], **CONFINED}
    # It may be the new one, whose address reaches the coordinator's node a moment later.
    kubectl.wait("a runner reaches the gateway", lambda: kubectl.reaches(runner, address, GATEWAY_PORT), 60)
    for port in (RAY_PORT, HEALTH_PORT):
        assert not kubectl.reaches(runner, address, port), "of the job a runner reaches the gateway only"
