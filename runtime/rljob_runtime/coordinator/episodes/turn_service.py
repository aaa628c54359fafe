"""Turn service: the turns of attempts, between the gateway, whose clients ask for them, and the engines.

A turn is answered and reported when it is stored.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from rljob_runtime.coordinator.episodes.attempt import Attempt, Holder, OpenTurn, turn_key
from rljob_runtime.coordinator.episodes.journal import Journal
from rljob_runtime.coordinator.episodes.totals import BookTotals
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.protocols import Delta, GenerateRequest
from rljob_runtime.protocols.turns import AttemptEnded, EpisodeAttempt, RecordedTurn, StoredTurn, TurnCall, TurnRefused
from rljob_runtime.scheduling.episodes.ends import AbortCause, EpisodeEnd
from rljob_runtime.scheduling.episodes.limits import Limit
from rljob_runtime.scheduling.episodes.times import TurnSpan
from rljob_runtime.scheduling.episodes.turn_priority import turn_priority
from rljob_runtime.scheduling.episodes.turns import (
    Diverged,
    Generate,
    InProgress,
    Recorded,
    Refused,
    TurnRequest,
    evaluation_seed,
    turn_seed,
)

log = logging.getLogger(__name__)


class Attempts(Protocol):
    """The attempts, as the service needs them; `book.EpisodeBook` has them."""

    async def find(self, episode: EpisodeAttempt) -> Attempt:
        """Return an open attempt. Raises `AttemptEnded`."""
        ...

    def number(self, number: int) -> Attempt | None:
        """Return the attempt of this number, if it is known."""
        ...

    def end(self, attempt: Attempt, end: EpisodeEnd) -> None:
        """Store the end of an attempt. Then set `Attempt.stored`, and let its replica report the end."""
        ...


class TurnService:
    """The turns of one coordinator; it implements `protocols.turns.Turns`.

    `now`: seconds of the epoch. `seed`: the job's, for sampling.
    """

    def __init__(
        self,
        attempts: Attempts,
        store: StoreAccess,
        journal: Journal,
        totals: BookTotals,
        seed: int,
        now: Callable[[], float],
    ) -> None:
        self._attempts = attempts
        self._store = store
        self._journal = journal
        self._totals = totals
        self._seed_of_job = seed
        self._now = now

    # --- from the gateway ---

    async def turn(self, call: TurnCall) -> RecordedTurn:
        """See `protocols.turns.Turns.turn`."""
        attempt = await self._attempts.find(call.episode)
        forks = attempt.episode.stats.forks
        request = TurnRequest(call.token_ids, call.digest, call.retry)
        match attempt.episode.open(request, self._now(), None if attempt.is_mixed else attempt.version):
            case Refused(reason, limit):
                if limit is None:
                    raise AttemptEnded(reason)
                await self._store_limit(attempt, limit)
                raise TurnRefused(reason)
            case Diverged(reason):
                self._totals.refused_replays += 1
                log.warning("%s is aborted: %s", attempt.id, reason)
                self._attempts.end(attempt, attempt.episode.diverge(reason))
                raise AttemptEnded(f"{attempt.id}: {reason}")
            case Recorded(node, repeated):
                await self._count_former(attempt, node.id, repeated)
                if (unstored := attempt.unstored.get(node.id)) is not None:
                    return replace(await asyncio.shield(unstored.answer), replayed=True)
                return replace(attempt.recorded[node.id], replayed=True)
            case InProgress(turn, repeated):
                await self._count_former(attempt, None, repeated)
                return replace(await asyncio.shield(attempt.open[turn.id].answer), replayed=True)
            case Generate(turn):
                answer: asyncio.Future[RecordedTurn] = asyncio.get_running_loop().create_future()
                self._totals.reencoded_tokens += call.reencoded_tokens
                live = attempt.open[turn.id] = OpenTurn(turn, call, attempt.episode.stats.forks > forks, answer)
                if attempt.holder is not None:
                    attempt.holder.generate(attempt, live)
                else:
                    live.was_without_engine = True
                return await asyncio.shield(answer)

    async def _count_former(self, attempt: Attempt, node: int | None, repeated: bool) -> None:
        """Count a turn that is given again. That a program has repeated it is stored before the program has it.

        `node`: of a turn that is committed; None of one that is under way, whose commit stores it."""
        if not repeated:
            self._totals.retries += 1
            return
        self._totals.replayed_turns += 1
        if node is not None:
            number, resumption = attempt.id.attempt, attempt.id.resumption
            await self._journal.written(lambda store: store.turns.repeat(number, node, resumption))

    async def history(self, episode: EpisodeAttempt, newest: bool = False) -> Sequence[StoredTurn]:
        """See `protocols.turns.Turns.history`."""
        attempt = await self._attempts.find(episode)
        return await self._store.do(lambda store: store.turns.history(attempt.id.attempt, newest))

    async def _store_limit(self, attempt: Attempt, limit: Limit) -> None:
        """Store the limit that refuses turns: a client that knows of it may end, and then the episode is truncated."""
        if attempt.stored_limit is None:
            number = attempt.id.attempt
            await self._journal.written(lambda store: store.turns.refuse(number, limit))
            attempt.stored_limit = limit

    # --- from replicas ---

    def request(self, attempt: Attempt, live: OpenTurn, version: int) -> GenerateRequest:
        """Return the request of an open turn with these weights.

        Tokens of other weights are dropped: no client has seen them."""
        assert attempt.sampling is not None
        self._totals.interrupted_turns += live.version not in (None, version)
        self._totals.interrupted_tokens += live.begin_again(version)
        sampling, bounds, turn = attempt.sampling, live.call.bounds, live.turn
        most = min(sampling.max_tokens, bounds.max_tokens, turn.most_tokens or bounds.max_tokens)
        return GenerateRequest(
            key=turn_key(attempt.id, turn.id),
            attempt=live.launches,
            prompt_token_ids=tuple(live.call.token_ids),
            sampling=replace(
                sampling,
                max_tokens=most,
                seed=self._seed(attempt, live),
                stop_token_ids=(*sampling.stop_token_ids, *bounds.stop_token_ids),
                stop_strings=(*sampling.stop_strings, *bounds.stop_strings),
            ),
            weight_version=version,
            prefix_token_ids=tuple(live.token_ids),
            priority=turn_priority(attempt.episode.started, len(attempt.recorded)),
        )

    def _seed(self, attempt: Attempt, live: OpenTurn) -> int:
        """Return the sampling seed of a turn."""
        if attempt.key.prompt.evaluation is not None:
            sibling = attempt.episode.siblings_before(live.turn)
            return evaluation_seed(self._seed_of_job, attempt.key, live.call.token_ids, sibling)
        # The number of the attempt is in the seed: another attempt must not repeat what made this one fail.
        return turn_seed(self._seed_of_job, attempt.key, attempt.id.attempt, live.turn.id)

    def receive(self, place: tuple[int, int], replica: Holder, delta: Delta) -> bool:
        """Take tokens of a turn; return whether the replica shall go on with it."""
        attempt = self._attempts.number(place[0])
        if attempt is None or attempt.episode.end is not None:
            # Its end may not be stored yet. A turn that arrives now is none of its tokens.
            return False
        live = attempt.open.get(place[1])
        if live is None or live.replica is not replica or live.launches != delta.attempt:
            return False
        known = len(live.token_ids) - delta.offset
        if known < 0 or delta.weight_version != live.version:
            # Tokens are missing, or of other weights: it is launched again from those that are right.
            replica.generate(attempt, live)
            return True
        live.token_ids += delta.token_ids[known:]
        live.logprobs += delta.logprobs[known:]
        if delta.finish_reason is not None:
            self._commit(attempt, live, delta)
        return True

    def refuse(self, attempt: Attempt, live: OpenTurn, launch: int, why: str) -> None:
        """End the attempt of a turn that no engine can serve. `launch`: the attempt of its request."""
        if attempt.open.get(live.turn.id) is live and live.launches == launch:
            self._fail(attempt, f"turn {live.turn.id} was refused: {why}")

    # --- inside ---

    def _fail(self, attempt: Attempt, why: str) -> None:
        """Abort an attempt because of an engine."""
        if attempt.episode.end is None:
            log.warning("%s is aborted: %s", attempt.id, why)
            self._attempts.end(attempt, attempt.episode.abort(AbortCause.ENGINE, why))

    def _count_prefix(self, attempt: Attempt, live: OpenTurn, cached: int | None) -> None:
        """Count the prompt of a turn that is not its attempt's first, and what its engine held of it, if it says so."""
        if cached is None or not (attempt.recorded or attempt.unstored):
            return
        prompt = len(live.call.token_ids)
        self._totals.later_prompt_tokens += prompt
        self._totals.held_prompt_tokens += min(prompt, cached)

    def _commit(self, attempt: Attempt, live: OpenTurn, last: Delta) -> None:
        """Store a turn that is complete, then answer and report it."""
        assert last.finish_reason is not None
        try:
            nodes = attempt.episode.commit(
                live.turn.id, live.token_ids, live.logprobs, last.weight_version, last.finish_reason
            )
        except ValueError as error:
            self._fail(attempt, str(error))
            return
        self._count_prefix(attempt, live, last.cached_tokens)
        attempt.unstored[live.turn.id] = attempt.open.pop(live.turn.id)
        stored_at, number, body = self._now(), attempt.id.attempt, live.call.body
        opened = live.turn.opened
        turn = RecordedTurn(
            node=live.turn.id,
            token_ids=live.token_ids,
            logprobs=live.logprobs,
            weight_version=last.weight_version,
            finish_reason=last.finish_reason,
            stored_at=stored_at,
            forked=live.forked,
        )
        self._totals.turns += 1
        self._totals.forks += live.forked
        self._totals.load_wait_seconds += live.waited

        def then(_: None) -> None:
            del attempt.unstored[turn.node]
            attempt.record(turn, TurnSpan(opened, stored_at))
            if not live.answer.done():
                live.answer.set_result(turn)
            if attempt.holder is not None:
                attempt.holder.tell(attempt)

        limit, asked_by = attempt.episode.truncated_by, attempt.asked_by(turn.node)

        def save(store: Store) -> None:
            store.turns.commit(number, nodes, body, stored_at, opened, limit, asked_by)

        self._journal.write(save, then)
