"""Episode book: all attempts of a coordinator, as gateway, runners and replicas need them.

A response that a loop launches begins an attempt (`take`). A runner takes it (`runner_service`), its harness asks for
turns, engines generate them (`turn_service`), and the runner ends it. What a restarted coordinator needs is in
the store before it has an effect.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from rljob_runtime.coordinator.core.async_utils import alongside
from rljob_runtime.coordinator.episodes.attempt import Attempt, Holder, goes_on
from rljob_runtime.coordinator.episodes.journal import Journal
from rljob_runtime.coordinator.episodes.restore import restored, rules_of
from rljob_runtime.coordinator.episodes.resumptions import Resumptions
from rljob_runtime.coordinator.episodes.runner_service import EpisodePrompts, RunnerRules, RunnerService, Warn
from rljob_runtime.coordinator.episodes.totals import BookTotals
from rljob_runtime.coordinator.episodes.turn_service import TurnService
from rljob_runtime.coordinator.episodes.unwritten import UnwrittenChanges
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.store_thread import StoreAccess
from rljob_runtime.coordinator.store.tables.turns import KeptEpisode
from rljob_runtime.protocols import GenerateRequest
from rljob_runtime.protocols.environments import EpisodeReport
from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey
from rljob_runtime.protocols.turns import AttemptEnded, EpisodeAttempt, RecordedTurn
from rljob_runtime.scheduling.episodes.ends import AbortCause, EndState, EpisodeEnd
from rljob_runtime.scheduling.episodes.episode import Episode, EpisodeRules
from rljob_runtime.scheduling.episodes.levels import Level


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
        self.now = now
        """Returns seconds of the epoch."""
        self._journal = Journal(store)
        self._attempts: dict[PromptKey, dict[int, Attempt]] = {}
        """The newest attempt of each response, by its sample."""
        self._numbers: dict[int, Attempt] = {}
        self._unwritten = UnwrittenChanges()
        self.turns = TurnService(self, store, self._journal, self.totals, rules.seed, now)
        resumptions = Resumptions(self._journal, self.totals, self.end, now)
        self.runners = RunnerService(self, resumptions, self.totals, rules.runners, now)

    def use_prompts(self, prompts: EpisodePrompts) -> None:
        """Give runners the records of these prompts."""
        self.runners.prompts = prompts

    async def run(self, warn: Warn) -> None:
        """Write events, and end the attempts of silent runners, until cancelled."""
        await alongside(self._journal.run(), self.runners.run(warn))

    # --- from replicas: responses ---

    async def take(self, requests: Sequence[GenerateRequest], holder: Holder) -> None:
        """Open an attempt for each response, or go on with the one that it has.

        A response that is dropped or launched again meanwhile gets no attempt for this launch."""
        begins: list[GenerateRequest] = []
        keys = [one.key for one in requests]
        with self._unwritten.reading(keys) as read:
            await self.load(keys, with_turns=True)
        for request in requests:
            known = self._of(request.key)
            if request.key not in read.needed or _is_later(known, request):
                continue
            if known is None or not goes_on(known, request):
                begins.append(request)
            elif known.holder is not holder or known.lease != request.attempt:
                self._hold(known, request, holder)
        if begins:
            await self._begin(begins, holder)

    # --- from the loops ---

    async def load(self, keys: Iterable[TrajectoryKey], with_turns: bool = False) -> None:
        """Read the attempts of these responses that a former coordinator began. `with_turns`: only those with any."""
        unknown = [key for key in keys if self._of(key) is None]
        if not unknown:
            return

        def read(store: Store) -> list[tuple[KeptEpisode, list[RecordedTurn]]]:
            found = store.turns.newest(unknown)
            kept = (one for one in found.values() if one.nodes or not with_turns)
            return [(one, store.turns.recorded(one.number)) for one in kept]

        with self._unwritten.reading(unknown) as pending:
            found = await self._store.do(read)
        for kept, turns in found:
            if self._unwritten.is_outdated(kept, pending) or self._of(kept.key) is not None:
                # It is known meanwhile, or was discarded: a second copy would end the first.
                continue
            attempt = restored(kept, turns, self._rules.environments[kept.environment], self.now())
            if kept.key not in (pending.known if attempt.ended else pending.needed):
                self._discard(attempt)
                continue
            self._add(attempt)
            if not attempt.ended:
                self.runners.adopt(attempt)

    async def hand_backs(self, key: TrajectoryKey) -> int:
        """Return how often runners handed back the episodes of a response."""
        return await self._store.do(lambda store: store.turns.hand_backs(key))

    def tokens(self, key: TrajectoryKey) -> int:
        """Return the tokens of the newest attempt of a response; 0 if none is known."""
        found = self._of(key)
        return found.episode.stats.tokens if found is not None else 0

    def finished(self, key: TrajectoryKey) -> Attempt | None:
        """Return the attempt of a response that has ended."""
        found = self._of(key)
        return found if found is not None and found.ended else None

    def drop(self, prompts: Collection[PromptKey]) -> None:
        """Forget these prompts: trained, filtered, requeued or not needed. Open attempts end."""
        self._unwritten.drop(prompts)
        for prompt in sorted(prompts):
            for attempt in self._attempts.pop(prompt, {}).values():
                self._discard(attempt)

    def cut(self, prompts: Collection[PromptKey]) -> None:
        """End the open attempts of these prompts: their responses are not needed."""
        self._unwritten.cut(prompts)
        for prompt in sorted(prompts):
            samples = self._attempts.get(prompt, {})
            for attempt in [one for one in samples.values() if not one.ended]:
                del samples[attempt.key.sample]
                self._discard(attempt)

    # --- inside: begins and ends ---

    async def _begin(self, requests: Sequence[GenerateRequest], holder: Holder) -> None:
        prompts, now = self.runners.prompts, self.now()
        assert prompts is not None, "responses are launched after the prompts were opened"
        names = [prompts.environment(one.key.prompt) for one in requests]

        def save(store: Store) -> list[int]:
            return [
                store.turns.begin(one.key, one.weight_version, now, name)
                for one, name in zip(requests, names, strict=True)
            ]

        def then(numbers: list[int]) -> None:
            self._unwritten.begun(begins)
            for request, name, number in zip(requests, names, numbers, strict=True):
                episode = Episode(rules_of(request.key.prompt, self._rules.environments[name]), now)
                attempt = Attempt(EpisodeAttempt(request.key, number), name, request.weight_version, episode)
                self.totals.attempts += 1
                if request.key not in begins.needed or _is_later(self._of(request.key), request):
                    self._discard(attempt)
                    continue
                self._add(attempt)
                self._hold(attempt, request, holder)
                if request.prefix_token_ids:
                    self.end(attempt, attempt.episode.abort(AbortCause.GATEWAY, "its earlier turns are not known"))
                else:
                    self.runners.offer(attempt)

        begins = self._unwritten.begin(one.key for one in requests)
        await self._journal.written(save, then)

    def _add(self, attempt: Attempt) -> None:
        """Make an attempt the newest of its response; the one before ends."""
        samples = self._attempts.setdefault(attempt.key.prompt, {})
        if (former := samples.get(attempt.key.sample)) is not None:
            self._discard(former)
        samples[attempt.key.sample] = attempt
        self._numbers[attempt.id.attempt] = attempt

    def release(self, keys: Iterable[TrajectoryKey]) -> None:
        """Take the open attempts of these responses from their runners: no engine generates them for now."""
        for attempt in filter(None, map(self._of, keys)):
            if not attempt.ended and attempt.holder is None:
                self.runners.release(attempt)

    def _hold(self, attempt: Attempt, request: GenerateRequest, holder: Holder) -> None:
        attempt.lease, attempt.sampling = request.attempt, request.sampling
        attempt.told = len(request.prefix_token_ids)
        if attempt.holder is not None and attempt.holder is not holder:
            attempt.holder.stop(attempt, {})
        holder.hold(attempt)
        self.runners.served()

    def _discard(self, attempt: Attempt) -> None:
        """Forget an attempt; end it if it is open."""
        self._numbers.pop(attempt.id.attempt, None)
        if attempt.episode.end is None:
            self._write_end(attempt, attempt.episode.abort(AbortCause.NOT_NEEDED), lambda: None)
        self._close(attempt)

    def end(self, attempt: Attempt, end: EpisodeEnd) -> None:
        """Store the end of an attempt. Then set `Attempt.stored`, and let its replica report the end."""

        def then() -> None:
            attempt.stored.set()
            self._close(attempt)
            if attempt.holder is not None:
                attempt.holder.tell(attempt)

        attempt.ended_at = self.now()
        self._write_end(attempt, end, then)

    def _write_end(self, attempt: Attempt, end: EpisodeEnd, then: Callable[[], None]) -> None:
        """Count the end of an attempt and have it stored, then call `then`."""
        number = attempt.id.attempt
        self._count(end)
        self._unwritten.end(number)

        def stored(_: bool) -> None:
            self._unwritten.ended(number)
            then()

        self._journal.write(partial(_store_end, attempt, end, self.now()), stored)

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

    # --- inside: questions ---

    def number(self, number: int) -> Attempt | None:
        """Return the attempt of this number, if it is known."""
        return self._numbers.get(number)

    def numbers(self) -> Collection[Attempt]:
        """Return all known attempts."""
        return self._numbers.values()

    def _of(self, key: TrajectoryKey) -> Attempt | None:
        return self._attempts.get(key.prompt, {}).get(key.sample)

    def levels(self) -> dict[str, Level]:
        """Return how many open attempts of each environment are in the model, outside of it, and without a runner."""
        found: dict[str, Counter[str]] = defaultdict(Counter)
        for attempt in self._numbers.values():
            if attempt.episode.end is None:
                found[attempt.environment][_place(attempt, self.runners.has_begun(attempt))] += 1
        return {name: Level(**counts) for name, counts in found.items()}

    async def find(self, episode: EpisodeAttempt) -> Attempt:
        """Return an open attempt. Raises `AttemptEnded`."""
        if episode.attempt not in self._numbers:
            await self.load([episode.key])
        attempt = self._numbers.get(episode.attempt)
        if attempt is None or attempt.id != episode or attempt.episode.end is not None:
            raise AttemptEnded(f"{episode} has ended, or is not known")
        return attempt


def _place(attempt: Attempt, has_begun: bool) -> str:
    """Return the field of a `Level` in which an open attempt counts."""
    if not has_begun:
        return "waiting"
    return "model" if attempt.open or attempt.unstored else "outside"


def _is_later(known: Attempt | None, request: GenerateRequest) -> bool:
    """Return whether the response of a request was launched again meanwhile."""
    return known is not None and known.lease > request.attempt


def _store_end(attempt: Attempt, end: EpisodeEnd, now: float, store: Store) -> bool:
    report = attempt.report or EpisodeReport()
    # A failure of ours has no reward and no answer, whatever its environment says.
    reward, answer = (None, None) if end.state is EndState.ABORTED else (report.reward, report.answer)
    return store.turns.end(attempt.id.attempt, end, now, reward, report.metrics, answer)
