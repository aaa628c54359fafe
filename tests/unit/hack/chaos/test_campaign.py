"""When the next fault may be made."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from hack.chaos.campaign import Campaign, NotSteady
from hack.chaos.faults.pods import Injected, NotPossible
from hack.chaos.observation import Observation, observe
from hack.chaos.recovery import SETTLED
from hack.chaos.rows import machines_on
from tests.support.chaos import HEALTHY, JOB, PODS, filled_again, without


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
    assert not HEALTHY.unready


def test_a_job_is_steady_after_updates_without_trouble() -> None:
    looks = [replace(HEALTHY, round=number) for number in range(10, 10 + SETTLED + 1)]
    assert steady(*looks).round == 10 + SETTLED
    with pytest.raises(NotSteady, match="suspects none, nodes away none"):
        steady(HEALTHY)


def test_no_fault_is_made_while_kubernetes_may_evict() -> None:
    """A pod that is evicted for the fault before would be held against the next one."""
    away = [replace(HEALTHY, round=number, unready=frozenset({"node-1"})) for number in range(10, 20)]
    back = [replace(HEALTHY, round=number) for number in range(20, 20 + SETTLED + 1)]
    assert steady(*away, *back).round == 20 + SETTLED
    with pytest.raises(NotSteady, match="nodes away node-1"):
        steady(*away)


class PowerCut:
    """An injector after whose fault the job is well again for 20 seconds before the new machine generates."""

    def __init__(self, looks: Looks) -> None:
        self.looks = looks
        self.undone = 0

    def inject(self, row: str, victims: tuple[str, ...], before: Observation) -> Injected:
        (machine,) = machines_on(before, victims)
        lost, at = without(before, machine), time.time()
        there = replace(filled_again(lost, machine), generating=before.generating)
        updates = [replace(there, at=at + 10 + number, round=before.round + number) for number in range(SETTLED + 2)]
        first = replace(updates[-1], at=at + 30.0, generating=(*before.generating, machine))
        self.looks.left += [replace(lost, at=at + 1.0), *updates, first]
        return Injected(at, self.undo)

    def undo(self) -> None:
        self.undone += 1


def test_a_lost_machine_is_followed_until_it_generates() -> None:
    looks = Looks(*(replace(HEALTHY, round=number) for number in range(10, 10 + SETTLED + 1)))
    cut = PowerCut(looks)
    (outcome,) = Campaign(looks, cut, 0, print).run(["node-off"])  # type: ignore[arg-type]
    assert outcome.wrong == ()
    assert outcome.back == pytest.approx(11.0)
    assert outcome.moments["joined"] == pytest.approx(10.0)
    assert outcome.moments["generating"] == pytest.approx(30.0)
    assert cut.undone == 1


class Stuck(PowerCut):
    """An injector whose fault cannot be taken back."""

    def undo(self) -> None:
        super().undo()
        raise NotPossible("its pod is gone")


def test_a_fault_that_cannot_be_taken_back_counts_as_wrong() -> None:
    """It was made: another one in its place would hide it."""
    looks = Looks(*(replace(HEALTHY, round=number) for number in range(10, 10 + SETTLED + 1)))
    stuck = Stuck(looks)
    (outcome,) = Campaign(looks, stuck, 0, print).run(["node-off"])  # type: ignore[arg-type]
    assert outcome.wrong == ("not taken back: its pod is gone",)
    assert stuck.undone == 1


class Silent(PowerCut):
    """An injector whose fault is not shown by the job that has recovered."""

    def inject(self, row: str, victims: tuple[str, ...], before: Observation) -> Injected:
        made = super().inject(row, victims, before)
        return Injected(made.at, made.undo, self.unproved)

    def unproved(self) -> list[str]:
        raise NotPossible("there is no log")


def test_a_fault_that_nothing_shows_counts_as_wrong() -> None:
    looks = Looks(*(replace(HEALTHY, round=number) for number in range(10, 10 + SETTLED + 1)))
    (outcome,) = Campaign(looks, Silent(looks), 0, print).run(["node-off"])  # type: ignore[arg-type]
    assert outcome.wrong == ("not shown: there is no log",)
