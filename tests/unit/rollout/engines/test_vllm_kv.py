"""vLLM's KV connector without an engine: which models it serves, and which blocks it copies. The caches are real."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rljob_runtime.rollout.engines import vllm_compat
from rljob_runtime.rollout.engines.base import EngineRequest, EngineSettings, KvTicket
from rljob_runtime.rollout.kv.kv_file import KvFileWriter, Origin, plan

pytestmark = pytest.mark.engine  # The import of vLLM takes 10 s and sets torch's threads.

KERNEL, HEADS, CONTENT = 4, 2, 6
"""Tokens of a kernel's block; key-value heads; numbers of one token in one head of one layer."""
LAYERS = [f"model.layers.{index}.attn" for index in range(3)]
BLOCKS = 24
"""Of the kernel."""
OF_A_LAYER = {"block_size": 8, "num_kv_heads": HEADS, "head_size": 3, "dtype": torch.float32}
"""Fields of a vLLM spec."""


@pytest.fixture(scope="module")
def specs() -> Any:
    """Return vLLM's module of specs."""
    vllm_compat.prepare_environment()
    from vllm.v1 import kv_cache_interface

    return kv_cache_interface


@pytest.fixture
def side(specs: Any) -> Iterator[Callable[..., Side]]:
    """Make an engine's side of a transfer. A process has one, so the one before gives its place up."""
    from rljob_runtime.rollout.engines import vllm_kv

    def make(seed: int, split: int, groups: Sequence[Any] | None = None) -> Side:
        vllm_kv.close_port()
        kinds = [specs.FullAttentionSpec(**OF_A_LAYER)] if groups is None else groups
        return Side(vllm_kv, seed, split, [specs.KVCacheGroupSpec(LAYERS, spec) for spec in kinds])

    yield make
    vllm_kv.close_port()


class Side:
    """An engine's port and its connector, over caches of random content."""

    def __init__(self, vllm_kv: Any, seed: int, split: int, groups: Sequence[Any]) -> None:
        self.port = vllm_kv.open_port(EngineSettings(folder=Path(), weights=Path(), tensor_parallel=1))
        config = SimpleNamespace(
            kv_transfer_config=vllm_kv.transfer_config(),
            cache_config=SimpleNamespace(block_size=KERNEL * split),
            model_config=SimpleNamespace(get_total_num_kv_heads=lambda: HEADS),
        )
        self.connector = vllm_kv.FileConnector(config, None, SimpleNamespace(kv_cache_groups=groups))
        random = torch.Generator().manual_seed(seed)
        self.caches = {layer: torch.randn(BLOCKS, HEADS, KERNEL, CONTENT, generator=random) for layer in LAYERS}
        self.connector.register_kv_caches(self.caches)

    def blocks(self, table: Sequence[int]) -> torch.Tensor:
        """Return the kernel's blocks `table` as [layers, blocks, heads, tokens, content]."""
        return torch.stack([cache[list(table)] for cache in self.caches.values()]).clone()

    def schedule(self, request: Any, computed: int, table: Sequence[int]) -> int:
        """Do what vLLM does for a new request with `computed` tokens of the prefix cache; return the tokens to copy."""
        connector = self.connector
        connector.on_new_request(request)
        matched, later = connector.get_num_new_matched_tokens(request, computed)
        assert not later
        connector.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda: (list(table),)), matched)
        connector.bind_connector_metadata(connector.build_connector_meta(None))
        connector.start_load_kv(None)
        return int(matched)


def request_of(tokens: int) -> Any:
    return SimpleNamespace(
        request_id="r-1",
        kv_transfer_params={"rljob_id": "r"},
        all_token_ids=list(range(tokens)),
        num_tokens=tokens,
        num_computed_tokens=tokens - 1,
        num_in_flight_tokens=0,
    )


@pytest.fixture
def transfer(tmp_path: Path) -> Any:
    """Export a request of `tokens` in the scheduler's blocks `table`; return the ticket for it."""
    made: list[KvFileWriter] = []

    def export(giver: Side, tokens: int, table: Sequence[int]) -> KvTicket:
        port = giver.port
        giver.connector.on_new_request(request_of(tokens))
        giver.connector.bind_kv_cache_manager(SimpleNamespace(block_pool=None, get_block_ids=lambda id: (list(table),)))
        held = port.held(["r"])
        index = plan(Origin("ns/job", "rollout-0-1", 7), port.copier.shape, held)
        made.append(KvFileWriter.create(tmp_path / "kv", replace(index, responses={"x": index.responses["r"]})))
        checksums = port.write(made[-1].path, made[-1].index, {"r": "x"})
        made[-1].seal({name: [each[head] for head in range(HEADS)] for name, each in checksums.items()})
        return KvTicket(made[-1].path, "x", held["r"].tokens)

    yield export
    for writer in made:
        writer.close()


@pytest.mark.parametrize(
    ("kind", "fields", "transfers"),
    [
        ("FullAttentionSpec", {}, True),
        ("FullAttentionSpec", {"sliding_window": 16}, False),
        ("FullAttentionSpec", {"attention_chunk_size": 16}, False),
        ("SlidingWindowSpec", {"sliding_window": 16}, False),
        ("ChunkedLocalAttentionSpec", {"attention_chunk_size": 16}, False),
        ("SinkFullAttentionSpec", {"sink_len": 4}, False),
        ("MLAAttentionSpec", {}, False),
    ],
)
def test_only_models_that_keep_the_block_of_every_token_transfer(
    specs: Any, side: Callable[..., Side], kind: str, fields: dict[str, int], transfers: bool
) -> None:
    """Behind a window, a request's table has the null block, whose content is of no token."""
    spec = getattr(specs, kind)(**OF_A_LAYER, **fields)
    assert (side(0, 2, [spec]).port.copier is not None) == transfers
    assert side(0, 2, [spec, spec]).port.copier is None, "layers of two groups have two tables"


@pytest.mark.parametrize("split", [1, 2, 3])
def test_each_block_of_the_scheduler_is_several_of_the_kernel(
    side: Callable[..., Side], split: int, transfer: Any
) -> None:
    tokens = 2 * split * KERNEL + split * KERNEL - 1
    giver = side(1, split)
    assert giver.port.split == split
    ticket = transfer(giver, tokens, [5, 1, 3])
    full = (tokens - 1) // KERNEL
    assert ticket.tokens == full * KERNEL, "the kernel's full blocks, also of a scheduler's block that is not full"
    given = giver.blocks([5 * split + part for part in range(split)] + [1 * split + part for part in range(split)])
    taker = side(2, split)
    before = taker.blocks(range(BLOCKS))
    assert taker.port.open([ticket]) == [True]
    taker.port.admit(EngineRequest("r", tuple(range(tokens)), 1, temperature=0.0, kv=ticket))
    assert taker.schedule(request_of(tokens), 0, [2, 6, 4]) == 2 * split * KERNEL
    into = [2 * split + part for part in range(split)] + [6 * split + part for part in range(split)]
    assert torch.equal(taker.blocks(into), given)
    others = [block for block in range(BLOCKS) if block not in into]
    assert torch.equal(taker.blocks(others), before[:, others])
    assert taker.port.stats.imported_tokens == 2 * split * KERNEL


@pytest.mark.parametrize("split", [1, 2])
@pytest.mark.parametrize("cached", [1, 2, 3])
def test_blocks_of_the_prefix_cache_are_not_copied(
    side: Callable[..., Side], split: int, cached: int, transfer: Any
) -> None:
    """A ticket for three of the scheduler's blocks, of which vLLM has `cached` already and shares with others."""
    tokens, giver = 3 * split * KERNEL + 1, side(1, split)
    ticket = transfer(giver, tokens, [5, 1, 3, 0])
    given = giver.blocks([block * split + part for block in (5, 1, 3)[cached:] for part in range(split)])
    taker = side(2, split)
    before = taker.blocks(range(BLOCKS))
    assert taker.port.open([ticket]) == [True]
    taker.port.admit(EngineRequest("r", tuple(range(tokens)), 1, temperature=0.0, kv=ticket))
    missing = (3 - cached) * split * KERNEL
    assert taker.schedule(request_of(tokens), cached * split * KERNEL, [7, 2, 6, 4]) == missing
    into = [block * split + part for block in (7, 2, 6)[cached:] for part in range(split)]
    if into:
        assert torch.equal(taker.blocks(into), given)
    others = [block for block in range(BLOCKS) if block not in into]
    assert torch.equal(taker.blocks(others), before[:, others])
    assert taker.port.stats.imported_tokens == missing
    assert not taker.port.sources
