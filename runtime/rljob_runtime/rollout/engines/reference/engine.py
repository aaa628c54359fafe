"""Reference engine: continuous batching in plain torch, small enough to read and exact enough to test vLLM against.

A step either prefills waiting requests (each completely, as they fit) or decodes one token of all running requests. A
full KV cache preempts the youngest running request: its blocks are freed, its tokens are kept, and it is recomputed
later. Waiting and running requests are ordered by priority, then by arrival: the first goes first, and the last running
one counts as the youngest.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from rljob_runtime.models.product_dtype import product_dtype
from rljob_runtime.perf_model.model_shape import square_tokens
from rljob_runtime.protocols import EngineStats, KvStats
from rljob_runtime.protocols.trajectory import FinishReason
from rljob_runtime.rollout.engines.base import (
    DEFAULT_KV_BYTES,
    Counters,
    EngineRequest,
    EngineSettings,
    KvTicket,
    RequestRejected,
    StepOutput,
    check_length,
    seed_of,
)
from rljob_runtime.rollout.engines.reference.kv_blocks import BlockPool
from rljob_runtime.rollout.engines.reference.sampling import sample
from rljob_runtime.rollout.engines.reference.transformer import PagedCache, Transformer
from rljob_runtime.rollout.engines.weights import open_version
from rljob_runtime.rollout.kv.kv_file import Held, Index, digest
from rljob_runtime.rollout.kv.layout import KvShape

PREFILL_TOKENS_PER_STEP = 2048
"""Limit of one step's prefill work, so that many new requests do not starve running ones."""


@dataclass
class _Sequence:
    request: EngineRequest
    seed: int
    arrival: int
    tokens: list[int]
    table: list[int] = field(default_factory=list)
    kv: torch.Tensor | None = None
    """KV of its first blocks, until they are copied."""

    @property
    def place(self) -> tuple[int, int]:
        """Its place among others: the smallest goes first."""
        return self.request.priority, self.arrival

    @property
    def new_tokens(self) -> int:
        return len(self.tokens) - len(self.request.token_ids)


class ReferenceEngine:
    """Reference implementation of `base.SleepableEngine` in a single process.

    In a layout of several accelerators it computes on the first; its tokens are the same in all layouts.
    """

    def __init__(self, settings: EngineSettings) -> None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.weight_version: int | None = None
        self._settings = settings
        dtype = product_dtype(settings.dtype, device.type)
        self._model = Transformer(settings.folder, getattr(torch, dtype), device, settings.max_model_len)
        kv_bytes = (settings.kv_cache_bytes or DEFAULT_KV_BYTES) * settings.tensor_parallel
        blocks = settings.kv_blocks or kv_bytes // PagedCache.block_bytes(self._model, settings.block_size)
        self._pool = BlockPool(blocks, settings.block_size)
        self._cache = PagedCache(self._model, blocks, settings.block_size)
        self._waiting: list[_Sequence] = []
        self._running: list[_Sequence] = []
        self._arrivals = 0
        self._counters = Counters(square_tokens=square_tokens(settings.folder))
        self._kv = self._cache.copier(dtype, settings.rank) if settings.transfers_kv else None

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._running)

    def check(self, request: EngineRequest) -> None:
        check_length(request, self._settings.max_model_len, self._model.config.vocab_size)
        total = len(request.token_ids) + request.max_new_tokens
        if self._pool.blocks_for(total) > self._pool.total:
            raise RequestRejected(
                f"{total} tokens exceed the KV cache of {self._pool.total * self._pool.block_size} tokens"
            )

    def add(self, request: EngineRequest) -> None:
        self._arrivals += 1
        sequence = _Sequence(request, seed_of(request), self._arrivals, list(request.token_ids))
        if self._kv is not None and request.kv is not None:
            sequence.kv = self._kv.source(request.kv.path, request.kv.response, request.kv.tokens)
        insort(self._waiting, sequence, key=_place)
        self._counters.passed += self._waiting[-1] is not sequence
        self._counters.prompt_tokens += len(request.token_ids)

    @torch.inference_mode()
    def step(self) -> list[StepOutput]:
        if self._kv is not None:
            self._kv.release()
        admitted = self._admit()
        if admitted:
            hidden = torch.stack([self._prefill(sequence) for sequence in admitted])
            return self._emit(admitted, hidden)
        running = self._secure_blocks()
        return self._emit(running, self._decode(running)) if running else []

    def abort(self, ids: list[str]) -> None:
        gone = set(ids)
        for sequence in self._running:
            if sequence.request.id in gone:
                self._pool.release(sequence.table)
        before = len(self._running) + len(self._waiting)
        self._running = [s for s in self._running if s.request.id not in gone]
        self._waiting = [s for s in self._waiting if s.request.id not in gone]
        self._counters.aborted += before - len(self._running) - len(self._waiting)

    def load(self, version: int) -> None:
        tensors = open_version(self._settings.weights, version)
        self.weight_version = None
        self._model.load(tensors)
        # There is no prefix cache: no request reads a block that another request wrote.
        self._counters.prefix_resets += 1
        self._counters.weight_loads += 1
        self.weight_version = version

    def sleep(self) -> None:
        self.weight_version = None
        self._model.release()
        self._cache.release()
        if self._model.device.type == "cuda":
            torch.cuda.empty_cache()  # also for other processes, such as the gradient worker of a loaned machine

    def wake(self) -> None:
        self._model.reserve()
        self._cache.reserve()

    def kv_shape(self) -> KvShape | None:
        return None if self._kv is None else self._kv.shape

    def kv_held(self, ids: Sequence[str]) -> dict[str, Held]:
        asked = set(ids)
        held = {s.request.id: self._full_blocks(s) for s in self._running if s.request.id in asked}
        return {id: Held(len(tokens), digest(tokens)) for id, tokens in held.items() if tokens}

    def kv_write(self, path: Path, index: Index, names: Mapping[str, str]) -> dict[str, dict[int, int]]:
        assert self._kv is not None
        tables = {
            names[s.request.id]: s.table[: self._kv.shape.full_blocks(len(self._full_blocks(s)))]
            for s in self._running
            if s.request.id in names
        }
        return self._kv.write(path, index, tables)

    def kv_open(self, tickets: Sequence[KvTicket]) -> list[bool]:
        if self._kv is None:
            return [False] * len(tickets)
        return self._kv.open([(ticket.path, ticket.response) for ticket in tickets])

    def kv_read(self, tickets: Mapping[str, KvTicket]) -> KvStats:
        assert self._kv is not None
        tables = {s.request.id: s.table for s in self._running if s.request.id in tickets}
        copies = [(tickets[id], table) for id, table in tables.items()]
        return sum((self._kv.read_back(t.path, t.response, t.tokens, table) for t, table in copies), KvStats())

    def _full_blocks(self, sequence: _Sequence) -> list[int]:
        """Return the tokens whose keys and values fill blocks. The last token has none until the next step."""
        size = self._pool.block_size
        return sequence.tokens[: (len(sequence.tokens) - 1) // size * size]

    def stats(self) -> EngineStats:
        pool = self._pool
        return self._counters.stats(
            len(self._running),
            len(self._waiting),
            pool.used_share,
            pool.total * pool.block_size,
            self._settings.max_running,
        )

    def close(self) -> None:
        self._waiting.clear()
        self._running.clear()

    def _admit(self) -> list[_Sequence]:
        """Move waiting sequences to running, in their order, while blocks, slots and the step's prefill budget last."""
        admitted: list[_Sequence] = []
        budget = PREFILL_TOKENS_PER_STEP
        while self._waiting and len(self._running) < self._settings.max_running:
            sequence = self._waiting[0]
            if admitted and len(sequence.tokens) > budget:
                break
            # Room for one token more: a sequence whose own first token preempts it would never advance.
            if not self._pool.grow(sequence.table, len(sequence.tokens) + 1):
                break
            insort(self._running, self._waiting.pop(0), key=_place)
            admitted.append(sequence)
            budget -= len(sequence.tokens)
        return admitted

    def _secure_blocks(self) -> list[_Sequence]:
        """Reserve blocks for one more token of every running sequence; preempt the youngest while too few are free."""
        index = 0
        while index < len(self._running):
            sequence = self._running[index]
            if self._pool.grow(sequence.table, len(sequence.tokens)):
                index += 1
                continue
            victim = self._running.pop()
            self._pool.release(victim.table)
            insort(self._waiting, victim, key=_place)
            self._counters.preemptions += 1
        return list(self._running)

    def _prefill(self, sequence: _Sequence) -> torch.Tensor:
        device, length, ready = self._model.device, len(sequence.tokens), self._import_kv(sequence)
        tokens = torch.tensor(sequence.tokens[ready:], device=device)
        attention = self._cache.prefill(self._cache.slots([sequence.table], length)[0], ready)
        return self._model.forward(tokens, torch.arange(ready, length, device=device), attention)[-1]

    def _import_kv(self, sequence: _Sequence) -> int:
        """Copy the sequence's KV into its first blocks, if it has some; return the number of tokens that need no work.

        The last token always runs: its hidden state gives the next one.
        """
        source, sequence.kv = sequence.kv, None
        if self._kv is None or source is None:
            return 0
        blocks = min(source.shape[2], self._kv.shape.full_blocks(len(sequence.tokens) - 1))
        self._counters.kv += self._kv.read(source[:, :, :blocks], sequence.table[:blocks])
        return blocks * self._pool.block_size

    def _decode(self, running: list[_Sequence]) -> torch.Tensor:
        device = self._model.device
        lengths = [len(s.tokens) for s in running]
        attention = self._cache.decode([s.table for s in running], lengths)
        tokens = torch.tensor([s.tokens[-1] for s in running], device=device)
        return self._model.forward(tokens, torch.tensor(lengths, device=device) - 1, attention)

    def _emit(self, sequences: list[_Sequence], hidden: torch.Tensor) -> list[StepOutput]:
        """Sample one token for each sequence from its last hidden state [n, hidden], and retire those that end."""
        requests = [s.request for s in sequences]
        tokens, logprobs = sample(
            self._model.logits(hidden),
            requests,
            [s.seed for s in sequences],
            [s.request.generated + s.new_tokens for s in sequences],
        )
        outputs = []
        for sequence, token, logprob in zip(sequences, tokens, logprobs, strict=True):
            sequence.tokens.append(token)
            # Without a prefix cache, each prompt is computed from its first token on.
            outputs.append(StepOutput(sequence.request.id, (token,), (logprob,), _finish(sequence), cached_tokens=0))
        self._counters.generated_tokens += len(outputs)
        ended = {o.id for o in outputs if o.finish_reason}
        self.abort(list(ended))
        return outputs


def _place(sequence: _Sequence) -> tuple[int, int]:
    return sequence.place


def _finish(sequence: _Sequence) -> FinishReason | None:
    if sequence.tokens[-1] in sequence.request.stop_token_ids:
        return FinishReason.STOP
    if sequence.new_tokens >= sequence.request.max_new_tokens:
        return FinishReason.LENGTH
    return None
