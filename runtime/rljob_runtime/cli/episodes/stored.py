"""Stored attempts: the episodes of a run, read from a copy of its store.

The store is that of any runtime since format 12. It has tokens and log-probabilities of each turn, and no texts: those
are in the files of samples.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rljob_runtime.audit.open_store import FILE, store_copy
from rljob_runtime.audit.stored_keys import add_sources, prompt_of
from rljob_runtime.cli.files import Unusable
from rljob_runtime.coordinator.store.tables.turns import NODE, node_of, pauses_of
from rljob_runtime.samples import all_folders
from rljob_runtime.samples.episode import SampleEpisode
from rljob_runtime.scheduling.episodes.counts import EpisodeCounts, episode_counts
from rljob_runtime.scheduling.episodes.node import Node
from rljob_runtime.scheduling.episodes.times import AttemptTimes, Pause, TurnSpan, attempt_times


@dataclass(frozen=True)
class StoredAttempt:
    """An attempt. `state`: None while it is open. `end`: the limit or the cause. `round`: that trained on it."""

    number: int
    prompt: str
    sample: int
    environment: str
    started: float
    state: str | None
    end: str | None
    reward: float | None
    metrics: Mapping[str, float]
    ended: float | None
    round: int | None
    nodes: Mapping[int, Node] = field(default_factory=dict)
    spans: Mapping[int, TurnSpan] = field(default_factory=dict)
    stored: Mapping[int, float] = field(default_factory=dict)
    """When each node was stored, in seconds of the epoch."""
    pauses: tuple[Pause, ...] = ()
    """When it had no runner."""

    @property
    def counts(self) -> EpisodeCounts:
        """Its turns, tokens and forks."""
        return episode_counts(self.nodes)

    @property
    def times(self) -> AttemptTimes | None:
        """Its seconds; None while it is open, and for turns of format 12."""
        turns = {one for one, node in self.nodes.items() if node.is_sampled}
        if self.ended is None or self.spans.keys() != turns:
            return None
        return attempt_times(self.started, self.ended, self.spans.values(), self.pauses)


def stored_attempts(run: Path, number: int | None = None, attempt: int | None = None) -> Iterator[StoredAttempt]:
    """Yield the attempts of a run in the order in which they began.

    `number`: only those that this round trained on. `attempt`: only this one. Raises `NoHistory`, and `Unusable` for a
    store without episodes."""
    with store_copy(run / FILE if run.is_dir() else run) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"episodes", "turns"} <= tables:
            raise Unusable(f"{run} has no episodes: it is the run of an earlier version")
        add_sources(db)
        timed = "opened" in {row[1] for row in db.execute("PRAGMA table_info(turns)")}
        pauses = "pauses" if "pauses" in {row[1] for row in db.execute("PRAGMA table_info(episodes)")} else "NULL"
        rows = db.execute(
            "SELECT id, epoch, idx, sample, environment, started, state, ifnull(reached, cause), reward, metrics,"
            f" ended, step, {pauses} FROM episodes"
            " WHERE (?1 IS NULL OR step = ?1) AND (?2 IS NULL OR id = ?2) ORDER BY id",
            (number, attempt),
        ).fetchall()
        for row in rows:
            yield _attempt(db, row, timed)


def kept_texts(run: Path) -> dict[int, SampleEpisode]:
    """Return the episodes of a run's samples, by the number of their attempt. Raises `OSError` and `TornFile`.

    The samples of training and of evaluations: the store has the attempts of both.
    """
    folders = all_folders(run)
    found = (one.episode for folder in folders for number in folder.rounds() for one in folder.read(number))
    return {one.attempt: one for one in found if one is not None}


def _attempt(db: sqlite3.Connection, row: tuple[Any, ...], timed: bool) -> StoredAttempt:
    number, epoch, index, sample, environment, started, state, end, reward, metrics, ended, step, pauses = row
    turns = db.execute(
        f"SELECT {'opened' if timed else 'NULL'}, stored_at, {NODE} FROM turns WHERE episode = ? ORDER BY node",
        (number,),
    ).fetchall()
    nodes = [node_of(one[2:]) for one in turns]
    known = list(zip(nodes, turns, strict=True))
    return StoredAttempt(
        number=number,
        prompt=str(prompt_of(db, epoch, index)),
        sample=sample,
        environment=environment,
        started=started,
        state=state,
        end=end,
        reward=reward,
        metrics=json.loads(metrics or "{}"),
        ended=ended,
        round=step,
        nodes={node.id: node for node in nodes},
        spans={node.id: TurnSpan(opened, at) for node, (opened, at, *_) in known if opened is not None},
        stored={node.id: at for node, (_, at, *_) in known},
        pauses=pauses_of(pauses),
    )
