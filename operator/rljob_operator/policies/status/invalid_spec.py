"""Invalid spec: Stalled without a plan, for a first spec that cannot be used, or for an error of the operator itself.

Nothing is decided for such a job. Its pods continue, and the rest of the status stays: the operator owns those fields,
and an apply without them would remove them. The next plan writes all conditions again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rljob_api.errors import FieldError
from rljob_api.status import Condition, ConditionStatus, Phase
from rljob_kube.resources import Json
from rljob_operator.policies.base.condition_reason import ConditionReason
from rljob_operator.policies.base.decisions import WARNING, Event
from rljob_operator.policies.lifecycle.admission import INVALID_SPEC, report_invalid
from rljob_operator.policies.status.conditions import COMPLETE, FAILED, READY, RECONCILING, STALLED, stamp

INTERNAL_ERROR = "InternalError"


def plan_invalid(
    document: Mapping[str, Any], errors: Sequence[FieldError], now: datetime
) -> tuple[Json | None, list[Event]]:
    """Return status and events of a job whose spec cannot be used.

    The status is None when it is written already.
    """
    return _stalled(document, ConditionReason(INVALID_SPEC, report_invalid(errors)), now, (READY, STALLED))


def plan_failed(document: Mapping[str, Any], stall: ConditionReason, now: datetime) -> tuple[Json | None, list[Event]]:
    """Return status and events of a job at which the operator failed.

    A running job stays Ready. An ended job stays as it is, and gets an event.
    """
    known = {c.get("type"): c.get("status") for c in (document.get("status") or {}).get("conditions") or []}
    if "True" in (known.get(COMPLETE), known.get(FAILED)):
        return None, [_event(stall)]
    return _stalled(document, stall, now, (STALLED,) if known.get(READY) == "True" else (READY, STALLED))


def _stalled(
    document: Mapping[str, Any], stall: ConditionReason, now: datetime, types: Sequence[str]
) -> tuple[Json | None, list[Event]]:
    """Set these conditions to the reason of the stall."""
    raw = {key: value for key, value in (document.get("status") or {}).items() if key != "runtime"}
    generation = document["metadata"].get("generation", 1)
    known = [_readable(condition) for condition in raw.get("conditions") or []]
    kept = [c for c in known if c.type not in (*types, RECONCILING)]
    held = {STALLED: ConditionStatus.TRUE, READY: ConditionStatus.FALSE}
    updated = [Condition(type=one, status=held[one], reason=stall.reason, message=stall.message) for one in types]
    after = {
        **raw,
        "observedGeneration": generation,
        "phase": raw.get("phase") or Phase.STALLED.value,
        "conditions": [condition.to_dict() for condition in (*stamp(updated, known, generation, now), *kept)],
    }
    again = any((c.type, c.reason, c.message) == (STALLED, stall.reason, stall.message) for c in known)
    return (None if after == raw else after), ([] if again else [_event(stall)])


def _event(stall: ConditionReason) -> Event:
    return Event(WARNING, stall.reason, stall.message[:1000])


def _readable(condition: Mapping[str, Any]) -> Condition:
    return Condition.model_validate(
        {key: value for key, value in condition.items() if key in _FIELDS and value is not None}
    )


_FIELDS = {"type", "status", "observedGeneration", "lastTransitionTime", "reason", "message"}
