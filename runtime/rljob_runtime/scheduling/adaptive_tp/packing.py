"""Packing: which replica of the new size continues which response."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import TypeVar

from rljob_runtime.scheduling.adaptive_tp.snapshot import Running

T = TypeVar("T")


def pack(responses: Iterable[T], replicas: int, running: Callable[[T], Running]) -> tuple[tuple[T, ...], ...]:
    """Return the responses by replica: the longest first, each to the replica with the fewest.

    `running` describes a response. Equally long ones keep their order.

    Among those with as few, siblings are kept apart, and then the one with the least context is chosen. Responses with
    more tokens are expected to become longer, so the longest ones share no replica while another has fewer.

    >>> pack([3, 9, 5], 2, lambda tokens: Running(1, tokens))
    ((9,), (5, 3))
    """
    if replicas < 1:
        raise ValueError(f"replicas is {replicas}; 1 or more would be right")
    packed: list[list[T]] = [[] for _ in range(replicas)]
    siblings: list[set[int]] = [set() for _ in range(replicas)]
    context = [0] * replicas
    by_count = [(0, replica) for replica in range(replicas)]
    described = [(running(one), one) for one in responses]
    described.sort(key=lambda pair: (-pair[0].generated, -pair[0].prompt_tokens, pair[0].group))
    for response, one in described:
        fewest = by_count[0][0]
        level = []
        while by_count and by_count[0][0] == fewest:
            level.append(heapq.heappop(by_count)[1])
        chosen = min(level, key=lambda place: (response.group in siblings[place], context[place], place))
        packed[chosen].append(one)
        siblings[chosen].add(response.group)
        context[chosen] += response.context
        for place in level:
            heapq.heappush(by_count, (fewest + (place == chosen), place))
    return tuple(map(tuple, packed))
