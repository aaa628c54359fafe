"""Egress: what the runners of environments may call, as NetworkPolicies.

NetworkPolicies add up. One of the job holds for all of its runners: names, the gateway, and no caller. One of each
environment adds what that environment names, so none reaches what another one names. It exists also where nothing is
named: an edit that names nothing more takes the former addresses away.

A policy names no hosts, and acts on the addresses of pods behind a Service. So a Service stands for the pods of its
namespace.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from rljob_api import constants as c
from rljob_api.spec import Environment, RLJob
from rljob_api.status import Role
from rljob_kube.manifests.objects import EgressRule, IpBlock, NetworkPolicySpec, Peer, PolicyPort
from rljob_operator.policies.base.names import selector_labels

NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""Label of each namespace that holds its name."""
NOT_PUBLIC = (
    "10.0.0.0/8",
    "100.64.0.0/10",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "fc00::/7",
    "fe80::/10",
)
"""Addresses at which a cluster's DNS servers may be that are no pods: on nodes, in a node's cache, of the cloud."""

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_METADATA = ("169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128")
"""Addresses at which clouds serve the credentials of nodes."""
_PORTS = {"http": 80, "https": 443}
_SERVICE = re.compile(r"[a-z0-9-]+|(?:[a-z0-9-]+\.)+(?P<namespace>[a-z0-9-]+)\.svc(\..+)?")
"""A host that is a Service: its name alone, or with namespace and `svc`. The cluster's domain may follow."""


def of_all(job: RLJob) -> NetworkPolicySpec:
    """Render the content of the policy that all runners of a job have. Port 53 is open inside the cluster only."""
    resolvers: list[Peer] = [{"namespaceSelector": {}}, *({"ipBlock": {"cidr": cidr}} for cidr in NOT_PUBLIC)]
    gateway: Peer = {"podSelector": {"matchLabels": selector_labels(job.name, Role.COORDINATOR)}}
    return {
        "podSelector": {"matchLabels": {c.LABEL_ENVIRONMENTS_OF: job.name}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [],
        "egress": [
            {"to": resolvers, "ports": [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]},
            {"to": [gateway], "ports": _tcp(c.GATEWAY_PORT)},
        ],
    }


def of_one(job: RLJob, environment: Environment) -> NetworkPolicySpec:
    """Render the content of the policy of an environment's runners: what it names, besides `of_all`."""
    rules = {json.dumps(rule, sort_keys=True): rule for rule in _named(job, environment)}
    return {
        "podSelector": {"matchLabels": runner_labels(job, environment)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [],
        "egress": [rules[text] for text in sorted(rules)],
    }


def digest(job: RLJob, environment: Environment) -> str:
    """Return a hash of what the runners of an environment may call."""
    policies = (of_all(job), of_one(job, environment))
    return hashlib.sha256(json.dumps(policies, sort_keys=True).encode()).hexdigest()[:10]


def runner_labels(job: RLJob, environment: Environment) -> dict[str, str]:
    """Return the labels that select the runners of an environment."""
    return {c.LABEL_ENVIRONMENTS_OF: job.name, c.LABEL_ENVIRONMENT: environment.name}


def _named(job: RLJob, environment: Environment) -> Iterator[EgressRule]:
    for url in _urls(environment):
        if urlsplit(url).hostname != "localhost":  # another container of the pod
            yield _server(url)
    for one in environment.egress.cidrs if environment.egress is not None else ():
        rule: EgressRule = {"to": [{"ipBlock": _block(one.cidr)}]}
        yield {**rule, "ports": _tcp(*one.ports)} if one.ports is not None else rule


def _urls(environment: Environment) -> Iterator[str]:
    """Yield the URLs of an environment's MCP servers, and of its OpenEnv server."""
    for tool in environment.tools or ():
        if tool.mcp is not None:
            yield tool.mcp.url
    if environment.open_env is not None:
        yield environment.open_env.url


def _server(url: str) -> EgressRule:
    """Render the rule for the server of a URL. The port of a host that is no address and no Service is open to all."""
    parts = urlsplit(url)
    host, ports = parts.hostname or "", _tcp(parts.port or _PORTS[parts.scheme])
    if (address := _address(host)) is not None:
        return {"to": [{"ipBlock": {"cidr": f"{address}/{address.max_prefixlen}"}}], "ports": ports}
    service = _SERVICE.fullmatch(host)
    if service is None:
        return {"ports": ports}
    return {"to": [_pods_of(service["namespace"])], "ports": ports}


def _block(cidr: str) -> IpBlock:
    """Render a CIDR, without what it contains of `_METADATA`: who names many addresses does not mean those."""
    whole = ipaddress.ip_network(cidr)
    hidden = [part for part in _METADATA if _is_inside(ipaddress.ip_network(part), whole)]
    return {"cidr": cidr, "except": hidden} if hidden else {"cidr": cidr}


def _is_inside(part: _Network, whole: _Network) -> bool:
    """Tell whether `whole` contains `part` and more."""
    return part.version == whole.version and part != whole and part.subnet_of(whole)  # type: ignore[arg-type]


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _pods_of(namespace: str | None) -> Peer:
    """Select the pods of a namespace. None: the job's own."""
    if namespace is None:
        return {"podSelector": {}}
    return {"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: namespace}}}


def _tcp(*ports: int) -> list[PolicyPort]:
    return [{"port": port, "protocol": "TCP"} for port in ports]
