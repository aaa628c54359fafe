"""Egress: what the runners of an environment may call besides the job's gateway and the servers of its tools."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rljob_api.fields import Cidr, Model

Port = Annotated[int, Field(ge=1, le=65_535)]


class EgressCidr(Model):
    """Addresses that runners may call."""

    cidr: Cidr
    """The addresses, e.g. 10.20.0.0/16 or 192.0.2.7/32."""
    ports: Annotated[tuple[Port, ...] | None, Field(min_length=1, max_length=16)] = None
    """TCP ports. Absent: every port of every protocol."""


class Egress(Model):
    """What runners may call. Only a network that enforces NetworkPolicies denies the rest."""

    cidrs: Annotated[tuple[EgressCidr, ...], Field(max_length=32)] = ()
    """Addresses. One that contains all link-local addresses opens none of them: there clouds serve credentials."""
