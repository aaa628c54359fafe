"""Stand-in harness: an episode runs until a test lets it go."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from rljob_env.episode import Assignment, Report


@dataclass
class StandInHarness:
    """A harness that ends when it is let go. `running`: its episodes; `cancelled`: those that it was told to end."""

    report: Report = field(default_factory=lambda: Report(1.0))
    error: Exception | None = None
    go: asyncio.Event = field(default_factory=asyncio.Event)
    running: set[str] = field(default_factory=set)
    most: int = 0
    cancelled: set[str] = field(default_factory=set)
    closed: bool = False

    async def run(self, assignment: Assignment) -> Report:
        name = assignment.attempt.episode
        self.running.add(name)
        self.most = max(self.most, len(self.running))
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.add(name)
            raise
        finally:
            self.running.discard(name)
        if self.error is not None:
            raise self.error
        return self.report

    async def close(self) -> None:
        self.closed = True
