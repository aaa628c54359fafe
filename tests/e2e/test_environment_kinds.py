"""Environments of other packages in pods: the examples of Verifiers and OpenEnv on real nodes, confined as all runners.

No image is built. The packages are in a virtual environment on a volume, whose Python the nodes' images have.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.chaos.history import check_volume
from hack.local_cluster.settings import RUNTIME_IMAGE
from rljob_api.constants import ENVIRONMENT_SETTINGS, LABEL_ENVIRONMENTS_OF
from tests.support.e2e.confinement import CONFINED, seen
from tests.support.e2e.kubectl import Kubectl, claim, is_true, runtime, variant
from tests.support.e2e.policies import guide_policies
from tests.support.envs.packages import ECHO_SERVER, OPENENV, VERIFIERS, new_echo_environment
from tests.support.paths import ROOT
from tests.support.virtual_env import virtual_env

pytestmark = [
    pytest.mark.realnodes,
    pytest.mark.slow,  # tests/integration/envs/test_confined_runners.py
    pytest.mark.timeout(1500),
]

EXAMPLES = ROOT / "examples"
JOB, PACKAGES = "kinds", "packages"
MOUNT = f"/{PACKAGES}"
PYTHON = f"{MOUNT}/venv/bin/python"
FEW = {"promptsPerRound": 4, "responsesPerPrompt": 4}

Change = Callable[[list[dict[str, Any]]], None]
"""Changes the containers of an environment's pods."""


@pytest.fixture
def packages(kubectl: Kubectl, real_nodes: Any) -> Path:
    """The folder of a volume that pods mount at `MOUNT`, as it is on this machine."""
    kubectl.apply(claim(PACKAGES))
    volume = kubectl.wait("the volume", lambda: kubectl.get("pvc", PACKAGES)["spec"].get("volumeName"), 60)
    return Path(real_nodes.volumes / volume)


def job_of(example: str, change: Change) -> dict[str, Any]:
    """Return the job of an example for two rounds, with the packages beside its code, and other containers."""
    documents = yaml.safe_load_all((EXAMPLES / f"{example}.yaml").read_text(encoding="utf-8"))
    job = variant(next(one for one in documents if one["kind"] == "RLJob"), JOB, rounds=2)
    job["spec"]["checkpoint"] = {"volumeClaimName": JOB}
    job["spec"]["algorithm"] |= FEW
    (environment,) = job["spec"]["environments"]
    pod = environment["template"]["spec"]
    pod["volumes"] = [*pod["volumes"], {"name": PACKAGES, "persistentVolumeClaim": {"claimName": PACKAGES}}]
    for container in pod["containers"]:
        mounts = container.get("volumeMounts", [])
        container["volumeMounts"] = [*mounts, {"name": PACKAGES, "mountPath": MOUNT, "readOnly": True}]
    change(pod["containers"])
    return job


def completes_confined(kubectl: Kubectl, real_nodes: Any, job: dict[str, Any]) -> None:
    """Run a job to its end; look into a runner meanwhile, and into the store afterwards."""
    kubectl.apply(*guide_policies(real_nodes.api.server))
    kubectl.apply(claim(JOB), job)
    kubectl.wait("a runner is ready", lambda: _ready(kubectl), 600)
    runner = _ready(kubectl)[0]
    assert seen(kubectl, runner, "/var/run/secrets", "/etc/rljob/auth", container="main") == {"sees": [], **CONFINED}
    kubectl.wait("it completes", lambda: is_true(kubectl.job(JOB), "Complete"), 900)
    report = runtime(kubectl.job(JOB))
    assert report["totals"]["trainedTrajectories"] > 0
    verdict = check_volume(real_nodes.volumes / kubectl.get("pvc", JOB)["spec"]["volumeName"])
    assert (verdict["lost"], verdict["duplicated"], verdict["findings"]) == (0, 0, [])
    assert verdict["episodes"]["proved"] > 0
    assert verdict["episodes"]["unproved"] == 0, "every trained token is one that an engine emitted"


def _ready(kubectl: Kubectl) -> list[str]:
    found = kubectl.get("pods", "-l", f"{LABEL_ENVIRONMENTS_OF}={JOB}")["items"]
    return [pod["metadata"]["name"] for pod in found if is_true(pod, "Ready")]


def test_a_verifiers_environment_trains_in_pods(
    kubectl: Kubectl, real_nodes: Any, enforced: None, packages: Path
) -> None:
    virtual_env(packages / "venv", VERIFIERS)

    def change(containers: list[dict[str, Any]]) -> None:
        (main,) = containers
        # The nodes' image has the runner's package in the checkout, and not the package verifiers.
        main |= {"image": RUNTIME_IMAGE, "command": [PYTHON, "-m", "rljob_env", ENVIRONMENT_SETTINGS]}
        main["env"] = [{"name": "PYTHONPATH", "value": str(ROOT / "envs")}]

    files = [f"--from-file={EXAMPLES / name}" for name in ("verifiers_sums.py", "verifiers_sums.jsonl")]
    kubectl("create", "configmap", "verifiers-sums", *files)
    completes_confined(kubectl, real_nodes, job_of("verifiers-sums", change))


def test_an_openenv_server_beside_the_runner_trains_in_pods(
    kubectl: Kubectl, real_nodes: Any, enforced: None, packages: Path
) -> None:
    project = new_echo_environment(virtual_env(packages / "venv", OPENENV), packages)

    def change(containers: list[dict[str, Any]]) -> None:
        main, server = containers
        main["image"] = RUNTIME_IMAGE
        folder = f"{MOUNT}/{project.name}"
        server |= {"image": RUNTIME_IMAGE, "command": [PYTHON, *ECHO_SERVER, "8000"], "workingDir": folder}

    completes_confined(kubectl, real_nodes, job_of("openenv-echo", change))
