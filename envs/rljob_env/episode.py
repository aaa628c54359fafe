"""Episode: what a runner receives for an attempt, and what it reports."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from rljob_env.failures import Part

Json = dict[str, Any]

MOST_DETAIL_CHARACTERS = 2000


@dataclass(frozen=True)
class Attempt:
    """One attempt of one episode. `resumption`: how often another runner has gone on with it."""

    episode: str
    number: int
    resumption: int = 0

    @classmethod
    def parse(cls, body: Json) -> Attempt:
        """Return the attempt that the gateway names. Raises `KeyError` or `TypeError` if it names none."""
        return cls(str(body["episode"]), int(body["attempt"]), int(body.get("resumption", 0)))

    def as_json(self) -> Json:
        """Return the attempt as the gateway reads it."""
        found: Json = {"episode": self.episode, "attempt": self.number}
        return found | ({"resumption": self.resumption} if self.resumption else {})


@dataclass(frozen=True)
class ExecutedCall:
    """A call of a tool with its answer. `id`: as the gateway gave it. `seconds`: how long it took, if that is known."""

    id: str
    name: str
    arguments: str
    observation: str
    seconds: float | None = None


@dataclass(frozen=True)
class Resume:
    """Where to go on with an attempt of a runner that is lost.

    `request`: its newest request for a turn, as it sent it; None if it asked for none. `calls`: the calls that it
    executed. `replays`: they are executed again, to bring tools to their state; else their answers are taken.
    """

    request: str | None
    calls: Sequence[ExecutedCall]
    replays: bool

    @classmethod
    def parse(cls, body: Json) -> Resume:
        """Return what the gateway's answer says. Raises `KeyError` or `TypeError` if it is none."""
        calls = [
            ExecutedCall(
                id=str(one["id"]),
                name=str(one["name"]),
                arguments=str(one["arguments"]),
                observation=str(one["observation"]),
                seconds=one.get("seconds"),
            )
            for one in body["calls"]
        ]
        return cls(body["request"], calls, bool(body["replays"]))


Called = Callable[[ExecutedCall], Awaitable[None]]


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
    resume: Resume | None = None
    traceparent: str | None = None
    """By which spans of an agent join the trace of the attempt; None where the job exports none."""
    stateless: bool = False
    """Whether no call of a tool depends on another, so that the calls of a turn may run concurrently."""
    called: Called | None = field(default=None, compare=False)
    """Reports an executed call, and returns when it is stored. Raises `EpisodeOver`."""

    @classmethod
    def parse(cls, body: Json, now: float) -> Assignment:
        """Return what the gateway's answer says. Raises `KeyError` or `TypeError` if it is no assignment."""
        return cls(
            Attempt.parse(body),
            dict(body["record"]),
            list(body["messages"]),
            now + float(body["secondsLeft"]),
            str(body["baseUrl"]),
            str(body["apiKey"]),
            str(body["model"]),
            None if body.get("resume") is None else Resume.parse(body["resume"]),
            None if body.get("traceparent") is None else str(body["traceparent"]),
            body.get("stateless") is True,
        )

    def seconds_left(self) -> float:
        """Return the time to the deadline; 0 after it."""
        return max(0.0, self.deadline - time.monotonic())


class Limit(StrEnum):
    """A limit at which a harness ends by itself. The values stand in reports."""

    TURNS = "turns"
    SECONDS = "seconds"


@dataclass(frozen=True)
class Report:
    """The end of an attempt. `reward` None: the environment gives none, and the job's rewards score the last answer."""

    reward: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    failed: Part | None = None
    detail: str = ""
    gave_up: bool = False
    """Whether its program failed or was killed, and stated no result. Then it may not have reached the gateway."""
    limit: Limit | None = None
    """What ended the harness, if the model's last answer did not. The gateway refused no turn, so it does not know."""
    answer: str | None = None
    """What the program says that its answer is, for the job's rewards. None: the model's last one."""

    def as_json(self) -> Json:
        """Return the report as the gateway reads it."""
        found: Json = {"metrics": dict(self.metrics), "detail": self.detail[-MOST_DETAIL_CHARACTERS:]}
        if self.failed is not None:
            return found | {"failed": str(self.failed)}
        found |= {"reward": self.reward} | ({"limit": str(self.limit)} if self.limit is not None else {})
        return found | ({"answer": self.answer} if self.answer is not None else {})


class Harness(Protocol):
    """What runs an episode. It raises `Failed` for a failure of ours, and `EpisodeOver`.

    It may be one that another runner began. With `Assignment.resume` it goes on where that one was. Without, it runs it
    from the beginning: the gateway answers with recorded turns what is asked again.
    """

    async def run(self, assignment: Assignment) -> Report:
        """Run an episode to its end, or to its deadline."""
        ...

    async def close(self) -> None:
        """End what it holds between episodes."""
        ...
