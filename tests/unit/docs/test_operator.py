"""Pages list the operator's flags, rights, metrics, reasons and events, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest

from hack.guard.flows import Flows
from hack.guard.sources import is_word, read_sources
from rljob_api.constants import HALTING
from rljob_api.spec import Gang
from rljob_api.status import RLJobStatus
from rljob_operator import rbac
from rljob_operator.__main__ import parser
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.gang import pod_groups
from rljob_operator.policies.status.conditions import Facts, derive
from tests.support.docs import page, quoted, rows, text_of
from tests.support.paths import ROOT

OPERATOR = page("operator.md")
CONDITIONS = page("conditions-and-events.md")
KUEUES_OWN = {"Pending", "NoReservation", "WaitForStart", "Recovered", "Started", "WaitForRecovery", "Succeeded"}
"""Reasons that the operator writes into conditions of Workloads."""
NO_REASONS = {"Kueue", "Ready", "Stalled"}
"""Words in the columns of reasons that name something else."""


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


@cache
def _flows() -> Flows:
    return Flows(read_sources([ROOT / "crds", ROOT / "operator"]))


def _reasons(*callables: str) -> set[str]:
    """The words that reach the parameter `reason` of these callables, in API and operator."""
    return {word for name in callables for word in _flows().reaching(name, "reason") if is_word(word)}


def _words(text: str) -> set[str]:
    return set(re.findall(r"\b[A-Z][A-Za-z]+\b", text))


def test_the_reasons_of_conditions_on_the_page_are_those_of_the_sources() -> None:
    found = _reasons("ConditionReason", "Hold", "_Sign", "JobOutcome") | set(HALTING)
    assert {"Unschedulable", "QuotaTooSmall", "DeadlineExceeded", "InternalError", "StatusForged"} <= found
    table = " ".join(reasons for _, _, reasons in rows(CONDITIONS, "## Conditions"))
    kueue = " ".join(reason for reason, _ in rows(page("kueue.md"), "## When it does not start"))
    assert _words(table) | _words(kueue) == (found - KUEUES_OWN) | NO_REASONS


def test_the_events_on_the_page_are_those_of_the_sources() -> None:
    told = {word for events, _ in rows(CONDITIONS, "## Events") for word in _words(events)}
    assert told == _reasons("Event")


def test_every_condition_is_told() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    why = ConditionReason("Why", "")
    states = (Facts(1), Facts(1, stall=why, admission=why))
    written = {condition.type for facts in states for condition in derive(facts, RLJobStatus(), now)}
    types = {type_ for types, _, _ in rows(CONDITIONS, "## Conditions") for type_ in _words(types.partition("(")[0])}
    assert types == written
    assert types <= _words(text_of(page("api.md")))


@pytest.mark.parametrize("reason", HALTING)
def test_what_stalls_a_job_has_a_cure(reason: str) -> None:
    assert any(reason in first for first in _first_cells(page("troubleshooting.md")))


def _first_cells(path: Path) -> list[str]:
    return [line.split("|")[1] for line in text_of(path).splitlines() if line.startswith("|")]
