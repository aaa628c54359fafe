"""Calls: the executed calls of one episode, reported before the turn that follows from them.

Another runner may have begun the episode. Where its tools keep nothing between calls, the answers that it reported are
taken as they are. Where they keep a state, its calls are executed again in their order, and the coordinator compares
the answers: the report of another one ends the attempt.

Only calls without a state run concurrently. Their places tell them apart, so the order of their reports means nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from rljob_env.episode import Assignment, ExecutedCall, Json
from rljob_env.tools.call_limits import CONCURRENT_CALLS
from rljob_env.tools.toolbox import ERROR, Toolbox

LATE_SECONDS = 1.0
"""A report that is not answered for so long waits for a gateway that is away."""


class Calls:
    """The calls of one attempt, in its toolbox."""

    def __init__(self, assignment: Assignment, toolbox: Toolbox) -> None:
        self._unanswered: dict[str, float] = {}
        """Monotonic times of reports that are not answered, by their calls."""
        self._called = assignment.called
        self._stateless = assignment.stateless
        self._places = asyncio.Semaphore(CONCURRENT_CALLS)
        self._toolbox = toolbox
        resume = assignment.resume
        self._replays = resume is not None and resume.replays
        self._known = {call.id: call for call in resume.calls} if resume is not None else {}

    @property
    def descriptions(self) -> list[Json]:
        """The tools that can be called."""
        return self._toolbox.descriptions

    @property
    def waiting(self) -> bool:
        """Whether a report waits for a gateway that is away. One on its way at the deadline does not."""
        return any(time.monotonic() - sent > LATE_SECONDS for sent in self._unanswered.values())

    async def go_on(self) -> None:
        """Take over the calls of another runner. Tools with a state execute them. Raises `EpisodeOver`, `Failed`."""
        for call in self._known.values():
            if self._replays:
                await self._execute({"id": call.id, "function": {"name": call.name, "arguments": call.arguments}})
            else:
                self._toolbox.stats.calls += 1
                self._toolbox.stats.errors += call.observation.startswith(ERROR)
                self._toolbox.stats.seconds += call.seconds or 0.0

    async def observations(self, calls: Sequence[Json]) -> list[str]:
        """Return what the model sees of the calls of a turn, in their order. Raises `EpisodeOver`, `Failed`."""
        if not self._stateless:
            return [await self._observation(call) for call in calls]
        tasks = [asyncio.create_task(self._observation(call)) for call in calls]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _observation(self, call: Json) -> str:
        if (known := self._known.get(call["id"])) is not None:
            return known.observation
        await self._places.acquire()
        seen = await self._execute(call)
        # After a failure it stays taken: no further call of an attempt that ends may begin.
        self._places.release()
        return seen

    async def _execute(self, call: Json) -> str:
        function = call["function"]
        seen = await self._toolbox.observation(call)
        if self._called is not None:
            made = ExecutedCall(call["id"], function["name"], function["arguments"] or "", seen.text, seen.seconds)
            self._unanswered[made.id] = time.monotonic()
            await self._called(made)
            del self._unanswered[made.id]
        return seen.text
