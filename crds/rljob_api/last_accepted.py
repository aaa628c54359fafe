"""Accepted spec: what a job runs on while its present spec is refused.

The operator keeps the last valid spec in `status.accepted`. Operator and coordinator read it there. So a refused edit
reaches neither the pods nor the training, even if one of them restarts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rljob_api import renamed
from rljob_api.loading import load
from rljob_api.spec import RLJob
from rljob_api.status import Accepted


def accept(job: RLJob) -> Accepted:
    """Return the record of this job's spec."""
    return Accepted(uid=job.metadata.uid, spec=job.spec.to_json())


def was_accepted(document: Mapping[str, Any]) -> bool:
    """Tell whether an operator has ever accepted a spec of exactly this object."""
    memory = _memory(document)
    return bool(memory.get("spec")) and memory.get("uid") == (document.get("metadata") or {}).get("uid")


def accepted_job(document: Mapping[str, Any]) -> RLJob | None:
    """Return the object with the last accepted spec.

    None without one, or when this version would not accept it: then only the present spec counts. An earlier version
    wrote the record with the field names of its time.
    """
    if not was_accepted(document):
        return None
    try:
        return load({**document, "spec": renamed.translated(json.loads(_memory(document)["spec"]))})
    except ValueError:  # no JSON, or InvalidSpec
        return None


def _memory(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return (document.get("status") or {}).get("accepted") or {}
