"""Reward terms: the values of reward rules of a round's responses, as the store holds them."""

from __future__ import annotations

import json
import sqlite3

from rljob_runtime.audit.stored_keys import prompt_of
from rljob_runtime.protocols.rewards import Terms
from rljob_runtime.protocols.trajectory import TrajectoryKey


def reward_terms(db: sqlite3.Connection, step: int) -> dict[TrajectoryKey, Terms]:
    """Return the terms of the scored responses of a round, or of the groups of an update.

    A response whose reward has no terms is absent."""
    rows = db.execute(
        "SELECT epoch, idx, sample, terms FROM trajectories WHERE step = ?1 AND terms IS NOT NULL"
        " UNION ALL SELECT s.epoch, s.idx, s.sample, s.terms FROM groups AS g CROSS JOIN samples AS s"
        " USING (epoch, idx, draw) WHERE g.step = ?1 AND s.terms IS NOT NULL",
        (step,),
    ).fetchall()
    return {
        TrajectoryKey(prompt_of(db, epoch, index), number): json.loads(terms) for epoch, index, number, terms in rows
    }
