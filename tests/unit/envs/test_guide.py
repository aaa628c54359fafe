"""The guide *Bring your own agent*, step by step: its code, its environments, its manifests and its image.

`tests/integration/local/test_guide_job.py` runs its first two environments with `rljob run`.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_api import load
from rljob_api.constants import ANNOTATION_SETTINGS
from rljob_api.spec.environments import Environment
from rljob_env.config import AGENT, GIT_RESTORE, OPEN_ENV, POD, VERIFIERS, load_config
from rljob_env.episode import Harness
from rljob_env.openenv.harness import OpenEnvHarness
from rljob_env.verifiers.harness import VerifiersHarness
from rljob_runtime.local.environments import RUNNER, RUNNER_PYTHON
from tests.support.api.jobs import job as minimal
from tests.support.envs import guide
from tests.support.envs.agents import agent
from tests.support.envs.site import RECORD, call, open_site, scripted
from tests.support.envs.stand_in_openenv import StandInOpenEnv
from tests.support.operator.environment_jobs import with_environments
from tests.support.operator.plan_cluster import Cluster
from tests.support.paths import ROOT

STAND_IN_VERIFIERS = ROOT / "tests/support/envs/stand_in_verifiers"
RUNNER_PROJECT = tomllib.loads((ROOT / "envs/pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    guide.write_files(tmp_path, guide.TOOLS, guide.PROGRAM)
    assert {path.name for path in tmp_path.iterdir()} >= {"calculator.py", "score.py", "agent.py"}
    return tmp_path


# --- the environments ------------------------------------------------------------------------------------------------


async def test_the_tools_and_the_reward_of_the_guide_score_an_episode(root: Path) -> None:
    config = guide.settings(root, guide.TOOLS).environment
    async with open_site(scripted(call("add", '{"a": 2, "b": 3}'), "5")) as site, site.stack:
        functions = [tool.function for tool in config.tools]
        harness: Harness = site.tools(root, *functions, reward=config.reward, max_turns=config.max_turns)
        report = await site.report_of(harness)
        assert (report.reward, report.metrics["calls"], report.failed) == (1.0, 1, None)
        assert "the first number" in site.prompts()[0]


async def test_the_program_of_the_guide_asks_the_model_and_is_rewarded(root: Path) -> None:
    config = guide.settings(root, guide.PROGRAM).environment
    assert (config.kind, config.command[0]) == (AGENT, "python")
    async with open_site() as site, site.stack:
        report = await site.report_of(site.agent(root, sys.executable, *config.command[1:]), seconds=120.0)
        assert (report.reward, report.metrics["characters"], report.failed) == (1.0, 1, None)


@pytest.mark.parametrize("section", guide.SECTIONS)
def test_every_block_of_the_guide_is_what_a_job_may_have(section: str) -> None:
    """Each block by itself, and those of one section together: no block hides another one of its name."""
    found = guide.environments_of_blocks(section)
    assert found
    for block in found:
        job = load(minimal({"spec.environments": block}))
        assert [one.name for one in job.spec.environments] == [one["name"] for one in block]
    if section != guide.CLUSTER:  # there later blocks add to the environments of earlier sections
        names = [one["name"] for block in found for one in block]
        assert len(names) == len(set(names))


def test_the_pod_for_each_episode_of_the_guide_is_replaced_by_the_operator() -> None:
    (one,) = (one for one in guide.environments(guide.PROGRAM) if one.get("reset") == "Pod")
    (made,) = Cluster(with_environments(one)).decide().deployments
    assert made["spec"]["replicas"] == one["runners"] == 16
    settings = json.loads(made["spec"]["template"]["metadata"]["annotations"][ANNOTATION_SETTINGS])
    assert (settings["environment"]["reset"], settings["environment"]["episodesPerRunner"]) == (POD, 1)


def test_the_working_copies_of_the_guide_are_those_of_a_runner(tmp_path: Path) -> None:
    options = Environment.model_validate(guide.environments(guide.PROGRAM)[1]).runner_options()
    assert (options["kind"], options["reset"], options["checkout"]) == (AGENT, GIT_RESTORE, "/app/repo")


async def test_the_reward_of_the_guide_scores_a_program(root: Path) -> None:
    command = agent(root, "ask(task['messages'])")
    async with open_site() as site, site.stack:
        report = await site.report_of(site.agent(root, *command, reward="score.py:right"))
        assert (report.reward, report.metrics["calls"], report.failed) == (1.0, 0, None)


async def test_the_environment_server_of_the_guide_is_played(tmp_path: Path) -> None:
    config, server = guide.settings(tmp_path, guide.OPEN_ENV).environment, StandInOpenEnv()
    assert (config.kind, config.open_env_url) == (OPEN_ENV, "http://wordle:8000")
    said = scripted(*(str(number) for number in range(9)))
    async with server.serve() as url, open_site(said) as site, site.stack:
        own = replace(config, open_env_url=url)
        report = await site.report_of(OpenEnvHarness(site.http, site.http, own, tmp_path, site.guard))
        assert (report.failed, report.metrics["done"], len(server.actions)) == (None, 1, 6), report.detail


async def test_the_taskset_of_the_guide_is_played_with_its_arguments(tmp_path: Path) -> None:
    config = guide.settings(tmp_path, guide.VERIFIERS).environment
    assert config.kind == VERIFIERS
    assert config.verifiers is not None
    turns = config.verifiers.args["agent"]["max_turns"]
    async with open_site(scripted("again", "5")) as site, site.stack:
        harness = VerifiersHarness(site.http, config, STAND_IN_VERIFIERS, site.guard)
        report = await site.report_of(harness, record={**RECORD, "task": 0}, seconds=120.0)
        assert (report.reward, report.failed, report.metrics["max_turns"]) == (1.0, None, turns), report.detail


# --- what is installed -----------------------------------------------------------------------------------------------


def test_the_packages_that_the_guide_installs_are_there() -> None:
    installed = re.findall(r"\./envs(?:\[(\w+)\])?'?(?: |`)", guide.GUIDE)
    assert {name for name in installed if name} == RUNNER_PROJECT["optional-dependencies"].keys()
    assert (ROOT / "envs/rljob_env/__main__.py").is_file()


def test_the_python_of_verifiers_is_that_which_rljob_run_starts() -> None:
    (block,) = guide.blocks(guide.VERIFIERS, "sh")
    install, start = block.splitlines()
    folder = shlex.split(install)[3]
    variable, run = shlex.split(start)[0], shlex.split(start)[1:]
    assert variable == f"{RUNNER_PYTHON}={folder}/bin/python"
    assert run[:2] == ["rljob", "run"]
    assert RUNNER.replace("_", "-") == RUNNER_PROJECT["name"]


def test_the_settings_of_the_guide_are_those_of_a_runner(tmp_path: Path) -> None:
    (block,) = guide.blocks(guide.RUNNER, "json")
    (tmp_path / "config.json").write_text(block)
    config = load_config(str(tmp_path / "config.json"), {})
    assert (config.root, config.environment.name) == (tmp_path, "calc")
    assert f"`{next(iter(RUNNER_PROJECT['scripts']))} CONFIG`" in guide.GUIDE


# --- on a cluster ----------------------------------------------------------------------------------------------------


def deployments() -> dict[str, dict[str, Any]]:
    """Return what the operator makes of the environments of the cluster's section, by environment."""
    given = guide.environments(guide.CLUSTER)
    job = load(minimal({"spec.environments": given}))
    assert [one.name for one in job.spec.environments] == ["calc", "own"]
    cluster = Cluster(with_environments(*given))
    made = {one["metadata"]["name"]: dict(one["spec"]) for one in cluster.decide().deployments}
    return {name: made[f"demo-environment-{name}"] for name in ("calc", "own")}


def test_the_config_map_of_the_guide_has_the_files_of_its_environment(root: Path) -> None:
    (block,) = guide.blocks(guide.CLUSTER, "bash")
    kubectl, create, kind, name, *files = shlex.split(block)
    assert (kubectl, create, kind) == ("kubectl", "create", "configmap")
    given = [file.removeprefix("--from-file=") for file in files]
    assert all((root / file).is_file() for file in given)
    calc = Environment.model_validate(guide.environment(guide.CLUSTER))
    named = [tool.function for tool in calc.tools or ()] + [calc.reward]
    assert [str(one).partition(":")[0] for one in named] == given
    spec = deployments()["calc"]["template"]["spec"]
    (volume,) = (one for one in spec["volumes"] if one.get("configMap", {}).get("name") == name)
    (main,) = (one for one in spec["containers"] if one["name"] == "main")
    assert {"name": volume["name"], "mountPath": "/code"} in [dict(one) for one in main["volumeMounts"]]
    settings = json.loads(deployments()["calc"]["template"]["metadata"]["annotations"][ANNOTATION_SETTINGS])
    assert settings["root"] == "/code"


def test_the_pods_of_the_guide_are_what_it_says_of_them() -> None:
    made = deployments()
    assert made["calc"]["replicas"] == 2
    for spec in (one["template"]["spec"] for one in made.values()):
        (main,) = (one for one in spec["containers"] if one["name"] == "main")
        context = {**spec.get("securityContext", {}), **main.get("securityContext", {})}
        assert context["runAsUser"] == 65532
        assert context["readOnlyRootFilesystem"] is True
        assert spec["automountServiceAccountToken"] is False


def test_the_egress_of_the_guide_is_what_an_environment_may_have() -> None:
    blocks = [yaml.safe_load(block) for block in guide.blocks(guide.CLUSTER, "yaml") if "egress" in block]
    (own,) = (Environment.model_validate(one) for block in blocks for one in block)
    assert own.egress is not None
    assert [one.cidr for one in own.egress.cidrs] == ["10.20.0.0/16", "192.0.2.7/32"]
    assert own.egress.hosts == ("pypi.org", "*.example.com", "example.com:8443")


def test_the_image_of_the_guide_has_what_runner_and_program_need(root: Path) -> None:
    (block,) = guide.blocks(guide.CLUSTER, "dockerfile")
    lines = [line.split(maxsplit=1) for line in block.splitlines()]
    assert [word for word, _ in lines] == ["FROM", "COPY", "RUN", "COPY"]
    base, copied, installed, program = (rest for _, rest in lines)
    version = re.fullmatch(r"python:3\.(\d+)-slim", base)
    assert version is not None
    least = re.fullmatch(r">=3\.(\d+)", RUNNER_PROJECT["requires-python"])
    assert least is not None
    assert int(version[1]) >= int(least[1])
    source, place = copied.split()
    assert (ROOT / source / "pyproject.toml").is_file()
    pip, install, runner, *packages = installed.split()
    assert (pip, install, runner) == ("pip", "install", place)
    imported = set(re.findall(r"^(?:from|import) (\w+)", (root / "agent.py").read_text(), re.MULTILINE))
    assert imported - sys.stdlib_module_names == set(packages)
    file, folder = program.split()
    command = guide.environments(guide.CLUSTER)[1]["command"]
    assert (root / file).is_file()
    assert command == ["python", f"{folder}{file}"]
    (main,) = deployments()["own"]["template"]["spec"]["containers"]
    assert main["image"] == "registry.example.com/agent:1"


def test_the_objects_that_the_guide_looks_at_are_named_as_it_says() -> None:
    cluster = Cluster(with_environments(*guide.environments(guide.CLUSTER)))
    names = {one["metadata"]["name"] for one in cluster.decide().deployments}
    assert {name.replace("demo", "my-job") for name in names} == {"my-job-environment-calc", "my-job-environment-own"}
    assert "`kubectl logs deployment/my-job-environment-calc`" in guide.GUIDE
    assert "`<job>-environment-<name>`" in guide.GUIDE
