"""Episode: what a runner receives for an attempt, and what it reports."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rljob_env.failures import Part

Json = dict[str, Any]

MOST_DETAIL_CHARACTERS = 2000


@dataclass(frozen=True)
class Attempt:
    """One attempt of one episode."""

    episode: str
    number: int

    def as_json(self) -> Json:
        """Return the attempt as the gateway reads it."""
        return {"episode": self.episode, "attempt": self.number}


@dataclass(frozen=True)
class Assignment:
    """An attempt to run. `deadline`: seconds of this process's monotonic clock."""

    attempt: Attempt
    record: Mapping[str, Any]
    messages: Sequence[Mapping[str, Any]]
    deadline: float
    base_url: str
    api_key: str
    model: str

    @classmethod
    def parse(cls, body: Json, now: float) -> Assignment:
        """Return what the gateway's answer says. Raises `KeyError` or `TypeError` if it is no assignment."""
        return cls(
            Attempt(str(body["episode"]), int(body["attempt"])),
            dict(body["record"]),
            list(body["messages"]),
            now + float(body["secondsLeft"]),
            str(body["baseUrl"]),
            str(body["apiKey"]),
            str(body["model"]),
        )

    def seconds_left(self) -> float:
        """Return the time to the deadline; 0 after it."""
        return max(0.0, self.deadline - time.monotonic())


@dataclass(frozen=True)
class Report:
    """The end of an attempt. `reward` None: the environment gives none, and the job's rewards score the last answer."""

    reward: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    failed: Part | None = None
    detail: str = ""
    gave_up: bool = False
    """Whether its program failed or was killed, and stated no result. Then it may not have reached the gateway."""

    def as_json(self) -> Json:
        """Return the report as the gateway reads it."""
        found: Json = {"metrics": dict(self.metrics), "detail": self.detail[-MOST_DETAIL_CHARACTERS:]}
        if self.failed is not None:
            return found | {"failed": str(self.failed)}
        return found | {"reward": self.reward}


class Harness(Protocol):
    """What runs an episode. It raises `Failed` for a failure of ours, and `EpisodeOver`."""

    async def run(self, assignment: Assignment) -> Report:
        """Run an episode to its end, or to its deadline."""
        ...

    async def close(self) -> None:
        """End what it holds between episodes."""
        ...
