"""Turns: the attempts of episodes and the nodes of their trees, as they are stored before a client gets its answer."""

from __future__ import annotations

import json
import math
import sqlite3
import zlib
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from rljob_runtime.audit.stored_keys import MOST_INDEX, columns_of, known_columns_of, prompt_of
from rljob_runtime.coordinator.store.connection import transaction
from rljob_runtime.coordinator.store.tables.attempts import NEWEST
from rljob_runtime.coordinator.store.tables.tool_calls import journaled
from rljob_runtime.protocols.environments import MOST_METRIC_NAME, MOST_METRICS
from rljob_runtime.protocols.trajectory import FinishReason, TrajectoryKey
from rljob_runtime.protocols.turns import RecordedTurn, StoredTurn
from rljob_runtime.scheduling.episodes.ends import AbortCause, EndState, EpisodeEnd
from rljob_runtime.scheduling.episodes.limits import Limit
from rljob_runtime.scheduling.episodes.node import ROOT, Node, NodeKind, last_answer
from rljob_runtime.scheduling.episodes.resumption import JournaledCall
from rljob_runtime.scheduling.episodes.times import Pause, TurnSpan

MOST_BODY_BYTES = 16 << 20
"""Bytes of a request, before compression."""
MOST_HISTORY_BYTES = 32 << 20
"""Requests of an attempt that are read together."""
MOST_DETAIL = 1_000
"""Characters of the detail of an end. A longer one is cut."""
BODY_LEVEL = 1
"""The fastest compression: a request mostly repeats the one before it."""

NO_METRICS: Mapping[str, float] = MappingProxyType({})


class NodeChanged(ValueError):
    """A commit has other tokens, log-probabilities or places than the stored node of this id."""


@dataclass(frozen=True)
class KeptEpisode:
    """A stored attempt. `number`: unique in the job. `version`: the weights when it began. `nodes`: as committed."""

    number: int
    key: TrajectoryKey
    version: int
    started: float
    environment: str
    refusing: Limit | None = None
    """The limit that refuses further turns."""
    nodes: tuple[Node, ...] = ()
    end: EpisodeEnd | None = None
    reward: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    ended: float | None = None
    spans: Mapping[int, TurnSpan] = field(default_factory=dict)
    """When its turns were asked for and stored, by node; without those of format 12."""
    resumption: int | None = None
    """How often another runner went on with it; None if its runner knows of no resumptions."""
    asked_by: Mapping[int, int] = field(default_factory=dict)
    """The resumption whose program asked for a turn last, by node; without those of loops of ours."""
    calls: tuple[JournaledCall, ...] = ()
    pauses: tuple[Pause, ...] = ()
    """When it had no runner."""
    answer: str | None = None
    """What its program says that its answer is, until its round or update is closed."""

    @property
    def last_node_id(self) -> int:
        """The highest id of its nodes; `ROOT` without one."""
        return max((node.id for node in self.nodes), default=ROOT)


class Turns:
    """The tables `episodes` and `turns`, on the store's connection."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def begin(self, key: TrajectoryKey, version: int, started: float, environment: str) -> int:
        """Begin an attempt; return its number."""
        with transaction(self._db):
            number = self._db.execute(
                "INSERT INTO episodes (epoch, idx, sample, version, started, environment) VALUES (?, ?, ?, ?, ?, ?)",
                (*columns_of(self._db, key.prompt), key.sample, version, started, environment),
            ).lastrowid
        assert number is not None
        return number

    def lease(self, attempts: Iterable[tuple[int, float, Sequence[Pause], int | None]]) -> None:
        """Record that a runner has these attempts: number, start, pauses and resumption of each."""
        with transaction(self._db):
            self._db.executemany(
                "UPDATE episodes SET started = ?, pauses = ?, resumption = ? WHERE id = ? AND state IS NULL",
                [
                    (started, pauses_text(pauses), resumption, number)
                    for number, started, pauses, resumption in attempts
                ],
            )

    def refuse(self, number: int, limit: Limit) -> None:
        """Record that a limit refuses further turns of an attempt."""
        with transaction(self._db):
            self._refuse(number, limit)

    def _refuse(self, number: int, limit: Limit) -> None:
        self._db.execute("UPDATE episodes SET refusing = ? WHERE id = ? AND state IS NULL", (limit, number))

    def commit(
        self,
        number: int,
        nodes: Sequence[Node],
        body: bytes,
        stored_at: float,
        opened: float | None = None,
        refusing: Limit | None = None,
        asked_by: int | None = None,
    ) -> None:
        """Store the nodes of one turn, parents first: new given ones, and the sampled one, whose request is `body`.

        `opened`: when the request came. `refusing`: the limit that refuses turns after this one. `asked_by`: the
        resumption whose program asked for it; None where the loop is ours. A node that is stored already stays as it
        is. Raises `NodeChanged` if it differs, and `ValueError` for a long body."""
        if len(body) > MOST_BODY_BYTES:
            raise ValueError(f"a request of {len(body)} bytes cannot be stored; {MOST_BODY_BYTES} are allowed")
        with transaction(self._db):
            if refusing is not None:
                self._refuse(number, refusing)
            for node in nodes:
                row = _columns(node)
                kept = self._db.execute(
                    f"SELECT {NODE} FROM turns WHERE episode = ? AND node = ?", (number, node.id)
                ).fetchone()
                if kept is None:
                    packed = zlib.compress(body, BODY_LEVEL) if node.is_sampled else None
                    self._db.execute(
                        f"INSERT INTO turns (episode, {NODE}, body, stored_at, opened, resumption)"
                        f" VALUES ({', '.join('?' * 13)})",
                        (number, *row, packed, stored_at, *((opened, asked_by) if node.is_sampled else (None, None))),
                    )
                elif kept != row:
                    raise NodeChanged(f"node {node.id} of attempt {number} is stored with other content")

    def repeat(self, number: int, node: int, resumption: int) -> None:
        """Record that the program of this resumption asked for a turn again, and receives it."""
        with transaction(self._db):
            self._db.execute(
                "UPDATE turns SET resumption = ? WHERE episode = ? AND node = ?", (resumption, number, node)
            )

    def end(
        self,
        number: int,
        end: EpisodeEnd,
        ended: float,
        reward: float | None = None,
        metrics: Mapping[str, float] = NO_METRICS,
        answer: str | None = None,
    ) -> bool:
        """Record the end of an attempt. The first end counts; returns whether it is this one.

        Raises `ValueError` for a reward or metrics that are not finite or too many."""
        if reward is not None and not math.isfinite(reward):
            raise ValueError(f"the reward of attempt {number} is {reward}; a finite number would be right")
        detail = storable_text(end.detail[:MOST_DETAIL])
        said = None if answer is None else storable_text(answer)
        row = (end.state.value, end.limit, end.cause, detail, reward, metrics_text(metrics), ended, said)
        with transaction(self._db):
            changed = self._db.execute(
                "UPDATE episodes SET state = ?, reached = ?, cause = ?, detail = ?, reward = ?, metrics = ?, ended = ?,"
                " answer = ? WHERE id = ? AND state IS NULL",
                (*row, number),
            ).rowcount
        return changed > 0

    # --- what is held ---

    def newest(self, keys: Collection[TrajectoryKey]) -> dict[TrajectoryKey, KeptEpisode]:
        """Return the newest attempt of each of these trajectories that has one.

        Attempts of earlier draws of a prompt, of undone rounds, and of responses that were restarted do not count."""
        found = {}
        for key in keys:
            columns = known_columns_of(self._db, key.prompt)
            if columns is None or not 0 <= key.sample <= MOST_INDEX:
                continue  # Runners and agents state any key.
            row = self._db.execute(NEWEST.format(columns=_EPISODE), (*columns, key.sample)).fetchone()
            if row is not None:
                found[key] = self._kept(row)
        return found

    def hand_backs(self, key: TrajectoryKey) -> int:
        """Count the attempts of a response that runners handed back, former ones too."""
        query = "SELECT COUNT(*) FROM episodes WHERE epoch = ? AND idx = ? AND sample = ? AND cause = ?"
        row = (*columns_of(self._db, key.prompt), key.sample, AbortCause.RUNNER_LEFT.value)
        count: int = self._db.execute(query, row).fetchone()[0]
        return count

    def without_right_to_reward(self, keys: Iterable[TrajectoryKey]) -> int:
        """Count the responses whose newest attempt was aborted, is open, or is missing: they may have no reward."""
        states = (
            self._db.execute(NEWEST.format(columns="state"), (*columns_of(self._db, key.prompt), key.sample)).fetchone()
            for key in keys
        )
        return sum(row is None or row[0] in (None, EndState.ABORTED.value) for row in states)

    def open_attempts(self) -> list[KeptEpisode]:
        """Return the attempts without an end, by number; former ones do not count."""
        query = f"SELECT {_EPISODE} FROM episodes WHERE state IS NULL AND former = 0 ORDER BY id"
        return [self._kept(row) for row in self._db.execute(query).fetchall()]

    def history(self, number: int, newest: bool = False) -> list[StoredTurn]:
        """Return the newest turns of an attempt, in the order of their nodes, each with its complete prompt.

        They are those whose requests have `MOST_HISTORY_BYTES` together; with `newest`, the last answer only. Requests
        are empty once the round or the update of the attempt is closed."""
        nodes, turns = self._recorded(number)
        kept = turns
        if newest and turns:
            last = last_answer({node.id: node for node in nodes}).id
            kept = [turn for turn in turns if turn.node == last]
        # The requests of an attempt repeat its conversation, so they grow with the square of its turns, and a client
        # may send what is long for nothing. A turn that is left out costs its conversation a rendering.
        bodies: list[bytes] = []
        left = MOST_HISTORY_BYTES
        for turn in reversed(kept):
            body = self._body(number, turn.node)
            left -= len(body)
            if bodies and left < 0:
                break
            bodies.append(body)
        paths: dict[int, array[int]] = {ROOT: array("i")}
        for node in nodes:
            paths[node.id] = paths[node.parent] + array("i", node.token_ids)
        parents = {node.id: node.parent for node in nodes}
        return [
            StoredTurn(paths[parents[turn.node]], body, turn)
            for turn, body in zip(kept[len(kept) - len(bodies) :], reversed(bodies), strict=True)
        ]

    def recorded(self, number: int) -> list[RecordedTurn]:
        """Return the turns of an attempt without their requests, in the order of their nodes."""
        return self._recorded(number)[1]

    def _recorded(self, number: int) -> tuple[list[Node], list[RecordedTurn]]:
        rows = self._db.execute(
            f"SELECT stored_at, {NODE} FROM turns WHERE episode = ? ORDER BY node", (number,)
        ).fetchall()
        nodes = [node_of(row[1:]) for row in rows]
        forks = _forks(nodes)
        return nodes, [
            _recorded(node, row[0], node.id in forks) for node, row in zip(nodes, rows, strict=True) if node.is_sampled
        ]

    def _body(self, number: int, node: int) -> bytes:
        ((body,),) = self._db.execute("SELECT body FROM turns WHERE episode = ? AND node = ?", (number, node))
        return zlib.decompress(body) if body else b""

    def _kept(self, row: tuple[Any, ...]) -> KeptEpisode:
        number, epoch, index, sample, version, started, environment, refusing, resumption, pauses, *end = row
        nodes = self._db.execute(
            f"SELECT opened, stored_at, resumption, {NODE} FROM turns WHERE episode = ? ORDER BY number", (number,)
        ).fetchall()
        state, limit, cause, detail, reward, metrics, ended, answer = end
        return KeptEpisode(
            number=number,
            key=TrajectoryKey(prompt_of(self._db, epoch, index), sample),
            version=version,
            started=started,
            environment=environment,
            refusing=Limit(refusing) if refusing is not None else None,
            nodes=tuple(node_of(row[3:]) for row in nodes),
            end=end_of(state, limit, cause, detail),
            reward=reward,
            metrics=json.loads(metrics or "{}"),
            ended=ended,
            spans={row[3]: TurnSpan(*row[:2]) for row in nodes if row[0] is not None},
            asked_by={row[3]: row[2] for row in nodes if row[2] is not None},
            resumption=resumption,
            calls=journaled(self._db, number),
            pauses=pauses_of(pauses),
            answer=answer,
        )


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Return an environment's metrics as JSON. Raises `ValueError` for what cannot be stored."""
    if len(metrics) > MOST_METRICS:
        raise ValueError(f"{len(metrics)} metrics were reported; {MOST_METRICS} are allowed")
    for name, value in metrics.items():
        if len(name) > MOST_METRIC_NAME:
            begin, most = name[:MOST_METRIC_NAME], MOST_METRIC_NAME
            raise ValueError(f"metric {begin}… has a name of {len(name)} characters; {most} are allowed")
        if name != storable_text(name):
            raise ValueError(f"metric {name!r} has half a character in its name")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise ValueError(f"metric {name} is {str(value)[:MOST_METRIC_NAME]}; a finite number would be right")
    return json.dumps({name: float(value) for name, value in metrics.items()}, allow_nan=False)


def pauses_text(pauses: Sequence[Pause]) -> str | None:
    """Return pauses as `pauses_of` reads them; None for none."""
    return json.dumps([[one.since, one.until] for one in pauses]) if pauses else None


def pauses_of(text: str | None) -> tuple[Pause, ...]:
    """Return the pauses of an attempt.

    >>> pauses_of(pauses_text([Pause(2.5, 5.0)])), pauses_of(None)
    ((Pause(since=2.5, until=5.0),), ())
    """
    return tuple(Pause(*one) for one in json.loads(text or "[]"))


def storable_text(text: str) -> str:
    """Return a text that SQLite takes. Foreign code states halves of characters, which have no bytes."""
    return text.encode(errors="replace").decode()


# --- rows ---

_EPISODE = (
    "id, epoch, idx, sample, version, started, environment, refusing, resumption, pauses, "
    "state, reached, cause, detail, reward, metrics, ended, answer"
)
NODE = "node, parent, kind, version, digest, tokens, logprobs, finish"
"""Columns of a node."""
_NodeRow = tuple[int, int, str, int | None, str | None, bytes, bytes | None, str | None]


def _columns(node: Node) -> _NodeRow:
    tokens = array("i", node.token_ids).tobytes()
    if not node.is_sampled:
        return node.id, node.parent, node.kind.value, None, None, tokens, None, None
    logprobs, finish = array("f", node.logprobs).tobytes(), node.finish.value if node.finish is not None else None
    return node.id, node.parent, node.kind.value, node.version, node.digest, tokens, logprobs, finish


def node_of(row: _NodeRow) -> Node:
    """Return the node of a row with the columns `NODE`."""
    number, parent, kind, version, digest, tokens, logprobs, finish = row
    ended = FinishReason(finish) if finish is not None else None
    return Node(
        id=number,
        parent=parent,
        kind=NodeKind(kind),
        token_ids=array("i", tokens),
        logprobs=array("f", logprobs) if logprobs is not None else (),
        version=version,
        digest=digest or "",
        finish=ended,
    )


def end_of(state: str | None, limit: str | None, cause: str | None, detail: str | None) -> EpisodeEnd | None:
    """Return the end of an attempt from its columns; None of an open one."""
    if state is None:
        return None
    return EpisodeEnd(
        EndState(state),
        Limit(limit) if limit is not None else None,
        AbortCause(cause) if cause is not None else None,
        detail or "",
    )


def _recorded(node: Node, stored_at: float, forked: bool) -> RecordedTurn:
    assert node.version is not None
    assert node.finish is not None
    return RecordedTurn(
        node=node.id,
        token_ids=node.token_ids,
        logprobs=node.logprobs,
        weight_version=node.version,
        finish_reason=node.finish,
        stored_at=stored_at,
        forked=forked,
        replayed=True,
    )


def _forks(nodes: Sequence[Node]) -> set[int]:
    """Return the turns that opened a branch beside an existing one. Ids rise in the order of opening."""
    given = {node.id for node in nodes if not node.is_sampled}
    occupied: set[int] = set()
    branches: dict[int, bool] = {}
    for node in nodes:
        branches[node.id] = node.parent in occupied
        # A request's own given node has the id before its turn, and it is that node which opens the branch.
        if node.is_sampled and node.parent == node.id - 1 and node.parent in given:
            branches[node.id] = branches[node.parent]
        occupied.add(node.parent)
    return {node.id for node in nodes if node.is_sampled and branches[node.id]}
