"""Pages list the operator's flags, rights, metrics, reasons and events, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from hack.guard.flows import Flows
from hack.guard.sources import is_word, read_sources
from rljob_api.constants import HALTING
from rljob_api.spec import Gang
from rljob_api.status import ConditionStatus, EnvironmentStatus, FinishedOutcome, RLJobStatus
from rljob_operator import rbac
from rljob_operator.__main__ import parser
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.decisions import NORMAL, WARNING, JobOutcome
from rljob_operator.policies.base.kueue_objects import ADMITTED, Hold
from rljob_operator.policies.gang import pod_groups
from rljob_operator.policies.status.catalogue.condition_types import CONDITION_TYPES
from rljob_operator.policies.status.catalogue.event_reasons import EVENT_REASONS
from rljob_operator.policies.status.catalogue.reasons import REASONS, Place, reasons_of
from rljob_operator.policies.status.conditions import DEGRADED, FAILED, STALLED, Facts, derive
from rljob_operator.policies.status.seal import FORGED
from rljob_runtime.coordinator.loop.context import OBSERVER_REASONS
from tests.support.docs import page, quoted, rows, text_of
from tests.support.paths import ROOT

OPERATOR = page("operator.md")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_every_flag_is_in_the_table_with_its_variable_and_default() -> None:
    told = {quoted(flag)[-1]: (quoted(variable)[0], default.strip("`")) for flag, variable, default, _ in _options()}
    found = {}
    for action in parser({})._actions:
        if action.dest == "help":
            continue
        name = next(option for option in action.option_strings if option.startswith("--"))
        name = f"--[no-]{name[2:]}" if action.nargs == 0 else name
        variable = re.search(r"RLJOB_\w+", action.help or "")
        assert variable is not None, name
        found[name] = (variable[0], {None: "", True: "true"}.get(action.default, str(action.default)))
    words = {"all": "", "the cluster's": ""}
    assert {name: (variable, words.get(default, default)) for name, (variable, default) in told.items()} == found


def _options() -> Iterator[list[str]]:
    return rows(OPERATOR, "## Options")


def test_the_rights_are_those_of_the_rules() -> None:
    gangs = rbac.GANG_RULES.values()
    wanted = [
        *rbac.JOB_RULES,
        *rbac.KUEUE_RULES,
        *rbac.QUOTA_RULES,
        *rbac.NODE_RULES,
        *(r for one in gangs for r in one),
    ]
    told = {
        (group, resource, verb)
        for groups, resources, verbs, _ in rows(OPERATOR, "## Rights")
        for group in groups.split(", ")
        for resource in resources.split()
        for verb in verbs.split()
    }
    assert told == {
        (group, resource, verb)
        for rule in wanted
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert set(rbac.GANG_RULES) == set(Gang) - {Gang.NONE}
    assert {system.group for system in pod_groups.SYSTEMS.values()} <= {group for group, _, _ in told}


# --- reasons ---------------------------------------------------------------------------------------------------------


OPERATORS = ("crds", "operator")
COORDINATOR, SCHEDULING = "runtime/rljob_runtime/coordinator", "runtime/rljob_runtime/scheduling"
KUEUES_OWN = {"Pending", "NoReservation", "WaitForStart", "Recovered", "Started", "WaitForRecovery", "Succeeded"}
"""Reasons that the operator writes into conditions of Workloads."""
OF_GROUPS = {"EnvironmentFailed", "EqualRewards"}
"""Reasons why groups cannot be trained on. The coordinator chooses the reason of the job's end by them."""
PASSED_ON = {
    "KueueNotInstalled",
    "KueueNotEnabled",
    "TooManyEnvironments",
    "PriorityClassNotFound",
    "DeviceClaimsNotServed",
    "ClaimTemplateNotFound",
}
"""Reasons of a `Hold` that are found elsewhere, as a `ConditionReason`."""
WAITS = {"WaitingForAdmission", "ResourcesChanged", "Evicted"}
"""Reasons of a `Hold` that time helps."""
GIVEN = {"Admitted", "PartlyAdmitted", "ReplacementPaused", FORGED}
"""Reasons that `derive` receives of what neither stalls a job nor comes from its coordinator."""
ALSO_STALLS = "ReplacementBudgetExhausted"
"""The reason of a job's end that stalls other jobs."""


@cache
def _flows(*folders: str) -> Flows:
    return Flows(read_sources([ROOT / folder for folder in folders]))


def _reasons(folders: tuple[str, ...], *callables: str) -> set[str]:
    """The words that reach the parameter `reason` of these callables, in these folders."""
    return set(filter(is_word, _flows(*folders).reaching(callables, "reason")))


def _warnings() -> set[str]:
    return _reasons((COORDINATOR,), "StatusWarning") | {*OBSERVER_REASONS, *HALTING}


def _ends() -> set[str]:
    coordinators = _reasons((COORDINATOR, SCHEDULING), "Finished") - OF_GROUPS
    return _reasons(OPERATORS, "JobOutcome") | coordinators


def _words(text: str) -> set[str]:
    return set(re.findall(r"\b[A-Z][A-Za-z]+\b", text))


def test_the_reasons_of_the_catalogue_are_those_of_the_sources() -> None:
    found = (_reasons(OPERATORS, "ConditionReason", "Hold", "_Sign") - KUEUES_OWN) | _warnings() | _ends()
    assert {"Unschedulable", "QuotaTooSmall", "DeadlineExceeded", "InternalError", "StatusForged"} <= found
    assert {"StoreSlow", "ManyForks", "EvaluationAbandoned", "ModelNotUsable", "NothingToLearn"} <= found
    assert set(REASONS) == found


SIZES = {"trainers_wanted": 1, "rollouts_wanted": 2, "rollouts_smallest": 1}
RUNS = Facts(1, True, trainers_ready=1, rollouts_ready=2, chain_length=2, started=True, pods=4, **SIZES)
SUSPENDS = replace(RUNS, suspending=True)


def _why(reason: str) -> ConditionReason:
    return ConditionReason(reason, "")


def _without_given_reasons() -> Iterator[Facts]:
    """Facts whose conditions have reasons of `derive` only, and of the end of a job that has none of its own."""
    yield RUNS
    changes: list[dict[str, Any]] = [
        {"coordinator_ready": False},
        {"coordinator_ready": False, "started": False},
        {"trainers_ready": 0},
        {"rollouts_ready": 0},
        {"rollouts_ready": 1},
        {"rollouts_wanted": 1, "rollouts_ready": 1, "rollouts_smallest": 2},
        {"environments": (EnvironmentStatus(name="e", runners=2),)},
        {"environments": (EnvironmentStatus(name="e", runners=2, ready=1),)},
        {"chain_length": 1},
        {"chain_length": 0},
        {"durable": False},
        {"leaving": 1},
        {"departing": ("trainer-0",)},
        {"replacing": ("rollout-0",)},
        {"outcome": JobOutcome(FinishedOutcome.COMPLETE, "RoundsFinished", "")},
        {"outcome": JobOutcome(FinishedOutcome.FAILED, "RuntimeFailed", "")},
    ]
    yield from (replace(RUNS, **change) for change in changes)
    yield from (replace(SUSPENDS, pods=pods) for pods in (0, 1))


def _with_given_reasons(obstacles: set[str]) -> Iterator[Facts]:
    yield replace(RUNS, paused=_why("ReplacementPaused"))
    yield from (replace(RUNS, admission=_why(reason)) for reason in ("Admitted", "PartlyAdmitted"))
    yield from (replace(RUNS, problems=(_why(reason),)) for reason in {*_warnings(), FORGED})
    yield from (replace(RUNS, coordinator_ready=False, stall=_why(reason)) for reason in obstacles)
    held = [Hold(reason, "", reason not in WAITS) for reason in _reasons(OPERATORS, "Hold", "_Sign") | PASSED_ON]
    yield from (replace(SUSPENDS, pods=0, held=why) for why in held)
    for reason in _ends() - {"RoundsFinished"}:
        yield replace(RUNS, outcome=JobOutcome(FinishedOutcome.FAILED, reason, ""))


def _written(states: Iterable[Facts]) -> dict[Place, set[str]]:
    """The reasons that each condition has in these states, by its status."""
    found: dict[Place, set[str]] = {}
    for condition in (one for facts in states for one in derive(facts, RLJobStatus(), NOW)):
        place = condition.type, condition.status is ConditionStatus.TRUE
        found.setdefault(place, set()).add(condition.reason)
    return found


def _all_written() -> dict[Place, set[str]]:
    own = set[str]().union(*_written(_without_given_reasons()).values())
    held = _reasons(OPERATORS, "Hold", "_Sign") | PASSED_ON
    obstacles = (set(REASONS) - own - held - _warnings() - _ends() - GIVEN) | {ALSO_STALLS}
    return _written([*_without_given_reasons(), *_with_given_reasons(obstacles)])


def test_a_condition_has_the_reasons_that_the_operator_derives() -> None:
    places = {(type_, holds): {*reasons_of(type_, holds)} for type_ in CONDITION_TYPES for holds in (True, False)}
    assert {place: reasons for place, reasons in places.items() if reasons} == _all_written()


def test_every_condition_is_told() -> None:
    assert set(CONDITION_TYPES) == {type_ for type_, _ in _all_written()}
    assert set(CONDITION_TYPES) <= _words(text_of(page("api.md")))


def test_a_meaning_is_a_text_of_sentences() -> None:
    meanings = [one.meaning for one in (*CONDITION_TYPES.values(), *REASONS.values(), *EVENT_REASONS.values())]
    assert [meaning for meaning in meanings if not re.fullmatch(r"[A-Z`].*[^.]\.", meaning)] == []


def test_what_stops_a_job_in_a_queue_is_on_the_page_of_kueue() -> None:
    told = {word for reason, _ in rows(page("kueue.md"), "## When it does not start") for word in quoted(reason)}
    assert told <= set(reasons_of(STALLED, True))
    assert set(reasons_of(STALLED, True)) & set(reasons_of(ADMITTED, False)) <= told


def test_the_page_leads_to_the_cures() -> None:
    told = {quoted(reason)[0]: cure for reason, _, _, cure in rows(page("conditions-and-events.md"), "## Reasons")}
    assert set(told) == set(REASONS)
    assert told["StoreHeld"] == "[Pods start and end](../troubleshooting.md#pods-start-and-end)"
    assert told["QuotaTooSmall"] == "[Kueue: When it does not start](../guides/kueue.md#when-it-does-not-start)"
    assert told["AsDesired"] == told["Completed"] == ""


# --- events ----------------------------------------------------------------------------------------------------------


def test_the_events_of_the_catalogue_are_those_of_the_sources() -> None:
    assert set(EVENT_REASONS) == _reasons(OPERATORS, "Event")


def test_an_event_has_the_types_of_the_sources() -> None:
    found: dict[str, set[str]] = {}
    for kind, reason in _flows(*OPERATORS).pairs("Event", "kind", "reason"):
        if kind in (NORMAL, WARNING) and is_word(reason):
            found.setdefault(reason, set()).add(kind)
    ends = {"Completed", "Failed"}
    assert {name: set(one.kinds) for name, one in EVENT_REASONS.items() if name not in ends} == {
        name: kinds for name, kinds in found.items() if name not in ends
    }
    assert all(EVENT_REASONS[name].kinds < found[name] for name in ends), "one loop has both"


def test_each_problem_has_a_cure() -> None:
    """Whatever makes a person look, beside what its condition is for: Kueue's reasons have a page of their own."""
    problems = {reason for type_ in (STALLED, DEGRADED, FAILED) for reason in reasons_of(type_, True)}
    assert set(HALTING) <= problems
    told = {
        word
        for name in ("troubleshooting.md", "kueue.md")
        for first in _first_cells(page(name))
        for word in _words(first)
    }
    assert problems - told == set()


def _first_cells(path: Path) -> list[str]:
    return [line.split("|")[1] for line in text_of(path).splitlines() if line.startswith("|")]
