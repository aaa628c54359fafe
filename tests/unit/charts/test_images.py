"""What can be said of the Dockerfile without building it; building it is by hand, with hack/build-image."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from hack.local_cluster.nodes.images import ENTRYPOINTS
from hack.local_cluster.settings import OPERATOR_IMAGE, RUNTIME_IMAGE
from rljob_operator.policies.pods.security import USER
from tests.support.paths import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
TARGETS = {"operator": OPERATOR_IMAGE, "runtime": RUNTIME_IMAGE}


def stage(name: str) -> str:
    """The text of a build stage."""
    match = re.search(rf"^FROM \S+ AS {name}\n(.*?)(?=^FROM |\Z)", DOCKERFILE, re.MULTILINE | re.DOTALL)
    assert match is not None, f"no stage {name}"
    return match.group(1)


@pytest.mark.parametrize("target", [*TARGETS, "verifiers"])
def test_chart_image_runs_as_an_unprivileged_user(target: str) -> None:
    """The image's user is the pods' user, and nothing after it becomes root again."""
    users = re.findall(r"^USER (.*)$", stage(target), re.MULTILINE)
    assert users == [f"{USER}:{USER}"]
    assert f"rljob:x:{USER}:{USER}" in stage("base"), "kopf and torch ask for the user's name"


@pytest.mark.parametrize("target", TARGETS)
def test_chart_image_starts_like_the_development_image(target: str) -> None:
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", stage(target), re.MULTILINE)
    assert json.loads(entry) == ENTRYPOINTS[TARGETS[target]]


def test_chart_operator_image_has_no_torch() -> None:
    assert re.findall(r"--extra (\S+)", stage("build-operator")) == ["operator"]
    assert "runtime" in re.findall(r"--extra \"?(\S+?)\"? ", stage("build-runtime") + " ")


def test_chart_runtime_image_has_the_runner_and_its_dependencies() -> None:
    """Its pods start `python -m rljob_env` in the image."""
    build = stage("build-runtime")
    (command,) = re.findall(r"/opt/uv/bin/uv pip install [^&\n]*\./envs\[openenv\]\"$", build, re.MULTILINE)
    assert "--no-deps" not in command
    assert "\nCOPY envs envs\n" in build


def test_chart_verifiers_image_has_the_package_and_what_it_starts() -> None:
    build = stage("build-verifiers")
    assert "\nCOPY envs envs\n" in build
    assert re.search(r"uv pip install .*\"\./envs\[verifiers\]\" 'uv>=0\.8'$", build, re.MULTILINE)
    assert re.findall(r"^COPY --from=(\S+)", stage("verifiers"), re.MULTILINE) == ["build-verifiers"]
    assert stage("verifiers").endswith('ENTRYPOINT ["rljob-env"]\n\n\n')


def test_chart_image_names_no_registry() -> None:
    """Every base comes by an argument or from another stage."""
    bases = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE, re.MULTILINE))
    assert set(bases) <= stages | {"${BASE_IMAGE}"}
    (default,) = re.findall(r"^ARG BASE_IMAGE=(\S+)", DOCKERFILE, re.MULTILINE)
    assert "/" not in default, "a registry host"


def test_chart_build_context_is_a_white_list() -> None:
    """Everything the Dockerfile copies is let in, and little else: no secret or checkpoint strays into an image."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "*"
    allowed = {line[1:] for line in lines if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    assert {path for paths in copied for path in paths.split()} == allowed


@pytest.mark.parametrize("arguments", [[], ["coordinator"]])
def test_chart_build_image_says_how(arguments: list[str]) -> None:
    done = subprocess.run([ROOT / "hack/build-image", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "build-image operator|runtime|verifiers" in done.stderr
