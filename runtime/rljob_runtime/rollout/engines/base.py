"""Engine protocol: requests in, tokens with behaviour logprobs out, one step at a time, weights by version.

One thread uses an engine. An engine has no lock and no clock. Leases and terms are the replica's concern.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rljob_runtime.protocols import EngineStats, KvStats
from rljob_runtime.protocols.trajectory import FinishReason
from rljob_runtime.rollout.kv.kv_file import Held, Index
from rljob_runtime.rollout.kv.layout import KvShape

MAX_SEED = 2**63 - 1
DEFAULT_KV_BYTES = 256 << 20


class RequestRejected(ValueError):
    """The engine can never serve this request; the message names the limit."""


@dataclass(frozen=True)
class EngineSettings:
    """Settings from which an engine is built.

    `folder` holds config and tokenizer files; weights come by `load` from `weights`, the relay's segment. The KV cache
    has `kv_blocks` blocks of `block_size` tokens if set, else `kv_cache_bytes` on each accelerator. Without either,
    vLLM on a GPU uses `memory_fraction` of the accelerator, and other engines use `DEFAULT_KV_BYTES`.
    """

    folder: Path
    weights: Path
    dtype: str = "bfloat16"
    """Format of the weights that arrive. The engine computes in it, or wider where the device has no such products."""
    max_model_len: int = 2048
    max_running: int = 256
    block_size: int = 32
    kv_cache_bytes: int | None = None
    kv_blocks: int | None = None
    memory_fraction: float = 0.9
    tensor_parallel: int = 1
    rank: int = 0
    """Rank of this process among `tensor_parallel` processes, which meet at the file `rendezvous`."""
    rendezvous: Path | None = None
    transfers_kv: bool = False
    """Whether KV of responses may leave this engine and enter it."""
    has_priorities: bool = False
    """Whether priorities of requests may differ. Without them, vLLM computes requests as they arrive."""


@dataclass(frozen=True)
class KvTicket:
    """The right to copy the KV of the first `tokens` tokens of a request from a file."""

    path: Path
    response: str
    """Name in the file's index."""
    tokens: int


@dataclass(frozen=True)
class EngineRequest:
    """Request to continue `token_ids`, whose last `generated` tokens are sampled ones (0 for a new prompt).

    At most `max_new_tokens` follow. A token of `stop_token_ids` is kept and ends the response. Temperature 0 is greedy.
    Else tokens are drawn from those that `top_k` (0: all), `top_p` and `min_p` leave of the tempered distribution.
    """

    id: str
    token_ids: tuple[int, ...]
    max_new_tokens: int
    generated: int = 0
    temperature: float = 1.0
    seed: int | None = None
    stop_token_ids: frozenset[int] = frozenset()
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    kv: KvTicket | None = None
    priority: int = 0
    """See `protocols.GenerateRequest.priority`."""

    @property
    def truncates(self) -> bool:
        """Whether tokens may be left out."""
        return self.top_p < 1 or self.top_k > 0 or self.min_p > 0


@dataclass(frozen=True)
class StepOutput:
    """New tokens of one request, with their natural-log probabilities.

    The probabilities are those of the tempered distribution over all tokens (temperature 1 if greedy). So the trainer
    computes the same numbers, whatever top k, top p and min p leave out.
    """

    id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason | None = None
    cached_tokens: int | None = None
    """Tokens of the request, from its first one on, that the engine held already; None if that is not known."""


class Engine(Protocol):
    """Continuous batching over a bounded KV cache.

    Waiting requests start by their priority, equal ones as they arrived. A full cache preempts the youngest request of
    the highest value, which is recomputed later.
    """

    @property
    def weight_version(self) -> int | None:
        """Version of the weights; None until the first `load` and after a failed one.

        An engine without weights must not generate.
        """
        ...

    @property
    def busy(self) -> bool:
        """True while any request is running or waiting."""
        ...

    def check(self, request: EngineRequest) -> None:
        """Raise `RequestRejected` if the engine can never serve the request."""
        ...

    def add(self, request: EngineRequest) -> None:
        """Queue a request that has a new id and passed `check`."""
        ...

    def step(self) -> list[StepOutput]:
        """Run one forward pass and return the outputs of the requests that advanced; [] if none could."""
        ...

    def abort(self, ids: list[str]) -> None:
        """Drop these requests; unknown ids are ignored. No further output follows for them."""
        ...

    def load(self, version: int) -> None:
        """Replace the weights by `version` of the relay's segment and reset the prefix cache; only while not busy.

        Raises `VersionUnavailable`, and keeps the old weights, if the segment does not hold the version completely.
        """
        ...

    def stats(self) -> EngineStats:
        """Return current gauges, and totals since the start."""
        ...

    def close(self) -> None:
        """Free memory and end worker processes."""
        ...


class SleepableEngine(Engine, Protocol):
    """Engine that can sleep while another engine uses its accelerators."""

    def sleep(self) -> None:
        """Release memory, as far as this kind of engine can, and drop the weights; only while not busy.

        `stats` still answers.
        """
        ...

    def wake(self) -> None:
        """Make the engine ready for a `load` after `sleep`."""
        ...


class KvEngine(SleepableEngine, Protocol):
    """Engine whose KV blocks can be copied to a file and from one, between two steps."""

    def kv_shape(self) -> KvShape | None:
        """Return what its blocks contain; None if KV of this engine or model cannot be transferred."""
        ...

    def kv_held(self, ids: Sequence[str]) -> dict[str, Held]:
        """Return the beginning of each running request whose KV is in full blocks; others are left out."""
        ...

    def kv_write(self, path: Path, index: Index, names: Mapping[str, str]) -> dict[str, dict[int, int]]:
        """Copy requests (id → name in the planned `index`) to the file; return name → head → checksum.

        A rank copies the heads that it writes. The requests continue.
        """
        ...

    def kv_open(self, tickets: Sequence[KvTicket]) -> list[bool]:
        """Map the files, and return for each ticket whether all heads of this engine are intact.

        Requests with a ticket that is intact are added before the next step.
        """
        ...

    def kv_read(self, tickets: Mapping[str, KvTicket]) -> KvStats:
        """Copy opened KV of running requests (id → ticket) back to their blocks; return what that took.

        The blocks have the same content as before, and the requests continue. No total counts these copies.
        """
        ...


@dataclass
class Counters:
    """Totals of `EngineStats`, which only grow, and `square_tokens` of the model."""

    preemptions: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    prefix_resets: int = 0
    weight_loads: int = 0
    aborted: int = 0
    passed: int = 0
    kv: KvStats = field(default_factory=KvStats)
    square_tokens: float = 0.0

    def stats(self, running: int, waiting: int, kv_use: float, kv_tokens: int, max_running: int) -> EngineStats:
        """Combine these totals with the current gauges."""
        return EngineStats(
            running=running,
            waiting=waiting,
            kv_use=kv_use,
            preemptions_total=self.preemptions,
            generated_tokens_total=self.generated_tokens,
            prompt_tokens_total=self.prompt_tokens,
            prefix_resets_total=self.prefix_resets,
            weight_loads_total=self.weight_loads,
            aborted_total=self.aborted,
            kv_tokens=kv_tokens,
            max_running=max_running,
            kv=self.kv,
            passed_total=self.passed,
            square_tokens=self.square_tokens,
        )


def check_length(request: EngineRequest, max_model_len: int, vocabulary: int) -> None:
    """Reject a request that is empty, too long, or has token ids outside the vocabulary."""
    if not request.token_ids:
        raise RequestRejected("the prompt has no tokens")
    if request.max_new_tokens < 1:
        raise RequestRejected(f"maxTokens leaves {request.max_new_tokens} tokens to generate; it must leave at least 1")
    total = len(request.token_ids) + request.max_new_tokens
    if total > max_model_len:
        raise RequestRejected(
            f"{len(request.token_ids)} prompt tokens + {request.max_new_tokens} new ones = {total} exceed the engine's "
            f"context of {max_model_len}"
        )
    worst = max(request.token_ids)
    if min(request.token_ids) < 0 or worst >= vocabulary:
        raise RequestRejected(f"token id {worst} is outside the model's vocabulary of {vocabulary}")


def seed_of(request: EngineRequest) -> int:
    """Return the request's seed, or a random one.

    An engine's own generator starts with the same state on every machine, so it must not choose the seed.
    """
    return secrets.randbits(63) if request.seed is None else request.seed & MAX_SEED
