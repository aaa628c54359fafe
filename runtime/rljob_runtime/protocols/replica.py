"""Rollout replica: receives generation requests and returns tokens as they are generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Protocol

from rljob_runtime.perf_model.step_totals import NO_STEPS, StepTotals
from rljob_runtime.protocols.trajectory import FinishReason, Sampling, TrajectoryKey


@dataclass(frozen=True)
class GenerateRequest:
    """A request to generate or continue one trajectory.

    `prefix_token_ids` were generated earlier under the same weight version. They count towards `sampling.max_tokens`,
    and the first new delta has `offset == len(prefix_token_ids)`.
    """

    key: TrajectoryKey
    attempt: int
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    weight_version: int
    prefix_token_ids: tuple[int, ...] = ()
    kv_file: str | None = None
    """`KvExport.file` that may hold the KV of these tokens. What cannot be used is computed again."""
    priority: int = 0
    """Requests of a lower value are computed first, and preempted last. Equal ones are served as they arrive."""


@dataclass(frozen=True)
class KeptEngines:
    """The engines of one slot."""

    sizes: frozenset[int] = frozenset()
    """Tensor parallel sizes of those that the slot has, in use or asleep. A missing one has to be built."""
    built: int = 0
    """Engines that the slot's process has ever built."""


class KvRefusal(StrEnum):
    """Why an engine writes no keys and values that should move. They are computed again."""

    UNSUPPORTED = "Unsupported"
    """The engine transfers no KV, or its responses are episodes."""
    NO_BLOCK = "NoFullBlock"
    """No response has a full block of KV."""
    NO_ROOM = "NoRoom"
    """The machine's shared memory has no room for it beside the weights."""
    NOT_WRITTEN = "NotWritten"
    """The file could not be written."""
    DROPPING = "Dropping"
    """The replica still removes the file of the switch before."""


class Mismatch(StrEnum):
    """Why the KV of a response is not used. It is computed again."""

    MISSING = "missing"
    """There is no such file, or the response is not in it."""
    DAMAGED = "damaged"
    """A checksum is wrong, or the file is incomplete."""
    FOREIGN = "foreign"
    """Another job or another incarnation of the machine wrote it."""
    VERSION = "version"
    """Other weights computed it."""
    SHAPE = "shape"
    """Another model, number format, block size or kernel."""
    TOKENS = "tokens"
    """It belongs to other tokens than those of the request."""


@dataclass(frozen=True)
class KvExport:
    """Receipt of `Replica.export_kv`."""

    file: str | None
    """Name for `GenerateRequest.kv_file` on this machine; None if no KV was written."""
    tokens: Mapping[TrajectoryKey, int]
    """Tokens of each response whose KV is in the file: full blocks only."""
    nbytes: int
    seconds: float
    refusal: KvRefusal | None = None
    """Why nothing was written."""
    message: str = ""
    """The same as a sentence, with its numbers."""


@dataclass(frozen=True)
class KvStats:
    """Totals of one replica's KV transfers. Seconds include checksums."""

    exported_tokens: int = 0
    exported_bytes: int = 0
    export_seconds: float = 0.0
    imported_tokens: int = 0
    """Tokens whose KV came from a file."""
    imported_bytes: int = 0
    """Bytes that the engine's first rank copied."""
    import_seconds: float = 0.0
    recomputed_tokens: int = 0
    """Tokens of requests with a KV file whose KV did not come from it."""
    missing: int = 0
    """Requests whose file or response was not found. This and the following count why KV was not used."""
    damaged: int = 0
    foreign: int = 0
    version: int = 0
    shape: int = 0
    tokens: int = 0

    def __add__(self, other: KvStats) -> KvStats:
        """Add two totals, field by field."""
        return KvStats(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(KvStats)))

    @property
    def unused(self) -> dict[Mismatch, int]:
        """Requests whose KV was not used, by the reason, which is the name of its total."""
        return {cause: count for cause in Mismatch if (count := getattr(self, cause.value)) > 0}

    def since(self, before: KvStats) -> KvStats:
        """Return what was added to these totals after `before`."""
        return KvStats(*(getattr(self, one.name) - getattr(before, one.name) for one in fields(KvStats)))


@dataclass(frozen=True)
class KvSize:
    """Size of the KV that a machine's engines can move.

    `heads`: key-value heads of the model. `head_bytes`: of one token in one head, in all layers. `room_bytes`: free
    bytes of shared memory, without those that the weights still need.
    """

    heads: int
    head_bytes: int
    room_bytes: int

    @property
    def token_bytes(self) -> int:
        """Bytes of one token in a KV file."""
        return self.heads * self.head_bytes

    @property
    def room_tokens(self) -> int:
        """Tokens whose KV the shared memory has room for."""
        return self.room_bytes // self.token_bytes

    def accelerator_bytes(self, tensor_parallel: int) -> int:
        """Return the bytes of one token on each accelerator of an engine of this size.

        >>> [KvSize(2, 100, 0).accelerator_bytes(size) for size in (1, 2, 4)]
        [200, 100, 100]
        """
        return -(-self.heads // tensor_parallel) * self.head_bytes


@dataclass(frozen=True)
class Delta:
    """New tokens of one trajectory, with the weight version that generated them.

    The last delta of a response has a `finish_reason`; an aborted response ends without one.
    """

    key: TrajectoryKey
    attempt: int
    offset: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_version: int
    finish_reason: FinishReason | None = None
    cached_tokens: int | None = None
    """Tokens of the request, from its first one on, that the engine held already; None if that is not known."""


@dataclass(frozen=True)
class EngineStats:
    """Counters of one engine. `kv_use` is the used share of KV blocks (0 to 1); the totals only grow."""

    running: int
    waiting: int
    kv_use: float
    preemptions_total: int
    generated_tokens_total: int
    prompt_tokens_total: int
    prefix_resets_total: int
    weight_loads_total: int
    aborted_total: int = 0
    """Requests that `abort` stopped."""
    layouts_built_total: int = 0
    """Engines built, one for each layout."""
    layout_switches_total: int = 0
    """Switches to another layout, the first included."""
    kv_tokens: int = 0
    """Capacity of the KV cache in tokens; 0 if unknown."""
    max_running: int = 0
    """Largest number of concurrent requests; 0 if unknown."""
    kv: KvStats = KvStats()
    """KV that moved between engines."""
    kv_size: KvSize | None = None
    """None in an engine that moves no KV."""
    profiles_total: int = 0
    """Profiles of an engine of this replica. Their tokens are in no other total."""
    profile_seconds_total: float = 0.0
    passed_total: int = 0
    """Requests that were queued before one that had arrived earlier, because of their priority."""
    decode: StepTotals = NO_STEPS
    """Steps in which each running request got a token, and none its first one."""
    prefill: StepTotals = NO_STEPS
    """All other steps: prompts were computed, or a preempted request again."""
    square_tokens: float = 0.0
    """See `ModelShape.square_tokens`; 0 if the engine does not know its model's shape."""

    @property
    def computed_tokens(self) -> int:
        """Tokens of prompts and responses so far; it only grows."""
        return self.generated_tokens_total + self.prompt_tokens_total

    @property
    def fullness(self) -> float:
        """Used share of the engine (0 to 1): of its KV cache or of its concurrent requests, whichever is larger."""
        return max(self.kv_use, self.running / self.max_running if self.max_running else 0.0)


@dataclass(frozen=True)
class ProfileLimits:
    """Bounds of a profile: sequences at the same time, tokens of one sequence, and seconds in all."""

    batch: int
    context: int
    seconds: float


@dataclass(frozen=True)
class LoadTiming:
    """A measured load: `batch` sequences with prompts of `prompt_tokens` each.

    `prefill_seconds`: until each sequence had a token. `step_seconds`: of each of the `steps` decode steps after it.
    `context`: tokens in the KV cache meanwhile, in all; a mean."""

    batch: int
    prompt_tokens: int
    prefill_seconds: float
    steps: int
    step_seconds: float
    context: float


@dataclass(frozen=True)
class EngineProfile:
    """What a profile has measured until its end, and the engine's statistics after it.

    `moved`: KV that the engine wrote to a file and read from it, to measure both; nothing if it moves none."""

    timings: tuple[LoadTiming, ...]
    stats: EngineStats
    moved: KvStats = KvStats()


@dataclass(frozen=True)
class ReplicaReport:
    """Deltas since cursor `after`. A poll with `after=cursor` acknowledges them."""

    boot: str
    """Identifies the replica's process: a new boot has lost all requests."""
    cursor: int
    deltas: tuple[Delta, ...]
    weight_version: int | None
    stats: EngineStats
    outside: int = 0
    """Responses for which the engine has nothing to compute now: they wait for their environments."""


class Replica(Protocol):
    """One engine slot of a rollout machine.

    It exists in every layout. It leads an engine in some, and sleeps in others while another slot uses its
    accelerators.
    """

    name: str

    async def release_accelerators(self, term: int, tensor_parallel: int) -> KeptEngines:
        """Release the accelerators, unless this is the current layout (0 is none).

        The engine is kept asleep. Its requests are dropped, as by an abort, and its weights are released.
        """
        ...

    async def switch_layout(self, term: int, tensor_parallel: int) -> KeptEngines:
        """Start the engine of this layout, on `tensor_parallel` accelerators; idempotent.

        All replicas of the machine have released their accelerators. The engine holds no weights. It is built if none
        is kept, and engines of other sizes may be discarded for its memory. Raises `Refused` if it does not start;
        then the replica sleeps, and an earlier layout still works.
        """
        ...

    async def submit(self, term: int, requests: Sequence[GenerateRequest]) -> None:
        """Queue requests. A key that is held with the same attempt is ignored; a higher attempt replaces it.

        Raises `WrongVersion`, and queues none, if the engine holds another version than `request.weight_version`.
        """
        ...

    async def abort(self, term: int, attempts: Mapping[TrajectoryKey, int]) -> None:
        """Stop these responses up to these attempts; unknown keys are ignored.

        After it returns, these attempts generate no further delta, and a request for them that arrives later is not
        started. Higher attempts continue, so that a late or repeated abort has no effect.
        """
        ...

    async def export_kv(self, term: int, attempts: Mapping[TrajectoryKey, int]) -> KvExport:
        """Write the KV of these responses to a file, then stop them like `abort`.

        Their last tokens are in the next poll. Without room, or in an engine that cannot, nothing is written. A
        repeated command returns the same receipt. The file lasts until `drop_kv`, the next export, or a load of other
        weights.
        """
        ...

    async def drop_kv(self, term: int) -> None:
        """Remove the file of the last export; idempotent. Requests that still refer to it are computed again."""
        ...

    async def profile(self, term: int, limits: ProfileLimits) -> EngineProfile:
        """Measure the engine in use with loads of its own, for a limited time; return what was measured.

        Any other command, but `poll` and `drop_kv`, ends the profile before it is served. Raises `Refused` if requests
        are held, or the engine has no weights.
        """
        ...

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        """Return the deltas after cursor `after`; wait up to `wait_seconds` for the first.

        Deltas that were not acknowledged are returned again.
        """
        ...

    async def load(self, term: int, version: int) -> int:
        """Load `version`, or a newer one, from this machine's relay segment; return the version.

        The prefix cache is reset. Raises `Refused` if requests are held, and `WrongVersion` if the relay does not hold
        the version completely.
        """
        ...
