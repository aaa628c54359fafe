"""A job with environments at work, as a plan sees it."""

from __future__ import annotations

from typing import Any

from tests.support.operator.environment_jobs import CALC, SHELL, with_environments
from tests.support.operator.plan_cluster import Cluster


def running(**changes: Any) -> Cluster:
    """A job with two environments whose pods are all at work."""
    cluster = Cluster(with_environments(CALC, SHELL, **changes))
    cluster.settle()
    cluster.start_all()
    cluster.settle()
    assert cluster.status.is_true("Ready")
    return cluster
