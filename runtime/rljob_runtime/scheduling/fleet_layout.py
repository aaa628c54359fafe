"""Fleet layout: the tensor parallel size of a fleet whose machines have several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def layout_of_most(sizes: Iterable[int], target: int) -> int:
    """Return the layout of most machines, or `target` if there are none.

    On a tie it is the target, so that a few failures do not look like a refusal; then the smaller size.

    >>> layout_of_most([1, 2, 2], 1), layout_of_most([1, 2], 2), layout_of_most([], 4)
    (2, 2, 4)
    """
    counts = Counter(sizes)
    return min(counts, key=lambda size: (-counts[size], size != target, size), default=target)
