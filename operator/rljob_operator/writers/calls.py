"""Calls: how a plan's steps call the API server. Several run concurrently, and some ask for another try."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from rljob_api.constants import KIND
from rljob_api.spec import RLJob
from rljob_kube.resources import Json
from rljob_operator.policies.base.condition_reason import ConditionReason

T = TypeVar("T")


class RequeueAfter(Exception):
    """A precondition that is not met yet, e.g. an earlier job of the same name that is still being collected."""

    def __init__(self, message: str, seconds: float) -> None:
        """Ask for another try after `seconds`."""
        super().__init__(message)
        self.seconds = seconds


async def together(calls: Sequence[Awaitable[T]], parallel: int) -> list[T]:
    """Run at most `parallel` calls at a time. All of them end before the first error is raised."""
    gate = asyncio.Semaphore(parallel)

    async def one(call: Awaitable[T]) -> T:
        async with gate:
            return await call

    results = await asyncio.gather(*(one(call) for call in calls), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def name_taken(job: RLJob, live: Json) -> ConditionReason | None:
    """Tell whether the name of a wanted object is taken by another owner.

    Raises `RequeueAfter` when the owner is an earlier RLJob of the same name, whose objects are being collected.
    """
    owners = live["metadata"].get("ownerReferences") or []
    if any(owner.get("uid") == job.metadata.uid for owner in owners):
        return None
    what = f"{live.get('kind', 'object')} {live['metadata']['name']}"
    if any(owner.get("kind") == KIND and owner.get("name") == job.name for owner in owners):
        raise RequeueAfter(f"{what} of an earlier job of this name still exists", 1.0)
    return ConditionReason("NameTaken", f"{what} exists and is not this job's: delete it, or give the job another name")
