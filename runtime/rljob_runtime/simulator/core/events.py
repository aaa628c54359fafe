"""Events: everything that happens in a simulated run.

Invariants, timelines and the digest observe events only. Times are seconds of the loop's clock; `since` is the start of
what the event ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rljob_api.status import RuntimeStatus
from rljob_runtime.protocols.trajectory import Group, PromptKey, TrajectoryKey


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    process: str
    boot: int


@dataclass(frozen=True, slots=True)
class ProcessEnded:
    process: str


@dataclass(frozen=True, slots=True)
class StoreLost:
    """The coordinator's file was deleted; the next one starts with an empty one."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A request was submitted. `prefix`: tokens that it continues from."""

    replica: str
    key: TrajectoryKey
    attempt: int
    version: int
    prefix: int


@dataclass(frozen=True, slots=True)
class Generated:
    """A response is complete, with `tokens` in all."""

    replica: str
    key: TrajectoryKey
    attempt: int
    version: int
    tokens: int
    since: float


@dataclass(frozen=True, slots=True)
class Aborted:
    """A response was aborted after `tokens`."""

    replica: str
    key: TrajectoryKey
    attempt: int
    tokens: int
    since: float


@dataclass(frozen=True, slots=True)
class KvAsked:
    """A request named a KV file, which engines of version `written` wrote; None if there is none.

    `tokens`: those whose KV is in it. `cause`: why none is used."""

    replica: str
    key: TrajectoryKey
    written: int | None
    version: int
    tokens: int
    cause: str


@dataclass(frozen=True, slots=True)
class MadeRoom:
    """A replica sleeps and released its accelerators."""

    replica: str


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A replica generates on this many accelerators from now on."""

    replica: str
    tensor_parallel: int
    since: float


@dataclass(frozen=True, slots=True)
class Loaded:
    """A replica generates with this version from now on; `content` is what its relay gave it."""

    replica: str
    version: int
    content: int
    since: float


@dataclass(frozen=True, slots=True)
class Profiled:
    """A resting replica has measured this many loads in its layout."""

    replica: str
    tensor_parallel: int
    loads: int
    since: float


@dataclass(frozen=True, slots=True)
class Received:
    """A relay holds the version completely."""

    machine: str
    version: int
    since: float


@dataclass(frozen=True, slots=True)
class Restored:
    """A trainer started from its newest checkpoint, the one after `step` updates."""

    step: int
    content: int


@dataclass(frozen=True, slots=True)
class Contributed:
    """The gradients of these groups of `step` were computed during generation."""

    step: int
    prompts: tuple[PromptKey, ...]
    since: float


@dataclass(frozen=True, slots=True)
class Summed:
    """A loaned machine added these groups to its sums, with weights of this content."""

    machine: str
    step: int
    prompts: tuple[PromptKey, ...]
    content: int
    since: float


@dataclass(frozen=True, slots=True)
class Brought:
    """A loaned machine's sums arrived in the trainer's inbox."""

    machine: str
    step: int
    groups: int
    since: float


@dataclass(frozen=True, slots=True)
class Part:
    """Groups of an update whose gradients `worker` computed, with weights of this content."""

    worker: str
    content: int
    prompts: tuple[PromptKey, ...]


@dataclass(frozen=True, slots=True)
class Trained:
    """The update `step`, from weights with the content `before` to `after`. `parts`: the terms of its gradient."""

    step: int
    groups: tuple[Group, ...] = field(repr=False)
    before: int
    after: int
    since: float
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Published:
    version: int
    step: int
    content: int
    since: float


@dataclass(frozen=True, slots=True)
class Checkpointed:
    step: int
    since: float


@dataclass(frozen=True, slots=True)
class Exported:
    """The final model was written, after `step` updates."""

    step: int


@dataclass(frozen=True, slots=True)
class Asked:
    """The coordinator learned a changed number of rounds."""

    rounds: int


@dataclass(frozen=True, slots=True)
class Learned:
    """The rewards' anchors (milliseconds by test) immediately before a round closes."""

    anchors: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Scored:
    """A reward arrived; None for a failure of ours."""

    prompt: str
    reward: float | None
    since: float


@dataclass(frozen=True, slots=True)
class Row:
    """A written row of the store: `table`, identity, and the values that invariants use.

    `values` is None for a deleted row."""

    table: str
    identity: tuple[int, ...]
    values: tuple[int | float | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class Committed:
    """A transaction of the store."""

    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Reported:
    status: RuntimeStatus = field(repr=False)
    event: int


@dataclass(frozen=True, slots=True)
class EpisodeReported:
    """A runner reports the end of an attempt. `failed`: the part of ours that failed."""

    runner: str
    key: TrajectoryKey
    attempt: int
    reward: float | None
    failed: str | None


EXECUTED, REPLAYED, STORED = "executed", "replayed", "stored"


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """A runner executes a call of a tool, once more in a replay, or learns that it is stored. `what`: as above."""

    runner: str
    key: TrajectoryKey
    attempt: int
    node: int
    what: str


@dataclass(frozen=True, slots=True)
class CoordinatorStarted:
    term: int


@dataclass(frozen=True, slots=True)
class CoordinatorEnded:
    """A coordinator ended. `why`: killed, finished, or its error."""

    term: int
    why: str
    since: float


@dataclass(frozen=True, slots=True)
class FaultBegan:
    fault: str


@dataclass(frozen=True, slots=True)
class FaultEnded:
    fault: str
    target: str
    since: float


Event = (
    ProcessStarted
    | ProcessEnded
    | StoreLost
    | Submitted
    | Generated
    | Aborted
    | KvAsked
    | MadeRoom
    | LaidOut
    | Loaded
    | Profiled
    | Received
    | Restored
    | Contributed
    | Summed
    | Brought
    | Trained
    | Published
    | Checkpointed
    | Exported
    | Asked
    | Learned
    | Scored
    | Committed
    | Reported
    | CoordinatorStarted
    | CoordinatorEnded
    | FaultBegan
    | FaultEnded
    | EpisodeReported
    | ToolCalled
)

Observe = Callable[[Event], None]


def unobserved(event: Event) -> None:
    """Ignore an event."""
