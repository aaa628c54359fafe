"""A first spec that cannot be used: say what is wrong, and touch nothing until the spec changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rljob_api.errors import FieldError
from rljob_api.status import Condition, ConditionStatus, Phase
from rljob_operator.policies.admission import INVALID_SPEC, told
from rljob_operator.policies.conditions import READY, RECONCILING, STALLED, stamp
from rljob_operator.policies.events import WARNING, Event

Json = dict[str, Any]


def plan_invalid(
    document: Mapping[str, Any], errors: Sequence[FieldError], now: datetime
) -> tuple[Json | None, list[Event]]:
    """(the operator's status, or None when it is written already; events). Pods that run go on running, and everything
    else in the status stays: the operator owns those fields, and an apply that left them out would remove them."""
    raw = {key: value for key, value in (document.get("status") or {}).items() if key != "runtime"}
    generation = document["metadata"].get("generation", 1)
    message = told(errors)
    known = [_readable(condition) for condition in raw.get("conditions") or []]
    kept = [c for c in known if c.type not in (READY, STALLED, RECONCILING)]
    found = stamp(
        [
            Condition(type=READY, status=ConditionStatus.FALSE, reason=INVALID_SPEC, message=message),
            Condition(type=STALLED, status=ConditionStatus.TRUE, reason=INVALID_SPEC, message=message),
        ],
        known,
        generation,
        now,
    )
    after = {
        **raw,
        "observedGeneration": generation,
        "phase": raw.get("phase") or Phase.STALLED.value,
        "conditions": [condition.to_dict() for condition in (*found, *kept)],
    }
    known_already = any(c.type == STALLED and c.reason == INVALID_SPEC and c.message == message for c in known)
    events = [] if known_already else [Event(WARNING, INVALID_SPEC, message[:1000])]
    return (None if after == raw else after), events


def _readable(condition: Mapping[str, Any]) -> Condition:
    return Condition.model_validate(
        {key: value for key, value in condition.items() if key in _FIELDS and value is not None}
    )


_FIELDS = {"type", "status", "observedGeneration", "lastTransitionTime", "reason", "message"}
