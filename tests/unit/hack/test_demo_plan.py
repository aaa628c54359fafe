"""What the demo decides before anything starts."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import yaml

from hack import demo, demo_faults
from hack.demo_plan import (
    TEMPORARY,
    choose,
    config_maps,
    describe,
    ended,
    kueue_values,
    loses_a_node,
    needs,
    no_power_off,
    queue_of,
    quota,
    stalled,
    tolerating,
)
from rljob_api import load
from rljob_operator.policies.status.catalogue.reasons import reasons_of

WITH_ACCELERATORS = ("qwen-7b-gpu", "qwen-7b-dra")
NEEDING = {
    **dict.fromkeys(WITH_ACCELERATORS, "your data in the claim qwen-7b"),
    "openenv-echo": "an image of yours in place of registry.example.com/echo-env:0.1.0: examples/",
    "verifiers-sums": "an image of yours in place of registry.example.com/rljob-verifiers:0.1.0: examples/",
}
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
    others = [job["spec"]["trainer"], job["spec"].get("coordinator", {})]
    kept = [role.get("template", {}).get("spec", {}).get("tolerations") for role in others]
    assert kept == [None] * 2, "also where roles share a template"
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


# --- quotas -----------------------------------------------------------------------------------------------------------


def test_one_example_is_in_a_queue() -> None:
    queues = {example: queue for example in PLAYED if (queue := queue_of(READ(demo.EXAMPLES / f"{example}.yaml")))}
    assert queues == {"addition-kueue": "research"}


def test_the_demos_quota_is_what_the_example_asks_for() -> None:
    """Under names of the demo's own: a queue of the same name may be in use elsewhere."""
    text = (demo.EXAMPLES / "addition-kueue.yaml").read_text(encoding="utf-8")
    commented = re.findall(r"^#   (.*)$", text, re.MULTILINE)
    wanted = {one["kind"]: one for one in yaml.safe_load_all("\n".join(commented))}
    made = {one["kind"]: one for one in quota("research", "rljob-demo")}
    assert made.keys() == wanted.keys()
    assert {one["apiVersion"] for one in made.values()} == {one["apiVersion"] for one in wanted.values()}
    assert made["LocalQueue"]["metadata"] == {"name": "research", "namespace": "rljob-demo"}
    assert made["LocalQueue"]["spec"] == {"clusterQueue": made["ClusterQueue"]["metadata"]["name"]}
    (own,), (asked,) = (one["ClusterQueue"]["spec"].pop("resourceGroups") for one in (made, wanted))
    assert own["flavors"][0]["resources"] == asked["flavors"][0]["resources"]
    assert own["flavors"][0]["name"] == made["ResourceFlavor"]["metadata"]["name"]
    assert own["coveredResources"] == asked["coveredResources"]
    assert made["ClusterQueue"]["spec"]["preemption"] == wanted["ClusterQueue"]["spec"]["preemption"]
    selected = made["ClusterQueue"]["spec"]["namespaceSelector"]
    assert selected == {"matchLabels": {"kubernetes.io/metadata.name": "rljob-demo"}}, "no other namespace may use it"


def test_kueue_runs_from_the_nodes_image_and_looks_at_one_namespace() -> None:
    config = {"webhook": {"port": 9443}, "integrations": {"frameworks": ["batch/job", "pod", "deployment"]}}
    defaults = {"managerConfig": {"controllerManagerConfigYaml": yaml.safe_dump(config)}}
    values = kueue_values(defaults, "docker.io/rljob/kueue:v0.17.0", "rljob-demo")
    image = {"repository": "docker.io/rljob/kueue", "tag": "v0.17.0", "pullPolicy": "Never"}
    assert values["controllerManager"] == {"manager": {"image": image}}
    assert yaml.safe_load(values["managerConfig"]["controllerManagerConfigYaml"]) == {
        "webhook": {"port": 9443},
        "integrations": {"frameworks": ["batch/job"]},
        "managedJobsNamespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "rljob-demo"}},
    }


class Commands:
    """The commands of a demo, which run nothing. A job that is asked for has the status `Complete`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cluster: str, apis: str) -> None:
        self.lines: list[str] = []
        self._apis = apis
        monkeypatch.setenv("CLUSTER", cluster)
        for name, value in {"KUBECONFIG": "/c", "PATH": os.environ["PATH"]}.items():
            monkeypatch.setenv(name, value)  # The demo sets both.
        monkeypatch.setattr(demo, "run", self._run)
        monkeypatch.setattr(demo, "install_kueue", lambda: self.lines.append("install Kueue"))

    def _run(self, *command: str, check: bool = True, quiet: bool = True, given: str | None = None) -> str:
        self.lines.append(" ".join(command) + (f" {given}" if given else ""))
        if "api-versions" in command:
            return self._apis
        if "version" in command:
            return '{"serverVersion": {"gitVersion": "v1.37.2"}}'
        if command[3:5] == ("get", "rljob"):
            runtime = '"runtime": {"round": 50, "rewardFirst": 0, "rewardLast": 1, "weightVersion": 50}'
            return f'{{"status": {{"conditions": [{{"type": "Complete", "status": "True"}}], {runtime}}}}}'
        return ""

    def at(self, part: str) -> int:
        """Where the one command with this part is."""
        (found,) = (number for number, line in enumerate(self.lines) if part in line)
        return found


@pytest.mark.parametrize(("cluster", "installs"), [("local", True), ("kind", True), ("own", False)])
def test_the_quota_is_there_before_the_job(cluster: str, installs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = Commands(monkeypatch, cluster, "v1\nkueue.x-k8s.io/v1beta2\n")
    assert demo.main("addition-kueue") == 0
    assert ("install Kueue" in ran.lines) is installs
    operator = ran.at("--install rljob")
    assert ran.lines[operator].endswith("--set kueue.enabled=true")
    assert operator < ran.at("clusterQueue: rljob-demo") < ran.at("localqueue/research") < ran.at("kind: RLJob")
    if installs:
        assert ran.at("install Kueue") < operator


def test_a_job_without_a_queue_needs_no_kueue(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = Commands(monkeypatch, "local", "v1\n")
    assert demo.main("minimal") == 0
    assert not [line for line in ran.lines if "ueue" in line]


def test_a_cluster_of_ones_own_without_kueue_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = Commands(monkeypatch, "own", "v1\nkueue.x-k8s.io/v1beta1\n")
    assert demo.main("addition-kueue") == 2
    assert [line.split()[-1] for line in ran.lines] == ["tools", "api-versions"]
    assert "does not serve kueue.x-k8s.io/v1beta2: install Kueue" in capsys.readouterr().out.splitlines()[-1]


# --- the end of a job -------------------------------------------------------------------------------------------------


def condition(kind: str, reason: str, status: str = "True") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": "do this"}


@pytest.mark.parametrize(
    ("conditions", "how", "patience"),
    [
        ([], None, None),
        ([condition("Ready", "BelowMinMachines", "False")], None, None),
        ([condition("Complete", "RoundsFinished")], "Complete", None),
        ([condition("Complete", "x", "False"), condition("Stalled", "x", "False")], None, None),
        ([condition("Stalled", "ModelNotUsable"), condition("Failed", "ModelNotUsable")], "Failed, ModelNotUsable", 10),
        ([condition("Stalled", "KueueNotInstalled")], None, 10),
        ([condition("Stalled", "Unschedulable")], None, 300),
    ],
)
def test_a_job_has_ended_or_is_stalled(conditions: list[dict[str, str]], how: str | None, patience: int | None) -> None:
    told = ended({"conditions": conditions})
    assert told == how if how in (None, "Complete") else told == f"{how}: do this"
    stall = stalled({"conditions": conditions})
    assert (stall and stall.patience) == patience
    if stall is not None:
        assert stall.why == f"Stalled, {conditions[0]['reason']}: do this"


def test_a_job_without_a_status_goes_on() -> None:
    assert (ended({}), stalled({})) == (None, None)


def test_reasons_that_may_pass_are_reasons_of_the_operator() -> None:
    assert set(reasons_of("Stalled", True)) > TEMPORARY


class Clock:
    """Seconds that only sleeping takes, and a job's status by the second."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, reason: Callable[[float], str | None]) -> None:
        self.now = 0.0
        self._reason = reason
        monkeypatch.setattr(demo.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(demo.time, "sleep", self._sleep)
        monkeypatch.setattr(demo, "kubectl", self._kubectl)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def _kubectl(self, *arguments: str) -> str:
        reason = self._reason(self.now)
        return json.dumps({"status": {"conditions": [] if reason is None else [condition("Stalled", reason)]}})


@pytest.mark.parametrize(
    ("reason", "seconds", "told"),
    [
        (lambda now: "KueueNotInstalled" if now >= 5 else None, 15, "Stalled, KueueNotInstalled: do this"),
        (lambda now: "QueueInactive" if now < 5 or now >= 50 else None, 60, "Stalled, QueueInactive: do this"),
        (lambda now: "ImagePullFailed" if now < 60 else "QueueInactive", 70, "Stalled, QueueInactive: do this"),
        (lambda now: "ImagePullFailed", 300, "Stalled, ImagePullFailed: do this"),
        (lambda now: "ImagePullFailed" if now % 100 else None, 1800, "not complete after 30 minutes"),
    ],
    ids=["needs a person", "passes once", "becomes another", "may pass", "passes always"],
)
def test_a_stalled_job_is_given_up(
    reason: Callable[[float], str | None], seconds: float, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch, reason)
    assert demo.follow("job", 50, 0.0) == told
    assert clock.now == pytest.approx(seconds, abs=1)
