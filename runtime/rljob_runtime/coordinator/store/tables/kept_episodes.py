"""Kept episodes: the turns of a sample, read from its attempt before the requests of the attempt are deleted.

Tokens tell what was given and what was sampled. Who spoke is in the requests, each of which repeats the conversation
before it. So only the requests of leaves are read, and each is divided at the answers that its branch sampled.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rljob_runtime.audit.stored_keys import columns_of
from rljob_runtime.coordinator.store.tables.attempts import NEWEST, there_are_any
from rljob_runtime.coordinator.store.tables.turns import end_of, pauses_of
from rljob_runtime.gateway.wire.fields import call_id
from rljob_runtime.protocols.trajectory import TrajectoryKey
from rljob_runtime.samples.episode import SampleCall, SampleEpisode, SampleMessage, SampleTurn
from rljob_runtime.scheduling.episodes.node import ROOT, NodeKind
from rljob_runtime.scheduling.episodes.times import Pause, counted_seconds


@dataclass(frozen=True)
class Conversation:
    """What a request says: its messages, and the names of the tools that it offers."""

    messages: tuple[SampleMessage, ...] = ()
    tools: tuple[str, ...] = ()


def kept_episode(db: sqlite3.Connection, key: TrajectoryKey) -> SampleEpisode | None:
    """Return the newest attempt of a response, with the tokens of its turns; None in a job without environments."""
    if not there_are_any(db):
        return None
    columns = (*columns_of(db, key.prompt), key.sample)
    wanted = "id, environment, started, pauses, state, reached, cause, detail, metrics"
    row = db.execute(NEWEST.format(columns=wanted), columns).fetchone()
    if row is None:
        return None
    number, environment, started, pauses, state, *end, metrics = row
    ended = end_of(state, *end)
    nodes = [
        _Stored(*one)
        for one in db.execute(
            "SELECT node, parent, kind, tokens, version, finish, opened, stored_at, body FROM turns"
            " WHERE episode = ? ORDER BY node",
            (number,),
        )
    ]
    turns, tools = sample_turns(nodes, started, pauses_of(pauses))
    turns = _with_seconds(db, number, turns)
    return SampleEpisode(
        environment=environment,
        attempt=number,
        state=state,
        end=(ended.reason or None) if ended is not None else None,
        cause=ended.cause if ended is not None else None,
        forks=sum(count - 1 for count in Counter(node.parent for node in nodes).values()),
        tools=tools,
        metrics=json.loads(metrics or "{}"),
        turns=turns,
        started=started,
    )


def _with_seconds(db: sqlite3.Connection, number: int, turns: Sequence[SampleTurn]) -> tuple[SampleTurn, ...]:
    """Give the calls of turns their seconds, as far as runners reported them."""
    query = "SELECT node, place, seconds, stored_at FROM tool_calls WHERE episode = ? AND seconds IS NOT NULL"
    known = {call_id(node, place): times for node, place, *times in db.execute(query, (number,))}

    def timed(call: SampleCall) -> SampleCall:
        if call.id not in known:
            return call
        seconds, stored = known[call.id]
        return replace(call, seconds=round(seconds, 3), stored=stored)

    return tuple(replace(turn, calls=tuple(map(timed, turn.calls))) for turn in turns) if known else tuple(turns)


@dataclass(frozen=True)
class _Stored:
    """A row of `turns`."""

    node: int
    parent: int
    kind: str
    tokens: bytes
    version: int | None
    finish: str | None
    opened: float | None
    stored: float
    body: bytes | None

    @property
    def is_sampled(self) -> bool:
        return self.kind == NodeKind.SAMPLED


def sample_turns(
    nodes: Sequence[_Stored], started: float, pauses: Sequence[Pause]
) -> tuple[tuple[SampleTurn, ...], tuple[str, ...]]:
    """Return the turns of an attempt's nodes, with the messages of their requests, and the tools that were offered.

    `pauses`: when the attempt had no runner, which counts as no turn's seconds."""
    by_id = {node.node: node for node in nodes}
    sampled = [node for node in nodes if node.is_sampled]
    turns: dict[int, SampleTurn] = {}
    for node in sampled:
        given: list[int] = []
        above = node.parent
        while above != ROOT and not by_id[above].is_sampled:
            given[:0] = array("i", by_id[above].tokens)
            above = by_id[above].parent
        # The start of a format before 17 may be after a turn.
        before = max(started, by_id[above].stored) if above else started
        turns[node.node] = _turn(node, above, given)
        if node.opened is not None:
            turns[node.node] = replace(
                turns[node.node],
                opened=node.opened,
                stored=node.stored,
                model_seconds=round(counted_seconds(node.opened, node.stored, pauses), 3),
                outside_seconds=round(counted_seconds(before, node.opened, pauses), 3),
            )
    inner = {turn.after for turn in turns.values()}
    tools: tuple[str, ...] = ()
    for leaf in [node for node in sampled if node.node not in inner]:
        said = conversation(zlib.decompress(leaf.body) if leaf.body else b"")
        tools = tools or said.tools
        _divide(turns, leaf.node, said.messages)
    return tuple(turns.values()), tools


def _turn(node: _Stored, after: int, given: Sequence[int]) -> SampleTurn:
    tokens = array("i", node.tokens)
    return SampleTurn(
        node=node.node,
        after=after,
        given_tokens=len(given),
        sampled_tokens=len(tokens),
        weight_version=node.version,
        finish=node.finish,
        given_ids=tuple(given),
        sampled_ids=tuple(tokens),
    )


def _divide(turns: dict[int, SampleTurn], leaf: int, messages: Sequence[SampleMessage]) -> None:
    """Give each turn of a branch its own part of the conversation, and the calls that the client read in its answer.

    The conversation of a leaf has the answers of all turns above it. Examples in a prompt are messages of an assistant
    too, and stand before them. If answers are missing, the client sent tokens.
    """
    path = [leaf]
    while (above := turns[path[0]].after) != ROOT:
        path.insert(0, above)
    spoken = [place for place, one in enumerate(messages) if one.role == "assistant"]
    if not messages or len(spoken) < len(path) - 1:
        return
    ends = [*spoken[len(spoken) - len(path) + 1 :], len(messages)]
    begin = 0
    for number, end in zip(path, ends, strict=True):
        calls = messages[end].calls if end < len(messages) else turns[number].calls
        turns[number] = replace(turns[number], messages=tuple(messages[begin:end]), calls=calls)
        begin = end + 1


def conversation(body: bytes) -> Conversation:
    """Return what a request says. A request for tokens says nothing; the gateway has checked all others."""
    given: Any = json.loads(body) if body else {}
    if not isinstance(given, dict):
        return Conversation()
    tools = tuple(str(_of(one, "function").get("name", "")) for one in given.get("tools") or ())
    return Conversation(tuple(map(_message, given.get("messages") or ())), tools)


def _message(given: Mapping[str, Any]) -> SampleMessage:
    calls = [
        SampleCall(_of(one, "function")["name"], _of(one, "function")["arguments"], one.get("id") or "")
        for one in given.get("tool_calls") or ()
    ]
    content = given.get("content") or ""
    text = content if isinstance(content, str) else "".join(part["text"] for part in content)
    return SampleMessage(given["role"], text, given.get("tool_call_id") or "", tuple(calls))


def _of(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = given[name]
    return found
