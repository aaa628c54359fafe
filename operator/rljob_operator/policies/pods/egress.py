"""Egress: what the runners of environments may call, as NetworkPolicies.

NetworkPolicies add up. One of the job holds for all of its runners: names, the gateway, and no caller. One of each
environment adds what that environment names, so none reaches what another one names. It exists also where nothing is
named: an edit that names nothing more takes the former addresses away.

A policy names no hosts, and acts on the addresses of pods behind a Service. So a Service stands for the pods of its
namespace, and other hosts are reached through the job's egress proxy.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator, Sequence
from urllib.parse import SplitResult, urlsplit

from rljob_api import constants as c
from rljob_api.spec import Environment, RLJob
from rljob_api.status import Role
from rljob_kube.manifests.objects import EgressRule, IpBlock, NetworkPolicySpec, Peer, PolicyPort
from rljob_kube.manifests.pods import EnvVar
from rljob_operator.policies.base.deployments import shape_of
from rljob_operator.policies.base.names import selector_labels
from rljob_operator.policies.pods.overlay import user_container

NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""Label of each namespace that holds its name."""
NOT_PUBLIC = tuple(sorted((*c.PRIVATE_NETWORKS, *c.LINK_LOCAL_NETWORKS)))
"""Addresses at which a cluster's DNS servers may be that are no pods: on nodes, in a node's cache, of the cloud."""

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_DIRECT = ("localhost", "127.0.0.1", ".svc", ".cluster.local")
"""What programs call without the proxy. The gateway is a Service."""
_EVERY_POD: Peer = {"namespaceSelector": {}}
_NODES_RESOLVERS: list[Peer] = [{"ipBlock": {"cidr": cidr}} for cidr in NOT_PUBLIC]
_RESOLVERS: EgressRule = {
    "to": [_EVERY_POD, *_NODES_RESOLVERS],
    "ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}],
}
_PORTS = {"http": 80, "https": 443}
_SERVICE = re.compile(r"[a-z0-9-]+|(?:[a-z0-9-]+\.)+(?P<namespace>[a-z0-9-]+)\.svc(\.cluster\.local)?")
"""A host that is a Service: its name alone, or with namespace and `svc`. The usual domain of clusters may follow. After
another one the name may be of the internet, and must not open a namespace. The proxy reaches Services by it too."""


def of_all(job: RLJob) -> NetworkPolicySpec:
    """Render the content of the policy that all runners of a job have. Port 53 is open inside the cluster only."""
    gateway: Peer = {"podSelector": {"matchLabels": selector_labels(job.name, Role.COORDINATOR)}}
    return {
        "podSelector": {"matchLabels": {c.LABEL_ENVIRONMENTS_OF: job.name}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [],
        "egress": [
            _RESOLVERS,
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


def of_proxy(job: RLJob) -> NetworkPolicySpec:
    """Render the content of the egress proxy's policy: runners call it, and it calls any address but links."""
    runners: Peer = {"podSelector": {"matchLabels": {c.LABEL_ENVIRONMENTS_OF: job.name}}}
    anywhere: list[Peer] = [{"ipBlock": _block(cidr)} for cidr in ("0.0.0.0/0", "::/0")]
    return {
        "podSelector": {"matchLabels": {c.LABEL_EGRESS_OF: job.name}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [runners], "ports": _tcp(c.EGRESS_PORT)}],
        "egress": [_RESOLVERS, {"to": [_EVERY_POD, *anywhere]}],
    }


def digest(job: RLJob, environment: Environment, policies: bool) -> str:
    """Return a hash of the objects that an environment's runners need to reach what it names.

    `policies`: whether NetworkPolicies are among them.
    """
    content = (of_all(job), of_one(job, environment)) if policies else bool(hosts(environment))
    return shape_of(content)


def hosts(environment: Environment) -> list[str]:
    """Return the hosts that an environment reaches by name: those of `egress`, and servers, that are no Services."""
    named = [host for host in _egress_hosts(environment) if not _is_direct(host.partition(":")[0])]
    for url in map(urlsplit, _urls(environment)):
        if not _is_direct(url.hostname or ""):
            named.append(f"{url.hostname}:{_port(url)}")
    return list(dict.fromkeys(named))


def uses_proxy(job: RLJob) -> bool:
    """Tell whether an environment of the job reaches hosts by name."""
    return any(map(hosts, job.spec.environments))


def proxy_variables(job: RLJob, environment: Environment) -> list[EnvVar]:
    """Render the variables by which programs in a runner find the proxy.

    There are none where it names no host, or where the template's `main` names a proxy in any spelling: programs would
    read the one of both that they prefer, and foreign code would read the credentials of the user's.
    """
    if not hosts(environment) or _has_own_proxy(environment):
        return []
    address = f"{c.egress_proxy(job.name)}.{job.namespace}.svc:{c.EGRESS_PORT}"
    proxy = f"http://{environment.name}:$({c.ENV_PROXY_KEY})@{address}"  # the kubelet inserts the key
    servers = {urlsplit(url).hostname or "" for url in _urls(environment)}
    own = [one.cidr for one in environment.egress.cidrs] if environment.egress is not None else []
    direct = ",".join([*_DIRECT, *sorted(filter(_is_direct, servers)), *filter(None, map(_direct_address, own))])
    secret = c.egress_secret_of(job.name, job.metadata.uid)
    key: EnvVar = {
        "name": c.ENV_PROXY_KEY,
        "valueFrom": {"secretKeyRef": {"name": secret, "key": c.proxy_key_item(environment.name)}},
    }
    values = {"HTTPS_PROXY": proxy, "HTTP_PROXY": proxy, "NO_PROXY": direct}
    values |= {name.lower(): value for name, value in values.items()}  # programs read one spelling or the other
    rest: list[EnvVar] = [{"name": name, "value": value} for name, value in values.items()]
    return [key, *rest]


def _has_own_proxy(environment: Environment) -> bool:
    """Tell whether the template's `main` names a proxy. A sidecar's variables say nothing about programs in `main`."""
    names = [one["name"].upper() for one in user_container(environment.template).get("env") or ()]
    return any(name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "ALL_PROXY") for name in names)


def _direct_address(cidr: str) -> str | None:
    """Return what NO_PROXY has of a range. Python's httpx ends at one of IPv6; it reads single addresses only."""
    network = ipaddress.ip_network(cidr)
    if network.version == 6:
        return None
    return str(network.network_address) if network.num_addresses == 1 else cidr


def runner_labels(job: RLJob, environment: Environment) -> dict[str, str]:
    """Return the labels that select the runners of an environment."""
    return {c.LABEL_ENVIRONMENTS_OF: job.name, c.LABEL_ENVIRONMENT: environment.name}


def _egress_hosts(environment: Environment) -> Sequence[str]:
    return environment.egress.hosts if environment.egress is not None else ()


def _service_urls(environment: Environment) -> Iterator[str]:
    """Yield URLs of the Services in `egress.hosts`: their ports, or those of the web."""
    for host, colon, port in (one.partition(":") for one in _egress_hosts(environment)):
        if _is_direct(host):
            yield from [f"http://{host}:{port}"] if colon else [f"http://{host}", f"https://{host}"]


def _named(job: RLJob, environment: Environment) -> Iterator[EgressRule]:
    for url in (*_urls(environment), *_service_urls(environment)):
        host = urlsplit(url).hostname or ""
        if host != "localhost" and _is_direct(host):  # else another container of the pod, or the proxy's
            yield _server(url)
    if hosts(environment):
        proxy: Peer = {"podSelector": {"matchLabels": {c.LABEL_EGRESS_OF: job.name}}}
        yield {"to": [proxy], "ports": _tcp(c.EGRESS_PORT)}
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
    """Render the rule for the server of a URL, which is an address or a Service."""
    parts = urlsplit(url)
    host, ports = parts.hostname or "", _tcp(_port(parts))
    if (address := _address(host)) is not None:
        return {"to": [{"ipBlock": {"cidr": f"{address}/{address.max_prefixlen}"}}], "ports": ports}
    service = _SERVICE.fullmatch(host)
    return {"to": [_pods_of(service["namespace"] if service is not None else None)], "ports": ports}


def _is_direct(host: str) -> bool:
    """Tell whether runners call a host themselves: an address, or a Service."""
    return _address(host) is not None or _SERVICE.fullmatch(host) is not None


def _port(url: SplitResult) -> int:
    return url.port or _PORTS[url.scheme]


def _block(cidr: str) -> IpBlock:
    """Render a CIDR, without what it contains of `METADATA_NETWORKS`: who names many addresses does not mean those."""
    whole = ipaddress.ip_network(cidr)
    hidden = [part for part in c.METADATA_NETWORKS if _is_inside(ipaddress.ip_network(part), whole)]
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
