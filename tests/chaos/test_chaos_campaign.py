"""When the next fault may be made."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from chaos_kit import JOB, PODS, WHOLE
from hack.chaos.campaign import Campaign, NotSteady
from hack.chaos.observation import Observation, observe
from hack.chaos.recovery import SETTLED


def node(name: str, ready: str = "True", *effects: str) -> dict[str, Any]:
    taints = [{"key": "node.kubernetes.io/unreachable", "effect": effect} for effect in effects]
    return {
        "metadata": {"name": name},
        "spec": {"taints": taints},
        "status": {"conditions": [{"type": "Ready", "status": ready}]},
    }


class Looks:
    """What a watch would tell, one look after the other."""

    def __init__(self, *looks: Observation) -> None:
        self.left = list(looks)
        self.last = Observation(0.0)

    def next(self, seconds: float) -> Observation | None:
        if self.left:
            self.last = self.left.pop(0)
        return self.last


def steady(*looks: Observation) -> Observation:
    return Campaign(Looks(*looks), None, 0, print).steady(0.2)  # type: ignore[arg-type]


def test_nodes_are_away_while_kubernetes_says_so_or_evicts() -> None:
    nodes = [node("a"), node("b", "Unknown"), node("c", "True", "NoExecute"), node("d", "True", "NoSchedule")]
    assert observe(0.0, JOB, PODS, nodes).unready == {"b", "c"}
    assert not WHOLE.unready


def test_a_job_is_steady_after_updates_without_trouble() -> None:
    looks = [replace(WHOLE, round=number) for number in range(10, 10 + SETTLED + 1)]
    assert steady(*looks).round == 10 + SETTLED
    with pytest.raises(NotSteady, match="suspects none, nodes away none"):
        steady(WHOLE)


def test_no_fault_is_made_while_kubernetes_may_evict() -> None:
    """A pod that is evicted for the fault before would be held against the next one."""
    away = [replace(WHOLE, round=number, unready=frozenset({"node-1"})) for number in range(10, 20)]
    back = [replace(WHOLE, round=number) for number in range(20, 20 + SETTLED + 1)]
    assert steady(*away, *back).round == 20 + SETTLED
    with pytest.raises(NotSteady, match="nodes away node-1"):
        steady(*away)
