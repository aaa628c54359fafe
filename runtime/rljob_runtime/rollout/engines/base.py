"""Engine protocol: requests in, tokens with behaviour logprobs out, one step at a time, weights by version.

One thread uses an engine. An engine has no lock and no clock. Leases and terms are the replica's concern.
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
    """Settings from which an engine is built.

    `folder` holds config and tokenizer files; weights come by `load` from `weights`, the relay's segment. The KV cache
    has `kv_blocks` blocks of `block_size` tokens if set, else `kv_cache_bytes` on each accelerator. Without either,
    vLLM on a GPU uses `memory_fraction` of the accelerator, and other engines use `DEFAULT_KV_BYTES`.
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
    """Rank of this process among `tensor_parallel` processes, which meet at the file `rendezvous`."""
    rendezvous: Path | None = None


@dataclass(frozen=True)
class EngineRequest:
    """Request to continue `token_ids`, whose last `generated` tokens are sampled ones (0 for a new prompt).

    At most `max_new_tokens` follow. A token of `stop_token_ids` is kept and ends the response. Temperature 0 is greedy.
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
    """New tokens of one request, with their natural-log probabilities.

    The probabilities are those of the tempered distribution from which the tokens are drawn (temperature 1 if greedy).
    """

    id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason | None = None


class Engine(Protocol):
    """Continuous batching over a bounded KV cache.

    A full cache preempts the youngest request, which is recomputed later.
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


@dataclass
class Counters:
    """Totals of `EngineStats`; they only grow."""

    preemptions: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
    prefix_resets: int = 0
    weight_loads: int = 0
    aborted: int = 0

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
