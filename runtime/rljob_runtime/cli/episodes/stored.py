"""Stored attempts: the episodes of a run, as its store has them.

A store has tokens and log-probabilities of each turn, and no texts: those are in the files of samples.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rljob_runtime.audit.open_store import FILE, store_copy
from rljob_runtime.audit.stored_keys import add_sources
from rljob_runtime.cli.files import Unusable
from rljob_runtime.coordinator.samples.attempt_rows import ALL, START, Columns, Row, Wanted, attempt_rows
from rljob_runtime.coordinator.store.tables.turns import node_of, pauses_of
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
    """Without log-probabilities, and with other tokens of the same number, where only sizes were read."""
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


def stored_attempts(run: Path, wanted: Wanted = ALL) -> Iterator[StoredAttempt]:
    """Yield the attempts of a run in the order in which they began, from a copy of its store.

    The store is that of any runtime since format 12. Raises `NoHistory`, and `Unusable` for one without episodes."""
    with store_copy(run / FILE if run.is_dir() else run) as db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"episodes", "turns"} <= tables:
            raise Unusable(f"{run} has no episodes: it is the run of an earlier version")
        add_sources(db)
        yield from attempts_of(attempt_rows(db, wanted, START, Columns.of(db)))


def attempts_of(rows: Iterable[Row]) -> Iterator[StoredAttempt]:
    """Yield the attempts of rows. One that was deleted while it was read is left out."""
    attempt: Row | None = None
    nodes: list[Row] = []
    for row in rows:
        if "turn" in row:
            nodes.append(row)
            continue
        yield from _complete(attempt, nodes)
        attempt, nodes = row, []
    yield from _complete(attempt, nodes)


def _complete(row: Row | None, nodes: Sequence[Row]) -> Iterator[StoredAttempt]:
    if row is None or len(nodes) < row["nodes"]:
        return
    tree = {one["node"]: _node(one) for one in nodes}
    yield StoredAttempt(
        number=row["attempt"],
        prompt=row["prompt"],
        sample=row["sample"],
        environment=row["environment"],
        started=row["started"],
        state=row["state"],
        end=row["end"],
        reward=row["reward"],
        metrics=json.loads(row["metrics"] or "{}"),
        ended=row["ended"],
        round=row["round"],
        nodes=tree,
        spans={one["node"]: TurnSpan(one["opened"], one["stored"]) for one in nodes if one["opened"] is not None},
        stored={one["node"]: one["stored"] for one in nodes},
        pauses=pauses_of(row["pauses"]),
    )


def _node(row: Row) -> Node:
    tokens, logprobs = row["tokens"], row["logprobs"]
    sizes = isinstance(tokens, int)
    node = node_of(
        (
            row["node"],
            row["parent"],
            row["kind"],
            row["version"],
            row["digest"],
            b"" if sizes else tokens,
            logprobs,
            row["finish"],
        )
    )
    return replace(node, token_ids=range(tokens)) if sizes else node
