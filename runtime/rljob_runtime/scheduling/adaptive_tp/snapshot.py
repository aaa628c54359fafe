"""Snapshot of a generating machine: what the decision to switch its tensor parallel size is made from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.scheduling.lending.gain import OpenGroup
from rljob_runtime.scheduling.round_planner.survival import Survival

MAX_RUNNING = 1024
"""Responses that an engine generates simultaneously if its limit is unknown."""
PAYING_ROUNDS = 8
"""Rounds at most over which a build has to pay: lengths, and the target's size, change meanwhile."""


@dataclass(frozen=True)
class SizedEngine:
    """An engine of one tensor parallel size.

    `kv_tokens`: capacity of its KV cache. `kv_token_bytes`: KV of one token on each of its accelerators; None if
    unknown, then KV is not migrated. `kv_room_tokens`: tokens of KV that its machine's shared memory has room for.
    `max_running`: responses that it generates simultaneously; others wait."""

    latency: LatencyModel
    kv_tokens: int
    kv_token_bytes: int | None = None
    kv_room_tokens: float = inf
    max_running: int = MAX_RUNNING

    def share(self, batch: float, context: float) -> float:
        """Return the share of these responses that run at a time: the others wait for a place, or for cache.

        `context`: tokens of all of them in the cache.

        >>> from rljob_runtime.perf_model.latency_model import LatencyModel
        >>> engine = SizedEngine(LatencyModel(((1, 0.01),), 0.0, 0.0, 0.0, 0.0), kv_tokens=1000, max_running=8)
        >>> engine.share(4, 500), engine.share(4, 2000), engine.share(16, 500)
        (1.0, 0.5, 0.5)
        """
        return min(1.0, self.kv_tokens / max(context, 1.0), self.max_running / max(batch, 1.0))

    def decode(self, batch: int, context: float, steps: float) -> float:
        """Return the seconds until each of these responses has so many tokens more. Those that do not fit take turns.

        The prefill of a response that was preempted is not in it."""
        share = self.share(batch, context + batch * steps / 2)
        if share == 1:
            return self.latency.decode(batch, context, steps)
        return self.latency.decode(max(1, round(batch * share)), context * share, steps) / share


@dataclass(frozen=True)
class Builds:
    """The engines that a machine has yet to build.

    `built`: sizes that it has engines of; None: of every size. `rounds`: that would use a further one, this round
    included. `discarded`: sizes whose engines it had, and gave up for memory. It would do so again."""

    built: frozenset[int] | None = None
    rounds: int = 1
    discarded: frozenset[int] = frozenset()

    def share(self, size: int) -> float:
        """Return the share of a build that this round pays: the later ones have the engines too.

        >>> one, many = Builds(frozenset({1}), 4), Builds(frozenset({1}), 100, frozenset({8}))
        >>> one.share(2), many.share(2), many.share(8)
        (0.25, 0.125, 1.0)
        """
        return 1.0 if size in self.discarded else 1 / min(max(1, self.rounds), PAYING_ROUNDS)

    def needed(self, size: int) -> bool:
        """Return whether engines of this size have to be built."""
        return self.built is not None and size not in self.built


ALL_BUILT = Builds()


@dataclass(frozen=True, slots=True)
class Running:
    """A running response.

    `group`: index into `MachineSnapshot.groups`."""

    prompt_tokens: int
    generated: int
    group: int = 0

    @property
    def context(self) -> int:
        """Tokens in the KV cache."""
        return self.prompt_tokens + self.generated


@dataclass(frozen=True)
class OtherEngine:
    """An engine of another machine, and what it generates. Its responses may win a race."""

    tensor_parallel: int
    running: tuple[Running, ...]


@dataclass(frozen=True)
class MachineSnapshot:
    """A machine in the middle of a round.

    `replicas`: the responses of each replica. `queued`: those of them that wait in an engine. `waiting`: further ones,
    which the dispatcher did not start. `groups` and `wanted`: as in a round; the first `wanted` complete groups end it.
    Without `groups`, every response runs to its end. `lengths`: of this round and the last ones, with running and
    stopped responses censored. `max_tokens`: limit of a response. `switches`: of this machine in this round. `closed`:
    (from, to) that are not used again in this round. `builds`: the engines that it has yet to build."""

    tensor_parallel: int
    accelerators: int
    replicas: tuple[tuple[Running, ...], ...]
    lengths: Survival
    max_tokens: int
    waiting: int = 0
    queued: int = 0
    groups: Sequence[OpenGroup] = ()
    wanted: int = 0
    elsewhere: tuple[OtherEngine, ...] = ()
    switches: int = 0
    closed: frozenset[tuple[int, int]] = frozenset()
    builds: Builds = ALL_BUILT

    @property
    def running(self) -> Iterator[Running]:
        """All running responses of the machine."""
        return (response for replica in self.replicas for response in replica)

    @property
    def count(self) -> int:
        """Number of running responses of the machine."""
        return sum(map(len, self.replicas))

    @property
    def is_race(self) -> bool:
        """Whether some of the responses will be stopped before their end."""
        launched = self.count + self.waiting + sum(len(engine.running) for engine in self.elsewhere)
        return bool(self.groups) and (
            self.wanted < len(self.groups) or launched > sum(group.missing for group in self.groups)
        )
