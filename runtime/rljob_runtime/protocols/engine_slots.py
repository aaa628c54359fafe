"""Engine slots: how the accelerators of a rollout machine form engines.

A machine has engine slots, each with the accelerators of the smallest layout. In a layout of tensor parallel size k,
each engine is led by one slot. It uses the accelerators of k / `each` slots, from the leading one on; the others sleep.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineSlots:
    """The slots of a machine with `accelerators`, `each` of them in a slot.

    Raises `ValueError` if they do not split evenly.
    """

    accelerators: int
    each: int = 1

    def __post_init__(self) -> None:
        if self.each < 1 or self.accelerators < 1 or self.accelerators % self.each:
            raise ValueError(
                f"{self.accelerators} accelerators of a machine do not split into engine slots of {self.each}; "
                "a divisor would be right"
            )

    @property
    def count(self) -> int:
        """Number of slots."""
        return self.accelerators // self.each

    def leading(self, tensor_parallel: int) -> tuple[int, ...]:
        """Return the slots that lead an engine in this layout.

        Raises `ValueError` with both numbers if it does not fit.

        >>> EngineSlots(4).leading(2), EngineSlots(8, each=2).leading(4)
        ((0, 2), (0, 2))
        """
        fits = tensor_parallel >= self.each and not tensor_parallel % self.each
        if not fits or self.accelerators % tensor_parallel:
            raise ValueError(
                f"tensor parallel size {tensor_parallel} does not fit a machine of {self.accelerators} accelerators in "
                f"engine slots of {self.each}; one of {', '.join(map(str, self.sizes))} would"
            )
        return tuple(range(0, self.count, tensor_parallel // self.each))

    @property
    def sizes(self) -> tuple[int, ...]:
        """All tensor parallel sizes that fit."""
        return tuple(
            size for size in range(self.each, self.accelerators + 1, self.each) if not self.accelerators % size
        )
