"""Admission: decides which spec a job runs on.

It is the present one if it is valid and an allowed change, else the last accepted one. An API server sees only a part
of an edit: no pod template, no size in bytes, and nothing of an edit under an older CRD. Here the same rules hold for
all edits. A refused edit changes nothing: the job continues as accepted, Stalled names every wrong field, and the next
edit is compared with the accepted spec again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_api import FieldError, InvalidSpec, load
from rljob_api.admission.immutability import validate_update
from rljob_api.admission.last_accepted import accepted_job, was_accepted
from rljob_api.constants import MANAGED_BY_OPERATOR
from rljob_api.spec import RLJob
from rljob_operator.policies.base.condition_reason import ConditionReason

INVALID_SPEC = "InvalidSpec"


@dataclass(frozen=True)
class Admitted:
    """A job with the spec that holds."""

    job: RLJob
    """The job with the spec that holds."""
    refused: ConditionReason | None = None
    """Why the spec in the API is not the one that holds."""


def is_managed(document: Mapping[str, Any]) -> bool:
    """Tell whether this operator reconciles the job.

    A job that it has accepted once it keeps: `managedBy` is immutable.
    """
    manager = (document.get("spec") or {}).get("managedBy", MANAGED_BY_OPERATOR)
    return manager == MANAGED_BY_OPERATOR or was_accepted(document)


def admit(document: Mapping[str, Any]) -> Admitted:
    """Judge the spec of an API object.

    Raises `InvalidSpec` when no valid spec is known.
    """
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
    """Join all mistakes into one message, as long as a condition may be."""
    return "; ".join(str(error) for error in errors)[:2000]
