"""The egress proxy of a job: what its pod is, when there is one, and how programs in runners find it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from rljob_operator.policies.base.config import Config
from rljob_operator.policies.base.runners import PROXY
from rljob_operator.policies.pods import egress, egress_proxy
from rljob_operator.policies.pods.environments import anywhere, deployment
from rljob_operator.policies.pods.owned_objects import addressed_by, children
from tests.support.operator.environment_jobs import CALC, SHELL, calc, with_environments
from tests.support.operator.plan_cluster import Cluster

Json = dict[str, Any]
CONFIG = Config("example/run:1", "IfNotPresent")
HOSTS: Json = {**SHELL, "egress": {"hosts": ["pypi.org", "*.example.com"], "cidrs": [{"cidr": "10.1.0.0/16"}]}}
TOOLS = calc(tools=[{"mcp": {"url": "https://Tools.corp/mcp"}}, {"mcp": {"url": "http://search:9000"}}])


def test_the_proxy_is_confined_and_holds_its_own_key_alone() -> None:
    template = {"spec": {"nodeSelector": {"pool": "cpu"}, "imagePullSecrets": [{"name": "registry"}], "volumes": []}}
    job = with_environments(HOSTS, TOOLS, CALC | {"name": "other"}, coordinator={"template": template})
    found = egress_proxy.deployment(job, 1, CONFIG)
    assert (found["metadata"]["name"], found["spec"]["replicas"]) == ("demo-egress", 1)
    assert found["metadata"]["ownerReferences"][0]["uid"] == "11111111-2222"
    pod = found["spec"]["template"]
    assert pod["metadata"]["labels"] == {"rljob.dev/egress-of": "demo", "app.kubernetes.io/managed-by": "rljob"}
    told = json.loads(pod["metadata"]["annotations"]["rljob.dev/settings"])
    assert told["hosts"] == {"shell": ["pypi.org", "*.example.com"], "calc": ["tools.corp:443"]}
    spec: Json = dict(pod["spec"])
    assert spec["automountServiceAccountToken"] is False
    assert (spec["securityContext"]["runAsNonRoot"], spec["nodeSelector"]) == (True, {"pool": "cpu"})
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    (main,) = spec["containers"]
    assert main["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert set(main["resources"]["limits"]) == set(main["resources"]["requests"]) == {"cpu", "memory"}
    (volume,) = spec["volumes"]
    assert volume["projected"]["sources"][1] == {
        "secret": {
            "name": "demo-egress-11111111",
            "items": [{"key": "proxy-keys-key", "path": "proxy-keys-key"}],
        }
    }


def test_programs_find_the_proxy_with_their_environments_key() -> None:
    job = with_environments(CALC, HOSTS, calc(name="tools", tools=TOOLS["tools"]))
    variables = []
    for environment in job.spec.environments:
        pod: Json = dict(deployment(job, environment, 1, CONFIG, anywhere)["spec"]["template"])
        variables.append({one["name"]: one for one in pod["spec"]["containers"][0]["env"]})
    without, shell, tools = variables
    assert set(without) == {"HOME"}
    for name, found in (("shell", shell), ("tools", tools)):
        reference = {"name": "demo-egress-11111111", "key": f"proxy-key-{name}"}
        assert found["RLJOB_PROXY_KEY"] == {"name": "RLJOB_PROXY_KEY", "valueFrom": {"secretKeyRef": reference}}
        url = f"http://{name}:$(RLJOB_PROXY_KEY)@demo-egress.default.svc:3128"
        assert {found[one]["value"] for one in ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")} == {url}
        assert list(found).index("RLJOB_PROXY_KEY") < list(found).index("HTTPS_PROXY"), "the kubelet inserts it"
    assert shell["NO_PROXY"]["value"] == "localhost,127.0.0.1,.svc,.cluster.local,10.1.0.0/16"
    assert tools["no_proxy"]["value"] == "localhost,127.0.0.1,.svc,.cluster.local,search"


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
def test_a_template_may_name_another_proxy(name: str) -> None:
    """Programs prefer one spelling, and foreign code is given the variables of our proxy alone."""
    own = {"name": name, "value": "http://user:password@proxy.corp"}
    job = with_environments({**HOSTS, "template": {"spec": {"containers": [{"name": "main", "env": [own]}]}}})
    pod: Json = dict(deployment(job, job.spec.environments[0], 1, CONFIG, anywhere)["spec"]["template"])
    assert [one["name"] for one in pod["spec"]["containers"][0]["env"]] == ["HOME", name]


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "NO_PROXY", "all_proxy"])
def test_a_sidecars_proxy_is_none_of_the_programs(name: str) -> None:
    """A sidecar of a service mesh has variables of its own; programs run in `main`."""
    containers = [{"name": "mesh", "image": "x", "env": [{"name": name, "value": "localhost"}]}, {"name": "main"}]
    job = with_environments({**HOSTS, "template": {"spec": {"containers": containers}}})
    pod: Json = dict(deployment(job, job.spec.environments[0], 1, CONFIG, anywhere)["spec"]["template"])
    main, mesh = pod["spec"]["containers"]
    assert {"HTTPS_PROXY", "NO_PROXY", "https_proxy"} < {one["name"] for one in main["env"]}
    assert [one["name"] for one in mesh["env"]] == [name]


@pytest.mark.parametrize(
    ("cidr", "direct"),
    [("10.1.0.0/16", ["10.1.0.0/16"]), ("192.0.2.7/32", ["192.0.2.7"]), ("2001:db8::/32", []), ("::1/128", [])],
)
def test_clients_read_the_addresses_that_need_no_proxy(cidr: str, direct: list[str], monkeypatch) -> None:
    job = with_environments({**HOSTS, "egress": {"hosts": ["pypi.org"], "cidrs": [{"cidr": cidr}]}})
    variables = egress.proxy_variables(job, job.spec.environments[0])
    found = {one["name"]: one.get("value", "") for one in variables}
    assert found["NO_PROXY"].split(",")[4:] == direct
    for name, value in found.items():
        monkeypatch.setenv(name, value.replace("$(RLJOB_PROXY_KEY)", "key"))
    httpx.Client(trust_env=True).close()


def test_what_a_proxy_needs_is_made_where_a_host_is_named() -> None:
    def names(*environments: Json, config: Config = CONFIG) -> set[tuple[str, str]]:
        made = children(with_environments(*environments), 1, 2, config)
        return {(one["kind"], one["metadata"]["name"]) for one in made if "egress" in one["metadata"]["name"]}

    assert names(CALC, SHELL) == set()
    both = {("Secret", "demo-egress-11111111"), ("Service", "demo-egress")}
    assert names(CALC, HOSTS) == {*both, ("NetworkPolicy", "demo-egress")}
    assert names(TOOLS, config=Config(network_policy=False)) == both


def test_the_proxy_lives_as_long_as_the_runners() -> None:
    cluster = Cluster(with_environments(CALC, HOSTS))
    cluster.settle()
    cluster.start_all()
    cluster.settle()
    assert cluster.applied.count((PROXY, 1)) == 1
    assert cluster.status.is_true("Ready")
    assert cluster.decide().empty
    cluster.job = cluster.job.model_copy(update={"spec": cluster.job.spec.model_copy(update={"suspend": True})})
    cluster.settle()
    assert cluster.runners[PROXY].wanted == 1, "the round that ends needs it"
    target = cluster.status.target
    assert target is not None
    cluster.report(event=1, applied=target.revision, stage="Suspended")
    cluster.settle()
    assert cluster.runners[PROXY].wanted == 0
    cluster.pods.clear()
    cluster.settle()
    assert not cluster.status.is_true("Suspended")
    cluster.run_runners()
    cluster.settle()
    assert cluster.status.is_true("Suspended")
    assert cluster.decide().empty


def test_a_proxy_that_is_not_as_wanted_is_applied_again() -> None:
    cluster = Cluster(with_environments(CALC, HOSTS))
    cluster.settle()
    cluster.start_all()
    cluster.settle()
    cluster.runners[PROXY] = replace(cluster.runners[PROXY], shape="old")
    cluster.settle()
    assert cluster.applied.count((PROXY, 1)) == 2
    observed = replace(cluster.observed(), proxy=replace(cluster.runners[PROXY], deleting=True))
    assert egress_proxy.to_change(cluster.job, observed, CONFIG, runs=True) == ()


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        ({"refused": "pods is forbidden: exceeded quota: small"}, "QuotaExceeded", "egress proxy: pods"),
        ({"ready": 0, "overdue": "timed out"}, "RunnersNotStarting", "the label rljob.dev/egress-of"),
    ],
)
def test_why_a_proxy_does_not_start(change: Json, reason: str, words: str) -> None:
    cluster = Cluster(with_environments(CALC, HOSTS))
    cluster.settle()
    cluster.start_all()
    cluster.runners[PROXY] = replace(cluster.runners[PROXY], **change)
    cluster.settle()
    stalled = cluster.status.condition("Stalled")
    assert stalled is not None
    assert stalled.reason == reason
    assert words in stalled.message


def test_a_running_job_that_begins_to_name_a_host_gets_a_proxy() -> None:
    cluster = Cluster(with_environments(CALC, SHELL))
    cluster.settle()
    cluster.start_all()
    cluster.settle()
    cluster.job = cluster.job.model_copy(update={"spec": with_environments(CALC, HOSTS).spec})
    decided = cluster.decide()
    assert [(one["kind"], one["metadata"]["name"]) for one in decided.children] == [
        ("NetworkPolicy", "demo-environments"),
        ("NetworkPolicy", "demo-environment-shell"),
        ("Secret", "demo-egress-11111111"),
        ("Service", "demo-egress"),
        ("NetworkPolicy", "demo-egress"),
    ]
    assert addressed_by(decided.children) is None, "the coordinator's Service is another one"
    assert [one["metadata"]["name"] for one in decided.deployments] == ["demo-egress", "demo-environment-shell"]
    cluster.settle()
    assert cluster.decide().empty


def test_a_job_that_names_no_host_any_more_has_no_proxy() -> None:
    cluster = Cluster(with_environments(CALC, HOSTS))
    cluster.settle()
    cluster.start_all()
    cluster.settle()
    edited = with_environments(CALC, SHELL).spec
    cluster.job = cluster.job.model_copy(update={"spec": edited})
    decided = cluster.decide()
    policy = next(one for one in decided.children if one["metadata"]["name"] == "demo-environment-shell")
    assert policy["kind"] == "NetworkPolicy"
    assert policy["spec"]["egress"] == []
    cluster.settle()
    assert cluster.runners[PROXY].wanted == 0
