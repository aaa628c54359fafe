"""Seal: proves that an operator wrote the operator's part of a status.

The API server has no rights for a part of a status. A coordinator that may report `status.runtime` can therefore write
every other field: the accepted spec, from which pods are created, the machines of the target, the budgets. So the Role
that grants this right carries, as an annotation, digests of the valid operator's part. Without that Role there is no
right to forge. A client that may only write a job's status cannot change a Role.

A status and its seal are two objects. The digest of a status is therefore added to the seal before the status is
written, next to the digest of the status before it. So after a crash each of the two is known to be an operator's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from rljob_api.constants import GROUP
from rljob_kube.manifests.metadata import Annotated
from rljob_kube.resources import Json
from rljob_operator.policies.base.decisions import WARNING, Event

ANNOTATION = f"{GROUP}/status-digests"
"""Annotation of the Role of the job's coordinator."""

FORGED = "StatusForged"
"""Reason of Degraded, and of the event."""

REPORTED_SECONDS = 3600.0
"""Seconds for which Degraded reports a forged status."""

RUNTIME = "runtime"
"""The coordinator's field of the status."""


def operator_part(document: Mapping[str, Any]) -> Json:
    """Return the status of an RLJob without the coordinator's field."""
    return {key: value for key, value in (document.get("status") or {}).items() if key != RUNTIME}


def digest(part: Mapping[str, Any]) -> str:
    """Hash a part so that equal values have equal digests.

    The order of keys and the spelling of numbers do not matter.
    """
    return hashlib.sha256(json.dumps(_plain(part), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Normalise a value: the API server writes 1 for 1.0, and drops null."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def sealed(role: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the digests on a Role; empty for a Role of an operator without seals."""
    text = (role["metadata"].get("annotations") or {}).get(ANNOTATION) or ""
    return tuple(one for one in text.split(",") if one)


def annotated(digests: Iterable[str]) -> Annotated:
    """Return the metadata that puts these digests on a Role."""
    return {"annotations": {ANNOTATION: ",".join(digests)}}


def foreign(found: Mapping[str, Any], truth: Mapping[str, Any]) -> tuple[str, ...]:
    """Name the fields in which a part differs from the true one."""
    keys = found.keys() | truth.keys()
    return tuple(sorted(key for key in keys if _plain(found.get(key)) != _plain(truth.get(key))))


def describe_forgery(fields: Iterable[str], known: bool) -> str:
    """Describe forged fields. `known`: their former values are known, and restored."""
    names = ", ".join(f"status.{field}" for field in fields)
    what = f"{names} held values that no operator wrote" if names else "The operator's part is missing from the status"
    cure = "Its values are restored" if known else "The status is rebuilt from spec and pods"
    return f"{what}. {cure}. Find out which client writes the status of this job. Its coordinator's token has the right"


def is_reported(seconds: float) -> bool:
    """Return whether Degraded reports a forgery that was found so many seconds ago."""
    return seconds <= REPORTED_SECONDS


def alarm(fields: Iterable[str], known: bool) -> Event:
    """Return the event of a forged status."""
    return Event(WARNING, FORGED, describe_forgery(fields, known))
