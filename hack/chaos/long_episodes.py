"""Long episodes: what the store of a campaign says of episodes of many turns.

The store is read when the job has ended. The audit proves the tokens that were trained on. This module counts what
faults cost in attempts that were not trained on.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .history import store_below

FAULTS = (
    "replica-killed",
    "relay-killed",
    "node-off",
    "trainer-killed",
    "coordinator-killed",
    "coordinator-deleted",
    "gateway-killed",
    "runner-deleted",
    "runner-hung",
    "operator-killed",
)
"""Rows of such a campaign: a hundred of them, one after the other, take less than half an hour."""
LOSING_RUNNERS = frozenset({"runner-deleted", "runner-hung", "runner-cut"})
SETTLED = 1
"""Updates that must follow the first one after a fault. An update is a few long episodes here."""

_SAMPLED = "(SELECT ifnull(SUM(length(t.tokens) / 4), 0) FROM turns AS t WHERE t.episode = e.id AND t.kind = 'sampled')"
_TURNS = "(SELECT COUNT(*) FROM turns AS t WHERE t.episode = e.id AND t.kind = 'sampled')"
_LATER = (
    "EXISTS (SELECT 1 FROM episodes AS l WHERE l.epoch = e.epoch AND l.idx = e.idx AND l.sample = e.sample"
    " AND l.id > e.id)"
)
_LOST = (
    f"SELECT ifnull(e.cause, 'no end'), SUM({_SAMPLED}) FROM episodes AS e WHERE e.step IS NULL"
    f" AND ((e.state = 'aborted' AND e.cause <> 'not needed') OR {_LATER}) GROUP BY 1"
)
"""Tokens of attempts that failed, and of those that another attempt of the same response came after."""
_ZEROS = (
    "SELECT COUNT(*) FROM episodes AS e WHERE CASE WHEN e.step IS NULL AND ifnull(e.state, 'aborted') = 'aborted'"
    " THEN e.reward IS NOT NULL ELSE ifnull(e.state, 'aborted') = 'aborted' OR ifnull(e.reward, 0.0) = 0.0 END"
)
"""Attempts with a wrong reward. An attempt that was played to its end is wrong without a reward above 0. An attempt
that failed or is open is wrong if it has a reward, or was trained on."""
_LAST = "SELECT t.finish FROM turns AS t WHERE t.episode = e.id AND t.kind = 'sampled' ORDER BY t.node DESC LIMIT 1"
_SHORT = (
    f"SELECT e.id, {_TURNS}, e.state, e.reached, e.ended - e.started, ifnull(e.resumption, 0), ({_LAST})"
    f" FROM episodes AS e WHERE e.step IS NOT NULL AND {_TURNS} < ?"
)
_TRAINED_ZEROS = {
    "groups": "SELECT COUNT(*) FROM samples AS s JOIN groups AS g USING (epoch, idx, draw)"
    " WHERE g.fate = 'trained' AND ifnull(s.reward, 0.0) = 0.0",
    "trajectories": "SELECT COUNT(*) FROM trajectories WHERE outcome = 'trained' AND ifnull(reward, 0.0) = 0.0",
}
"""Responses that were trained on without a reward above 0, in either mode: no episode ends with less."""


@dataclass(frozen=True)
class LongEpisodes:
    """Episodes of a job.

    `episodes`, `turns`: trained on, with each token proved. `reencoded`: trained tokens of another origin. `short`:
    trained episodes of fewer turns than asked for, with how they ended. `calls`: of tools of ours, 0 where a program
    has its own. `lost`: sampled tokens of attempts that ended in vain, by cause. `pruned`: updates of which the store
    has sums only.
    """

    episodes: int = 0
    turns: int = 0
    reencoded: int = 0
    short: tuple[str, ...] = ()
    calls: int = 0
    calls_twice: int = 0
    fake_zeros: int = 0
    resumed: int = 0
    pruned: int = 0
    lost: dict[str, int] = field(default_factory=dict)

    @property
    def tokens_lost(self) -> int:
        """Sampled tokens of attempts that ended in vain."""
        return sum(self.lost.values())

    def __str__(self) -> str:
        twice = f"tool calls twice={self.calls_twice} " if self.calls else ""
        return (
            f"episodes={self.episodes} turns={self.turns} tokens lost={self.tokens_lost} "
            f"resumed={self.resumed} {twice}fake zeros={self.fake_zeros} reencoded={self.reencoded}"
        )


def read(folder: Path, verdict: dict[str, Any], turns: int) -> LongEpisodes:
    """Read the store below a folder, with the verdict of its audit. `turns`: that each episode should have.

    Without a store, or without episodes in it, all counts are 0.
    """
    proved = verdict.get("episodes")
    store = store_below(folder)
    if store is None or proved is None:
        return LongEpisodes()
    with closing(sqlite3.connect(f"{store.as_uri()}?mode=ro", uri=True)) as db:
        return LongEpisodes(
            episodes=proved["proved"],
            turns=proved["turns"],
            reencoded=proved["unproved"],
            short=tuple(_told(*row) for row in db.execute(_SHORT, (turns,))),
            calls=_count(db, "SELECT ifnull(SUM(executions), 0) FROM tool_calls"),
            calls_twice=_count(db, "SELECT ifnull(SUM(executions - 1), 0) FROM tool_calls"),
            fake_zeros=_fake_zeros(db),
            resumed=_count(db, "SELECT ifnull(SUM(resumption), 0) FROM episodes"),
            pruned=max(0, verdict["kept"] - verdict["began"]),
            lost={cause: tokens for cause, tokens in db.execute(_LOST) if tokens},
        )


def problems(
    found: LongEpisodes, least: int, loses_runners: bool, programs: bool = False, stateful: bool = False
) -> Iterator[str]:
    """Yield what a campaign of `least` long episodes must not have.

    `loses_runners`: whether it had such faults. `programs`: whether programs play the episodes, with their own tools.
    `stateful`: whether an episode that goes on with another runner executes its calls again.
    """
    if found.episodes < least:
        yield f"{found.episodes} episodes were trained on, and {least} are asked for"
    for told in found.short:
        yield f"a trained episode has too few turns: {told}"
    for cause, tokens in found.lost.items():
        yield f"{tokens} tokens are lost with attempts that ended: {cause}"
    if not found.calls and not programs:
        yield "no call of a tool is in the store, so that none can be said to be executed once"
    if stateful and loses_runners and not found.calls_twice:
        yield "no stored call was executed again, so that no episode was replayed"
    if found.calls_twice and not stateful:
        yield f"{found.calls_twice} stored calls of tools were executed again"
    if loses_runners and not found.resumed:
        done_again = "no program ran again" if programs else "no stored call could be executed again"
        yield f"no episode went on with another runner, so that {done_again}"
    if found.fake_zeros:
        yield f"{found.fake_zeros} responses have a reward that no episode earns"
    if found.reencoded:
        yield f"{found.reencoded} trained tokens have no proved origin"
    if found.pruned:
        yield f"{found.pruned} updates are pruned, so that their episodes cannot be counted"


def _told(attempt: int, turns: int, state: str, limit: str | None, seconds: float, resumption: int, finish: str) -> str:
    end = state if limit is None else f"{state} by its {limit}"
    return (
        f"attempt {attempt}, {turns} turns, {end} after {seconds:.0f} s, resumption {resumption}, last turn: {finish}"
    )


def _fake_zeros(db: sqlite3.Connection) -> int:
    attempts = _count(db, _ZEROS)
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return max(attempts, *(_count(db, query) for table, query in _TRAINED_ZEROS.items() if table in tables))


def _count(db: sqlite3.Connection, query: str, *given: int) -> int:
    return int(db.execute(query, given).fetchone()[0])
