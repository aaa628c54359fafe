"""A rollout replica: requests in, tokens as they come out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rljob_runtime.protocols.trajectory import FinishReason, Sampling, TrajectoryKey


@dataclass(frozen=True)
class GenerateRequest:
    """Generate (or go on with) one trajectory. `prefix_token_ids` were generated before, under the same weight version;
    they count towards `sampling.max_tokens`, and the first new delta has `offset == len(prefix_token_ids)`."""

    key: TrajectoryKey
    attempt: int
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    weight_version: int
    prefix_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Delta:
    """New tokens of one trajectory as they came off the engine, stamped by the replica with the version that made them.
    The last delta of a response carries `finish_reason`; aborted ones end without any."""

    key: TrajectoryKey
    attempt: int
    offset: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    weight_version: int
    finish_reason: FinishReason | None = None


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
    """Requests stopped by `abort` before they ended."""
    layouts_built_total: int = 0
    """Engines that were built, one for each layout."""
    layout_switches_total: int = 0
    """Changes from one layout to another, or from none."""
    kv_tokens: int = 0
    """Tokens that the KV cache holds; 0 where the engine cannot tell."""
    max_running: int = 0
    """Most requests that run at a time; 0 where the engine cannot tell."""

    @property
    def fullness(self) -> float:
        """How much of what it can do at once it does, as far as it can tell: by its cache or by its requests."""
        return max(self.kv_use, self.running / self.max_running if self.max_running else 0.0)


@dataclass(frozen=True)
class ReplicaReport:
    """What happened since `after`: poll again with `after=cursor`, which also acknowledges these deltas."""

    boot: str
    """Changes with every start of the replica's process: a new boot has lost all requests."""
    cursor: int
    deltas: tuple[Delta, ...]
    weight_version: int | None
    stats: EngineStats


class Replica(Protocol):
    """One seat of a rollout machine. It outlives layouts: in one it leads an engine of so many accelerators, in another
    it rests while its accelerators work for a seat before it."""

    name: str

    async def make_room(self, term: int, tensor_parallel: int) -> None:
        """Give the accelerators back, unless this layout is the one in force (no layout is of 0). The requests held are
        dropped, as by an abort, and the weights are gone; the engine is kept asleep."""
        ...

    async def lay_out(self, term: int, tensor_parallel: int) -> None:
        """Generate on so many accelerators from now on; nothing changes if that is so already. All seats of the machine
        have made room. A layout begins without weights. Raises `Refused` with the reason when its engine does not
        start; the seat rests then, and an earlier layout can be had again."""
        ...

    async def submit(self, term: int, requests: Sequence[GenerateRequest]) -> None:
        """Queue requests. A key already held with the same attempt is ignored; a higher attempt replaces it. Raises
        `WrongVersion` (and queues none) when the engine's weights are not `request.weight_version`."""
        ...

    async def abort(self, term: int, attempts: Mapping[TrajectoryKey, int]) -> None:
        """Stop these responses, up to these attempts; what is not held is ignored. After it returns, no further delta
        of these attempts is made, and one that is still on its way here is not begun. A higher attempt goes on: an
        abort that comes late, or twice, harms nobody."""
        ...

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        """Deltas after cursor `after`, waiting up to `wait_seconds` for the first. Unacknowledged ones come again."""
        ...

    async def load(self, term: int, version: int) -> int:
        """Load `version` from this machine's relay segment, or the newer one that has taken its place there, and reset
        the prefix cache. Which it was. Raises `Refused` when requests are still held, `WrongVersion` when the relay
        does not hold it whole."""
        ...
