"""Egress: what the runners of an environment may call besides the job's gateway and the servers of its tools."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rljob_api.fields import Cidr, EgressHost, Model

Port = Annotated[int, Field(ge=1, le=65_535)]


class EgressCidr(Model):
    """Addresses that runners may call."""

    cidr: Cidr
    """The addresses, e.g. 10.20.0.0/16 or 192.0.2.7/32."""
    ports: Annotated[tuple[Port, ...] | None, Field(min_length=1, max_length=16)] = None
    """TCP ports. Absent: every port of every protocol."""


class Egress(Model):
    """Addresses and hosts that runners may call. Only a network that enforces NetworkPolicies denies the rest."""

    cidrs: Annotated[tuple[EgressCidr, ...], Field(max_length=32)] = ()
    """Addresses that runners call themselves. A range that contains all link-local addresses opens none of them: there
    clouds serve credentials."""
    hosts: Annotated[tuple[EgressHost, ...], Field(max_length=64)] = ()
    """Hosts by name, through a proxy of the job: pypi.org, example.com:8443, or all below a domain as *.example.com.
    Ports 80 and 443 where none is named. A host that is named exactly may have a private address, and one that a
    pattern names may not. Programs find the proxy in HTTPS_PROXY and HTTP_PROXY."""
