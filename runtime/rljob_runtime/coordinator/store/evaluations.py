"""Evaluations: what was generated and scored for them, and their results. No table of training refers to these rows.

A response is recorded with its reward, and with its tokens if samples are kept. A response without a reward is
generated again after a restart, from the same seed.
"""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rljob_runtime.coordinator.store.connection import transaction
from rljob_runtime.coordinator.store.tables import attempts
from rljob_runtime.coordinator.store.tables.kept_evaluations import KeptEvaluations
from rljob_runtime.coordinator.store.tables.kept_samples import Failed, KeptSamples, SampleRules
from rljob_runtime.evaluation import EvaluationResult
from rljob_runtime.protocols.rewards import Terms
from rljob_runtime.protocols.trajectory import Response

_OPEN = "step = ? AND name = ? AND result IS NULL AND abandoned IS NULL"


@dataclass(frozen=True)
class EvaluatedSample:
    """A response of an evaluation: its prompt's record, its length, and its reward.

    `reward` is None if it failed; then `reason` says why. `terms`: the value of each rule.
    """

    prompt: int
    sample: int
    tokens: int
    finish: str | None
    reward: float | None
    terms: Terms
    reason: str | None = None


@dataclass(frozen=True)
class OpenEvaluation:
    """An evaluation under way: its samples so far, and the seconds for which training has waited."""

    name: str
    samples: tuple[EvaluatedSample, ...]
    waited: float


class Evaluations:
    """The tables of evaluations, on the store's connection. Each method but `forget_after` is one transaction."""

    def __init__(self, db: sqlite3.Connection, kept: KeptSamples) -> None:
        self._db = db
        self._kept_samples = kept
        self.samples = KeptEvaluations(db)

    def open(self, step: int, settings: Mapping[str, str]) -> list[OpenEvaluation]:
        """Open these evaluations of a step, unless they are open; return those that have not ended.

        `settings`: a digest by name. Samples of an evaluation under another digest are deleted, and those of all other
        evaluations: one of another step, or one that is not due any more, is never continued.
        """
        with transaction(self._db):
            names = ", ".join("?" * len(settings))
            self._db.execute(
                f"DELETE FROM evaluation_samples WHERE step <> ? OR name NOT IN ({names})", (step, *settings)
            )
            attempts.set_aside_other_evaluations(self._db, step, settings)
            for name, digest in settings.items():
                row = (step, name, digest)
                self._db.execute("INSERT OR IGNORE INTO evaluations (step, name, settings) VALUES (?, ?, ?)", row)
                changed = self._db.execute(
                    f"UPDATE evaluations SET settings = ? WHERE {_OPEN} AND settings <> ?", (digest, *row)
                )
                if changed.rowcount:
                    self._db.execute("DELETE FROM evaluation_samples WHERE step = ? AND name = ?", row[:2])
                    attempts.set_aside_evaluation(self._db, step, name)
        rows = self._db.execute(
            "SELECT name, waited FROM evaluations WHERE step = ? AND result IS NULL AND abandoned IS NULL", (step,)
        ).fetchall()
        found = {name: OpenEvaluation(name, self._samples(step, name), waited) for name, waited in rows}
        return [found[name] for name in settings if name in found]

    def record(self, step: int, name: str, sample: EvaluatedSample, response: Response, cause: str = "") -> None:
        """Record a response with its reward, unless the evaluation has ended or a rewind has deleted it.

        A response that is recorded already keeps its first reward. `cause`: why its reward failed.
        """
        row = (
            *(step, name, sample.prompt, sample.sample, sample.tokens, sample.finish, sample.reward),
            *(json.dumps(dict(sample.terms)) if sample.terms else None, sample.reason),
            array("i", response.token_ids) if self._sample_rules is not None else None,
            *(response.attempt, response.weight_version, response.replica, Failed(cause).in_a_line()),
        )
        with transaction(self._db):
            if self._is_open(step, name):
                self._db.execute(f"INSERT OR IGNORE INTO evaluation_samples VALUES ({', '.join('?' * len(row))})", row)

    def drop(self, step: int, name: str, samples: Iterable[EvaluatedSample]) -> None:
        """Delete responses that an evaluation does not count any more: it asks fewer now."""
        with transaction(self._db):
            self._db.executemany(
                "DELETE FROM evaluation_samples WHERE step = ? AND name = ? AND idx = ? AND sample = ?",
                [(step, name, one.prompt, one.sample) for one in samples],
            )

    def add_wait(self, step: int, seconds: float) -> None:
        """Add seconds for which training waited for the evaluations of a step that have not ended."""
        with transaction(self._db):
            self._db.execute(
                "UPDATE evaluations SET waited = waited + ? WHERE step = ? AND result IS NULL AND abandoned IS NULL",
                (seconds, step),
            )

    def close(self, step: int, name: str, result: str) -> bool:
        """Record the result of an evaluation, as text. Its responses are deleted, except samples.

        Returns False if it has ended or a rewind has deleted it.
        """
        return self._end(step, name, "result", result)

    def abandon(self, step: int, name: str, reason: str) -> None:
        """Record that an evaluation has no result. Its responses are deleted."""
        self._end(step, name, "abandoned", reason)

    def results(self) -> list[EvaluationResult]:
        """Return all results in the order of their steps."""
        rows = self._db.execute("SELECT result FROM evaluations WHERE result IS NOT NULL ORDER BY step, name")
        return [EvaluationResult.from_json(text) for (text,) in rows.fetchall()]

    def steps(self) -> dict[str, set[int]]:
        """Return the steps with a result, by evaluation."""
        found: dict[str, set[int]] = {}
        for step, name in self._db.execute("SELECT step, name FROM evaluations WHERE result IS NOT NULL"):
            found.setdefault(name, set()).add(step)
        return found

    def forget_after(self, step: int) -> None:
        """Delete the evaluations of later steps, within the caller's transaction: a rewind abandons their weights."""
        self._db.execute("DELETE FROM evaluations WHERE step > ?", (step,))

    @property
    def _sample_rules(self) -> SampleRules | None:
        """Which samples are kept; None if there are none."""
        rules = self._kept_samples.rules
        return rules if rules is not None and rules.per_round != 0 else None

    def _is_open(self, step: int, name: str) -> bool:
        return self._db.execute(f"SELECT 1 FROM evaluations WHERE {_OPEN}", (step, name)).fetchone() is not None

    def _end(self, step: int, name: str, column: str, text: str) -> bool:
        with transaction(self._db):
            ended = self._db.execute(f"UPDATE evaluations SET {column} = ? WHERE {_OPEN}", (text, step, name))
            if column == "result" and ended.rowcount and (rules := self._sample_rules) is not None:
                self.samples.choose(step, name, rules)
            self._db.execute("DELETE FROM evaluation_samples WHERE step = ? AND name = ?", (step, name))
            attempts.set_aside_evaluation(self._db, step, name)
        return ended.rowcount > 0

    def _samples(self, step: int, name: str) -> tuple[EvaluatedSample, ...]:
        rows = self._db.execute(
            "SELECT idx, sample, tokens, finish, reward, terms, reason FROM evaluation_samples"
            " WHERE step = ? AND name = ? ORDER BY idx, sample",
            (step, name),
        ).fetchall()
        return tuple(
            EvaluatedSample(index, sample, tokens, finish, reward, json.loads(terms) if terms else {}, reason)
            for index, sample, tokens, finish, reward, terms, reason in rows
        )
