"""Episode book: all attempts of a coordinator, as gateway, runners and replicas need them.

A response that a loop launches begins an attempt (`take`). A runner takes it (`runner_service`), its harness asks for
turns (`turn`), engines generate them (`receive`), and the runner ends it. What a restarted coordinator needs is in
the store before it has an effect.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from rljob_runtime.coordinator.core.async_utils import alongside
from rljob_runtime.coordinator.episodes.attempt import Attempt, Holder, OpenTurn, goes_on, turn_key
from rljob_runtime.coordinator.episodes.journal import Journal
from rljob_runtime.coordinator.episodes.restore import restored, rules_of
from rljob_runtime.coordinator.episodes.resumptions import Resumptions
from rljob_runtime.coordinator.episodes.runner_service import EpisodePrompts, RunnerRules, RunnerService, Warn
from rljob_runtime.coordinator.episodes.totals import BookTotals
from rljob_runtime.coordinator.episodes.unwritten import UnwrittenChanges
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.coordinator.store.tables.turns import KeptEpisode
from rljob_runtime.protocols import Delta, GenerateRequest
from rljob_runtime.protocols.environments import EpisodeReport
from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey
from rljob_runtime.protocols.turns import AttemptEnded, EpisodeAttempt, RecordedTurn, StoredTurn, TurnCall, TurnRefused
from rljob_runtime.scheduling.episodes.ends import AbortCause, EndState, EpisodeEnd
from rljob_runtime.scheduling.episodes.episode import Episode, EpisodeRules
from rljob_runtime.scheduling.episodes.limits import Limit
from rljob_runtime.scheduling.episodes.times import TurnSpan
from rljob_runtime.scheduling.episodes.turns import (
    Generate,
    InProgress,
    Recorded,
    Refused,
    TurnRequest,
    evaluation_seed,
    turn_seed,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BookRules:
    """What the attempts of a job may do, and what is expected of their runners."""

    environments: Mapping[str, EpisodeRules]
    """What bounds the attempts of each environment. Each has a longest time."""
    seed: int = 0
    runners: RunnerRules = field(default_factory=RunnerRules)


class EpisodeBook:
    """The attempts of one coordinator. `now`: seconds of the epoch."""

    def __init__(
        self,
        store: StoreAccess,
        rules: BookRules,
        now: Callable[[], float],
    ) -> None:
        self.totals = BookTotals()
        self._store = store
        self._rules = rules
        self._now = now
        self._journal = Journal(store)
        self._attempts: dict[PromptKey, dict[int, Attempt]] = {}
        """The newest attempt of each response, by its sample."""
        self._numbers: dict[int, Attempt] = {}
        self._unwritten = UnwrittenChanges()
        self.runners = RunnerService(self, Resumptions(self._journal, self.totals, self.end, now), rules.runners, now)

    def use_prompts(self, prompts: EpisodePrompts) -> None:
        """Give runners the records of these prompts."""
        self.runners.prompts = prompts

    async def run(self, warn: Warn) -> None:
        """Write events, and end the attempts of silent runners, until cancelled."""
        await alongside(self._journal.run(), self.runners.run(warn))

    # --- from replicas: responses ---

    async def take(self, requests: Sequence[GenerateRequest], holder: Holder) -> None:
        """Open an attempt for each response, or go on with the one that it has."""
        begins: list[GenerateRequest] = []
        await self.load((one.key for one in requests), with_turns=True)
        for request in requests:
            known = self._of(request.key)
            if known is None or not goes_on(known, request):
                begins.append(request)
            elif known.holder is not holder or known.lease != request.attempt:
                self._hold(known, request, holder)
        if begins:
            await self._begin(begins, holder)

    def request(self, attempt: Attempt, live: OpenTurn, version: int) -> GenerateRequest:
        """Return the request of an open turn with these weights.

        Tokens of other weights are dropped: no client has seen them."""
        assert attempt.sampling is not None
        self.totals.interrupted_turns += live.version not in (None, version)
        self.totals.interrupted_tokens += live.begin_again(version)
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
        )

    def _seed(self, attempt: Attempt, live: OpenTurn) -> int:
        """Return the sampling seed of a turn."""
        if attempt.key.prompt.evaluation is not None:
            sibling = attempt.episode.siblings_before(live.turn)
            return evaluation_seed(self._rules.seed, attempt.key, live.call.token_ids, sibling)
        # The number of the attempt is in the seed: another attempt must not repeat what made this one fail.
        return turn_seed(self._rules.seed, attempt.key, attempt.id.attempt, live.turn.id)

    def receive(self, place: tuple[int, int], replica: Holder, delta: Delta) -> bool:
        """Take tokens of a turn; return whether the replica shall go on with it."""
        attempt = self._numbers.get(place[0])
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

    # --- from the loops ---

    async def load(self, keys: Iterable[TrajectoryKey], with_turns: bool = False) -> None:
        """Read the attempts of these responses that a former coordinator began. `with_turns`: only those with any."""
        unknown = [key for key in keys if self._of(key) is None]
        if not unknown:
            return

        def read(store: Store) -> list[tuple[KeptEpisode, list[StoredTurn]]]:
            found = store.turns.newest(unknown)
            kept = (one for one in found.values() if one.nodes or not with_turns)
            return [(one, store.turns.history(one.number)) for one in kept]

        with self._unwritten.reading() as is_outdated:
            found = await self._store.do(read)
        for kept, history in found:
            if is_outdated(kept) or self._of(kept.key) is not None:
                # It is known meanwhile, or was discarded: a second copy would end the first.
                continue
            attempt = restored(kept, history, self._rules.environments[kept.environment])
            self._add(attempt)
            if not attempt.ended:
                self.runners.adopt(attempt)

    async def hand_backs(self, key: TrajectoryKey) -> int:
        """Return how often runners handed back the episodes of a response."""
        return await self._store.do(lambda store: store.turns.hand_backs(key))

    def finished(self, key: TrajectoryKey) -> Attempt | None:
        """Return the attempt of a response that has ended."""
        found = self._of(key)
        return found if found is not None and found.ended else None

    def drop(self, prompts: Iterable[PromptKey]) -> None:
        """Forget these prompts: trained, filtered, requeued or not needed. Open attempts end."""
        for prompt in prompts:
            for attempt in self._attempts.pop(prompt, {}).values():
                self._discard(attempt)

    def cut(self, prompts: Iterable[PromptKey]) -> None:
        """End the open attempts of these prompts: their responses are not needed."""
        for prompt in prompts:
            samples = self._attempts.get(prompt, {})
            for attempt in [one for one in samples.values() if not one.ended]:
                del samples[attempt.key.sample]
                self._discard(attempt)

    # --- from the gateway: turns ---

    async def turn(self, call: TurnCall) -> RecordedTurn:
        """See `protocols.turns.Turns.turn`."""
        attempt = await self.find(call.episode)
        forks = attempt.episode.stats.forks
        request = TurnRequest(call.token_ids, call.digest, call.retry)
        match attempt.episode.open(request, self._now(), None if attempt.is_mixed else attempt.version):
            case Refused(reason, limit):
                if limit is None:
                    raise AttemptEnded(reason)
                await self._store_limit(attempt, limit)
                raise TurnRefused(reason)
            case Recorded(node):
                self.totals.retries += 1
                return replace(attempt.recorded[node.id], replayed=True)
            case InProgress(turn):
                self.totals.retries += 1
                return replace(await asyncio.shield(attempt.open[turn.id].answer), replayed=True)
            case Generate(turn):
                answer: asyncio.Future[RecordedTurn] = asyncio.get_running_loop().create_future()
                live = attempt.open[turn.id] = OpenTurn(turn, call, attempt.episode.stats.forks > forks, answer)
                if attempt.holder is not None:
                    attempt.holder.generate(attempt, live)
                return await asyncio.shield(answer)

    async def history(self, episode: EpisodeAttempt) -> Sequence[StoredTurn]:
        """See `protocols.turns.Turns.history`."""
        attempt = await self.find(episode)
        return await self._store.do(lambda store: store.turns.history(attempt.id.attempt))

    async def _store_limit(self, attempt: Attempt, limit: Limit) -> None:
        """Store the limit that refuses turns: a client that knows of it may end, and then the episode is truncated."""
        if attempt.stored_limit is None:
            number = attempt.id.attempt
            await self._journal.written(lambda store: store.turns.refuse(number, limit))
            attempt.stored_limit = limit

    # --- inside: begins and ends ---

    async def _begin(self, requests: Sequence[GenerateRequest], holder: Holder) -> None:
        prompts, now = self.runners.prompts, self._now()
        assert prompts is not None, "responses are launched after the prompts were opened"
        names = [prompts.environment(one.key.prompt) for one in requests]

        def save(store: Store) -> list[int]:
            return [
                store.turns.begin(one.key, one.weight_version, now, name)
                for one, name in zip(requests, names, strict=True)
            ]

        def then(numbers: list[int]) -> None:
            self._unwritten.begun(one.key for one in requests)
            for request, name, number in zip(requests, names, numbers, strict=True):
                episode = Episode(rules_of(request.key.prompt, self._rules.environments[name]), now)
                attempt = Attempt(EpisodeAttempt(request.key, number), name, request.weight_version, episode)
                self._add(attempt)
                self.totals.attempts += 1
                self._hold(attempt, request, holder)
                if request.prefix_token_ids:
                    self.end(attempt, attempt.episode.abort(AbortCause.GATEWAY, "its earlier turns are not known"))
                else:
                    self.runners.offer(attempt)

        self._unwritten.begin(one.key for one in requests)
        await self._journal.written(save, then)

    def _add(self, attempt: Attempt) -> None:
        """Make an attempt the newest of its response; the one before ends."""
        samples = self._attempts.setdefault(attempt.key.prompt, {})
        if (former := samples.get(attempt.key.sample)) is not None:
            self._discard(former)
        samples[attempt.key.sample] = attempt
        self._numbers[attempt.id.attempt] = attempt

    def _hold(self, attempt: Attempt, request: GenerateRequest, holder: Holder) -> None:
        attempt.lease, attempt.sampling = request.attempt, request.sampling
        attempt.told = len(request.prefix_token_ids)
        if attempt.holder is not None and attempt.holder is not holder:
            attempt.holder.stop(attempt, {})
        holder.hold(attempt)

    def _discard(self, attempt: Attempt) -> None:
        """Forget an attempt; end it if it is open."""
        self._numbers.pop(attempt.id.attempt, None)
        if attempt.episode.end is None:
            self._write_end(attempt, attempt.episode.abort(AbortCause.NOT_NEEDED), lambda: None)
        self._close(attempt)

    def end(self, attempt: Attempt, end: EpisodeEnd) -> None:
        """Store the end of an attempt, and tell it. `Attempt.stored` is set then."""

        def then() -> None:
            attempt.stored.set()
            self._close(attempt)
            if attempt.holder is not None:
                attempt.holder.tell(attempt)

        attempt.ended_at = self._now()
        self._write_end(attempt, end, then)

    def _write_end(self, attempt: Attempt, end: EpisodeEnd, then: Callable[[], None]) -> None:
        """Count the end of an attempt and have it stored, then call `then`."""
        number = attempt.id.attempt
        self._count(end)
        self._unwritten.end(number)

        def stored(_: bool) -> None:
            self._unwritten.ended(number)
            then()

        self._journal.write(partial(_store_end, attempt, end, self._now()), stored)

    def _fail(self, attempt: Attempt, why: str) -> None:
        """Abort an attempt because of an engine."""
        if attempt.episode.end is None:
            log.warning("%s is aborted: %s", attempt.id, why)
            self.end(attempt, attempt.episode.abort(AbortCause.ENGINE, why))

    def _count(self, end: EpisodeEnd) -> None:
        self.totals.ends[end.state] += 1
        if end.cause is not None:
            self.totals.aborts[end.cause] += 1

    def _close(self, attempt: Attempt) -> None:
        """End the open turns of an attempt, and its lease."""
        self.runners.forget(attempt)
        turns, attempt.open = attempt.open, {}
        if attempt.holder is not None:
            attempt.holder.stop(attempt, turns)
        for live in turns.values():
            if not live.answer.done():
                live.answer.set_exception(AttemptEnded("the episode has ended"))
                # Its caller may be gone.
                live.answer.exception()

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
        del attempt.open[live.turn.id]
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
        self.totals.turns += 1
        self.totals.forks += live.forked
        self.totals.load_wait_seconds += live.waited

        def then(_: None) -> None:
            attempt.record(turn, TurnSpan(opened, stored_at))
            if not live.answer.done():
                live.answer.set_result(turn)
            if attempt.holder is not None:
                attempt.holder.tell(attempt)

        limit = attempt.episode.truncated_by

        def save(store: Store) -> None:
            store.turns.commit(number, nodes, body, stored_at, opened, limit)

        self._journal.write(save, then)

    # --- inside: questions ---

    def number(self, number: int) -> Attempt | None:
        """Return the attempt of this number, if it is known."""
        return self._numbers.get(number)

    def numbers(self) -> Collection[Attempt]:
        """Return all known attempts."""
        return self._numbers.values()

    def _of(self, key: TrajectoryKey) -> Attempt | None:
        return self._attempts.get(key.prompt, {}).get(key.sample)

    async def find(self, episode: EpisodeAttempt) -> Attempt:
        """Return an open attempt. Raises `AttemptEnded`."""
        if episode.attempt not in self._numbers:
            await self.load([episode.key])
        attempt = self._numbers.get(episode.attempt)
        if attempt is None or attempt.id != episode or attempt.episode.end is not None:
            raise AttemptEnded(f"{episode} has ended, or is not known")
        return attempt


def _store_end(attempt: Attempt, end: EpisodeEnd, now: float, store: Store) -> bool:
    report = attempt.report or EpisodeReport()
    # A failure of ours has no reward, whatever its environment says.
    reward = None if end.state is EndState.ABORTED else report.reward
    return store.turns.end(attempt.id.attempt, end, now, reward, report.metrics)
