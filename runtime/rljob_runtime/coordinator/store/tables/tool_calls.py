"""Tool calls: the executed calls of attempts, stored before the turns that follow from them."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import zlib
from collections.abc import Iterator

from rljob_runtime.coordinator.store.connection import transaction
from rljob_runtime.protocols.environments import ToolCall
from rljob_runtime.scheduling.episodes.resumption import CallId, JournaledCall
from rljob_runtime.scheduling.episodes.times import TurnSpan

DIGEST_BYTES = 16


class ToolCalls:
    """The table `tool_calls`, on the store's connection."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def add(self, number: int, call: ToolCall, resumption: int, stored_at: float) -> None:
        """Store a call of an open attempt."""
        content = json.dumps([call.arguments, call.observation]).encode()
        row = (call.node, call.place, call.name, call_digest(call), zlib.compress(content, 1), resumption, stored_at)
        with transaction(self._db):
            self._db.execute(
                "INSERT INTO tool_calls (episode, node, place, name, digest, content, resumption, stored_at, seconds)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (number, *row, call.seconds),
            )

    def replayed(self, number: int, call: CallId, resumption: int) -> None:
        """Record that a later runner executed a call again, to bring its tools to their state."""
        self._count("replays", number, call, resumption)

    def executed_again(self, number: int, call: CallId, resumption: int) -> None:
        """Record that a call had its effect twice."""
        self._count("executions", number, call, resumption)

    def _count(self, column: str, number: int, call: CallId, resumption: int) -> None:
        with transaction(self._db):
            self._db.execute(
                f"UPDATE tool_calls SET {column} = {column} + 1, resumption = ?"
                " WHERE episode = ? AND node = ? AND place = ?",
                (resumption, number, call.node, call.place),
            )

    def of(self, number: int, most: int) -> list[ToolCall] | None:
        """Return the calls of an open attempt, in the order in which they were executed first.

        None if they have more than `most` characters: then they are not all read."""
        found, left = list[ToolCall](), most
        for call in self._of(number):
            left -= call.size
            if left < 0:
                return None
            found.append(call)
        return found

    def _of(self, number: int) -> Iterator[ToolCall]:
        query = "SELECT node, place, name, content, seconds FROM tool_calls WHERE episode = ? ORDER BY number"
        for node, place, name, content, seconds in self._db.execute(query, (number,)):
            arguments, observation = json.loads(zlib.decompress(content)) if content is not None else ("", "")
            yield ToolCall(node, place, name, arguments, observation, seconds)

    def last_request(self, number: int) -> bytes:
        """Return the request of the newest turn of an attempt; nothing without one, or after its round is closed."""
        row = self._db.execute(
            "SELECT body FROM turns WHERE episode = ? AND kind = 'sampled' ORDER BY node DESC LIMIT 1", (number,)
        ).fetchone()
        return b"" if row is None or row[0] is None else zlib.decompress(row[0])


def journaled(db: sqlite3.Connection, number: int) -> tuple[JournaledCall, ...]:
    """Return what is known of the calls of an attempt, in their order."""
    query = (
        "SELECT node, place, digest, resumption, seconds, stored_at FROM tool_calls WHERE episode = ? ORDER BY number"
    )
    return tuple(
        JournaledCall(CallId(node, place), digest, resumption, call_span(seconds, stored_at))
        for node, place, digest, resumption, seconds, stored_at in db.execute(query, (number,))
    )


def call_span(seconds: float | None, stored_at: float) -> TurnSpan | None:
    """Return when a call ran: its report follows directly. None where its seconds are not known."""
    return None if seconds is None else TurnSpan(stored_at - seconds, stored_at)


def call_digest(call: ToolCall) -> bytes:
    """Return the digest of a call's name, arguments and observation."""
    content = json.dumps([call.name, call.arguments, call.observation]).encode()
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()
