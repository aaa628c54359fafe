"""Calls: the executed calls of one episode, reported before the turn that follows from them.

Another runner may have begun the episode. Where its tools keep nothing between calls, the answers that it reported are
taken as they are. Where they keep a state, its calls are executed again in their order, and the coordinator compares
the answers: the report of another one ends the attempt.
"""

from __future__ import annotations

from rljob_env.episode import Assignment, ExecutedCall, Json
from rljob_env.tools.toolbox import ERROR, Toolbox


class Calls:
    """The calls of one attempt, in its toolbox."""

    def __init__(self, assignment: Assignment, toolbox: Toolbox) -> None:
        self.waiting = False
        """Whether a report is not answered."""
        self._called = assignment.called
        self._toolbox = toolbox
        resume = assignment.resume
        self._replays = resume is not None and resume.replays
        self._known = {call.id: call for call in resume.calls} if resume is not None else {}

    @property
    def descriptions(self) -> list[Json]:
        """The tools that can be called."""
        return self._toolbox.descriptions

    async def go_on(self) -> None:
        """Take over the calls of another runner. Tools with a state execute them. Raises `EpisodeOver`, `Failed`."""
        for call in self._known.values():
            if self._replays:
                await self._execute({"id": call.id, "function": {"name": call.name, "arguments": call.arguments}})
            else:
                self._toolbox.stats.calls += 1
                self._toolbox.stats.errors += call.observation.startswith(ERROR)

    async def observation(self, call: Json) -> str:
        """Return what the model sees of a call. Raises `EpisodeOver`, `Failed`."""
        if (known := self._known.get(call["id"])) is None:
            return await self._execute(call)
        return known.observation

    async def _execute(self, call: Json) -> str:
        function = call["function"]
        seen = await self._toolbox.observation(call)
        if self._called is not None:
            self.waiting = True
            await self._called(ExecutedCall(call["id"], function["name"], function["arguments"] or "", seen))
            self.waiting = False
        return seen
