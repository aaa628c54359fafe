"""Which spec a job runs on: its present one if that is good and an allowed change, else the one accepted last.

A server judges an edit by what it can see: no pod template, no size in bytes, and nothing at all of an edit that came
while an older CRD, or none with these rules, was installed. Here the same rules hold for all. A refused edit
changes nothing: the job goes on as accepted (lost pods are replaced, machines scaled as accepted), Stalled tells
every field that is wrong, and the next edit is judged against the accepted spec again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_api import FieldError, InvalidSpec, load
from rljob_api.constants import MANAGED_BY_OPERATOR
from rljob_api.immutability import validate_update
from rljob_api.last_accepted import accepted_job, was_accepted
from rljob_api.spec import RLJob
from rljob_operator.policies.base.condition_reason import ConditionReason

INVALID_SPEC = "InvalidSpec"


@dataclass(frozen=True)
class Admitted:
    """A job to act on."""

    job: RLJob
    """With the spec that holds."""
    refused: ConditionReason | None = None
    """Why the spec as it stands in the API is not the one that holds."""


def is_managed(document: Mapping[str, Any]) -> bool:
    """Whether this operator reconciles the job. Once it does, it keeps it: `managedBy` is immutable."""
    manager = (document.get("spec") or {}).get("managedBy", MANAGED_BY_OPERATOR)
    return manager == MANAGED_BY_OPERATOR or was_accepted(document)


def admit(document: Mapping[str, Any]) -> Admitted:
    """The object as the API server shows it, judged. Raises `InvalidSpec` when no good spec is known."""
    accepted = accepted_job(document)
    try:
        job = load(document)
        if accepted is not None and not job.status.ended:
            validate_update(accepted, job)
    except InvalidSpec as invalid:
        if accepted is None:
            raise
        return Admitted(accepted, ConditionReason(INVALID_SPEC, report_invalid(invalid.errors)))
    return Admitted(job)


def report_invalid(errors: Sequence[FieldError]) -> str:
    """All mistakes in one message, as long as a condition may be."""
    return "; ".join(str(error) for error in errors)[:2000]
