"""Write conflict: whether a decided status still fits after another write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljob_api.admission.loading import load_status
from rljob_api.errors import InvalidSpec
from rljob_api.spec import Metadata, RLJob


def only_reported(before: RLJob, now: Mapping[str, Any]) -> bool:
    """Tell whether only the coordinator's part of the status has changed.

    Then the decision could have been written before that report came. The report is an event of its own, and the job is
    planned again.
    """
    try:
        status = load_status(now.get("status") or {})
    except InvalidSpec:
        return False
    metadata = Metadata.model_validate(now["metadata"])
    unversioned = metadata.model_copy(update={"resource_version": before.metadata.resource_version})
    return (
        unversioned == before.metadata and status.model_copy(update={"runtime": before.status.runtime}) == before.status
    )
