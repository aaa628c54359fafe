"""What the runners of environments may call, as their NetworkPolicies say it."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api import InvalidSpec
from rljob_api.fields import EGRESS_HOST
from rljob_api.spec import RLJob
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.pods import egress
from rljob_operator.policies.pods.owned_objects import children
from tests.support.operator.environment_jobs import CALC, SHELL, calc, with_environments

Json = dict[str, Any]
CONFIG = Config()

METADATA = ["169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32"]
"""Addresses of IPv4 at which clouds serve the credentials of nodes."""


def policies(job: RLJob, config: Config = CONFIG) -> dict[str, Json]:
    made = children(job, 1, 2, config)
    return {one["metadata"]["name"]: dict(one["spec"]) for one in made if one["kind"] == "NetworkPolicy"}


def named(*environments: Json) -> list[Json]:
    """What the first environment's policy adds."""
    job = with_environments(*environments)
    found: list[Json] = policies(job)[f"demo-environment-{job.spec.environments[0].name}"]["egress"]
    return found


def of_url(url: str) -> list[Json]:
    return named(calc(tools=[{"mcp": {"url": url}}]))


def tcp(port: int) -> list[Json]:
    return [{"port": port, "protocol": "TCP"}]


def test_every_runner_reaches_names_and_the_gateway() -> None:
    spec = policies(with_environments(CALC, SHELL))["demo-environments"]
    assert spec["podSelector"] == {"matchLabels": {"rljob.dev/environments-of": "demo"}}
    assert (spec["policyTypes"], spec["ingress"]) == (["Ingress", "Egress"], [])
    names, gateway = spec["egress"]
    assert {(one["port"], one["protocol"]) for one in names["ports"]} == {(53, "UDP"), (53, "TCP")}
    assert gateway == {
        "to": [{"podSelector": {"matchLabels": {"rljob.dev/job": "demo", "rljob.dev/role": "coordinator"}}}],
        "ports": tcp(8000),
    }


@given(st.one_of(st.ip_addresses(), st.sampled_from(["8.8.8.8", "2606:4700::1111"]).map(ipaddress.ip_address)))
def test_no_public_address_is_a_resolver(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """Else port 53 would carry anything to anywhere."""
    names = policies(with_environments())["demo-environments"]["egress"][0]
    blocks = [ipaddress.ip_network(one["ipBlock"]["cidr"]) for one in names["to"] if "ipBlock" in one]
    assert len(blocks) + 1 == len(names["to"])
    assert {"namespaceSelector": {}} in names["to"]
    assert not (address.is_global and any(address in block for block in blocks))


def test_an_environment_reaches_only_what_it_names() -> None:
    found = policies(with_environments(CALC, SHELL))
    assert set(found) == {"demo", "demo-environments", "demo-environment-calc", "demo-environment-shell"}
    calc_policy, shell_policy = found["demo-environment-calc"], found["demo-environment-shell"]
    own = {"rljob.dev/environments-of": "demo", "rljob.dev/environment": "calc"}
    assert calc_policy["podSelector"] == {"matchLabels": own}
    tools = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "tools"}}}
    assert calc_policy["egress"] == [{"to": [tools], "ports": tcp(9000)}]
    assert shell_policy["podSelector"]["matchLabels"]["rljob.dev/environment"] == "shell"
    assert shell_policy["egress"] == []
    for one in (calc_policy, shell_policy):
        assert (one["policyTypes"], one["ingress"]) == (["Ingress", "Egress"], [])
    assert set(policies(with_environments(CALC), Config(network_policy=False))) == set()


@pytest.mark.parametrize(
    ("url", "peer", "port"),
    [
        ("http://search/mcp", {"podSelector": {}}, 80),
        ("http://search:9000/mcp", {"podSelector": {}}, 9000),
        ("https://search.tools.svc", {"namespaceSelector": {"matchLabels": {egress.NAMESPACE_NAME: "tools"}}}, 443),
        (
            "http://pod-0.search.tools.svc.cluster.local:8443/",
            {"namespaceSelector": {"matchLabels": {egress.NAMESPACE_NAME: "tools"}}},
            8443,
        ),
        ("http://10.1.2.3:9000/mcp", {"ipBlock": {"cidr": "10.1.2.3/32"}}, 9000),
        ("https://192.0.2.7", {"ipBlock": {"cidr": "192.0.2.7/32"}}, 443),
    ],
)
def test_where_a_server_is(url: str, peer: Json, port: int) -> None:
    assert of_url(url) == [{"to": [peer], "ports": tcp(port)}]


@pytest.mark.parametrize(
    "url",
    [
        "https://tools.corp/mcp",
        "https://search.tools/mcp",
        "https://svc.example.com",
        "https://search.tools.svc.example.com/mcp",
        "https://search.tools.svc.cluster.local.example.com",
    ],
)
def test_another_host_is_reached_through_the_proxy(url: str) -> None:
    proxy = {"podSelector": {"matchLabels": {"rljob.dev/egress-of": "demo"}}}
    assert of_url(url) == [{"to": [proxy], "ports": tcp(3128)}]
    assert named(SHELL, calc(tools=[{"mcp": {"url": url}}])) == []
    (environment,) = with_environments(calc(tools=[{"mcp": {"url": url}}])).spec.environments
    assert egress.hosts(environment) == [f"{url.split('/')[2]}:443"]


LABELS = st.text("aB0-", min_size=1, max_size=5)
SERVERS = st.one_of(
    st.from_regex(r"[a-zA-Z0-9.-]{1,20}(:[0-9]{1,5})?(/mcp)?", fullmatch=True),
    st.lists(LABELS, min_size=1, max_size=4).map(".".join),
    st.lists(st.integers(0, 300).map(str), min_size=3, max_size=5).map(".".join),
)


@given(SERVERS)
def test_each_url_that_is_accepted_opens_something(server: str) -> None:
    """What neither a policy nor the proxy can open is refused when it is applied, and not dropped later."""
    try:
        (environment,) = with_environments(calc(tools=[{"mcp": {"url": f"http://{server}"}}])).spec.environments
    except InvalidSpec:
        return
    reached = egress.hosts(environment)
    assert all(re.fullmatch(EGRESS_HOST, host) for host in reached)
    assert (
        reached or named(calc(tools=[{"mcp": {"url": f"http://{server}"}}])) or server.lower().startswith("localhost")
    )


def test_a_service_among_the_hosts_is_called_without_the_proxy() -> None:
    (environment,) = with_environments(
        {**SHELL, "egress": {"hosts": ["search.tools.svc:8000", "web"]}}
    ).spec.environments
    assert egress.hosts(environment) == []
    tools = {"namespaceSelector": {"matchLabels": {egress.NAMESPACE_NAME: "tools"}}}
    rules = named({**SHELL, "egress": {"hosts": ["search.tools.svc:8000", "web"]}})
    assert sorted(rules, key=str) == sorted(
        [
            {"to": [tools], "ports": tcp(8000)},
            {"to": [{"podSelector": {}}], "ports": tcp(80)},
            {"to": [{"podSelector": {}}], "ports": tcp(443)},
        ],
        key=str,
    )


def test_no_port_is_open_to_every_address() -> None:
    hosts = {**SHELL, "egress": {"hosts": ["pypi.org"]}}
    made = policies(with_environments(calc(tools=[{"mcp": {"url": "https://tools.corp"}}]), hosts))
    for name in ("demo-environments", "demo-environment-calc", "demo-environment-shell"):
        assert all(rule.get("to") for rule in made[name]["egress"])


def test_the_proxys_policy() -> None:
    spec = policies(with_environments({**SHELL, "egress": {"hosts": ["pypi.org"]}}))["demo-egress"]
    assert spec["podSelector"] == {"matchLabels": {"rljob.dev/egress-of": "demo"}}
    runners = {"podSelector": {"matchLabels": {"rljob.dev/environments-of": "demo"}}}
    assert spec["ingress"] == [{"from": [runners], "ports": tcp(3128)}]
    names, anywhere = spec["egress"]
    assert {one["port"] for one in names["ports"]} == {53}
    assert {"ipBlock": {"cidr": "0.0.0.0/0", "except": METADATA}} in anywhere["to"]
    assert "demo-egress" not in policies(with_environments(CALC, SHELL))


def test_another_container_of_the_pod_needs_no_rule() -> None:
    assert of_url("http://localhost:9000/mcp") == []


def test_an_environments_server() -> None:
    game = {"name": "game", "kind": "OpenEnv", "openEnv": {"url": "http://game:8000"}}
    assert named(game) == [{"to": [{"podSelector": {}}], "ports": tcp(8000)}]


def of_cidrs(*cidrs: Json) -> list[Json]:
    return named({**SHELL, "egress": {"cidrs": list(cidrs)}})


@pytest.mark.parametrize(
    ("cidr", "block"),
    [
        ("10.20.0.0/16", {"cidr": "10.20.0.0/16"}),
        ("0.0.0.0/0", {"cidr": "0.0.0.0/0", "except": METADATA}),
        ("100.64.0.0/10", {"cidr": "100.64.0.0/10", "except": ["100.100.100.200/32"]}),
        ("::/0", {"cidr": "::/0", "except": ["fe80::/10", "fd00:ec2::254/128", "fd20:ce::254/128"]}),
        ("169.254.0.0/16", {"cidr": "169.254.0.0/16"}),
        ("169.254.169.254/32", {"cidr": "169.254.169.254/32"}),
    ],
)
def test_addresses_that_an_environment_names(cidr: str, block: Json) -> None:
    assert of_cidrs({"cidr": cidr}) == [{"to": [{"ipBlock": block}]}]
    assert of_cidrs({"cidr": cidr, "ports": [443, 80]}) == [
        {"to": [{"ipBlock": block}], "ports": [*tcp(443), *tcp(80)]}
    ]


def test_an_edit_that_names_nothing_more_takes_the_addresses_away() -> None:
    assert named(SHELL) == named({**SHELL, "egress": {}}) == []


def test_two_tools_of_one_server_are_one_rule() -> None:
    tools = [{"mcp": {"url": f"http://search:9000/{path}"}} for path in "ab"]
    assert len(named(calc(tools=tools))) == 1


def test_the_digest_tells_what_an_environment_names() -> None:
    job, same = with_environments(CALC, SHELL), with_environments(CALC, SHELL, rounds=9)
    one, other = (egress.digest(job, environment, True) for environment in job.spec.environments)
    assert one != other
    assert egress.digest(same, same.spec.environments[0], True) == one
    assert egress.digest(job, job.spec.environments[0], False) != one, "the policies begin, or are no more made"
