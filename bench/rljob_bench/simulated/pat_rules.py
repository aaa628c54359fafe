"""What PAT is compared with: its printed Algorithm 1, one rule for all sizes, and the best sequence in hindsight."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from rljob_runtime.scheduling.adaptive_tp.snapshot import SizedEngine
from rljob_runtime.scheduling.adaptive_tp.stage import Asked, Stage, StageResult, generate
from rljob_runtime.scheduling.adaptive_tp.switch_costs import PairCost, carried_by

Pairs = Mapping[tuple[int, int], PairCost]
FULL = 0.9
MARGIN = 0.05
"""Of the one rule."""
POINTS = 14
"""Numbers of remaining responses at which the search switches."""
BEAM = 2


def printed(engines: Mapping[int, SizedEngine], pairs: Pairs, max_tokens: int) -> Callable[[Stage], int | None]:
    """Return Algorithm 1: the current size by its fullest group, candidates by an even share, and no margin."""
    return lambda stage: _one_step(stage, engines, pairs, max_tokens, one_rule=False)


def one_rule(engines: Mapping[int, SizedEngine], pairs: Pairs, max_tokens: int) -> Callable[[Stage], int | None]:
    """Return the same with even shares for all sizes, upward only, and a margin."""
    return lambda stage: _one_step(stage, engines, pairs, max_tokens, one_rule=True)


def _one_step(
    stage: Stage, engines: Mapping[int, SizedEngine], pairs: Pairs, max_tokens: int, one_rule: bool
) -> int | None:
    running = [one for replica in stage.replicas for one in replica]
    if stage.waiting or not running:
        return None
    carried = carried_by(running)
    left = max(1, max_tokens - max(one.generated for one in running))

    def even(size: int) -> float:
        replicas = stage.accelerators // size
        return engines[size].latency.decode(math.ceil(len(running) / replicas), carried.tokens / replicas, left)

    now = stage.tensor_parallel
    if one_rule:
        current = even(now) * (1 - MARGIN)
    else:
        loads = [(len(replica), sum(one.context for one in replica)) for replica in stage.replicas if replica]
        current = max(engines[now].latency.decode(batch, context, left) for batch, context in loads)
    candidates = [
        (even(size) + pairs[now, size].seconds(carried), size)
        for size, engine in engines.items()
        if (size > now if one_rule else size != now)
        and carried.tokens <= FULL * engine.kv_tokens * (stage.accelerators // size)
    ]
    best = min(candidates, default=(math.inf, now))
    return best[1] if best[0] < current else None


REFINED = 3
FACTORS = (0.85, 1.15, 0.95, 1.05)
"""By which the refinement moves a switch."""

Switches = tuple[tuple[int, int], ...]
"""Switches of a sequence: (responses that are left, size)."""
SwitchSequence = tuple[int, Switches]
"""A start, and the switches from there."""
_Played = tuple[int, StageResult, Switches]
"""A start, its stage, and the switches that were played."""


class Hindsight:
    """The best sequence of at most `most` switches for lengths that are known, by a beam search in the engine model.

    Each sequence is played as the policy's switches are. The search is not complete: the true limit may be shorter.
    """

    def __init__(
        self, asked: Sequence[Asked], engines: Mapping[int, SizedEngine], accelerators: int, pairs: Pairs, most: int = 3
    ) -> None:
        self._asked = asked
        self._engines = engines
        self._accelerators = accelerators
        self._pairs = pairs
        self._most = most
        total = len(asked)
        shares = {round(total * 0.97 * (2 / total) ** (place / (POINTS - 1))) for place in range(POINTS)}
        self._points = sorted({*shares, total - 1, 1} - {0, total}, reverse=True)

    def best(self, tried: Iterable[SwitchSequence] = ()) -> StageResult:
        """Return the shortest stage that was found. `tried`: sequences to refine as well."""
        return self._best(tried)[1]

    def best_sequence(self) -> SwitchSequence:
        """Return the sequence of the shortest stage that was found."""
        size, _, switches = self._best(())
        return size, switches

    def play(self, sequence: SwitchSequence) -> StageResult:
        """Return the stage with this sequence."""
        return self._play(*sequence)[1]

    def _best(self, tried: Iterable[SwitchSequence]) -> _Played:
        found = [self._play(size, sequence) for size, sequence in tried]
        for size in self._engines:
            beam = [self._play(size, ())]
            found += beam
            for _ in range(self._most):
                longer = [self._play(size, after) for *_, before in beam for after in self._extended(size, before)]
                beam = heapq.nsmallest(BEAM, longer, key=_seconds)
                found += beam
        return min((self._refined(one) for one in heapq.nsmallest(REFINED, found, key=_seconds)), key=_seconds)

    def _refined(self, played: _Played) -> _Played:
        """Move each switch of a sequence a little earlier or later while that is faster."""
        size, _, sequence = played
        for factor in FACTORS:
            for place in range(len(sequence)):
                better: _Played | None = played
                while better is not None:
                    left, target = sequence[place]
                    moved = max(1, min(len(self._asked) - 1, round(left * factor)))
                    better = self._play(size, (*sequence[:place], (moved, target), *sequence[place + 1 :]))
                    if _seconds(better) < _seconds(played):
                        played, sequence = better, better[2]
                    else:
                        better = None
        return played

    def _extended(self, size: int, before: Switches) -> list[Switches]:
        last, at = (before[-1][1], before[-1][0]) if before else (size, len(self._asked))
        return [
            (*before, (left, target))
            for left in self._points
            if left < at
            for target in self._engines
            if target != last
        ]

    def _play(self, size: int, sequence: Switches) -> _Played:
        def choose(stage: Stage) -> int | None:
            done = len(stage.switches)
            if done == len(sequence):
                return None
            left, target = sequence[done]
            return target if stage.total - len(stage.ended) <= left and not stage.waiting else None

        return size, generate(self._asked, size, self._engines, self._accelerators, self._pairs, choose), sequence


def sequence_of(result: StageResult) -> Switches:
    """Return the switches of a stage as a sequence."""
    return tuple((made.responses, made.target) for made in result.switches)


def _seconds(played: _Played) -> float:
    return played[1].seconds
