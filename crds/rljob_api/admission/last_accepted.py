"""Accepted spec: what a job runs on while its present spec is refused.

The operator keeps the last valid spec in `status.accepted`. Operator and coordinator read it there. So a refused edit
reaches neither the pods nor the training, even if one of them restarts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from rljob_api.admission import renamed
from rljob_api.admission.loading import load, load_known
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
    return _accepted(document, load)


def running_job(document: Mapping[str, Any]) -> RLJob:
    """Return the object with its last accepted spec, or else with its present one, as a coordinator runs it.

    Fields that this version does not know are left out: a later operator checks them, and a later API server adds their
    defaults to every stored job, also while an earlier coordinator runs it. Raises `InvalidSpec`.
    """
    return _accepted(document, load_known) or load_known(document)


def _accepted(document: Mapping[str, Any], read: Callable[[Mapping[str, Any]], RLJob]) -> RLJob | None:
    if not was_accepted(document):
        return None
    try:
        return read({**document, "spec": renamed.translated(json.loads(_memory(document)["spec"]))})
    except ValueError:  # no JSON, or InvalidSpec
        return None


def _memory(document: Mapping[str, Any]) -> Mapping[str, Any]:
    return (document.get("status") or {}).get("accepted") or {}
