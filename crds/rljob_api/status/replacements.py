"""Replacements: failed machines, their budgets and the nodes that a job avoids."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from rljob_api.fields import Count, Name, StatusModel, Timestamp


class BackOff(StatusModel):
    """Failures in a row of one machine, and when it may be replaced.

    So a restarted operator waits equally long.
    """

    failures: Count = 0
    """Failures in a row."""
    until: Timestamp | None = None
    """No replacement before this time."""
    last_failure_time: Timestamp | None = None
    """Time of the last failure. A machine that is stable for long enough starts again at zero."""
    reason: Annotated[str, Field(max_length=128)] = ""
    """Reason of the last failure."""
    doubted: bool | None = None
    """True: its pod looked alive to Kubernetes."""
    unsettled: bool | None = None
    """True: whether it counts against the budget depends on its node, and is decided within a minute."""
    node: Name | None = None
    """Node of that pod."""


class AvoidedNode(StatusModel):
    """A node on which no pod of the job is placed for a while."""

    name: Name
    """The node."""
    until: Timestamp
    """End of the avoidance."""
    reason: Annotated[str, Field(max_length=128)] = ""
    """Failure on the node."""


class NotReadyNode(StatusModel):
    """A node of the job that is not ready, or deleted."""

    name: Name
    """The node."""
    since: Timestamp
    """Since when the operator has observed it. Its machines are replaced nodeFailure.graceSeconds later."""


class ReplacementPause(StatusModel):
    """A hold of replacement after a mass failure: the network is the likely cause."""

    since: Timestamp
    """Begin of the hold."""
    until: Timestamp
    """When the next machine is replaced, unless the machines return."""


class Replacements(StatusModel):
    """Pods replaced because they failed: budgets and memory."""

    total: Count = 0
    """Replacements since the job started."""
    by_machine: dict[str, int] = Field(default_factory=dict, max_length=2048)
    """Replacements of each machine that count against its budget."""
    backoff: dict[str, BackOff] = Field(default_factory=dict, max_length=2048)
    """Machines that failed recently."""
    avoided_nodes: tuple[AvoidedNode, ...] = Field(default=(), max_length=256)
    """Nodes that the job avoids."""
    not_ready_nodes: tuple[NotReadyNode, ...] = Field(default=(), max_length=2048)
    """Nodes of the job's pods that are not ready."""
    paused_since: Timestamp | None = None
    """Begin of a hold of replacement after a mass failure. Absent without one."""
    paused_until: Timestamp | None = None
    """When the next machine is replaced, unless the machines return."""

    @property
    def pause(self) -> ReplacementPause | None:
        """Return the hold of replacement."""
        if self.paused_since is None or self.paused_until is None:
            return None
        return ReplacementPause(since=self.paused_since, until=self.paused_until)
