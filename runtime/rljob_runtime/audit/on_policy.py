"""On-policy audit: rounds, their drawn prompts, and the prompts' responses."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, pairwise

from rljob_runtime.audit.findings import AuditResult, Finding, Rule
from rljob_runtime.audit.pruned import versions
from rljob_runtime.audit.stored_keys import cursor_of, prompt_of, prompt_sql
from rljob_runtime.audit.updates import Updates, passed_over
from rljob_runtime.protocols.trajectory import Cursor, PromptKey

_KEY = f"{prompt_sql('t')} || '.' || t.sample"
_CLOSED = "t.step <= (SELECT MAX(step) FROM boundaries)"


def audit_rounds(db: sqlite3.Connection, updates: Updates) -> AuditResult:
    """Audit the complete history."""
    drawn = _drawn(db)
    findings = [
        *updates.gaps(step for (step,) in db.execute(f"SELECT step FROM rounds AS t WHERE {_CLOSED}")),
        *_rounds(db, updates),
        *(finding for prompt, draws in drawn.items() for finding in _prompt(prompt, draws, updates)),
        *_queue(drawn, updates),
        *passed_over(db, drawn.keys() - updates.waited, updates, _cursor(db, updates)),
        *_shares(db),
        *_responses(db),
        *_tokens(db),
    ]
    where = Counter(outcome or "open" for outcome in (draws[-1][1] for draws in drawn.values()))
    kept = "FROM trajectories WHERE outcome = 'trained'"
    trained = db.execute(f"SELECT COUNT(*), ifnull(SUM(tokens), 0) {kept}").fetchone()
    pruned = updates.pruned
    return AuditResult(
        mode="OnPolicy",
        began=updates.began,
        ended=updates.ended,
        kept=updates.kept,
        prompts=dict(where + Counter(pruned.fates)),
        draws=pruned.draws + sum(map(len, drawn.values())),
        trajectories=pruned.trajectories + trained[0],
        tokens=pruned.tokens + trained[1],
        versions=versions(db, f"SELECT version {kept}"),
        skipped=updates.skipped,
        findings=tuple(findings),
    )


Draws = list[tuple[int, str | None, str | None]]
"""(step, outcome, reason), by step."""


def _drawn(db: sqlite3.Connection) -> dict[PromptKey, Draws]:
    rows = db.execute("SELECT epoch, idx, step, fate, reason FROM prompts ORDER BY epoch, idx, step")
    return {
        prompt_of(db, *key): [(step, outcome, reason) for _, _, step, outcome, reason in draws]
        for key, draws in groupby(rows, key=lambda row: row[:2])
    }


def _shares(db: sqlite3.Connection) -> Iterator[Finding]:
    """Check that each closed round trained on the groups that it had planned of each named source.

    Filtered prompts may leave fewer, when the round has drawn all that it may."""
    races = db.execute(f"SELECT step, races FROM rounds AS t WHERE {_CLOSED} AND races <> '[]'").fetchall()
    for step, text in races:
        trained, filtered = Counter[str](), Counter[str]()
        for epoch, index, fate in db.execute("SELECT epoch, idx, fate FROM prompts WHERE step = ?", (step,)):
            source = prompt_of(db, epoch, index).source
            trained[source] += fate == "trained"
            filtered[source] += fate == "filtered"
        for name, _, groups in json.loads(text):
            found = trained.pop(name, 0)
            if found > groups or (found < groups and not filtered[name]):
                told = f"trained on {found} groups of {name}; its share is {groups}"
                yield Finding(Rule.SHARE, f"update {step}", told)
        for name in sorted(+trained):
            told = f"trained on {trained[name]} groups of {name}, which has no share"
            yield Finding(Rule.SHARE, f"update {step}", told)


def _cursor(db: sqlite3.Connection, updates: Updates) -> Cursor:
    """Return the position of the next fresh prompt: that of the open round, if any."""
    row = db.execute(
        "SELECT epoch, position, sources FROM rounds WHERE step > ? ORDER BY step DESC LIMIT 1", (updates.ended,)
    ).fetchone()
    return cursor_of(*row) if row else updates.last


def _rounds(db: sqlite3.Connection, updates: Updates) -> Iterator[Finding]:
    rows = db.execute("SELECT step FROM rounds WHERE step > ?", (updates.ended + 1,))
    for (step,) in rows:
        yield Finding(Rule.GAP, f"update {step}", f"is open, and {updates.ended} is the last that is done")
    unknown = db.execute("SELECT step, version FROM rounds WHERE version NOT IN (SELECT version FROM versions)")
    for step, version in unknown:
        yield Finding(Rule.MIXED, f"update {step}", f"is of version {version}, which was never published")


def _prompt(prompt: PromptKey, draws: Draws, updates: Updates) -> Iterator[Finding]:
    """Check that all draws but the last were requeued, and that the last one ended or waits."""
    for step, outcome, reason in draws:
        if outcome in ("filtered", "requeued") and not reason:
            yield Finding(Rule.UNFOUNDED, str(prompt), f"is {outcome} by update {step} for no reason")
        if outcome is None and step <= updates.ended:
            yield Finding(Rule.LOST, str(prompt), f"has no outcome, and update {step} is done")
        if outcome is not None and step > updates.ended:
            yield Finding(Rule.UNFOUNDED, str(prompt), f"is {outcome} by update {step}, which is not done")
    for (step, outcome, _), (again, *_) in pairwise(draws):
        if outcome != "requeued":
            told = f"is {outcome or 'open'} by update {step}, and drawn again for update {again}"
            yield Finding(Rule.TWICE, str(prompt), told)


def _queue(drawn: dict[PromptKey, Draws], updates: Updates) -> Iterator[Finding]:
    """Check that the queue contains exactly the waiting prompts."""
    for prompt, draws in drawn.items():
        step, outcome, _ = draws[-1]
        waits = prompt in updates.waits
        if outcome == "requeued" and not waits:
            yield Finding(Rule.LOST, str(prompt), f"was requeued by update {step}, and does not wait to be drawn")
        if outcome in ("trained", "filtered") and waits:
            yield Finding(Rule.TWICE, str(prompt), f"is {outcome} by update {step}, and waits to be drawn again")
    for prompt in sorted(updates.waited - updates.waits - drawn.keys()):
        yield Finding(Rule.LOST, str(prompt), f"waited at update {updates.kept}, and was never drawn again")
    for prompt in sorted(updates.waits - updates.waited - drawn.keys()):
        yield Finding(Rule.UNFOUNDED, str(prompt), "waits to be drawn again, and was never drawn")


_SAME = "p.step = t.step AND p.epoch = t.epoch AND p.idx = t.idx"
_ASSIGNED = "a.step = t.step AND a.epoch = t.epoch AND a.idx = t.idx AND a.sample = t.sample"
_RESPONSES: tuple[tuple[Rule, str, str], ...] = (
    (
        Rule.TWICE,
        "'is trained on by updates ' || group_concat(t.step)",
        "t.outcome = 'trained' GROUP BY t.epoch, t.idx, t.sample HAVING COUNT(*) > 1",
    ),
    (Rule.LOST, "'has no outcome, and update ' || t.step || ' is done'", f"t.outcome IS NULL AND {_CLOSED}"),
    (Rule.UNFOUNDED, "'is discarded for no reason'", "t.outcome = 'discarded' AND ifnull(t.reason, '') = ''"),
    (
        Rule.UNFOUNDED,
        "'is trained on without its end, its reward or a token'",
        "t.outcome = 'trained' AND (t.finish IS NULL OR t.reward IS NULL OR t.tokens = 0)",
    ),
    (
        Rule.UNFOUNDED,
        "'is trained on, and was not assigned to update ' || t.step",
        f"t.outcome = 'trained' AND NOT EXISTS (SELECT 1 FROM assigned AS a WHERE {_ASSIGNED})",
    ),
    (
        Rule.LOST,
        "'was assigned to update ' || t.step || ', and is not trained on'",
        f"{_CLOSED} AND t.outcome IS NOT 'trained' AND EXISTS (SELECT 1 FROM assigned AS a WHERE {_ASSIGNED})",
    ),
    (
        Rule.UNFOUNDED,
        "'is trained on, and its prompt is not'",
        f"t.outcome = 'trained' AND NOT EXISTS (SELECT 1 FROM prompts AS p WHERE {_SAME} AND fate = 'trained')",
    ),
    (
        Rule.MIXED,
        "'is of version ' || ifnull(t.version, 'none') || ', and update ' || t.step || ' of ' || r.version",
        "t.version IS NOT r.version AND (t.version IS NOT NULL OR t.outcome = 'trained')",
    ),
)


def _responses(db: sqlite3.Connection) -> Iterator[Finding]:
    for rule, told, where in _RESPONSES:
        query = f"SELECT {_KEY}, {told} FROM trajectories AS t LEFT JOIN rounds AS r USING (step) WHERE {where}"
        for key, what in db.execute(query):
            yield Finding(rule, key, what)
    attempts = db.execute(
        f"SELECT key, step, attempt, before FROM (SELECT {_KEY} AS key, step, attempt, lag(attempt) OVER"
        " (PARTITION BY epoch, idx, sample ORDER BY step) AS before FROM trajectories AS t) WHERE attempt < before"
    )
    for key, step, attempt, before in attempts:
        yield Finding(Rule.TWICE, key, f"has attempt {attempt} in update {step}, and had {before} before")
    short = db.execute(
        f"SELECT {prompt_sql('t')}, COUNT(*), r.group_size, t.step FROM trajectories AS t JOIN rounds AS r"
        f" USING (step) JOIN prompts AS p ON {_SAME} WHERE p.fate = 'trained' AND t.outcome = 'trained'"
        " GROUP BY t.step, t.epoch, t.idx HAVING COUNT(*) <> r.group_size"
    )
    for key, count, size, step in short:
        yield Finding(Rule.LOST, key, f"is trained on with {count} of {size} responses by update {step}")
    none = db.execute(
        f"SELECT {prompt_sql('p')}, p.step FROM prompts AS p WHERE p.fate = 'trained' AND NOT EXISTS"
        f" (SELECT 1 FROM trajectories AS t WHERE {_SAME} AND t.outcome = 'trained')"
    )
    for key, step in none:
        yield Finding(Rule.LOST, key, f"is trained on without a response by update {step}")


def _tokens(db: sqlite3.Connection) -> Iterator[Finding]:
    """Check tokens of responses in progress: int32 ids, float64 log-probabilities."""
    rows = db.execute(
        f"SELECT {prompt_sql()} || '.' || sample, start, length(tokens) / 4.0, length(logprobs) / 8.0,"
        " lag(start + length(tokens) / 4, 1, 0) OVER (PARTITION BY step, epoch, idx, sample ORDER BY start) AS due"
        " FROM chunks"
    )
    for key, start, tokens, logprobs, due in rows:
        if tokens != logprobs:
            yield Finding(Rule.UNEQUAL, key, f"from {start} there are {tokens:g} tokens, {logprobs:g} logprobs")
        if start != due:
            yield Finding(Rule.UNEQUAL, key, f"goes on at token {start}; {due} are there")
