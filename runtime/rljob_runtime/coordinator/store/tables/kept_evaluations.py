"""Kept evaluation samples: responses of an evaluation that wait for their file.

As for a round, they are chosen in the transaction that records the result, and stay until the file is written."""

from __future__ import annotations

import json
import sqlite3
from array import array
from dataclasses import replace

from rljob_runtime.coordinator.store.connection import transaction
from rljob_runtime.coordinator.store.tables.kept_episodes import kept_episode
from rljob_runtime.coordinator.store.tables.kept_samples import ROUNDS_DUE, KeptSample, SampleRules
from rljob_runtime.protocols.trajectory import PromptKey, TrajectoryKey
from rljob_runtime.samples.choice import Candidate, choose
from rljob_runtime.samples.record import Sample, SampleOutcome
from rljob_runtime.scheduling.evaluation import evaluation_key

_OF = "step = ? AND name = ?"


class KeptEvaluations:
    """The table `kept_evaluation_samples`, on the store's connection. A rewind deletes rows with their evaluation."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    # --- for the file writer: each is one transaction ---

    def due(self) -> list[tuple[int, str]]:
        """Return the evaluations whose files are to be written, by step and name."""
        return self._db.execute(
            "SELECT DISTINCT step, name FROM kept_evaluation_samples ORDER BY step, name"
        ).fetchall()

    def read(self, step: int, name: str, first: int, count: int) -> list[KeptSample]:
        """Return up to `count` samples of an evaluation, from `first` on."""
        rows = self._db.execute(
            f"SELECT record, tokens FROM kept_evaluation_samples WHERE {_OF} AND number >= ? ORDER BY number LIMIT ?",
            (step, name, first, count),
        ).fetchall()
        return [KeptSample(Sample.from_json(record), array("i", tokens)) for record, tokens in rows]

    def written(self, step: int, name: str) -> None:
        """Delete the samples of an evaluation: its file is written, or given up."""
        with transaction(self._db):
            self._db.execute(f"DELETE FROM kept_evaluation_samples WHERE {_OF}", (step, name))

    # --- within the transaction that ends an evaluation ---

    def choose(self, step: int, name: str, rules: SampleRules) -> None:
        """Keep responses of an evaluation that has a result, before they are deleted.

        Random ones are drawn in the same order each time, so that two results show many of the same prompts.
        """
        if len(self.due()) >= ROUNDS_DUE:
            return
        samples = self._samples(step, name)
        candidates = [
            Candidate(f"{PromptKey.parse(one.prompt_id).index}.{one.sample}", one.outcome, one.reward)
            for one in samples
        ]
        chosen = choose(candidates, rules.per_round, f"{rules.seed}/{name}")
        found = [self._with_episode(samples[place]) for place in chosen]
        self._db.executemany(
            "INSERT INTO kept_evaluation_samples SELECT step, name, ?, ?, response FROM evaluation_samples"
            f" WHERE {_OF} AND idx = ? AND sample = ?",
            [
                (number, one.to_json(), step, name, PromptKey.parse(one.prompt_id).index, one.sample)
                for number, one in enumerate(found)
            ],
        )

    def _with_episode(self, sample: Sample) -> Sample:
        key = TrajectoryKey(PromptKey.parse(sample.prompt_id), sample.sample)
        return replace(sample, episode=kept_episode(self._db, key))

    def _samples(self, step: int, name: str) -> list[Sample]:
        """Return the responses that have tokens, without their texts."""
        rows = self._db.execute(
            "SELECT idx, sample, tokens, finish, reward, terms, reason, cause, attempt, version, replica"
            f" FROM evaluation_samples WHERE {_OF} AND response IS NOT NULL ORDER BY idx, sample",
            (step, name),
        ).fetchall()
        return [
            Sample(
                round=step,
                prompt_id=str(evaluation_key(name, step, index)),
                sample=number,
                attempt=attempt,
                outcome=SampleOutcome.EVALUATED if reason is None else SampleOutcome.FAILED,
                tokens=tokens,
                reason=reason,
                cause=cause,
                finish=finish,
                reward=reward,
                rewards=json.loads(terms) if terms else {},
                weight_versions=(version,),
                replica=replica,
            )
            for index, number, tokens, finish, reward, terms, reason, cause, attempt, version, replica in rows
        ]
