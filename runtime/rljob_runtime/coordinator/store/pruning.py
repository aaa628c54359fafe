"""Pruning: deletes the oldest rounds (or updates) that no recovery needs.

A kept round takes some 92 bytes per response. Of a pruned round only sums are kept (`pruned`), so that an audit still
knows how many prompts were drawn, trained on and filtered, and how many tokens were trained on. Rounds are pruned
oldest first, without a gap: from the first remaining boundary on, rows tell the complete history.
"""

from __future__ import annotations

import json
import sqlite3

from rljob_runtime.audit.stored_keys import prompt_sql
from rljob_runtime.coordinator.store.tables import attempts

ORIGIN = "origin"
"""Key in `meta`: step and cursor (epoch, position, sources) of the boundary at which the history began, once a round
was pruned."""


def forget_sums(db: sqlite3.Connection) -> None:
    """Clear the sums for a new history, within the caller's transaction."""
    db.execute("DELETE FROM pruned")
    db.execute("DELETE FROM meta WHERE key = ?", (ORIGIN,))
    db.execute("UPDATE versions SET trained = 0 WHERE trained")


def prune(db: sqlite3.Connection, keep: int) -> bool:
    """Prune the oldest round and its boundary, if there are more than `keep` and no recovery needs it.

    Runs within the caller's transaction. Returns False if there is none to prune."""
    first, epoch, position, sources, last = db.execute(
        "SELECT step, epoch, position, sources, (SELECT MAX(step) FROM boundaries) FROM boundaries"
        " ORDER BY step LIMIT 1"
    ).fetchone() or (0, 0, 0, "[]", 0)
    if last - first <= keep:
        return False
    asynchronous = db.execute("SELECT 1 FROM pool").fetchone() is not None
    step = first + 1
    if not (_prune_update(db, step) if asynchronous else _prune_round(db, step)):
        return False
    db.execute("INSERT OR IGNORE INTO meta VALUES (?, ?)", (ORIGIN, json.dumps([first, epoch, position, sources])))
    _keep_anchors(db, first, step)
    attempts.prune_evaluations(db, first)
    db.execute("DELETE FROM boundaries WHERE step = ?", (first,))
    return True


def _prune_round(db: sqlite3.Connection, step: int) -> bool:
    """Prune a round of `mode: OnPolicy`, unless one of its prompts is requeued: its attempts must keep rising."""
    waits = db.execute(
        "SELECT 1 FROM prompts AS p WHERE step = ? AND fate = 'requeued' AND NOT EXISTS"
        " (SELECT 1 FROM prompts WHERE epoch = p.epoch AND idx = p.idx AND step > p.step) LIMIT 1",
        (step,),
    ).fetchone()
    if waits is not None:
        return False
    db.execute(
        "UPDATE versions SET trained = 1 WHERE version IN"
        " (SELECT version FROM trajectories WHERE step = ? AND outcome = 'trained')",
        (step,),
    )
    db.execute(
        "INSERT INTO pruned SELECT ?1, epoch, COUNT(*), SUM(NOT queued), SUM(fate = 'trained'), SUM(fate = 'filtered'),"
        " SUM(trajectories), SUM(tokens), MAX(idx) FROM (SELECT p.epoch, p.idx, p.fate,"
        f" {prompt_sql('p')} IN (SELECT value FROM boundaries, json_each(long_queue) WHERE step = ?1 - 1)"
        " AS queued,"
        " (SELECT COUNT(*) FROM trajectories AS t WHERE t.step = ?1 AND t.epoch = p.epoch AND t.idx = p.idx"
        " AND outcome = 'trained') AS trajectories,"
        " (SELECT ifnull(SUM(tokens), 0) FROM trajectories AS t WHERE t.step = ?1 AND t.epoch = p.epoch"
        " AND t.idx = p.idx AND outcome = 'trained') AS tokens FROM prompts AS p WHERE p.step = ?1) GROUP BY epoch",
        (step,),
    )
    attempts.prune_round(db, step)
    db.execute("DELETE FROM rounds WHERE step = ?", (step,))
    return True


def _prune_update(db: sqlite3.Connection, step: int) -> bool:
    """Prune an update of `mode: Asynchronous`, unless its tokens wait for a checkpoint.

    It deletes the prompts that the update trained on, with all their draws, and those filtered before the last of these
    draws."""
    held = db.execute(
        "SELECT 1 FROM groups AS g JOIN experience_chunks USING (epoch, idx, draw) WHERE g.step = ? LIMIT 1", (step,)
    ).fetchone()
    if held is not None:
        return False
    newest = db.execute("SELECT MAX(drawn) FROM groups WHERE step = ?", (step,)).fetchone()[0]
    gone = (
        "SELECT epoch, idx FROM groups WHERE step = ?1 AND fate = 'trained'"
        " UNION ALL SELECT epoch, idx FROM groups WHERE fate = 'filtered' AND drawn <= ?2"
    )
    db.execute("CREATE TEMP TABLE IF NOT EXISTS going (epoch INTEGER, idx INTEGER, PRIMARY KEY (epoch, idx))")
    db.execute("DELETE FROM going")
    db.execute(f"INSERT INTO going {gone}", (step, newest))
    db.execute("UPDATE versions SET trained = 1 WHERE version IN (SELECT version FROM groups WHERE step = ?)", (step,))
    trained = "FROM samples AS s WHERE s.epoch = g.epoch AND s.idx = g.idx AND s.draw = g.draw AND g.fate = 'trained'"
    db.execute(
        "INSERT INTO pruned SELECT ?, epoch, COUNT(*), SUM(draw = 0 AND version IS NOT NULL), SUM(fate = 'trained'),"
        f" SUM(fate = 'filtered'), SUM((SELECT COUNT(*) {trained})), SUM((SELECT ifnull(SUM(tokens), 0) {trained})),"
        " MAX(idx) FROM going JOIN groups AS g USING (epoch, idx) GROUP BY epoch",
        (step,),
    )
    attempts.prune_prompts(db, "going")
    db.execute("DELETE FROM groups WHERE (epoch, idx) IN (SELECT epoch, idx FROM going)")
    return True


def _keep_anchors(db: sqlite3.Connection, first: int, step: int) -> None:
    """Transfer anchors of the pruned boundary to the next one, unless that has newer ones."""
    db.execute(
        "DELETE FROM anchors WHERE step = ?1 AND EXISTS (SELECT 1 FROM anchors AS newer"
        " WHERE newer.rule = anchors.rule AND newer.test = anchors.test AND newer.step = ?2)",
        (first, step),
    )
    db.execute("UPDATE anchors SET step = ? WHERE step = ?", (step, first))
