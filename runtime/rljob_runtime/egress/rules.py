"""Rules: which hosts an environment may reach through the egress proxy, and at which addresses of them.

The runners execute foreign code, and others answer for names. So a name that is allowed may still resolve to an address
inside the cluster, or to one where a cloud serves credentials.

A host that is named exactly may be private: who writes a private server's name means that server. A host that only a
pattern names has a public address, because strangers choose such names. No name leads to the proxy's own pod, to a link
or to a cloud's metadata.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from rljob_api.constants import METADATA_NETWORKS, PRIVATE_NETWORKS

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

WEB_PORTS = (80, 443)
"""Ports of a host that is named without one."""
_PRIVATE = tuple(map(ipaddress.ip_network, PRIVATE_NETWORKS))
_NEVER = tuple(map(ipaddress.ip_network, METADATA_NETWORKS))
_EMBEDDED = ipaddress.ip_network("64:ff9b::/96")
"""Addresses of IPv6 that a gateway translates to those of IPv4 in their last 32 bits."""
_LABEL = r"[a-z0-9_]([-a-z0-9_]*[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")


class Match(Enum):
    """How an environment names a host."""

    EXACT = "exact"
    PATTERN = "pattern"


class BadRules(ValueError):
    """A rule that cannot be read. The message shows it."""


@dataclass(frozen=True)
class HostRule:
    """A host, or all hosts below a domain (`pattern`), and its ports."""

    name: str
    pattern: bool
    ports: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> HostRule:
        """Parse `example.com`, `*.example.com`, or one of them with a port. Raises `BadRules`."""
        host, colon, port = text.partition(":")
        pattern = host.startswith("*.")
        name = normal_name(host.removeprefix("*."))
        if name is None or (colon and not is_port(port)):
            raise BadRules(f"{text!r} is no host: write example.com, *.example.com or example.com:8443")
        return cls(name, pattern, (int(port),) if colon else WEB_PORTS)

    def match(self, name: str, port: int) -> Match | None:
        """Tell how the rule names a host in its normal form; None if it does not."""
        if port not in self.ports:
            return None
        if self.pattern:
            return Match.PATTERN if name.endswith(f".{self.name}") else None
        return Match.EXACT if name == self.name else None


@dataclass(frozen=True)
class Rules:
    """Hosts by environment."""

    hosts: Mapping[str, tuple[HostRule, ...]]

    @classmethod
    def parse(cls, given: Any) -> Rules:
        """Parse `{environment: [host, …]}`. Raises `BadRules`."""
        if not isinstance(given, dict) or not all(isinstance(one, list) for one in given.values()):
            raise BadRules("the hosts are no object with a list for each environment")
        return cls({name: tuple(HostRule.parse(str(one)) for one in hosts) for name, hosts in given.items()})

    def match(self, environment: str, host: str, port: int) -> Match | None:
        """Tell how an environment names a host: exactly, by a pattern, or not at all."""
        name = normal_name(host)
        if name is None:
            return None
        found = {rule.match(name, port) for rule in self.hosts.get(environment, ())}
        return next((match for match in Match if match in found), None)


def is_port(text: str) -> bool:
    """Tell whether a text is the number of a port."""
    return text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65_535


def normal_name(host: str) -> str | None:
    """Return a host's name in lower case without the dot at its end; None for an address or anything else.

    Resolvers also take 2130706433, 0x7f.1 and 127.1 for addresses. A name whose last label is a number is one of these.
    """
    name = host.lower().removesuffix(".")
    if len(name) > 253 or _NAME.fullmatch(name) is None:
        return None
    last = name.rpartition(".")[2]
    return None if last.isdigit() or re.fullmatch(r"0x[0-9a-f]*", last) else name


def allowed(match: Match, addresses: Iterable[Address]) -> list[Address]:
    """Return those of a host's addresses to which the proxy may connect, in their order."""
    return [address for address in addresses if _may_connect(match, address)]


def _may_connect(match: Match, address: Address) -> bool:
    plain = _unwrapped(address)
    if any(plain in network for network in _NEVER):
        return False
    if any(plain in network for network in _PRIVATE):
        return match is Match.EXACT
    if plain.version == 6 and plain in ipaddress.ip_network("2002::/16"):
        return False  # it contains another address
    return plain.is_global and not plain.is_multicast and not plain.is_reserved


def _unwrapped(address: Address) -> Address:
    """Return the address of IPv4 that an address of IPv6 stands for, else the address itself."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address in _EMBEDDED:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address
