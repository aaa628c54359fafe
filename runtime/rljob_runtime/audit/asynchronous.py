"""Asynchronous audit: groups from each draw of a prompt to its outcome, and their responses."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from rljob_runtime.audit.findings import AuditResult, Finding, Rule
from rljob_runtime.audit.pruned import versions
from rljob_runtime.audit.shares import share_findings
from rljob_runtime.audit.stored_keys import cursor_of, prompt_of, prompt_sql
from rljob_runtime.audit.updates import Updates, passed_over
from rljob_runtime.protocols.trajectory import Cursor, PromptKey, TrajectoryKey

_GROUP = "s.epoch = g.epoch AND s.idx = g.idx AND s.draw = g.draw"


@dataclass(frozen=True)
class Draw:
    """A row of `groups`."""

    number: int
    version: int | None
    ready: int | None
    step: int | None
    place: int | None
    outcome: str | None
    reason: str | None


def audit_groups(db: sqlite3.Connection, updates: Updates) -> AuditResult:
    """Audit the complete history."""
    drawn = _drawn(db)
    fresh = _fresh(drawn)
    cursor = cursor_of(*db.execute("SELECT epoch, position, sources FROM pool").fetchone())
    trained = {draw.step for draws in drawn.values() for draw in draws if draw.outcome == "trained" and draw.step}
    findings = [
        *updates.gaps(trained),
        *(finding for prompt, draws in drawn.items() for finding in _prompt(prompt, draws, updates)),
        *_places(drawn),
        *_versions(db),
        *passed_over(db, fresh, updates, cursor),
        *_shares(db, drawn, updates, cursor),
        *_samples(db),
        *_tokens(db),
    ]
    where = Counter(draws[-1].outcome or "open" for draws in drawn.values())
    held = "ifnull(tokens, ifnull((SELECT SUM(length(c.tokens)) / 4 FROM experience_chunks AS c WHERE c.epoch = s.epoch"
    held += " AND c.idx = s.idx AND c.draw = s.draw AND c.sample = s.sample), 0))"
    kept = f"FROM samples AS s JOIN groups AS g ON {_GROUP} WHERE g.fate = 'trained'"
    count, tokens = db.execute(f"SELECT COUNT(*), ifnull(SUM({held}), 0) {kept}").fetchone()
    pruned = updates.pruned
    return AuditResult(
        mode="Asynchronous",
        began=updates.began,
        ended=updates.ended,
        kept=updates.kept,
        prompts=dict(where + Counter(pruned.fates)),
        draws=pruned.draws + sum(map(len, drawn.values())),
        trajectories=pruned.trajectories + count,
        tokens=pruned.tokens + tokens,
        versions=versions(db, f"SELECT g.version {kept}"),
        skipped=updates.skipped,
        findings=tuple(findings),
    )


def _drawn(db: sqlite3.Connection) -> dict[PromptKey, list[Draw]]:
    rows = db.execute(
        "SELECT epoch, idx, draw, version, ready, step, place, fate, reason FROM groups ORDER BY epoch, idx, draw"
    )
    return {
        prompt_of(db, *key): [Draw(*row[2:]) for row in draws] for key, draws in groupby(rows, key=lambda row: row[:2])
    }


def _fresh(drawn: dict[PromptKey, list[Draw]]) -> list[PromptKey]:
    """Return the prompts that the cursor drew; others waited where the history began."""
    return [prompt for prompt, draws in drawn.items() if draws[0].version is not None]


def _shares(
    db: sqlite3.Connection, drawn: dict[PromptKey, list[Draw]], updates: Updates, cursor: Cursor
) -> Iterator[Finding]:
    """Check the counts of named sources, with those of pruned updates."""
    if not cursor.sources:
        return
    fresh = Counter(prompt.source for prompt in _fresh(drawn))
    filtered = Counter(prompt.source for prompt, draws in drawn.items() if draws[-1].outcome == "filtered")
    for counts, pruned in ((fresh, updates.pruned.fresh), (filtered, updates.pruned.filtered)):
        for epoch, count in pruned.items():
            counts[prompt_of(db, epoch, 0).source] += count
    yield from share_findings(updates.first, cursor, fresh, filtered)


def _prompt(prompt: PromptKey, draws: list[Draw], updates: Updates) -> Iterator[Finding]:
    """Check a prompt: one open group at a time, all draws but the last requeued, trained on once by a closed update."""
    key = str(prompt)
    if [draw.number for draw in draws] != list(range(len(draws))):
        yield Finding(Rule.GAP, key, f"has draws {', '.join(str(draw.number) for draw in draws)}")
    for draw in draws[:-1]:
        if draw.outcome != "requeued":
            told = f"is {draw.outcome or 'open'} by draw {draw.number}, and drawn again"
            yield Finding(Rule.TWICE, key, told)
    if sum(draw.outcome == "trained" for draw in draws) > 1:
        yield Finding(Rule.TWICE, key, f"is trained on by updates {', '.join(str(draw.step) for draw in draws)}")
    for draw in draws:
        yield from (Finding(rule, key, f"{what} (draw {draw.number})") for rule, what in _draw(draw, updates))


def _draw(draw: Draw, updates: Updates) -> Iterator[tuple[Rule, str]]:
    if draw.outcome in ("filtered", "requeued"):
        if not draw.reason:
            yield Rule.UNFOUNDED, f"is {draw.outcome} for no reason"
        if draw.step is not None:
            yield Rule.TWICE, f"is {draw.outcome}, and assigned to update {draw.step}"
    if draw.outcome == "trained":
        if draw.step is None or not updates.began < draw.step <= updates.ended:
            yield Rule.UNFOUNDED, f"is trained on by update {draw.step}, which is not done"
        if draw.ready is None:
            yield Rule.UNFOUNDED, "is trained on, and was never ready"
    if draw.outcome is None and draw.step is not None and draw.step != updates.ended + 1:
        yield Rule.LOST, f"is assigned to update {draw.step}, and {updates.ended} is the last that is done"
    if draw.version is None and draw.outcome != "requeued":
        yield Rule.MIXED, "has no weight version"


def _places(drawn: dict[PromptKey, list[Draw]]) -> Iterator[Finding]:
    """Check that an update's groups have places from 0."""
    places: dict[int, list[int]] = {}
    for draws in drawn.values():
        for draw in draws:
            if draw.step is not None:
                places.setdefault(draw.step, []).append(-1 if draw.place is None else draw.place)
    for step, found in sorted(places.items()):
        if sorted(found) != list(range(len(found))):
            yield Finding(Rule.GAP, f"update {step}", f"has groups at {', '.join(map(str, sorted(found)))}")


def _versions(db: sqlite3.Connection) -> Iterator[Finding]:
    """Check that versions exist before they generate, and before the update that trains on them.

    Versions of a lost history have no place in this one's order."""
    rows = db.execute(
        f"SELECT {prompt_sql('g')}, g.version, g.step, v.step, v.lost FROM groups AS g"
        " LEFT JOIN versions AS v USING (version) WHERE g.version IS NOT NULL AND (v.version IS NULL OR"
        " (g.fate = 'trained' AND NOT v.lost AND v.step >= g.step))"
    )
    for key, version, step, made, _ in rows:
        if made is None:
            yield Finding(Rule.MIXED, key, f"is of version {version}, which was never published")
        else:
            told = f"is of version {version}, of the weights after update {made}, and trained on by update {step}"
            yield Finding(Rule.MIXED, key, told)


_SAMPLES: tuple[tuple[Rule, str, str], ...] = (
    (
        Rule.UNFOUNDED,
        "'is ' || ifnull(g.fate, 'ready') || ' without its end or its reward'",
        "(g.fate = 'trained' OR (g.fate IS NULL AND g.ready IS NOT NULL)) AND (s.finish IS NULL OR s.reward IS NULL)",
    ),
    (
        Rule.UNFOUNDED,
        "'has a reward, and did not come to its end'",
        "s.reward IS NOT NULL AND s.finish IS NULL",
    ),
    (
        Rule.TWICE,
        "'has attempt ' || s.attempt || ' in draw ' || s.draw || ', and had a higher one before'",
        "EXISTS (SELECT 1 FROM samples AS o WHERE o.epoch = s.epoch AND o.idx = s.idx AND o.sample = s.sample"
        " AND o.draw < s.draw AND o.attempt > s.attempt)",
    ),
)


def _samples(db: sqlite3.Connection) -> Iterator[Finding]:
    for rule, told, where in _SAMPLES:
        query = f"SELECT {prompt_sql('s')} || '.' || s.sample, {told} FROM samples AS s JOIN groups AS g"
        for key, what in db.execute(f"{query} ON {_GROUP} WHERE {where}"):
            yield Finding(rule, key, what)
    rows = db.execute(
        f"SELECT {prompt_sql('g')}, g.draw, COUNT(s.sample), 1 + ifnull(MAX(s.sample), -1) FROM groups AS g"
        f" LEFT JOIN samples AS s ON {_GROUP} WHERE g.version IS NOT NULL GROUP BY g.epoch, g.idx, g.draw"
        " HAVING COUNT(s.sample) <> 1 + ifnull(MAX(s.sample), -1) OR COUNT(s.sample) = 0"
    )
    for key, draw, count, highest in rows:
        yield Finding(Rule.LOST, key, f"has {count} of {max(highest, 1)} responses or more (draw {draw})")


def _tokens(db: sqlite3.Connection) -> Iterator[Finding]:
    """Check tokens: int32 ids and float32 log-probabilities, until a checkpoint makes them superfluous."""
    sums: dict[tuple[int, int, int, int], int] = {}
    rows = db.execute(
        "SELECT epoch, idx, draw, sample, start, length(tokens) / 4.0, length(logprobs) / 4.0 FROM experience_chunks"
        " ORDER BY epoch, idx, draw, sample, start"
    )
    for *row, start, tokens, logprobs in rows:
        key, held = str(TrajectoryKey(prompt_of(db, *row[:2]), row[3])), sums.get(tuple(row), 0)
        if tokens != logprobs:
            yield Finding(Rule.UNEQUAL, key, f"from {start} there are {tokens:g} tokens, {logprobs:g} logprobs")
        if start != held:
            yield Finding(Rule.UNEQUAL, key, f"goes on at token {start}; {held} are there")
        sums[tuple(row)] = start + int(tokens)
    samples = db.execute(
        "SELECT s.epoch, s.idx, s.draw, s.sample, s.tokens, g.fate, s.finish FROM samples AS s JOIN groups AS g"
        f" ON {_GROUP} WHERE s.finish IS NOT NULL"
    )
    for *row, kept, outcome, _ in samples:
        key, held = str(TrajectoryKey(prompt_of(db, *row[:2]), row[3])), sums.get(tuple(row), 0)
        if kept is not None and held:
            yield Finding(Rule.UNEQUAL, key, f"has {held} tokens, and {kept} that are gone")
        elif not (kept or held) and outcome in (None, "trained"):
            yield Finding(Rule.UNEQUAL, key, "has come to its end without a token")
