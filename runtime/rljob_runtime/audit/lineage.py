"""Lineage audit: every trained token of an episode is one that an engine emitted, in an attempt that counts.

An attempt's nodes stay in the store, and the update that trained on it left a digest of what the trainer got. So each
trained response is compared with the tree of its attempt, bit by bit: each sampled node once, with its
log-probabilities and all tokens before it, and the reward. Nothing is decoded or encoded for it.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from rljob_runtime.audit.findings import EpisodeCounts, Finding, Rule
from rljob_runtime.audit.stored_keys import prompt_sql
from rljob_runtime.audit.stored_turns import OF_TOKENS_BYTES, Context, loss_digest, trained_digest

_KEY = f"{prompt_sql('e')} || '.' || e.sample"
_IS_KEY = "e.epoch = r.epoch AND e.idx = r.idx AND e.sample = r.sample"
_NODES = f"SELECT {_KEY}, e.id, t.node, {{told}} FROM turns AS t JOIN episodes AS e ON e.id = t.episode WHERE {{where}}"

_ROUNDS = (
    "SELECT epoch, idx, sample, 0 AS draw, step, version, tokens, FALSE AS held, reward, terms FROM trajectories"
    " WHERE outcome = 'trained'"
)
_GROUPS = (
    "SELECT s.epoch, s.idx, s.sample, s.draw, g.step, g.version, ifnull(s.tokens, (SELECT SUM(length(c.tokens)) / 4"
    " FROM experience_chunks AS c WHERE c.epoch = s.epoch AND c.idx = s.idx AND c.draw = s.draw"
    " AND c.sample = s.sample)) AS tokens, s.tokens IS NULL AS held, s.reward, s.terms FROM samples AS s"
    " JOIN groups AS g ON g.epoch = s.epoch AND g.idx = s.idx AND g.draw = s.draw WHERE g.fate = 'trained'"
)
"""Trained responses of both modes. `held`: their tokens are in the store until a checkpoint."""


ENVIRONMENT_FAILED = "EnvironmentFailed"
"""Reason of a filtered group. It stands here, as the next five, because the audit does not trust the writing code."""
TERM = "environment"
"""Name of the reward's only term, where the environment gives the reward."""
RUNNER_LEFT, NOT_NEEDED = "runner left", "not needed"
"""Causes of aborted attempts that are no failures."""
MOST_HAND_BACKS = 8
"""Attempts of a response with the cause `RUNNER_LEFT`; more are a failure."""
NUMBERS_A_TERM = 1 << 32
"""A store that a coordinator of term n creates numbers its attempts from n - 1 times this."""


_ONLY_TERM = (
    "CASE WHEN json_valid(r.terms) AND (SELECT COUNT(*) FROM json_each(r.terms)) = 1"
    f" THEN json_extract(r.terms, '$.{TERM}') END"
)


@dataclass(frozen=True)
class Lineage:
    """What is wrong with the episodes of a job, and their counts."""

    findings: tuple[Finding, ...]
    counts: EpisodeCounts


@dataclass(frozen=True)
class _Trained:
    """A trained response, and the attempt that is tied to its update."""

    key: str
    attempt: int
    state: str
    digest: bytes | None
    given: float | None
    """The reward that the environment gave."""
    step: int
    version: int
    tokens: int
    held: bool
    reward: float | None
    term: float | None
    """The reward's only term, if it is the environment's."""
    row: tuple[int, ...]
    """Epoch, index, draw and sample of the response."""


def audit_episodes(db: sqlite3.Connection, asynchronous: bool) -> Lineage | None:
    """Audit the episodes of the remaining updates; None for a job without any."""
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not _has_episodes(db, tables):
        return None
    trained = _GROUPS if asynchronous else _ROUNDS
    tokens_of_all = db.execute(f"SELECT ifnull(SUM(tokens), 0) FROM ({trained})").fetchone()[0]
    if missing := sorted({"episodes", "turns"} - tables):
        told = f"is of a job with episodes, and has no table {' and none '.join(missing)}"
        return Lineage((Finding(Rule.DAMAGED, "file", told),), EpisodeCounts(unproved=tokens_of_all))
    findings = [*_ties(db, trained), *_attempts(db), *_filtered(db, asynchronous), *_nodes(db)]
    findings += _tool_calls(db) if "tool_calls" in tables else ()
    columns = {row[1] for row in db.execute("PRAGMA table_info(turns)")}
    findings += _unrepeated(db) if "resumption" in columns else ()
    proved = turns = tokens = 0
    for one in list(_tied(db, trained)):
        nodes = _nodes_of(db, one.attempt)
        sampled = [node for node in nodes if node.is_sampled]
        length = sum(len(node.tokens) for node in sampled)
        wrong = [*_response(db, one, nodes, length, asynchronous)]
        findings += [Finding(rule, one.key, _told(one, what)) for rule, what in wrong]
        if not wrong:
            proved, turns, tokens = proved + 1, turns + len(sampled), tokens + length
    states = dict(db.execute("SELECT ifnull(state, 'open'), COUNT(*) FROM episodes GROUP BY 1").fetchall())
    return Lineage(tuple(findings), EpisodeCounts(states, proved, turns, tokens, tokens_of_all - tokens))


def _has_episodes(db: sqlite3.Connection, tables: Collection[str]) -> bool:
    """Tell whether the job has episodes. Rows that are gone must not prove that there was nothing to prove.

    So three places are asked: the attempts, the last number that one was given, and the reports of rounds.
    """
    if "episodes" in tables and db.execute("SELECT 1 FROM episodes LIMIT 1").fetchone() is not None:
        return True
    if "sqlite_sequence" in tables:
        rows = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'episodes'").fetchall()
        if any(number % NUMBERS_A_TERM for (number,) in rows):
            return True
    if "report" not in {row[1] for row in db.execute("PRAGMA table_info(boundaries)")}:
        return False
    of_episodes = "CASE WHEN json_valid(report) THEN json_type(report, '$.episodes') END = 'object'"
    return db.execute(f"SELECT 1 FROM boundaries WHERE {of_episodes} LIMIT 1").fetchone() is not None


def _told(one: _Trained, what: str) -> str:
    return (
        f"attempt {one.attempt} {what}. Update {one.step} trained on it: continue from a checkpoint before that update"
    )


def _tied(db: sqlite3.Connection, trained: str) -> Iterator[_Trained]:
    rows = db.execute(
        f"SELECT {_KEY}, e.id, ifnull(e.state, 'open'), e.loss, e.reward, r.step, r.version, ifnull(r.tokens, 0),"
        f" r.held, CAST(r.reward AS REAL), {_ONLY_TERM},"
        f" r.epoch, r.idx, r.draw, r.sample FROM ({trained}) AS r JOIN episodes AS e ON {_IS_KEY} AND e.step = r.step"
        " ORDER BY e.id"
    )
    for key, attempt, state, digest, given, step, version, tokens, held, reward, term, *row in rows:
        yield _Trained(key, attempt, state, digest, given, step, version, tokens, bool(held), reward, term, tuple(row))


def _ties(db: sqlite3.Connection, trained: str) -> Iterator[Finding]:
    """Check that each trained response has one attempt, and that no other attempt was trained on.

    All responses of a job with environments are episodes: one without any attempt has no origin either.
    """
    rows = db.execute(
        f"SELECT {prompt_sql('r')} || '.' || r.sample, r.step, SUM(e.step IS r.step)"
        f" FROM ({trained}) AS r LEFT JOIN episodes AS e ON {_IS_KEY}"
        " GROUP BY r.epoch, r.idx, r.sample, r.step HAVING SUM(e.step IS r.step) <> 1"
    )
    for key, step, attempts in rows:
        if attempts:
            yield Finding(Rule.TWICE, key, f"is trained on by update {step} from {attempts} attempts")
        else:
            told = f"is trained on by update {step}, and from none of its attempts: its tokens have no origin"
            yield Finding(Rule.LINEAGE, key, f"{told}. Continue from a checkpoint before that update")
    rows = db.execute(
        f"SELECT {_KEY}, e.id, e.step FROM episodes AS e WHERE e.step IS NOT NULL AND NOT EXISTS"
        f" (SELECT 1 FROM ({trained}) AS r WHERE {_IS_KEY} AND r.step = e.step)"
    )
    for key, attempt, step in rows:
        told = f"attempt {attempt} is tied to update {step}, which did not train on this response"
        yield Finding(Rule.UNFOUNDED, key, told)


def _attempts(db: sqlite3.Connection) -> Iterator[Finding]:
    """Check that no failure of ours has a reward: it would teach that the answers were wrong."""
    rows = db.execute(
        f"SELECT {_KEY}, e.id, e.reward FROM episodes AS e WHERE e.reward IS NOT NULL"
        " AND (e.state IS NULL OR e.state = 'aborted')"
    )
    for key, attempt, reward in rows:
        yield Finding(Rule.UNFOUNDED, key, f"attempt {attempt} was aborted or is open, and has the reward {reward}")


def _filtered(db: sqlite3.Connection, asynchronous: bool) -> Iterator[Finding]:
    """Check that a group which was filtered for failing environments has an attempt that failed.

    An attempt that was not needed any more has not failed, nor has one that its runner handed back, up to a bound.
    """
    table, order = ("groups", "draw") if asynchronous else ("prompts", "step")
    of_group = "SELECT 1 FROM episodes AS a WHERE a.epoch = e.epoch AND a.idx = e.idx AND a.state = 'aborted'"
    rows = db.execute(
        f"SELECT {prompt_sql('e')}, e.{order} FROM {table} AS e WHERE e.fate = 'filtered' AND e.reason = ?"
        f" AND NOT EXISTS ({of_group} AND a.cause NOT IN (?, ?))"
        f" AND NOT EXISTS ({of_group} AND a.cause = ? GROUP BY a.sample HAVING COUNT(*) > {MOST_HAND_BACKS})",
        (ENVIRONMENT_FAILED, NOT_NEEDED, RUNNER_LEFT, RUNNER_LEFT),
    )
    for key, place in rows:
        told = f"is filtered in {order} {place} because its environment failed, and none of its attempts failed"
        yield Finding(Rule.UNFOUNDED, key, told)


_WRONG_NODES: tuple[tuple[Rule, str, str], ...] = (
    (
        Rule.TWICE,
        "'is stored ' || COUNT(*) || ' times'",
        "TRUE GROUP BY t.episode, t.node HAVING COUNT(*) > 1",
    ),
    (
        Rule.UNEQUAL,
        "'has ' || length(t.tokens) / 4.0 || ' tokens and ' || ifnull(length(t.logprobs), 0) / 4.0 || ' logprobs'",
        "length(t.tokens) = 0 OR length(t.tokens) % 4 <> 0 OR ifnull(length(t.logprobs), 0)"
        " <> CASE t.kind WHEN 'sampled' THEN length(t.tokens) ELSE 0 END",
    ),
    (
        Rule.UNFOUNDED,
        "'hangs below node ' || t.parent || ', which was not stored before it or was cut'",
        "t.parent <> 0 AND NOT EXISTS (SELECT 1 FROM turns AS p WHERE p.episode = t.episode AND p.node = t.parent"
        " AND p.number < t.number AND p.finish IS NOT 'length')",
    ),
    (
        Rule.MIXED,
        "'is of version ' || ifnull(t.version, 'none') || ', which was never published'",
        "t.kind = 'sampled' AND NOT EXISTS (SELECT 1 FROM versions AS v WHERE v.version = t.version)",
    ),
    (
        Rule.MIXED,
        "'is of version ' || t.version || ', and a newer one generated an earlier turn'",
        "t.kind = 'sampled' AND EXISTS (SELECT 1 FROM turns AS p WHERE p.episode = t.episode AND p.number < t.number"
        " AND p.version > t.version)",
    ),
)


def _nodes(db: sqlite3.Connection) -> Iterator[Finding]:
    for rule, told, where in _WRONG_NODES:
        for key, attempt, node, what in db.execute(_NODES.format(told=told, where=where)):
            yield Finding(rule, key, f"node {node} of attempt {attempt} {what}")


def _tool_calls(db: sqlite3.Connection) -> Iterator[Finding]:
    """Check that a stored call of a tool had its effect once, and follows from a stored turn."""
    rows = db.execute(
        f"SELECT {_KEY}, e.id, c.node, c.place, c.executions, EXISTS (SELECT 1 FROM turns AS t"
        " WHERE t.episode = e.id AND t.node = c.node AND t.kind = 'sampled')"
        " FROM tool_calls AS c JOIN episodes AS e ON e.id = c.episode ORDER BY c.number"
    )
    for key, attempt, node, place, executions, has_turn in rows:
        what = f"call {place} of turn {node} of attempt {attempt}"
        if executions != 1:
            yield Finding(Rule.TWICE, key, f"{what} was executed {executions} times, and it was stored after the first")
        if not has_turn:
            yield Finding(Rule.UNFOUNDED, key, f"{what} follows from a turn that is not stored")


def _unrepeated(db: sqlite3.Connection) -> Iterator[Finding]:
    """Check that the program which ended an attempt has asked for all of its turns: the reward is of that program."""
    rows = db.execute(
        f"SELECT {_KEY}, e.id, t.node, t.resumption, e.resumption"
        " FROM turns AS t JOIN episodes AS e ON e.id = t.episode"
        " WHERE e.state IN ('completed', 'truncated') AND t.resumption IS NOT NULL AND t.resumption IS NOT e.resumption"
    )
    for key, attempt, node, asked, ended in rows:
        told = f"node {node} of attempt {attempt} was asked for by the program of resumption {asked}"
        yield Finding(Rule.UNFOUNDED, key, f"{told}, and the program of resumption {ended} ended the attempt")


@dataclass(frozen=True)
class _Node:
    """A node of an attempt. Lengths that are no number of values are findings of their own."""

    id: int
    parent: int
    tokens: array[int]
    logprobs: array[float]
    version: int | None
    is_sampled: bool


def _nodes_of(db: sqlite3.Connection, attempt: int) -> list[_Node]:
    """Return the nodes of an attempt, in the order of their commits."""
    rows = db.execute(
        "SELECT node, parent, CAST(tokens AS BLOB), CAST(ifnull(logprobs, x'') AS BLOB), version, kind FROM turns"
        " WHERE episode = ? ORDER BY number",
        (attempt,),
    )
    return [
        _Node(node, parent, _values("i", tokens), _values("f", logprobs), version, kind == "sampled")
        for node, parent, tokens, logprobs, version, kind in rows
    ]


def _values(typecode: Literal["i", "f"], raw: bytes) -> array[Any]:
    return array(typecode, raw[: len(raw) // 4 * 4])


def _response(
    db: sqlite3.Connection, one: _Trained, nodes: list[_Node], length: int, asynchronous: bool
) -> Iterator[tuple[Rule, str]]:
    """Compare a trained response with the nodes of its attempt."""
    if one.state not in ("completed", "truncated"):
        yield Rule.LINEAGE, f"is {one.state}, and only one that was completed or truncated counts"
    tokens, logprobs = array("i"), array("f")
    for node in nodes:
        if node.is_sampled:
            tokens.extend(node.tokens)
            logprobs.extend(node.logprobs)
    if isinstance(one.digest, bytes) and len(one.digest) == OF_TOKENS_BYTES:
        if loss_digest(tokens, logprobs) != one.digest:
            yield Rule.LINEAGE, "has other sampled tokens or log-probabilities than those that were trained on"
    elif trained_digest(_in_contexts(nodes), one.reward or 0.0) != one.digest:
        yield Rule.LINEAGE, "is not what was trained on: tokens, their places, log-probabilities or the reward differ"
    if one.tokens != length:
        yield Rule.LINEAGE, f"has {length} sampled tokens, and {one.tokens} were trained on"
    if one.held and _held(db, one) != (tokens, logprobs):
        yield Rule.LINEAGE, "has other sampled tokens or log-probabilities than the response in the store"
    if one.term is not None and one.given not in (None, one.term):
        yield Rule.LINEAGE, f"has the reward {one.given} of its environment, and its only rule counts {one.term}"
    for node in nodes:
        version = node.version
        if version is not None and (version < one.version if asynchronous else version != one.version):
            yield Rule.MIXED, f"has version {version} at node {node.id}, and the response has version {one.version}"


def _in_contexts(nodes: list[_Node]) -> Iterator[bytes]:
    """Return a digest of each sampled node, with all tokens before it. A node without its parent is a finding."""
    after = {0: Context()}
    for node in nodes:
        context = after.get(node.parent, after[0])
        if node.is_sampled:
            yield context.sampled(node.tokens, node.logprobs)
        after[node.id] = context.extended(node.tokens)


def _held(db: sqlite3.Connection, one: _Trained) -> tuple[array[int], array[float]]:
    rows = db.execute(
        "SELECT tokens, logprobs FROM experience_chunks WHERE epoch = ? AND idx = ? AND draw = ? AND sample = ?"
        " ORDER BY start",
        one.row,
    ).fetchall()
    return array("i", b"".join(row[0] for row in rows)), array("f", b"".join(row[1] for row in rows))
