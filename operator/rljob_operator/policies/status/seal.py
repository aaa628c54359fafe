"""Seal: what proves that the operator's part of a status was written by an operator.

The API server knows no right to a part of a status. A coordinator that may report `status.runtime` can therefore write
every other field: the accepted spec, from which pods are made, the machines of the target, the budgets. So the Role
that gives it this right carries, as an annotation, digests of the operator's part as it may stand. Where that Role is
missing, so is the right to forge. Nobody who may write a job's status alone can change a Role.

A status and its seal are two objects. The digest of a status is therefore added to the seal before the status is
written, beside that of the status before it. Whichever of the two an operator finds after a crash, it wrote both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from rljob_api.constants import GROUP
from rljob_operator.policies.base.decisions import WARNING, Event

Json = dict[str, Any]

ANNOTATION = f"{GROUP}/status-digests"
"""On the Role of the job's coordinator."""

FORGED = "StatusForged"
"""The reason of Degraded, and of the event."""

RUNTIME = "runtime"
"""The one field of the status that is the coordinator's."""


def operator_part(document: Mapping[str, Any]) -> Json:
    """The status of an RLJob as the API server shows it, without the coordinator's field."""
    return {key: value for key, value in (document.get("status") or {}).items() if key != RUNTIME}


def digest(part: Mapping[str, Any]) -> str:
    """The same for two parts that mean the same, whatever the order of their keys and the spelling of numbers."""
    return hashlib.sha256(json.dumps(_plain(part), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """The API server writes 1 for 1.0, and leaves null out."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def sealed(role: Mapping[str, Any]) -> tuple[str, ...]:
    """The digests on a Role; empty where an operator without seals made it."""
    text = (role["metadata"].get("annotations") or {}).get(ANNOTATION) or ""
    return tuple(one for one in text.split(",") if one)


def annotated(digests: Iterable[str]) -> Json:
    """The metadata that puts these digests on a Role."""
    return {"annotations": {ANNOTATION: ",".join(digests)}}


def foreign(found: Mapping[str, Any], truth: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields in which the part that was found is not the true one."""
    keys = found.keys() | truth.keys()
    return tuple(sorted(key for key in keys if _plain(found.get(key)) != _plain(truth.get(key))))


def describe_forgery(fields: Iterable[str], known: bool) -> str:
    """What a person should learn of these fields; `known`: what they held before is known, and written back."""
    names = ", ".join(f"status.{field}" for field in fields)
    what = f"{names} held what no operator wrote" if names else "What the operator had written is gone from the status"
    cure = "What it had written is in force" if known else "The status is put together anew from spec and pods"
    return f"{what}. {cure}. Find out who writes the status of this job: its coordinator's token may"


def alarm(fields: Iterable[str], known: bool) -> Event:
    """The event of a status that was forged."""
    return Event(WARNING, FORGED, describe_forgery(fields, known))
