"""Whom a job's NetworkPolicy lets in. Real nodes enforce it in tests/e2e/test_network_policies.py."""

from __future__ import annotations

from typing import Any

import pytest

from rljob_api.constants import HEALTH_PORT, LABEL_JOB, RAY_PORT
from rljob_operator.policies.base.config import Config
from rljob_operator.policies.pods.owned_objects import children
from tests.support.operator.harness import make_job

SPEC: dict[str, Any] = next(m for m in children(make_job(), 1, 2, Config()) if m["kind"] == "NetworkPolicy")["spec"]


def let_in(labels: dict[str, str] | None, port: int) -> bool:
    """Whether a pod of the job accepts this caller: one with these labels in its namespace, or (None) anybody else."""

    def from_one(peer: dict[str, Any]) -> bool:
        (selector,) = peer.values()
        return labels is not None and selector.get("matchLabels", {}).items() <= labels.items()

    return any(
        ("from" not in rule or any(map(from_one, rule["from"])))
        and ("ports" not in rule or any(one["port"] == port for one in rule["ports"]))
        for rule in SPEC["ingress"]
    )


@pytest.mark.parametrize(
    ("labels", "port", "expected"),
    [
        ({LABEL_JOB: "demo", "more": "labels"}, RAY_PORT, True),
        ({LABEL_JOB: "demo"}, 31234, True),  # relays and actors have ports of their own
        ({LABEL_JOB: "another"}, RAY_PORT, False),
        ({}, RAY_PORT, False),
        (None, RAY_PORT, False),
        (None, HEALTH_PORT, True),
    ],
)
def test_none_but_the_jobs_own_pods_are_let_in(labels: dict[str, str] | None, port: int, expected: bool) -> None:
    assert let_in(labels, port) is expected


def test_what_a_job_calls_is_left_to_its_namespace() -> None:
    """A hub, a judge, the API server at whatever address: a rule for some would be a ban of the others."""
    assert SPEC["policyTypes"] == ["Ingress"]
    assert SPEC["podSelector"] == {"matchLabels": {LABEL_JOB: "demo"}}
