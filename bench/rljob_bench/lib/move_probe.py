"""Move probe: migrations by hand, one after the other, as `coordinator.asynchronous.generation` makes them.

Beside each stands its limit: a prefill of the same contexts by an engine with nothing else to do.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from random import Random

from rljob_runtime.protocols import GenerateRequest, Replica
from rljob_runtime.protocols.trajectory import PromptKey, Sampling, TrajectoryKey

POLL_SECONDS = 0.5
"""The coordinator's."""
LEAST_TOKEN = 3
"""Below it tokenizers keep their special tokens."""
LEAD = 8
"""Tokens that a source makes before its responses move."""


@dataclass(frozen=True)
class Measured:
    """Seconds of one migration, from the request on.

    `first`: until a token of each response had come from the receiver. `released`: until the source had released them.
    `prefill`: the limit. `context`: tokens of the longest at the migration, with its prompt. `responses`: how many
    moved; the receiver has as many of its own.
    """

    context: int
    responses: int
    first: float
    released: float
    prefill: float


class ManualMover:
    """A replica, commanded by hand with `term`. It holds the weights `version`."""

    def __init__(self, replica: Replica, term: int, version: int, clock: Callable[[], float]) -> None:
        self.version = version
        self.tokens: defaultdict[tuple[TrajectoryKey, int], list[int]] = defaultdict(list)
        """What came, by response and attempt."""
        self._replica = replica
        self._term = term
        self._clock = clock
        self._cursor = 0

    async def start(self, requests: Collection[GenerateRequest]) -> None:
        """Have it generate these."""
        await self._replica.submit(self._term, tuple(requests))

    async def until(self, requests: Collection[GenerateRequest], tokens: int) -> float:
        """Hear of it until so many tokens of each of these have come; when that was."""
        while any(len(self.tokens[one.key, one.attempt]) < tokens for one in requests):
            report = await self._replica.poll(self._term, self._cursor, POLL_SECONDS)
            self._cursor = report.cursor
            for delta in report.deltas:
                self.tokens[delta.key, delta.attempt] += delta.token_ids
        return self._clock()

    async def stop(self, requests: Collection[GenerateRequest]) -> float:
        """Have it let go of these; when it had."""
        await self._replica.abort(self._term, {one.key: one.attempt for one in requests})
        return self._clock()


class MoveBenchmark:
    """Migrates responses between replicas and measures it.

    Prompts are of tokens below `vocabulary`, no two alike, so that no prefix cache helps; a context is at most
    `longest` tokens.
    """

    def __init__(
        self,
        source: ManualMover,
        receiver: ManualMover,
        vocabulary: int,
        longest: int,
        clock: Callable[[], float],
        seed: int,
    ) -> None:
        self._source = source
        self._receiver = receiver
        self._vocabulary = vocabulary
        self._longest = longest
        self._clock = clock
        self._random = Random(seed)
        self._runs = itertools.count()

    async def move(self, context: int, responses: int) -> Measured:
        """Move so many responses of this context together."""
        source, receiver = self._source, self._receiver
        own = self._requests(context, responses, receiver.version)
        await receiver.start(own)
        await receiver.until(own, 2)
        moving = self._requests(context - LEAD, responses, source.version)
        await source.start(moving)
        await source.until(moving, LEAD)
        onward = [
            replace(
                one,
                attempt=2,
                weight_version=receiver.version,
                prefix_token_ids=tuple(source.tokens[one.key, one.attempt]),
            )
            for one in moving
        ]
        asked = self._clock()
        await receiver.start(onward)
        first = await receiver.until(onward, 1)
        released = await source.stop(moving)
        await receiver.stop([*own, *onward])
        lengths = [len(one.prompt_token_ids) + len(one.prefix_token_ids) for one in onward]
        prefill = await self._prefill(max(lengths), responses)
        return Measured(max(lengths), responses, first - asked, released - asked, prefill)

    async def _prefill(self, context: int, responses: int) -> float:
        fresh = self._requests(context, responses, self._source.version, most=1)
        began = self._clock()
        await self._source.start(fresh)
        return await self._source.until(fresh, 1) - began

    def _requests(self, context: int, count: int, version: int, most: int | None = None) -> list[GenerateRequest]:
        run = next(self._runs)
        return [
            GenerateRequest(
                # An epoch that no job comes to.
                key=TrajectoryKey(PromptKey(1_000_000 + run, number), 0),
                attempt=1,
                prompt_token_ids=tuple(self._random.randrange(LEAST_TOKEN, self._vocabulary) for _ in range(context)),
                sampling=Sampling(most or self._longest - context, 1.0, number, ignore_eos=True),
                weight_version=version,
            )
            for number in range(count)
        ]
