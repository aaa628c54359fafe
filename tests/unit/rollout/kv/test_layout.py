"""The order of bytes in a KV file, and which rank holds which heads. Over all sizes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.rollout.kv.layout import KvShape, gather, heads_of, scatter, written_by


@pytest.mark.parametrize(
    ("ranks", "kv_heads", "held", "written"),
    [
        (1, 1, [[0]], [[0]]),
        (1, 4, [[0, 1, 2, 3]], [[0, 1, 2, 3]]),
        (2, 4, [[0, 1], [2, 3]], [[0, 1], [2, 3]]),
        (4, 4, [[0], [1], [2], [3]], [[0], [1], [2], [3]]),
        (2, 1, [[0], [0]], [[0], []]),
        (4, 2, [[0], [0], [1], [1]], [[0], [], [1], []]),
        (8, 2, [[0], [0], [0], [0], [1], [1], [1], [1]], [[0], [], [], [], [1], [], [], []]),
    ],
)
def test_the_heads_of_each_rank(ranks: int, kv_heads: int, held: list[list[int]], written: list[list[int]]) -> None:
    assert [list(heads_of(rank, ranks, kv_heads)) for rank in range(ranks)] == held
    assert [list(written_by(rank, ranks, kv_heads)) for rank in range(ranks)] == written


@pytest.mark.parametrize(("rank", "ranks", "kv_heads"), [(0, 2, 3), (0, 3, 2), (0, 4, 6)])
def test_heads_that_do_not_split_are_refused(rank: int, ranks: int, kv_heads: int) -> None:
    with pytest.raises(ValueError, match=f"{kv_heads} key-value heads do not split over {ranks} ranks"):
        heads_of(rank, ranks, kv_heads)


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_that_is_none_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank {rank} is not one of 2"):
        heads_of(rank, 2, 4)


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, int]:
    """(kv_heads, ranks, ranks): two layouts of one model, with fewer and with more ranks than heads."""
    kv_heads = draw(st.sampled_from([1, 2, 3, 4, 6, 8]))
    fits = [n for n in (1, 2, 3, 4, 6, 8, 16) if kv_heads % n == 0 or n % kv_heads == 0]
    return kv_heads, draw(st.sampled_from(fits)), draw(st.sampled_from(fits))


@given(sizes())
def test_every_head_is_written_once_and_by_a_rank_that_holds_it(chosen: tuple[int, int, int]) -> None:
    kv_heads, ranks, _ = chosen
    written = [head for rank in range(ranks) for head in written_by(rank, ranks, kv_heads)]
    assert written == list(range(kv_heads))
    for rank in range(ranks):
        assert set(written_by(rank, ranks, kv_heads)) <= set(heads_of(rank, ranks, kv_heads))


@given(sizes(), st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.integers(0, 2**31))
def test_a_response_goes_from_one_layout_to_another_and_back_bit_for_bit(
    chosen: tuple[int, int, int], layers: int, blocks: int, block_size: int, content: int, seed: int
) -> None:
    """Each layout has its own cache of each rank, and puts the response into other blocks."""
    kv_heads, first, second = chosen
    random = torch.Generator().manual_seed(seed)

    def empty(ranks: int) -> list[list[torch.Tensor]]:
        """Caches by rank and layer; the strides are those of a cache whose heads are innermost."""
        return [
            [
                torch.zeros(blocks + 3, block_size, len(heads_of(rank, ranks, kv_heads)), content).transpose(1, 2)
                for _ in range(layers)
            ]
            for rank in range(ranks)
        ]

    def table() -> list[int]:
        return torch.randperm(blocks + 3, generator=random)[:blocks].tolist()

    shape = KvShape("test", "float32", layers, kv_heads, block_size, 4 * content)
    tokens = blocks * block_size

    def exported(caches: list[list[torch.Tensor]], table: list[int]) -> torch.Tensor:
        ranks = len(caches)
        whole = torch.zeros(kv_heads, layers, blocks, shape.block_bytes, dtype=torch.uint8)
        assert whole.numel() == shape.response_bytes(tokens)
        for rank, own in enumerate(caches):
            heads = written_by(rank, ranks, kv_heads)
            if heads:
                gather(own, table, whole[heads.start : heads.stop])
        return whole

    def imported(whole: torch.Tensor, ranks: int, table: list[int]) -> list[list[torch.Tensor]]:
        caches = empty(ranks)
        for rank, own in enumerate(caches):
            heads = heads_of(rank, ranks, kv_heads)
            scatter(whole[heads.start : heads.stop], own, table)
        return caches

    original = torch.randint(0, 256, (kv_heads, layers, blocks, shape.block_bytes), generator=random).to(torch.uint8)
    here, there, back = table(), table(), table()
    given_first = imported(original, first, here)
    assert torch.equal(exported(given_first, here), original)
    wide = imported(exported(given_first, here), second, there)
    again = imported(exported(wide, there), first, back)
    for own, before in zip(again, given_first, strict=True):
        for cache, earlier in zip(own, before, strict=True):
            assert torch.equal(cache[back].view(torch.int32), earlier[here].view(torch.int32))
            others = [block for block in range(blocks + 3) if block not in back]
            assert not cache[others].any(), "blocks of other responses are not touched"


def test_tokens_beyond_the_last_full_block_do_not_count() -> None:
    shape = KvShape("test", "float32", layers=2, kv_heads=3, block_size=4, token_bytes=8)
    assert [shape.full_blocks(tokens) for tokens in (0, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]
    assert shape.head_bytes(8) == 2 * 2 * 4 * 8
    assert shape.response_bytes(8) == 3 * shape.head_bytes(8)
