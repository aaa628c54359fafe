"""What came between the look at a job and the write of its status: whether the write still fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rljob_api.errors import InvalidSpec
from rljob_api.loading import load_status
from rljob_api.spec import Metadata, RLJob


def only_reported(before: RLJob, now: Mapping[str, Any]) -> bool:
    """Whether nothing but the coordinator's part of the status has changed.

    What was decided from the earlier report could as well have been written before the later one came. The later one is
    an event of its own, after which the job is planned for again.
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
