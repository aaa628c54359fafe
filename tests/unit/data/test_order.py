"""The order of an epoch: a permutation that depends on the seed and the epoch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.data.order import DrawOrder


@given(size=st.integers(1, 300), seed=st.integers(0, 2**31), epoch=st.integers(0, 10**6))
def test_every_epoch_is_a_permutation(size: int, seed: int, epoch: int) -> None:
    order = DrawOrder(size, seed)
    assert sorted(order.index(epoch, position) for position in range(size)) == list(range(size))


def test_epochs_and_seeds_differ() -> None:
    orders = {
        (seed, epoch): [DrawOrder(50, seed).index(epoch, i) for i in range(50)] for seed in (0, 1) for epoch in (0, 1)
    }
    assert len({tuple(order) for order in orders.values()}) == 4
    assert orders[0, 0][:6] == [DrawOrder(50, 0).index(0, i) for i in range(6)]
    for position in (-1, 50):
        with pytest.raises(IndexError):
            DrawOrder(50, 0).index(0, position)
