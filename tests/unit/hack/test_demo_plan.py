"""What the demo decides before anything starts."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import yaml

from hack import demo, demo_faults
from hack.demo_plan import choose, config_maps, describe, loses_a_node, needs, no_power_off, tolerating
from rljob_api import load

WITH_ACCELERATORS = ("qwen-7b-gpu", "qwen-7b-dra")
NEEDING = dict.fromkeys(WITH_ACCELERATORS, "your data in the claim qwen-7b")
READ = cache(demo.read)
PLAYED = {path.stem for path in demo.EXAMPLES.glob("*.yaml")} - NEEDING.keys()


@pytest.mark.parametrize(
    ("environ", "euid", "platform", "cluster", "why"),
    [
        ({}, 0, "linux", "local", "root on Linux, and KUBECONFIG is not set"),
        ({"CLUSTER": "", "KUBECONFIG": ""}, 0, "linux", "local", "root on Linux, and KUBECONFIG is not set"),
        ({}, 1000, "linux", "kind", "the local cluster needs root"),
        ({}, 501, "darwin", "kind", "the local cluster needs Linux, and this is darwin"),
        ({}, 0, "darwin", "kind", "the local cluster needs Linux, and this is darwin"),
        ({"KUBECONFIG": "/c"}, 0, "linux", "own", "KUBECONFIG is set"),
        ({"KUBECONFIG": "/c"}, 501, "darwin", "own", "KUBECONFIG is set"),
        ({"KUBECONFIG": "/c", "CLUSTER": "local"}, 0, "linux", "local", "CLUSTER=local"),
        ({"KUBECONFIG": "/c", "CLUSTER": "kind"}, 0, "linux", "kind", "CLUSTER=kind"),
        ({"CLUSTER": "own"}, 1000, "linux", "own", "CLUSTER=own"),
        ({"CLUSTER": "kind"}, 0, "linux", "kind", "CLUSTER=kind"),
    ],
)
def test_the_cluster_is_chosen(environ: dict[str, str], euid: int, platform: str, cluster: str, why: str) -> None:
    choice = choose(environ, euid, platform)
    assert (choice.cluster, choice.why) == (cluster, why)
    assert why in describe(choice, "1.36")
    assert ("1.36" in describe(choice, "1.36")) == (cluster != "own"), "the minor of a cluster of one's own is its own"


def test_an_unknown_cluster_is_an_error() -> None:
    with pytest.raises(ValueError, match="CLUSTER=minikube: it must be one of local, kind, own"):
        choose({"CLUSTER": "minikube"}, 0, "linux")


@pytest.mark.parametrize("cluster", ["local", "kind", "own"])
def test_every_example_is_played_or_says_what_it_needs(cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "read", READ)  # each refusal reads every example
    for example in PLAYED:
        assert demo.refusal(example, cluster) is None
    for example, needed in NEEDING.items():
        told = demo.refusal(example, cluster)
        assert told is not None
        assert needed in told
        lacking = example in WITH_ACCELERATORS and cluster != "own"
        assert ("72 accelerators" in told) == lacking, "a cluster of one's own may have them"
        assert f"the demo runs {', '.join(sorted(PLAYED))}" in told


def test_an_unknown_example_names_those_that_there_are() -> None:
    told = demo.refusal("addition", "local")
    assert told == f"no example 'addition'; the demo runs {', '.join(sorted(PLAYED))}"


@pytest.mark.parametrize(
    ("kubernetes", "cluster", "said"),
    [
        ("1.37", "kind", "demo: a kind cluster, Kubernetes 1.37 (CLUSTER=kind)"),
        ("1.34", "local", "demo: the local cluster, Kubernetes 1.34 (CLUSTER=local)"),
        ("1.20", "local", "demo: KUBERNETES=1.20: 1.34, 1.35, 1.36 and 1.37 are built here"),
        ("1.37", "minikube", "demo: CLUSTER=minikube: it must be one of local, kind, own, or empty"),
    ],
)
def test_a_refusal_comes_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kubernetes: str, cluster: str, said: str
) -> None:
    def start(*command: str, check: bool = True, quiet: bool = True) -> str:
        raise AssertionError(command)

    monkeypatch.setattr(demo, "run", start)
    monkeypatch.setenv("KUBERNETES", kubernetes)
    monkeypatch.setenv("CLUSTER", cluster)
    assert demo.main("qwen-7b-gpu") == 2
    assert capsys.readouterr().out.splitlines()[0] == said


@pytest.mark.parametrize(
    ("example", "local", "why"),
    [
        ("async-smollm2", True, None),
        ("async-smollm2", False, "only the local cluster's nodes are switched off"),
        ("calculator-agent", True, None),
        ("second-try-smollm2", True, None),
        ("addition-asynchronous", True, "no checkpoint volume"),
        ("addition-asynchronous", False, "no checkpoint volume"),
    ],
)
def test_a_node_is_switched_off_only_where_its_loss_can_be_checked(example: str, local: bool, why: str | None) -> None:
    job = demo.read(demo.EXAMPLES / f"{example}.yaml")
    assert loses_a_node(job)
    told = no_power_off(job, local)
    assert told is None if why is None else why in (told or "")


@pytest.mark.parametrize("example", ["async-smollm2", "addition-kueue", "minimal"])
def test_rollout_machines_may_use_the_node_that_is_kept_for_them(example: str) -> None:
    documents = list(yaml.safe_load_all((demo.EXAMPLES / f"{example}.yaml").read_text()))
    changed = tolerating(documents, demo_faults.TAINT)
    tolerated = {"key": "rljob.dev/demo", "operator": "Equal", "value": "rollout", "effect": "PreferNoSchedule"}
    (job,) = (one for one in changed if one["kind"] == "RLJob")
    assert job["spec"]["rollout"]["template"]["spec"].pop("tolerations") == [tolerated]
    load(yaml.safe_dump_all(changed))
    before, after = (list(map(_without_empty, those)) for those in (documents, changed))
    assert after == before, "nothing else is changed, and not the documents themselves"


def _without_empty(document: dict[str, Any]) -> dict[str, Any]:
    kept = {key: _without_empty(value) if isinstance(value, dict) else value for key, value in document.items()}
    return {key: value for key, value in kept.items() if value != {}}


def test_runners_may_use_the_node_that_loses_power_too() -> None:
    documents = list(yaml.safe_load_all((demo.EXAMPLES / "calculator-agent.yaml").read_text()))
    (job,) = (one for one in tolerating(documents, demo_faults.TAINT) if one["kind"] == "RLJob")
    pods = [owner["template"]["spec"] for owner in (job["spec"]["rollout"], *job["spec"]["environments"])]
    assert [pod["tolerations"][0]["key"] for pod in pods] == ["rljob.dev/demo"] * 2


def test_the_code_of_an_example_is_a_config_map_of_its_file() -> None:
    found = {
        path.stem: config_maps(yaml.safe_load_all(path.read_text()))
        for path in demo.EXAMPLES.glob("*.yaml")
        if path.stem in PLAYED
    }
    assert {example: names for example, names in found.items() if names} == {
        "calculator-agent": ["calculator"],
        "own-loss": ["own-loss"],
        "second-try-smollm2": ["second-try"],
    }
    assert all(demo.code_file(name).is_file() for names in found.values() for name in names)


def test_a_config_map_of_the_example_itself_is_not_made_twice() -> None:
    pod = {"spec": {"volumes": [{"name": "a", "configMap": {"name": "mine"}}, {"name": "b", "emptyDir": {}}]}}
    job = {"kind": "RLJob", "spec": {"trainer": {"template": pod}}}
    assert config_maps([job]) == ["mine"]
    assert config_maps([{"kind": "ConfigMap", "metadata": {"name": "mine"}}, job]) == []


def test_an_on_policy_job_without_agents_loses_no_node() -> None:
    assert not loses_a_node(demo.read(demo.EXAMPLES / "minimal.yaml"))


@pytest.mark.parametrize(
    ("trainers", "each", "machines", "every", "cluster", "lacking"),
    [
        (1, 0, 3, 0, "local", []),
        (2, 2, 3, 0, "kind", ["4 accelerators"]),
        (2, 2, 3, 1, "local", ["7 accelerators"]),
        (2, 2, 3, 1, "own", []),
    ],
)
def test_the_accelerators_of_trainers_and_of_machines_count(
    trainers: int, each: int, machines: int, every: int, cluster: str, lacking: list[str]
) -> None:
    job = demo.read(demo.EXAMPLES / "minimal.yaml")
    trainer = job.spec.trainer.model_copy(update={"replicas": trainers, "accelerators_per_replica": each})
    rollout = job.spec.rollout.model_copy(update={"machines": machines, "accelerators_per_machine": every})
    spec = job.spec.model_copy(update={"trainer": trainer, "rollout": rollout})
    assert needs(job.model_copy(update={"spec": spec}), cluster) == lacking
