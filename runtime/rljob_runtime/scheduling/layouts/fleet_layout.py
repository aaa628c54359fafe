"""Fleet layout: the tensor parallel sizes of a fleet's machines, in all and in a round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class SwitchCount:
    """Switches that have ended: `made` reached their size, `failed` did not."""

    made: int = 0
    failed: int = 0

    @property
    def ended(self) -> int:
        """All of them."""
        return self.made + self.failed

    def __add__(self, other: SwitchCount) -> SwitchCount:
        return SwitchCount(self.made + other.made, self.failed + other.failed)


NO_SWITCHES = SwitchCount()


@dataclass(frozen=True)
class RoundLayout:
    """The layout of a round: the tensor parallel size at its start, and the machines that have another one by now.

    `switches`: of each machine so far. New processes change the size of a machine too, and are no switch."""

    size: int
    machines: Mapping[str, int] = field(default_factory=dict)
    switches: Mapping[str, SwitchCount] = field(default_factory=dict)

    def of(self, machine: str) -> int:
        """Return the size of a machine."""
        return self.machines.get(machine, self.size)

    def changed(self, changes: Iterable[tuple[str, int]]) -> RoundLayout:
        """Return the layout after further changes, in order: machines with their sizes.

        >>> RoundLayout(1).changed([("a", 4), ("b", 2), ("a", 1)])
        RoundLayout(size=1, machines={'b': 2}, switches={})
        """
        sizes = {**self.machines, **dict(changes)}
        return replace(self, machines={name: its for name, its in sizes.items() if its != self.size})

    def changes_to(self, machines: Mapping[str, int]) -> list[tuple[str, int]]:
        """Return the changes from this layout to the one in which `machines` have another size than at the start.

        >>> RoundLayout(1, {"a": 4, "b": 2}).changes_to({"b": 4})
        [('a', 1), ('b', 4)]
        """
        after = RoundLayout(self.size, machines)
        names = sorted(self.machines.keys() | machines.keys())
        return [(name, after.of(name)) for name in names if after.of(name) != self.of(name)]

    def kept(self, target: int, sizes: Iterable[int]) -> RoundLayout | None:
        """Return the layout if an open round may go on in it, else None.

        The operator's target may have changed, perhaps because engines of this size fail, and so may the `sizes` that
        the spec allows.
        """
        return self if self.size == target and {target, *self.machines.values()} <= set(sizes) else None


def layout_of_most(sizes: Iterable[int], target: int) -> int:
    """Return the layout of most machines, or `target` if there are none.

    On a tie it is the target, so that a few failures do not look like a refusal; then the smaller size.

    >>> layout_of_most([1, 2, 2], 1), layout_of_most([1, 2], 2), layout_of_most([], 4)
    (2, 2, 4)
    """
    counts = Counter(sizes)
    return min(counts, key=lambda size: (-counts[size], size != target, size), default=target)
