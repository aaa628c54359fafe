"""Round lengths: how many tokens each complete response of a closed round has, read from the store.

Prompts that are generated again later are left out: their responses count in the round that ends them. In `mode:
Asynchronous` a filtered group belongs to the update that was under way when it was filtered."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from rljob_runtime.audit.stored_keys import prompt_of
from rljob_runtime.protocols.trajectory import PromptKey


@dataclass(frozen=True)
class ResponseLengths:
    """A prompt that ended in a round: whether it was trained on, and the tokens of its complete responses."""

    prompt: PromptKey
    kept: bool
    tokens: tuple[int, ...]


def round_lengths(db: sqlite3.Connection, step: int) -> list[ResponseLengths]:
    """Return the prompts of a closed round or update that have a complete response."""
    asynchronous = db.execute("SELECT 1 FROM pool").fetchone() is not None
    rows = db.execute(_OF_UPDATE if asynchronous else _OF_ROUND, {"step": step}).fetchall()
    found: dict[PromptKey, tuple[bool, list[int]]] = {}
    for epoch, index, trained, tokens in rows:
        found.setdefault(prompt_of(db, epoch, index), (bool(trained), []))[1].append(tokens)
    return [ResponseLengths(prompt, kept, tuple(tokens)) for prompt, (kept, tokens) in found.items()]


_ENDED = "fate IN ('trained', 'filtered')"
_OF_ROUND = (
    "SELECT epoch, idx, fate = 'trained', tokens FROM prompts JOIN trajectories USING (step, epoch, idx)"
    f" WHERE step = :step AND {_ENDED} AND finish IS NOT NULL AND tokens IS NOT NULL"
    " ORDER BY ordinal, sample"
)
_TOKENS = (
    "ifnull(s.tokens, (SELECT start + length(c.tokens) / 4 FROM experience_chunks AS c WHERE c.epoch = s.epoch"
    " AND c.idx = s.idx AND c.draw = s.draw AND c.sample = s.sample ORDER BY start DESC LIMIT 1))"
)
_OF_UPDATE = (
    f"SELECT epoch, idx, fate = 'trained', {_TOKENS} AS held FROM groups AS g"
    " JOIN samples AS s USING (epoch, idx, draw) WHERE finish IS NOT NULL AND held IS NOT NULL AND (g.step = :step"
    " OR (fate = 'filtered' AND ended = :step)) ORDER BY drawn, sample"
)
