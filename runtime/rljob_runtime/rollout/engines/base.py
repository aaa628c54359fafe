"""What a rollout engine is: requests in, tokens with behaviour logprobs out, one step at a time, weights by version.

An engine is used by one thread only, holds no lock and no clock, and knows nothing of leases or terms: those are the
replica's.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rljob_runtime.protocols import EngineStats
from rljob_runtime.protocols.trajectory import FinishReason

MAX_SEED = 2**63 - 1
DEFAULT_KV_BYTES = 256 << 20


class RequestRejected(ValueError):
    """The engine can never serve this request; the message names the limit."""


@dataclass(frozen=True)
class EngineSettings:
    """How to build an engine.

    `folder` holds config and tokenizer files (weights are not read: they come by `load`). `weights` is the relay's
    segment. KV memory is `kv_blocks` blocks of `block_size` tokens if set, else `kv_cache_bytes` an accelerator,
    else what `memory_fraction` of the accelerator leaves (vLLM on GPUs) or `DEFAULT_KV_BYTES`.
    """

    folder: Path
    weights: Path
    dtype: str = "bfloat16"
    max_model_len: int = 2048
    max_running: int = 256
    block_size: int = 32
    kv_cache_bytes: int | None = None
    kv_blocks: int | None = None
    memory_fraction: float = 0.9
    tensor_parallel: int = 1
    rank: int = 0
    """Of this process among `tensor_parallel` ones, which meet at the file `rendezvous`."""
    rendezvous: Path | None = None


@dataclass(frozen=True)
class EngineRequest:
    """Continue `token_ids`, whose last `generated` tokens were sampled before (0 for a fresh prompt).

    At most `max_new_tokens` follow; a token of `stop_token_ids` is kept and ends the response. Temperature 0 is greedy.
    """

    id: str
    token_ids: tuple[int, ...]
    max_new_tokens: int
    generated: int = 0
    temperature: float = 1.0
    seed: int | None = None
    stop_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True)
class StepOutput:
    """New tokens of one request with natural-log probabilities under the tempered distribution they were drawn from
    (under temperature 1 for greedy ones)."""

    id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason | None = None


class Engine(Protocol):
    """Continuous batching over a bounded KV cache; the youngest request is preempted and recomputed when it is full."""

    @property
    def weight_version(self) -> int | None:
        """None until the first `load`, and after a failed one: an engine without weights must not generate."""
        ...

    @property
    def busy(self) -> bool:
        """Whether any request is running or waiting."""
        ...

    def check(self, request: EngineRequest) -> None:
        """Raise `RequestRejected` when the request could never be served."""
        ...

    def add(self, request: EngineRequest) -> None:
        """Queue a request with a new id that passed `check`."""
        ...

    def step(self) -> list[StepOutput]:
        """One forward pass; outputs of the requests that advanced. An empty list when nothing could."""
        ...

    def abort(self, ids: list[str]) -> None:
        """Forget these requests; unknown ids are ignored. Nothing more comes out for them."""
        ...

    def load(self, version: int) -> None:
        """Replace the weights by `version` of the relay's segment and reset the prefix cache; only while not busy.
        Raises `VersionUnavailable` with the old weights untouched when the segment does not hold it whole."""
        ...

    def stats(self) -> EngineStats:
        """Gauges of this instant and totals since the start."""
        ...

    def close(self) -> None:
        """Free memory and end worker processes."""
        ...


class SleepableEngine(Engine, Protocol):
    """An engine that can be kept while another one has its accelerators."""

    def sleep(self) -> None:
        """Give memory back, as far as this kind of engine can, and forget the weights; only while not busy. `stats` can
        be asked for meanwhile."""
        ...

    def wake(self) -> None:
        """Be ready for a `load` again after `sleep`."""
        ...


@dataclass
class Counters:
    """The totals of `EngineStats`; they only grow."""

    preemptions: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    prefix_resets: int = 0
    weight_loads: int = 0
    aborted: int = 0

    def stats(self, running: int, waiting: int, kv_use: float, kv_tokens: int, max_running: int) -> EngineStats:
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
        )


def check_length(request: EngineRequest, max_model_len: int, vocabulary: int) -> None:
    """Reject what no amount of waiting can serve: empty, too long, or with token ids outside the vocabulary."""
    if not request.token_ids:
        raise RequestRejected("the prompt has no tokens")
    if request.max_new_tokens < 1:
        raise RequestRejected(f"maxTokens leaves {request.max_new_tokens} tokens to generate; at least 1 is needed")
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
    """The request's seed; without one a random one, since an engine's own generator starts alike on every machine."""
    return secrets.randbits(63) if request.seed is None else request.seed & MAX_SEED
