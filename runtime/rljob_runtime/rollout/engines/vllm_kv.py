"""vLLM KV connector: copies KV blocks of requests to files and from them (compatibility module of KV transfer).

Everything that depends on vLLM's documented KV connector interface (V1, vLLM 0.32; "subject to change") is here. A new
release is checked against this file and tests/unit/rollout/engines/test_kv_transfer.py. Without it KV is computed
again.

vLLM makes two connectors: one beside the scheduler, which knows requests and their blocks, one beside the model, which
knows the caches. Every rank has both in its process, so they share a `KvPort`. vLLM keeps the second in a global, so a
process has one engine that transfers KV.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata
from vllm.v1.kv_cache_interface import FullAttentionSpec

from rljob_runtime.protocols import KvStats
from rljob_runtime.rollout.engines.base import EngineRequest, EngineSettings, KvTicket
from rljob_runtime.rollout.kv.copier import KvCopier
from rljob_runtime.rollout.kv.kv_file import Held, Index, digest
from rljob_runtime.rollout.kv.layout import KvShape, heads_of, written_by

ID = "rljob_id"
"""Our id among a request's `kv_transfer_params`; vLLM's own id has a random suffix."""


class KvPort:
    """What the engine of this process and its two connectors share."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.requests: dict[str, Any] = {}
        """vLLM's requests by our ids, until they are finished or aborted."""
        self.sources: dict[str, torch.Tensor] = {}
        """KV of requests that are not scheduled yet."""
        self.stats = KvStats()
        self.copier: KvCopier | None = None
        self.manager: Any = None
        """vLLM's KV cache manager."""
        self.split = 1
        """Blocks of the kernel in a block of the scheduler."""

    # --- of the engine ---

    def held(self, ids: Sequence[str]) -> dict[str, Held]:
        """See `base.KvEngine.kv_held`."""
        assert self.copier is not None
        held = {}
        for id in ids:
            if (request := self.requests.get(id)) is not None and (blocks := self._full_blocks(request)):
                tokens = list(request.all_token_ids[: blocks * self.copier.shape.block_size])
                held[id] = Held(len(tokens), digest(tokens))
        return held

    def write(self, path: Path, index: Index, names: Mapping[str, str]) -> dict[str, dict[int, int]]:
        """See `base.KvEngine.kv_write`."""
        assert self.copier is not None
        return self.copier.write(path, index, {name: self._table(id) for id, name in names.items()})

    def open(self, tickets: Sequence[KvTicket]) -> list[bool]:
        """See `base.KvEngine.kv_open`."""
        if self.copier is None:
            return [False] * len(tickets)
        return self.copier.open([(ticket.path, ticket.response) for ticket in tickets])

    def read(self, tickets: Mapping[str, KvTicket]) -> KvStats:
        """See `base.KvEngine.kv_read`."""
        assert self.copier is not None
        copies = [(ticket, self._table(id)) for id, ticket in tickets.items()]
        return sum((self.copier.read_back(t.path, t.response, t.tokens, table) for t, table in copies), KvStats())

    def admit(self, request: EngineRequest) -> None:
        """Keep the KV of a request until vLLM schedules it."""
        if request.kv is not None and self.copier is not None:
            self.sources[request.id] = self.copier.source(request.kv.path, request.kv.response, request.kv.tokens)

    def release(self) -> None:
        """Forget opened files."""
        if self.copier is not None:
            self.copier.release()

    # --- of the connectors ---

    def expanded(self, table: Sequence[int]) -> list[int]:
        """Return the kernel's blocks of the scheduler's blocks."""
        return [block * self.split + part for block in table for part in range(self.split)]

    def matched(self, request: Any, block_size: int) -> int:
        """Return the tokens of a request, in full blocks of the scheduler, whose KV is at hand.

        The last token always runs: its hidden state gives the next one.
        """
        source = self.sources.get(id_of(request))
        if source is None or self.copier is None:
            return 0
        ready = source.shape[2] * self.copier.shape.block_size
        return int(min(ready, request.num_tokens - 1)) // block_size * block_size

    def _table(self, id: str) -> list[int]:
        """Return the kernel's blocks of a request that are complete."""
        request = self.requests[id]
        return self.expanded(self.manager.get_block_ids(request.request_id)[0])[: self._full_blocks(request)]

    def _full_blocks(self, request: Any) -> int:
        """Return the number of the kernel's blocks that are complete. Tokens in flight may still be written."""
        assert self.copier is not None
        computed = min(request.num_computed_tokens - request.num_in_flight_tokens, request.num_tokens - 1)
        return self.copier.shape.full_blocks(max(0, computed))


_port: KvPort | None = None


def open_port(settings: EngineSettings) -> KvPort:
    """Make the port of this process. Raises `RuntimeError` if another engine has it."""
    global _port
    if _port is not None:
        raise RuntimeError("a process has one vLLM engine that transfers KV; run each engine in rank processes")
    _port = KvPort(settings.rank, settings.tensor_parallel)
    return _port


def close_port() -> None:
    """Free the port of this process for another engine."""
    global _port
    _port = None


def transfer_config() -> Any:
    """Return vLLM's `KVTransferConfig` that names the connector."""
    from vllm.config import KVTransferConfig

    return KVTransferConfig(
        kv_connector=FileConnector.__name__, kv_connector_module_path=FileConnector.__module__, kv_role="kv_both"
    )


def transfer_params(request: EngineRequest) -> dict[str, Any]:
    """Return the extra arguments of vLLM's sampling parameters by which the connectors know a request."""
    return {"kv_transfer_params": {ID: request.id}}


def id_of(request: Any) -> str:
    """Return our id of one of vLLM's requests."""
    return str((request.kv_transfer_params or {}).get(ID, ""))


@dataclass
class Loads(KVConnectorMetadata):
    """Copies of one step: each source, and the blocks that it fills."""

    copies: list[tuple[torch.Tensor, list[int]]] = field(default_factory=list)


class FileConnector(KVConnectorBase_V1):
    """Both of vLLM's connectors. Copies are synchronous: a request is scheduled with its KV in place."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        if _port is None:
            raise RuntimeError("the engine of this process transfers no KV")
        self._port = _port
        self._block_size = vllm_config.cache_config.block_size
        self._copies: list[tuple[torch.Tensor, list[int]]] = []

    @property
    def requires_kv_delivery(self) -> bool:
        """False: KV that is not delivered is computed again."""
        return False

    # --- beside the scheduler ---

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        self._port.manager = kv_cache_manager

    def on_new_request(self, request: Any) -> None:
        self._port.requests[id_of(request)] = request

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._port.requests.pop(id_of(request), None)
        self._port.sources.pop(id_of(request), None)
        return False, None

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return max(0, self._port.matched(request, self._block_size) - num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        end = self._port.matched(request, self._block_size) // self._block_size
        source = self._port.sources.pop(id_of(request), None)
        if source is None or not num_external_tokens:
            return
        begin, split = end - num_external_tokens // self._block_size, self._port.split
        table = self._port.expanded(blocks.get_block_ids()[0][begin:end])
        self._copies.append((source[:, :, begin * split : end * split], table))

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        copies, self._copies = self._copies, []
        return Loads(copies)

    # --- beside the model ---

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Receive the caches by layer, each [blocks, heads, tokens, keys and values]."""
        self._port.copier = self._copier([kv_caches[name] for name in sorted(kv_caches, key=in_order)])

    def _copier(self, caches: list[torch.Tensor]) -> KvCopier | None:
        """Return a copier for the layers of this rank.

        None if the layers are not alike (hybrid models), or if a request does not keep all its blocks.
        """
        groups = self._kv_cache_config.kv_cache_groups
        if len(groups) != 1 or not keeps_all_blocks(groups[0].kv_cache_spec):
            return None
        if len({(cache.shape, cache.dtype) for cache in caches}) != 1 or caches[0].dim() != 4:
            return None
        _, own_heads, tokens, content = caches[0].shape
        port, kv_heads = self._port, self._vllm_config.model_config.get_total_num_kv_heads()
        heads = heads_of(port.rank, port.ranks, kv_heads)
        if len(heads) != own_heads:
            return None
        port.split = self._block_size // tokens
        shape = KvShape(
            kernel=f"vLLM {vllm.__version__} {caches[0].device.type}",
            dtype=str(caches[0].dtype),
            layers=len(caches),
            kv_heads=kv_heads,
            block_size=tokens,
            token_bytes=content * caches[0].itemsize,
        )
        return KvCopier(caches, shape, heads, written_by(port.rank, port.ranks, kv_heads))

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        loads = self._get_connector_metadata()
        assert isinstance(loads, Loads)
        for source, table in loads.copies:
            assert self._port.copier is not None
            self._port.stats += self._port.copier.read(source, table)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: copies are complete before the forward pass."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing: blocks are copied between two steps."""

    def wait_for_save(self) -> None:
        """Nothing: see `save_kv_layer`."""


def keeps_all_blocks(spec: Any) -> bool:
    """Return whether a request keeps the block of every token. Behind a window, its table has vLLM's null block.

    Other kinds of vLLM's specs, subclasses included, are refused: their blocks may contain anything.
    """
    return type(spec) is FullAttentionSpec and spec.sliding_window is None and spec.attention_chunk_size is None


def in_order(layer: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts `layers.10` after `layers.9`."""
    parts = layer.split(".")
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]
