"""A coordinator that cannot renew its Lease lets go of the store before anybody else takes it, and the job goes on."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from rljob_api.spec.training import Mode
from rljob_runtime.simulator.core.events import (
    CoordinatorEnded,
    CoordinatorStarted,
    Event,
    FaultEnded,
    ProcessEnded,
    Reported,
    Trained,
)
from rljob_runtime.simulator.core.process_clock import loop_time
from rljob_runtime.simulator.drawn_scenario import draw_scenario
from rljob_runtime.simulator.faults.plan import FaultPlan
from rljob_runtime.simulator.peers.job_lease import LOOK_SECONDS, Watch
from rljob_runtime.simulator.run import simulate
from tests.support.rows import slow

CUT_AT, CUT_FOR, LEASE = 6.0, 70.0, 15.0


def scenario(mode: Mode) -> Any:
    found = next(
        one
        for one in (draw_scenario(seed, mode) for seed in range(1000))
        if one.machines == 2 and one.site.replicas == 2 and one.edit is None and one.episodes is None
    )
    return replace(found, rounds=12)


@cache
def lives(mode: Mode, plan: str) -> tuple[list[tuple[float, Event]], Any]:
    seen: list[tuple[float, Event]] = []

    def see(event: Event) -> None:
        if isinstance(event, CoordinatorStarted | CoordinatorEnded | FaultEnded | ProcessEnded | Trained | Reported):
            seen.append((loop_time(), event))

    return seen, simulate(scenario(mode), FaultPlan.parse(plan), [see])


def of(seen: list[tuple[float, Event]], kind: type) -> list[tuple[float, Any]]:
    return [(at, event) for at, event in seen if isinstance(event, kind)]


@pytest.mark.parametrize("mode", [*slow(Mode.ON_POLICY), Mode.ASYNCHRONOUS])
@pytest.mark.parametrize("target", ["coordinator/api", "coordinator"])
def test_a_coordinator_that_is_cut_off_is_succeeded_while_the_cut_lasts(mode, target):
    seen, outcome = lives(mode, f"{CUT_AT} partition {target} {CUT_FOR}")
    assert outcome.passed, outcome.violation
    (first_end, ended), *_ = of(seen, CoordinatorEnded)
    assert ended.why == "lost its Lease"
    assert CUT_AT + LEASE - LOOK_SECONDS <= first_end <= CUT_AT + LEASE, "within its Lease's duration"
    (_, first), (second_start, second), *_ = of(seen, CoordinatorStarted)
    assert first_end <= second_start < CUT_AT + CUT_FOR, "no process waits for the end of the cut"
    assert second.term > first.term
    trained_meanwhile = [at for at, _ in of(seen, Trained) if second_start < at < CUT_AT + CUT_FOR]
    assert trained_meanwhile or any(at > second_start for at, _ in of(seen, Reported))


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("seconds", [CUT_FOR, *slow(8, 25)])
def test_a_coordinator_that_is_cut_off_ends_no_actor(mode, seconds):
    """It takes all machines for lost. They work, and its successor finds every one of them as it was."""
    seen, outcome = lives(mode, f"{CUT_AT} partition coordinator {seconds}")
    assert outcome.passed, outcome.violation
    assert of(seen, ProcessEnded) == []


@pytest.mark.parametrize("mode", [*slow(Mode.ON_POLICY), Mode.ASYNCHRONOUS])
@pytest.mark.parametrize("target", ["coordinator/api", *slow("coordinator", "api")])
@pytest.mark.parametrize("seconds", [22, *slow(3, 12, 70)])
def test_no_two_coordinators_have_the_store_at_a_time(mode, target, seconds):
    seen, outcome = lives(mode, f"{CUT_AT} partition {target} {seconds}; 90 partition {target} {seconds}")
    assert outcome.passed, outcome.violation
    terms, holds = [], None
    for _, event in seen:
        if isinstance(event, CoordinatorStarted):
            assert holds is None, f"term {event.term} began while {holds} had the store"
            holds = event.term
            terms.append(event.term)
        elif isinstance(event, CoordinatorEnded):
            assert holds == event.term
            holds = None
    assert terms == sorted(set(terms))
    if seconds <= 3:
        assert len(terms) == 1, "what is over before the Lease is costs nothing"


@pytest.mark.parametrize("mode", [Mode.ON_POLICY, *slow(Mode.ASYNCHRONOUS)])
def test_an_api_server_that_is_away_for_all_costs_no_pod(mode):
    """Every process restarts in its pod, and the operator observed no silence."""
    seen, outcome = lives(mode, f"{CUT_AT} partition api {CUT_FOR}")
    assert outcome.passed, outcome.violation
    started = of(seen, CoordinatorStarted)
    assert len(started) == 2
    assert started[1][0] >= CUT_AT + CUT_FOR
    assert outcome.coordinators == 2


def test_the_operator_counts_no_time_in_which_it_could_not_look():
    watch = Watch()
    watch.look((1, "pod-1"))
    for _ in range(3):
        watch.look((1, "pod-1"))
    assert not watch.silent
    for _ in range(10):
        watch.look(None)
    assert not watch.silent
    watch.look((1, "pod-1"))
    assert watch.silent
    watch.look((2, "pod-1"))
    assert not watch.silent
    watch = Watch()
    for _ in range(10):
        watch.look((1, ""))
    assert not watch.silent, "a Lease that was given back"
