"""What happens in a simulated run. Invariants, timelines and the run's digest are observers of these and of nothing
else. Times are seconds of the loop's clock; `since` is when a thing began that ends with the event."""

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
    """The coordinator's file is gone; the next one begins with an empty one."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """`prefix`: tokens that it goes on from."""

    replica: str
    key: TrajectoryKey
    attempt: int
    version: int
    prefix: int


@dataclass(frozen=True, slots=True)
class Generated:
    """The response is whole, with `tokens` in all."""

    replica: str
    key: TrajectoryKey
    attempt: int
    version: int
    tokens: int
    since: float


@dataclass(frozen=True, slots=True)
class Aborted:
    """`tokens`: made so far."""

    replica: str
    key: TrajectoryKey
    attempt: int
    tokens: int
    since: float


@dataclass(frozen=True, slots=True)
class MadeRoom:
    """The replica rests: its accelerators are another's."""

    replica: str


@dataclass(frozen=True, slots=True)
class LaidOut:
    """The replica generates on so many accelerators from now on."""

    replica: str
    tensor_parallel: int
    since: float


@dataclass(frozen=True, slots=True)
class Loaded:
    """The replica generates with this version from now on; `content` is what its relay handed it."""

    replica: str
    version: int
    content: int
    since: float


@dataclass(frozen=True, slots=True)
class Received:
    """A relay holds the version whole."""

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
    """The gradients of these groups of `step` were computed while others still generated."""

    step: int
    prompts: tuple[PromptKey, ...]
    since: float


@dataclass(frozen=True, slots=True)
class Summed:
    """A lent machine has summed these groups too, with weights of this content."""

    machine: str
    step: int
    prompts: tuple[PromptKey, ...]
    content: int
    since: float


@dataclass(frozen=True, slots=True)
class Brought:
    """A lent machine's sums lie at the trainer's inbox."""

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
    """The update that led to `step`, from weights with the content `before` to ones with `after`. `parts`: what its
    gradient was added up from."""

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
    """The final model is written, after `step` updates."""

    step: int


@dataclass(frozen=True, slots=True)
class Asked:
    """The coordinator is told that the job is to have so many rounds, where that is another number than before."""

    rounds: int


@dataclass(frozen=True, slots=True)
class Learned:
    """The anchors (milliseconds by test) that rewards hold when a round is about to be closed."""

    anchors: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Scored:
    """`reward` is None for a failure of ours."""

    prompt: str
    reward: float | None
    since: float


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the store that was written: `table`, its identity, and what of it invariants are about. `values` is None
    for a row that was deleted."""

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
class CoordinatorStarted:
    term: int


@dataclass(frozen=True, slots=True)
class CoordinatorEnded:
    """`why`: killed, finished, or the error that it died of."""

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
    | MadeRoom
    | LaidOut
    | Loaded
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
)

Observe = Callable[[Event], None]


def unobserved(event: Event) -> None:
    """Nobody looks."""
