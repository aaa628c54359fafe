"""What the chart renders: pure `helm lint` and `helm template`, no server."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
import yaml

from rljob_api.spec import Gang
from rljob_operator import rbac
from rljob_operator.__main__ import options
from tests.support.charts.tools import CHART, Tools
from tests.support.paths import ROOT

# Helm is built with a cluster's programs, and unit tests need none of them.
pytestmark = pytest.mark.cluster

VALUE_SETS: dict[str, tuple[str, ...]] = {
    "defaults": (),
    "two replicas": ("--set=replicas=2,podDisruptionBudget.enabled=true",),
    "namespaced": ("--set=watchNamespaces={team-a,team-b}",),
    "everything": (
        "--set=serviceMonitor.enabled=true,serviceMonitor.labels.release=prom,networkPolicy.enabled=true",
        "--set=podMonitor.enabled=true,podMonitor.labels.release=prom,prometheusRule.enabled=true,prometheusRule.labels.a=b",
        "--set=dashboards.enabled=true,dashboards.annotations.grafana_folder=RLJob",
        "--set=image=registry:5000/rljob/operator:0.1.0,runtimeImage=registry/rljob/runtime@sha256:" + "0" * 64,
        "--set=imagePullSecrets[0].name=pull,priorityClassName=high,nodeSelector.disk=ssd,podLabels.team=a,podAnnotations.a=b",
        "--set=extraEnv[0].name=HTTPS_PROXY,extraEnv[0].value=proxy,tolerations[0].operator=Exists,logLevel=debug",
        '--set-json=affinity={"nodeAffinity":{}}',
        "--set=jobs.networkPolicy=false,serviceAccount.annotations.a=b,serviceAccount.name=own,kueue.enabled=true",
    ),
    "bare": (
        "--set=crds.install=false,rbac.create=false,userRoles.create=false,serviceAccount.create=false,serviceAccount.name=own",
    ),
}
every_value_set = pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)


def one(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The only object of its kind."""
    (found,) = [d for d in documents if d["kind"] == kind]
    return found


def project_crd() -> dict[str, Any]:
    return yaml.load((ROOT / "crds/rljob.yaml").read_text(), yaml.CSafeLoader)


@every_value_set
def test_chart_lints(tools: Tools, values: tuple[str, ...]) -> None:
    tools.helm("lint", "--strict", str(CHART), *values)


@every_value_set
def test_chart_objects_are_named_once_and_labelled(tools: Tools, values: tuple[str, ...]) -> None:
    documents = tools.template(*values)
    names = [(d["kind"], d["metadata"].get("namespace"), d["metadata"]["name"]) for d in documents]
    assert len(names) == len(set(names))
    for document in documents:
        assert document["metadata"]["labels"]["app.kubernetes.io/instance"] == "rljob"
        assert document["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"


@every_value_set
def test_chart_operator_pod_is_restricted(tools: Tools, values: tuple[str, ...]) -> None:
    """The pod passes the `restricted` Pod Security Standard, on a root file system that nothing can write."""
    pod = one(tools.template(*values), "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 65532
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for key in ("hostNetwork", "hostPID", "hostIPC"):
        assert key not in pod
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert security == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert all(set(volume) == {"name", "emptyDir"} for volume in pod["volumes"])


def test_chart_strategy_follows_replicas(tools: Tools) -> None:
    assert one(tools.template(), "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    several = one(tools.template("--set=replicas=2"), "Deployment")["spec"]
    assert several["strategy"]["type"] == "RollingUpdate"
    assert several["template"]["spec"]["topologySpreadConstraints"]


def test_chart_images(tools: Tools) -> None:
    """Empty values mean the chart's own version; what a user names is taken as it stands."""
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    (container,) = one(tools.template(), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"rljob/operator:{version}"
    assert f"--runtime-image=rljob/runtime:{version}" in container["args"]
    named = tools.template("--set=image=rljob.local/operator:dev,runtimeImage=rljob.local/runtime:dev")
    (container,) = one(named, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "rljob.local/operator:dev"
    assert "--runtime-image=rljob.local/runtime:dev" in container["args"]


def test_chart_version_is_the_package_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    for project in ("pyproject.toml", "bench/pyproject.toml"):
        assert f'version = "{chart["appVersion"]}"' in (ROOT / project).read_text().splitlines(), project
    assert chart["version"] == chart["appVersion"]


@pytest.mark.parametrize(
    ("copy", "original"),
    [("files/crd.yaml", "crds/rljob.yaml"), ("files/downgrade-policy.yaml", "crds/downgrade-policy.yaml")],
)
def test_chart_carries_the_projects_crd_and_its_policy(copy: str, original: str) -> None:
    same = (CHART / copy).read_bytes() == (ROOT / original).read_bytes()
    assert same, f"cp {original} {(CHART / copy).relative_to(ROOT)}"


@pytest.mark.parametrize("version", ["1.30.0", "1.34.0", "1.36.3-gke.100", "1.38.0"])
def test_chart_crd_is_rendered_unchanged(tools: Tools, version: str) -> None:
    rendered, original = one(tools.template(f"--kube-version={version}"), "CustomResourceDefinition"), project_crd()
    keep = {"helm.sh/resource-policy": "keep"}
    assert rendered["metadata"]["annotations"] == original["metadata"]["annotations"] | keep
    assert rendered["spec"] == original["spec"]


def test_chart_policy_is_rendered_unchanged(tools: Tools) -> None:
    documents = tools.template()
    for original in yaml.safe_load_all((ROOT / "crds/downgrade-policy.yaml").read_text()):
        rendered = one(documents, original["kind"])
        assert rendered["metadata"]["name"] == original["metadata"]["name"]
        assert rendered["spec"] == original["spec"]


@pytest.mark.parametrize("version", ["1.20.2", "1.29.14-eks-abcdef"])
def test_chart_refuses_versions_without_what_it_needs(tools: Tools, version: str) -> None:
    done = tools.run("helm", "template", "rljob", str(CHART), f"--kube-version={version}", check=False)
    assert done.returncode != 0
    assert "requires kubeVersion: >=1.30.0-0" in done.stderr


def test_chart_crd_can_be_left_out_or_let_go(tools: Tools) -> None:
    """And with it what guards it against a downgrade."""
    kinds = ("CustomResourceDefinition", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
    assert {d["kind"] for d in tools.template("--set=crds.install=false")}.isdisjoint(kinds)
    for keep in (True, False):
        documents = tools.template(f"--set=crds.keep={str(keep).lower()}")
        for kind in kinds:
            annotations = one(documents, kind)["metadata"].get("annotations") or {}
            assert ("helm.sh/resource-policy" in annotations) is keep


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("replicas=-1", "/replicas"),
        ("replicas=two", "/replicas"),
        ("imagePullPolicy=Sometimes", "/imagePullPolicy"),
        ("image=has blanks", "/image"),
        ("watchNamespaces={Upper}", "/watchNamespaces/0"),
        ("watchNamespaces={a,a}", "/watchNamespaces"),
        ("crds.instal=false", "instal"),
        ("replica=2", "replica"),
        ("logLevel=loud", "/logLevel"),
        ("serviceMonitor.interval=often", "/serviceMonitor/interval"),
        ("podMonitor.interval=often", "/podMonitor/interval"),
        ("prometheusRule.noRoundMinutes=0", "/prometheusRule/noRoundMinutes"),
        ("dashboards.enable=true", "enable"),
        ("podDisruptionBudget.enabled=true", "set replicas to 2"),
        ("serviceAccount.create=false", "serviceAccount.name"),
    ],
)
def test_chart_refuses_bad_values(tools: Tools, value: str, complaint: str) -> None:
    """Every mistake is told by the place of the value."""
    done = tools.run("helm", "template", "rljob", str(CHART), f"--set={value}", check=False)
    assert done.returncode != 0, done.stdout
    assert complaint in done.stderr.replace("'", "")


def rules_of(documents: list[dict[str, Any]], kind: str, name: str) -> list[dict[str, Any]]:
    (role,) = [d for d in documents if d["kind"] == kind and d["metadata"]["name"] == name]
    return role["rules"]


def test_chart_grants_what_the_code_uses_and_no_more(tools: Tools) -> None:
    clusterwide, namespaced = tools.template(), tools.template("--set=watchNamespaces={team-a}")
    native = rbac.GANG_RULES[Gang.NATIVE]
    assert rules_of(clusterwide, "ClusterRole", "rljob-operator") == rbac.manifest_rules(
        [*rbac.JOB_RULES, *native, *rbac.NODE_RULES]
    )
    assert rules_of(namespaced, "Role", "rljob-operator") == rbac.manifest_rules([*rbac.JOB_RULES, *native])
    for documents in (clusterwide, namespaced):
        assert rules_of(documents, "Role", "rljob-leader") == rbac.manifest_rules(rbac.LEADER_RULES)
        roles = [one for one in documents if one["kind"] in ("Role", "ClusterRole")]
        assert "kueue.x-k8s.io" not in str(roles)


def test_chart_grants_rights_on_quota_only_where_kueue_is_enabled(tools: Tools) -> None:
    """Flavors and classes have no namespace: to read them takes a ClusterRole in either mode."""
    enabled = '--set-json=kueue={"enabled":true},gangScheduling=[]'
    clusterwide, namespaced = tools.template(enabled), tools.template(enabled, "--set=watchNamespaces={team-a}")
    assert rules_of(clusterwide, "ClusterRole", "rljob-operator") == rbac.manifest_rules(
        [*rbac.JOB_RULES, *rbac.NODE_RULES, *rbac.KUEUE_RULES]
    )
    assert rules_of(namespaced, "Role", "rljob-operator") == rbac.manifest_rules([*rbac.JOB_RULES, *rbac.KUEUE_RULES])
    for documents in (clusterwide, namespaced):
        assert rules_of(documents, "ClusterRole", "rljob-quota") == rbac.manifest_rules(rbac.QUOTA_RULES)


@pytest.mark.parametrize("kinds", [[], ["KAI"], ["Native", "Coscheduling", "Volcano", "KAI"]])
def test_chart_lets_the_operator_make_the_pod_groups_that_are_asked_for(tools: Tools, kinds: list[str]) -> None:
    documents = tools.template(f"--set-json=gangScheduling={json.dumps(kinds)}")
    found = [rule for rule in rules_of(documents, "ClusterRole", "rljob-operator") if "podgroups" in rule["resources"]]
    assert found == [rule for kind in kinds for rule in rbac.manifest_rules(rbac.GANG_RULES[Gang(kind)])]


@every_value_set
def test_chart_arguments_are_the_operators(tools: Tools, values: tuple[str, ...]) -> None:
    """The command line that the chart writes is one that this operator understands, and says what the values say."""
    (container,) = one(tools.template(*values), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "-m", "rljob_operator"]
    given, level = options(container["args"], {"POD_NAME": "operator-0", "POD_NAMESPACE": "rljob-system"})
    assert given.leader_elect
    assert (given.lease_namespace, given.lease_name) == ("rljob-system", "rljob-operator")
    assert given.health_port == container["ports"][0]["containerPort"] == 8080
    assert given.config.network_policy is ("jobs.networkPolicy=false" not in ",".join(values))
    assert given.namespaces == (("team-a", "team-b") if "watchNamespaces" in str(values) else ())
    assert level == ("debug" if "logLevel=debug" in str(values) else "info")


def test_chart_user_roles(tools: Tools) -> None:
    """Viewers change nothing; aggregation is a label that can be switched off."""
    roles = {d["metadata"]["name"]: d for d in tools.template() if d["kind"] == "ClusterRole"}
    viewer, editor = roles["rljob-viewer"], roles["rljob-editor"]
    assert set(itertools.chain(*(rule["verbs"] for rule in viewer["rules"]))) == {"get", "list", "watch"}
    assert all("rljobs/status" not in rule["resources"] or rule["verbs"] == ["get"] for rule in editor["rules"])
    assert viewer["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert "rbac.authorization.k8s.io/aggregate-to-view" not in editor["metadata"]["labels"]
    plain = [d for d in tools.template("--set=userRoles.aggregate=false") if d["kind"] == "ClusterRole"]
    assert not any("aggregate" in label for role in plain for label in role["metadata"]["labels"])


def test_chart_namespaced_mode_has_no_cluster_rights(tools: Tools) -> None:
    documents = tools.template("--set=watchNamespaces={team-a,team-b}")
    bound = [d for d in documents if d["kind"] == "ClusterRoleBinding"]
    assert bound == []
    assert {d["metadata"]["namespace"] for d in documents if d["kind"] == "RoleBinding"} == {
        "team-a",
        "team-b",
        "rljob-system",
    }
