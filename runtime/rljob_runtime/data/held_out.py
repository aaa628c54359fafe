"""Held-out split: records of a source that training never draws, computed without being stored."""

from __future__ import annotations

from collections.abc import Iterator

from rljob_runtime.data.errors import DataError
from rljob_runtime.data.order import DrawOrder

NO_EPOCH = -1
"""Epoch of the permutation that chooses records for evaluations. No draw has it."""


class HeldOut:
    """The first records of a permutation, which depends on the seed and on the number of records.

    A larger fraction holds out the records of a smaller one too. `in` costs the same for any number of records.
    """

    def __init__(self, name: str, size: int, fraction: float, seed: int) -> None:
        """Hold out a fraction of `size` records, to the nearest record: at least one, and not all.

        `name` is the source's. Raises `DataError` for a source with one record.
        """
        if size < 2:
            raise DataError(f"{name} has {size} record; spec.data.heldOut needs two: one of them is for training")
        self._order = DrawOrder(size, seed)
        self._count = min(size - 1, max(1, round(size * fraction)))

    def __len__(self) -> int:
        return self._count

    def __contains__(self, index: int) -> bool:
        return self._order.position(NO_EPOCH, index) < self._count

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of the records, in the order of the permutation."""
        return (self._order.index(NO_EPOCH, position) for position in range(self._count))
