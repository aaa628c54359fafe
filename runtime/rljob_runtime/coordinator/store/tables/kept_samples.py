"""Kept samples: responses of a round that wait for their file.

A round's samples are chosen in the transaction that closes it, from the rows of its responses, and stay until the file
is written. So a file is complete after any restart, and its content is decided once. Responses whose tokens are dropped
before (a failed reward, a filtered or requeued group of `mode: Asynchronous`) are kept in the transaction that drops
them."""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from rljob_runtime.audit.stored_keys import columns_of, prompt_of
from rljob_runtime.coordinator.store.connection import transaction
from rljob_runtime.protocols.trajectory import Outcome, PromptKey, TrajectoryKey
from rljob_runtime.samples.choice import Candidate, choose
from rljob_runtime.samples.episode import SampleEpisode
from rljob_runtime.samples.record import Sample, SampleOutcome, sample_key
from rljob_runtime.scheduling.round_plan import REWARD_FAILED

T = TypeVar("T")

ROUNDS_DUE = 16
"""Rounds that may wait for their files. While a volume does not answer, further ones are dropped."""

LONGEST_CAUSE = 500
"""Characters of a cause: an error of a user's function may have any length."""

Advantages = Callable[[Sequence[float]], Sequence[float | None]]
"""Returns the advantages of a group's rewards; None where rewards alone do not give them."""


@dataclass(frozen=True)
class SampleRules:
    """Which responses are kept. `per_round`: at most this many of a round, None for all. `seed`: the job's."""

    per_round: int | None
    seed: int
    advantages: Advantages


@dataclass(frozen=True)
class Failed:
    """The failure of a reward. `reason`: what failed, for programs."""

    cause: str
    reason: str = REWARD_FAILED

    def in_a_line(self) -> str | None:
        """Return the cause in a line of bounded length; None for an unknown one."""
        return " ".join(self.cause.split())[:LONGEST_CAUSE] or None


@dataclass(frozen=True)
class _Found:
    """A response in the store: what the choice needs, and functions that read the rest."""

    candidate: Candidate
    prompt: PromptKey
    sample: Callable[[], Sample]
    tokens: Callable[[], bytes]


@dataclass(frozen=True)
class KeptSample:
    """A sample without its texts: `token_ids` are those of the response. The turns of an episode have their own."""

    sample: Sample
    token_ids: array[int]


class KeptSamples:
    """The table `kept_samples`, on the store's connection. Without `rules`, nothing is kept.

    `episode` returns the turns of a response, in a job with environments."""

    def __init__(self, db: sqlite3.Connection, episode: Callable[[TrajectoryKey], SampleEpisode | None]) -> None:
        self._db = db
        self._episode = episode
        self.rules: SampleRules | None = None

    # --- for the file writer: each is one transaction ---

    def use(self, rules: SampleRules) -> None:
        """Keep samples by these rules from the next round that closes."""
        self.rules = rules

    def due(self) -> tuple[int, ...]:
        """Return the closed rounds whose files are to be written, rising."""
        rows = self._db.execute(
            "SELECT DISTINCT step FROM kept_samples WHERE step <= (SELECT MAX(step) FROM boundaries) ORDER BY step"
        ).fetchall()
        return tuple(step for (step,) in rows)

    def read(self, step: int, first: int, count: int) -> list[KeptSample]:
        """Return up to `count` samples of a closed round, from `first` on."""
        rows = self._db.execute(
            "SELECT record, tokens FROM kept_samples WHERE step = ? AND number >= ? ORDER BY number LIMIT ?",
            (step, first, count),
        ).fetchall()
        return [KeptSample(Sample.from_json(record), array("i", tokens)) for record, tokens in rows]

    def written(self, step: int) -> None:
        """Delete the samples of a round: its file is written, or given up."""
        with transaction(self._db):
            self._db.execute("DELETE FROM kept_samples WHERE step = ?", (step,))

    # --- within the transactions of the store ---

    def forget_after(self, step: int) -> None:
        """Delete the samples of later rounds: a rewind abandons them."""
        self._db.execute("DELETE FROM kept_samples WHERE step > ?", (step,))

    def keep_failed(self, step: int, prompt: PromptKey, number: int, failed: Failed) -> None:
        """Keep a response of `mode: OnPolicy` whose reward failed, before its tokens are deleted."""
        where = "step = ? AND epoch = ? AND idx = ? AND sample = ?"
        self._keep_early(step, self._of_round(step, where, (step, *columns_of(self._db, prompt), number)), failed)

    def keep_failed_sample(self, prompt: PromptKey, draw: int, number: int, failed: Failed) -> None:
        """Keep a response of `mode: Asynchronous` whose reward failed, before its tokens are deleted."""
        where, step = "epoch = ? AND idx = ? AND draw = ? AND sample = ?", self._next_step()
        self._keep_early(step, self._of_groups(step, where, (*columns_of(self._db, prompt), draw, number)), failed)

    def keep_ended(self, prompt: PromptKey, draw: int) -> None:
        """Keep responses of a filtered or requeued group of `mode: Asynchronous`, before its tokens are deleted."""
        where, step = "epoch = ? AND idx = ? AND draw = ?", self._next_step()
        self._keep_early(step, self._of_groups(step, where, (*columns_of(self._db, prompt), draw)))

    def close_round(self, step: int) -> None:
        """Choose the samples of a round of `mode: OnPolicy`, whose outcomes and lengths are recorded."""
        if self._keeps(step):
            self._choose(step, self._of_round(step, "step = ?", (step,)), {})

    def close_update(self, step: int, stale: Mapping[PromptKey, int]) -> None:
        """Choose the samples of an update of `mode: Asynchronous`. `stale`: staleness of its groups."""
        if self._keeps(step):
            self._choose(step, self._of_groups(step, "g.step = ?", (step,)), stale)

    # --- details ---

    def _keeps(self, step: int) -> bool:
        """Check whether a round has a file. If not, the samples that were kept before its end are deleted."""
        full = len(self.due()) >= ROUNDS_DUE
        if self.rules is not None and self.rules.per_round != 0 and not full:
            return True
        self.forget_after(step - 1)
        return False

    def _choose(self, step: int, ended: Iterable[_Found], stale: Mapping[PromptKey, int]) -> None:
        """Keep the chosen ones of `ended` and of those that were kept before; delete the others."""
        assert self.rules is not None
        ended = list(ended)
        found = [*ended, *self._early(step)]
        chosen = choose([one.candidate for one in found], self.rules.per_round, f"{self.rules.seed}/{step}")
        advantages = self._advantages(ended)
        rows = []
        for number, one in enumerate(found[place] for place in chosen):
            sample = one.sample()
            if sample.outcome is SampleOutcome.TRAINED:
                behind = stale.get(one.prompt, 0)
                sample = replace(sample, advantage=advantages[one.candidate.key], staleness=behind)
            rows.append((step, number, sample.to_json(), one.tokens()))
        self.forget_after(step - 1)
        self._insert(rows)

    def _early(self, step: int) -> Iterator[_Found]:
        rows = self._db.execute("SELECT record, tokens FROM kept_samples WHERE step = ? ORDER BY number DESC", (step,))
        for record, tokens in rows.fetchall():
            sample = Sample.from_json(record)
            candidate = Candidate(sample.key, sample.outcome, sample.reward)
            yield _Found(candidate, PromptKey.parse(sample.prompt_id), partial(_value, sample), partial(_value, tokens))

    def _advantages(self, ended: Iterable[_Found]) -> dict[str, float | None]:
        """Return the advantage of each response that was trained on, by its key."""
        assert self.rules is not None
        groups: dict[PromptKey, list[Candidate]] = {}
        for one in ended:
            if one.candidate.outcome is SampleOutcome.TRAINED:
                groups.setdefault(one.prompt, []).append(one.candidate)
        found: dict[str, float | None] = {}
        for group in groups.values():
            rewards = [candidate.reward for candidate in group if candidate.reward is not None]
            keys = [candidate.key for candidate in group]
            found |= zip(keys, self.rules.advantages(rewards), strict=True)
        return found

    def _keep_early(self, step: int, found: Iterable[_Found], failed: Failed | None = None) -> None:
        """Keep responses before their round closes: of each outcome as many as the round keeps in all."""
        if self.rules is None or self.rules.per_round == 0:
            return
        rows = self._db.execute(
            "SELECT json_extract(record, '$.outcome'), COUNT(*), MIN(number) FROM kept_samples WHERE step = ?"
            " GROUP BY 1",
            (step,),
        ).fetchall()
        counts = Counter({outcome: count for outcome, count, _ in rows})
        number = min((least for *_, least in rows), default=0)
        for one in found:
            sample = one.sample()
            if failed is not None:
                sample = replace(sample, outcome=SampleOutcome.FAILED, reason=failed.reason, cause=failed.in_a_line())
            if self.rules.per_round is None or counts[sample.outcome] < self.rules.per_round:
                counts[sample.outcome] += 1
                number -= 1
                self._insert([(step, number, sample.to_json(), one.tokens())])

    def _insert(self, rows: Sequence[tuple[int, int, str, bytes]]) -> None:
        self._db.executemany("INSERT INTO kept_samples VALUES (?, ?, ?, ?)", rows)

    def _next_step(self) -> int:
        return int(self._db.execute("SELECT ifnull(MAX(step), 0) + 1 FROM boundaries").fetchone()[0])

    def _of_round(self, step: int, where: str, row: tuple[int, ...]) -> Iterator[_Found]:
        """Yield the responses of a round that have tokens."""
        rows = self._db.execute(
            "SELECT epoch, idx, sample, t.outcome, t.reason, p.fate, attempt, version, replica, finish, reward, terms,"
            " ifnull(tokens, (SELECT SUM(length(c.tokens) / 4) FROM chunks AS c WHERE c.step = t.step"
            " AND c.epoch = t.epoch AND c.idx = t.idx AND c.sample = t.sample)) AS held"
            " FROM trajectories AS t JOIN prompts AS p USING (step, epoch, idx)"
            f" WHERE {where} AND held > 0 ORDER BY epoch, idx, sample",
            row,
        ).fetchall()
        query = "SELECT tokens FROM chunks WHERE step = ? AND epoch = ? AND idx = ? AND sample = ? ORDER BY start"
        for epoch, index, number, outcome, reason, fate, *rest in rows:
            ended = fate if outcome != SampleOutcome.TRAINED and fate != SampleOutcome.TRAINED else outcome
            tokens = partial(self._tokens, query, (step, epoch, index, number))
            prompt = prompt_of(self._db, epoch, index)
            key = TrajectoryKey(prompt, number)
            yield _found(step, key, _outcome(ended), reason, rest, tokens, partial(self._episode, key))

    def _of_groups(self, step: int, where: str, row: tuple[int, ...]) -> Iterator[_Found]:
        """Yield the responses of groups of `mode: Asynchronous` that have tokens."""
        rows = self._db.execute(
            "SELECT epoch, idx, draw, sample, fate, reason, attempt, g.version, s.replica, finish, reward, terms,"
            " (SELECT start + length(c.tokens) / 4 FROM experience_chunks AS c WHERE c.epoch = s.epoch"
            " AND c.idx = s.idx AND c.draw = s.draw AND c.sample = s.sample ORDER BY start DESC LIMIT 1) AS held"
            " FROM samples AS s JOIN groups AS g USING (epoch, idx, draw)"
            f" WHERE {where} AND held > 0 ORDER BY epoch, idx, sample",
            row,
        ).fetchall()
        table = "experience_chunks WHERE epoch = ? AND idx = ? AND draw = ? AND sample = ?"
        for epoch, index, draw, number, fate, reason, *rest in rows:
            tokens = partial(self._tokens, f"SELECT tokens FROM {table} ORDER BY start", (epoch, index, draw, number))
            prompt = prompt_of(self._db, epoch, index)
            key = TrajectoryKey(prompt, number)
            yield _found(step, key, _outcome(fate), reason, rest, tokens, partial(self._episode, key))

    def _tokens(self, query: str, row: tuple[int, ...]) -> bytes:
        return b"".join(tokens for (tokens,) in self._db.execute(query, row))


def _value(value: T) -> T:
    return value


_OUTCOMES: Mapping[str | None, SampleOutcome] = {
    **{outcome.value: outcome for outcome in SampleOutcome},
    Outcome.DISCARDED.value: SampleOutcome.ABORTED,
    None: SampleOutcome.ABORTED,
}


def _outcome(text: str | None) -> SampleOutcome:
    """Return an outcome of the store's. `discarded`: its group was trained on without it."""
    return _OUTCOMES[text]


def _found(
    step: int,
    key: TrajectoryKey,
    outcome: SampleOutcome,
    reason: str | None,
    rest: Sequence[Any],
    tokens: Callable[[], bytes],
    episode: Callable[[], SampleEpisode | None],
) -> _Found:
    prompt, number = key.prompt, key.sample
    attempt, version, replica, finish, reward, terms, held = rest

    def sample() -> Sample:
        return Sample(
            round=step,
            prompt_id=str(prompt),
            sample=number,
            attempt=attempt,
            outcome=outcome,
            tokens=held,
            reason=reason,
            finish=finish,
            reward=reward,
            rewards=json.loads(terms) if terms else {},
            weight_versions=() if version is None else (version,),
            replica=replica,
            episode=episode(),
        )

    return _Found(Candidate(sample_key(str(prompt), number, attempt), outcome, reward), prompt, sample, tokens)
