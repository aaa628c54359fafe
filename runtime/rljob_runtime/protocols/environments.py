"""Environments: what their runners ask of the coordinator, through the gateway.

A runner pulls: it asks for an episode, runs the environment's harness with the address and the key of the attempt, and
reports its end. It says regularly that it lives. An attempt whose runner is silent ends as a failure of ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from rljob_runtime.protocols.turns import EpisodeAttempt


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool that was executed: place `place` of the calls that turn `node` asks for.

    `seconds`: how long it took; None where its runner is of a package before this field.
    """

    node: int
    place: int
    name: str
    arguments: str
    observation: str
    seconds: float | None = None

    @property
    def size(self) -> int:
        """Characters of arguments and observation."""
        return len(self.arguments) + len(self.observation)


MOST_CALLS = 256
"""Calls of a turn. The gateway refuses more."""


@dataclass(frozen=True)
class Resume:
    """Where a runner goes on with an attempt that another one began.

    `request`: the body of the newest request for a turn, which gets its recorded answer if it is sent again; empty if
    there was none. `calls`: the executed calls, in their order. `replays`: the runner executes them once more and
    reports what it observes; else it takes their observations.
    """

    request: bytes
    calls: Sequence[ToolCall]
    replays: bool

    @property
    def size(self) -> int:
        """Bytes of the request and characters of the calls."""
        return len(self.request) + sum(call.size for call in self.calls)


@dataclass(frozen=True)
class Assignment:
    """An attempt that a runner is to run.

    `record`: the prompt's record as JSON values; `messages`: its prompt as chat messages. `deadline`: seconds of the
    epoch; the attempt opens no turn after it, and the runner ends the harness then. `resume`: of one that another
    runner began, where the loop is the runner's; a program runs again from its beginning. `traceparent`: by which spans
    of the agent join the trace of the attempt; None without traces. `stateless`: no call of a tool depends on another,
    so that the calls of a turn may run concurrently.
    """

    episode: EpisodeAttempt
    environment: str
    record: Mapping[str, object]
    messages: Sequence[Mapping[str, str]]
    deadline: float
    resume: Resume | None = None
    traceparent: str | None = None
    stateless: bool = False


MOST_METRICS, MOST_METRIC_NAME = 64, 128
"""Metrics of a report, and characters of a metric's name. The gateway refuses more, and the store keeps no more."""


MOST_ANSWER = 1 << 16
"""Characters of an answer that a program states. The gateway refuses more."""

LARGEST_REWARD = 1e9
"""A reward beyond it, on either side, is a failure of the environment: one of 1e308 would outweigh all others, and the
mean of two of them is no number. No rule of `spec.rewards` may have a wider range."""

TRACE_TURNS, TRACE_TOKENS = "trace_turns", "trace_tokens"
"""Metrics of a harness that keeps a trace of its own: the model's turns in it, and the tokens that the model emitted.
What is trained on is what the coordinator stored; the trace only shows whether the harness had the same."""


class FailedPart(StrEnum):
    """The part of ours that failed, so that an attempt has no reward."""

    ENVIRONMENT = "environment"
    TOOL_SERVER = "tool server"
    RUNNER = "runner"
    """The runner leaves, as in a drain, and hands the attempt back: nothing has failed."""
    GATEWAY = "gateway"
    """The gateway had no place for a request of the attempt. No runner states it."""


RUNNERS_PARTS = tuple(part for part in FailedPart if part is not FailedPart.GATEWAY)
"""What a runner's report may state."""


class HarnessLimit(StrEnum):
    """A limit at which a harness ends, and of which the coordinator refused no turn."""

    TURNS = "turns"
    SECONDS = "seconds"
    TOKENS = "tokens"
    """The gateway refused a request that was too long for the context. No runner states it."""


RUNNERS_LIMITS = tuple(limit for limit in HarnessLimit if limit is not HarnessLimit.TOKENS)
"""What a runner's report may state."""


@dataclass(frozen=True)
class EpisodeReport:
    """The end of an attempt, as its runner reports it.

    `reward`: a number up to `LARGEST_REWARD`; None if the environment gives none, and then the job's rewards score the
    last answer. `failed`: the part of ours that failed, with `detail` for people; the attempt is aborted then. A
    harness that timed out or acted wrongly is no failure of ours. `limit`: the limit that ended the harness; None if it
    ended by itself, if the coordinator refused it a turn, or if its runner is of a package before this field. `answer`:
    what its program says that its answer is, which the job's rewards then score; None: the model's last answer.
    """

    reward: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    failed: FailedPart | None = None
    detail: str = ""
    limit: HarnessLimit | None = None
    answer: str | None = None


class Environments(Protocol):
    """The coordinator, as runners need it. A call raises nothing but `PeerGone`, `PeerTimeout` and `AttemptEnded`."""

    async def lease(
        self, environment: str, runner: str, wait_seconds: float, most: int = 1, journals: bool = False
    ) -> Sequence[Assignment]:
        """Return the next attempts of an environment for a runner, `most` at most; wait up to `wait_seconds` for one.

        Of several runners that wait, each receives its part. `journals`: it goes on with attempts of others, and
        reports the calls of its tools, where the loop is its own.
        """
        ...

    async def called(self, environment: str, runner: str, episode: EpisodeAttempt, call: ToolCall) -> None:
        """Store an executed call of a tool, before the turn that follows from it. The same report again has no effect.

        Raises `AttemptEnded` if the attempt ended without this runner, or by this report.
        """
        ...

    async def heartbeat(
        self, environment: str, runner: str, episodes: Sequence[EpisodeAttempt]
    ) -> Sequence[EpisodeAttempt]:
        """Record that a runner of an environment lives and runs these attempts.

        Return those that it shall stop: they have ended, or are of another environment.
        """
        ...

    async def done(self, environment: str, runner: str, episode: EpisodeAttempt, report: EpisodeReport) -> None:
        """Record the end of an attempt. The first report counts; the same one again changes nothing.

        Raises `AttemptEnded` if the attempt ended without this runner, or is of another environment.
        """
        ...
