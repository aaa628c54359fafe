"""What the polls of a round tell of the engines' speed, without asking for anything: `perf_model.observed_speed` makes
a law of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from rljob_runtime.perf_model.observed_speed import Speed, SpeedSample, binned, fit_latency
from rljob_runtime.protocols import EngineStats, GenerateRequest, ReplicaReport
from rljob_runtime.scheduling.lending.gain import EngineSpeed

ALIKE = 0.8
"""Between two polls the batch may shrink to this share for the time between them to count as one stretch."""
MOST_STRETCHES = 256
"""Then they are joined."""
ROUNDS_KEPT = 4
"""Of the rounds before, for `engine_speed`."""


@dataclass
class _Seen:
    """A replica at its last poll, or since its last launch."""

    time: float
    boot: str
    stats: EngineStats
    starting: int = 0
    """Prompt tokens of the launch that has not been admitted whole yet."""


class EngineObserver:
    """One round, of engines of `tensor_parallel` accelerators. Times are the loop's."""

    def __init__(self, tensor_parallel: int = 1) -> None:
        self._tensor_parallel = tensor_parallel
        self._past: tuple[Speed, ...] = ()
        self._seen: dict[str, _Seen] = {}
        self._stretches: list[SpeedSample] = []
        self._used: set[str] = set()
        self._replicas = 0
        self._lent = False

    def carry_on(self, before: EngineObserver) -> None:
        """What `before` saw last is where engines stand that have nothing to do any more; how fast they were is known
        still, unless it was in another layout."""
        if before._tensor_parallel == self._tensor_parallel:
            self._past = (*before._past, before.speed())[-ROUNDS_KEPT:]
        for name, seen in before._seen.items():
            self._seen[name] = _Seen(seen.time, seen.boot, replace(seen.stats, running=0, waiting=0))

    def submitted(self, requests: Mapping[str, Sequence[GenerateRequest]], replicas: int, now: float) -> None:
        """These were handed to their replicas, out of so many that could have been given work: in a round that was
        taken up near its end, few are."""
        self._replicas = max(self._replicas, replicas)
        for name, its in requests.items():
            self._used.add(name)
            seen = self._seen.get(name)
            if seen is not None:
                tokens = sum(len(one.prompt_token_ids) + len(one.prefix_token_ids) for one in its)
                seen.time, seen.starting = now, tokens

    def lent(self) -> None:
        """Machines of this round are lent from now on: the others do their work too."""
        self._lent = True

    def note(self, replica: str, report: ReplicaReport, now: float) -> None:
        """A poll came back."""
        if report.weight_version is None:
            # It rests, and knows nothing of the room that its engine has.
            return
        stats, last = report.stats, self._seen.get(replica)
        if last is None or last.boot != report.boot:
            self._seen[replica] = _Seen(now, report.boot, stats)
            return
        made = stats.generated_tokens_total - last.stats.generated_tokens_total
        if last.starting and (stats.waiting or not 0 < stats.running <= made):
            # It is not there yet, or not all of it was admitted, or is in prefill still.
            return
        self._learn(last, stats, made, now - last.time)
        self._seen[replica] = _Seen(now, report.boot, stats)

    def speed(self) -> Speed:
        """Of the round so far."""
        # Seats that rest since the layout changed were seen in another one.
        names = self._used & self._seen.keys() or self._seen.keys()
        stats = [self._seen[name].stats for name in names]
        return Speed(
            replicas=self._replicas,
            kv_tokens=min((one.kv_tokens for one in stats), default=0),
            max_running=min((one.max_running for one in stats), default=0),
            stretches=binned(self._stretches),
        )

    def kv_tokens(self, replica: str) -> int:
        """What the KV cache of a replica holds; 0 before it has said anything."""
        seen = self._seen.get(replica)
        return seen.stats.kv_tokens if seen is not None else 0

    def engine_speed(self) -> EngineSpeed | None:
        """By this round and those before, of any engine. None before anything was seen."""
        speeds = (*self._past, self.speed())
        law, batches = fit_latency(speeds), [one.batch for speed in speeds for one in speed.stretches]
        if law is None:
            return None
        most = max(1, int(max(batches)))
        return EngineSpeed(law, min(most, ceil(min(batches))), most)

    def _learn(self, last: _Seen, stats: EngineStats, made: int, seconds: float) -> None:
        before = last.stats
        first = before.running if not last.starting else stats.running
        most = max(first, stats.running)
        if made < most or not first or seconds <= 0 or stats.preemptions_total != before.preemptions_total:
            return
        # A response that ends, ends the poll: of one that ended the batch was the larger one.
        batch = most if abs(first - stats.running) <= 1 else (first + stats.running) / 2
        kv_use = (before.kv_use + stats.kv_use) / 2
        stretch = SpeedSample(made / batch, batch, kv_use * stats.kv_tokens, seconds, last.starting, self._lent)
        if last.starting:
            learned = before.running == 0
        else:
            learned = (
                not stats.waiting and not before.waiting and min(first, stats.running) >= min(ALIKE * most, most - 1)
            )
        if learned:
            self._stretches.append(stretch)
            if len(self._stretches) > MOST_STRETCHES:
                self._stretches = list(binned(self._stretches))
