"""Migrations: converts stores of earlier formats when they are opened. A job outlives its runtime's version.

The text of a step never changes. Triggers are not part of a step: the present ones are created again. A migration is
one transaction, so a crash leaves the former store. Trained, drawn and queued prompts are preserved.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable

from rljob_runtime.coordinator.store.schema.core import FORMAT
from rljob_runtime.coordinator.store.schema.episode_migrations import (
    add_episodes,
    add_tool_calls,
    keep_answers_and_seconds,
    keep_digests_of_contexts,
    keep_pauses,
    keep_refusing_limits,
    keep_when_turns_are_asked_for,
    keep_who_asked_for_turns,
)

_IDENTITY = "step INTEGER NOT NULL, epoch INTEGER NOT NULL, idx INTEGER NOT NULL"
_UNDER_WAY = "step > (SELECT COALESCE(MAX(step), 0) FROM boundaries)"


def migrate(db: sqlite3.Connection, version: int, triggers: Iterable[str], tell: Callable[[str], None]) -> None:
    """Migrate from format `version` (1 or more) to the present one.

    Requires a transaction with foreign keys switched off: replacing a table must not delete its rows' children. `tell`
    receives the progress."""
    whole = f"the store is brought from format {version} to {FORMAT}"
    for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        db.execute(f"DROP TRIGGER {name}")
    for step in range(version, FORMAT):
        tell(f"{whole}: step {step - version + 1} of {FORMAT - version + 1}")
        STEPS[step](db)
    for trigger in triggers:
        db.execute(trigger)
    tell(f"{whole}: the last step, a check of all rows")
    if broken := db.execute("PRAGMA foreign_key_check").fetchall():
        raise sqlite3.IntegrityError(f"{len(broken)} rows without their parents after the change from format {version}")
    db.execute(f"PRAGMA user_version = {FORMAT}")


def _replace(db: sqlite3.Connection, table: str, columns: str, options: str, select: str) -> None:
    """Replace tables to change their columns or checks."""
    db.execute(f"CREATE TABLE {table}_new ({columns}) {options}")
    db.execute(f"INSERT INTO {table}_new {select}")
    db.execute(f"DROP TABLE {table}")
    db.execute(f"ALTER TABLE {table}_new RENAME TO {table}")


def _from_1(db: sqlite3.Connection) -> None:
    """Add shape and rules to rounds.

    Before, there were plain rounds only: all prompts, all responses, two retries of a failed reward, and three draws if
    no group was left.

    A round with several draws kept the former prompts, already settled. They are deleted from the open round, whose
    cursor is past them."""
    for table in ("chunks", "assigned", "trajectories", "prompts"):
        settled = f"SELECT step, epoch, idx FROM prompts WHERE fate IS NOT NULL AND {_UNDER_WAY}"
        db.execute(f"DELETE FROM {table} WHERE (step, epoch, idx) IN ({settled})")
    _replace(
        db,
        "rounds",
        """
        step INTEGER PRIMARY KEY CHECK (step > 0),
        version INTEGER NOT NULL REFERENCES versions (version),
        kind TEXT NOT NULL, prompts INTEGER NOT NULL, responses INTEGER NOT NULL, groups INTEGER NOT NULL,
        group_size INTEGER NOT NULL,
        max_failures INTEGER NOT NULL, drop_equal INTEGER NOT NULL, max_prompts INTEGER NOT NULL,
        epoch INTEGER NOT NULL, position INTEGER NOT NULL
        """,
        "",
        "SELECT step, version, kind, drawn, responses, drawn, responses, 2, 0, 3 * drawn, epoch, position FROM"
        " (SELECT r.*, (SELECT COUNT(*) FROM prompts AS p WHERE p.step = r.step) AS drawn FROM rounds AS r)",
    )
    _replace(
        db,
        "prompts",
        f"""
        {_IDENTITY}, ordinal INTEGER NOT NULL,
        fate TEXT CHECK (fate IN ('trained', 'filtered', 'requeued')), reason TEXT,
        PRIMARY KEY (step, epoch, idx),
        CHECK (fate NOT IN ('filtered', 'requeued') OR reason IS NOT NULL),
        FOREIGN KEY (step) REFERENCES rounds (step) ON DELETE CASCADE
        """,
        "WITHOUT ROWID",
        "SELECT step, epoch, idx, ordinal, fate, reason FROM prompts",
    )
    db.execute("CREATE INDEX prompts_by_key ON prompts (epoch, idx)")


def _from_2(db: sqlite3.Connection) -> None:
    """Add the anchors of adaptive timeouts; they start empty."""
    db.execute(
        """
        CREATE TABLE anchors (
        step INTEGER NOT NULL REFERENCES boundaries (step) ON DELETE CASCADE,
        rule TEXT NOT NULL, test TEXT NOT NULL, milliseconds INTEGER NOT NULL CHECK (milliseconds >= 0),
        PRIMARY KEY (rule, test, step)
        ) WITHOUT ROWID
        """
    )
    db.execute("CREATE INDEX anchors_by_step ON anchors (step)")


def _from_3(db: sqlite3.Connection) -> None:
    """Add plans and observed lengths.

    Closed rounds have none, so predictions start from scratch; the open round continues without early gradients."""
    db.execute("ALTER TABLE trajectories ADD COLUMN tokens INTEGER")
    db.execute(
        """
        CREATE TABLE decisions (
        step INTEGER PRIMARY KEY REFERENCES rounds (step) ON DELETE CASCADE,
        chosen TEXT NOT NULL, speed TEXT
        )
        """
    )
    opened = f"SELECT step, kind, prompts, responses, groups, group_size FROM rounds WHERE {_UNDER_WAY}"
    for step, kind, prompts, responses, groups, group_size in db.execute(opened).fetchall():
        race = [prompts / groups, responses / group_size] if kind == "Short" else None
        chosen = {"race": race, "stream": False, "reason": "", "seconds": None, "speedup": None}
        db.execute("INSERT INTO decisions (step, chosen) VALUES (?, ?)", (step, json.dumps(chosen)))


def _from_4(db: sqlite3.Connection) -> None:
    """Add the tables of asynchronous jobs, empty."""
    group = "epoch INTEGER NOT NULL, idx INTEGER NOT NULL, draw INTEGER NOT NULL"
    db.execute(
        """
        CREATE TABLE pool (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        epoch INTEGER NOT NULL CHECK (epoch >= 0), position INTEGER NOT NULL CHECK (position >= 0)
        )
        """
    )
    db.execute(
        f"""
        CREATE TABLE groups (
        {group} CHECK (draw >= 0),
        drawn INTEGER NOT NULL UNIQUE,
        version INTEGER REFERENCES versions (version), replica TEXT,
        ready INTEGER UNIQUE, step INTEGER, place INTEGER,
        fate TEXT CHECK (fate IN ('trained', 'filtered', 'requeued')), reason TEXT, queued INTEGER UNIQUE,
        PRIMARY KEY (epoch, idx, draw),
        CHECK ((version IS NOT NULL AND replica IS NOT NULL) OR fate IS 'requeued'),
        CHECK ((step IS NULL) = (place IS NULL)),
        CHECK (step IS NULL OR ready IS NOT NULL),
        CHECK (fate IS NOT 'trained' OR step IS NOT NULL),
        CHECK (fate NOT IN ('filtered', 'requeued') OR (reason IS NOT NULL AND step IS NULL)),
        CHECK ((fate IS 'requeued') = (queued IS NOT NULL))
        ) WITHOUT ROWID
        """
    )
    db.execute("CREATE UNIQUE INDEX groups_open ON groups (epoch, idx) WHERE fate IS NULL")
    db.execute("CREATE UNIQUE INDEX groups_trained_once ON groups (epoch, idx) WHERE fate = 'trained'")
    db.execute("CREATE UNIQUE INDEX groups_by_step ON groups (step, place) WHERE step IS NOT NULL")
    db.execute(
        f"""
        CREATE TABLE samples (
        {group}, sample INTEGER NOT NULL CHECK (sample >= 0),
        attempt INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0,
        replica TEXT, finish TEXT, reward REAL, tokens INTEGER,
        PRIMARY KEY (epoch, idx, draw, sample),
        CHECK (reward IS NULL OR finish IS NOT NULL),
        FOREIGN KEY (epoch, idx, draw) REFERENCES groups (epoch, idx, draw) ON DELETE CASCADE
        ) WITHOUT ROWID
        """
    )
    db.execute("CREATE INDEX samples_with_chunks ON samples (epoch, idx, draw) WHERE tokens IS NULL")
    db.execute(
        f"""
        CREATE TABLE experience_chunks (
        {group}, sample INTEGER NOT NULL, start INTEGER NOT NULL,
        tokens BLOB NOT NULL, logprobs BLOB NOT NULL,
        PRIMARY KEY (epoch, idx, draw, sample, start),
        CHECK (length(tokens) > 0 AND length(logprobs) = length(tokens)),
        FOREIGN KEY (epoch, idx, draw, sample) REFERENCES samples (epoch, idx, draw, sample) ON DELETE CASCADE
        ) WITHOUT ROWID
        """
    )


def _from_5(db: sqlite3.Connection) -> None:
    """Add sums of rewards and of pruned rounds. Nothing was pruned, and the rewards are in the reports."""
    db.execute("ALTER TABLE versions ADD COLUMN trained INTEGER NOT NULL DEFAULT 0")
    db.execute("CREATE INDEX versions_by_step ON versions (step)")
    db.execute("CREATE TABLE rewards (step INTEGER PRIMARY KEY, number INTEGER NOT NULL UNIQUE, total REAL NOT NULL)")
    db.execute(
        "INSERT INTO rewards SELECT step, row_number() OVER (ORDER BY step), SUM(reward) OVER (ORDER BY step) FROM"
        " (SELECT step, json_extract(report, '$.reward') AS reward FROM boundaries) WHERE reward IS NOT NULL"
    )
    db.execute(
        """
        CREATE TABLE pruned (
        step INTEGER NOT NULL, epoch INTEGER NOT NULL,
        draws INTEGER NOT NULL, fresh INTEGER NOT NULL, trained INTEGER NOT NULL, filtered INTEGER NOT NULL,
        trajectories INTEGER NOT NULL, tokens INTEGER NOT NULL, highest INTEGER NOT NULL,
        PRIMARY KEY (step, epoch)
        ) WITHOUT ROWID
        """
    )
    db.execute("CREATE INDEX groups_requeued ON groups (epoch, idx, draw) WHERE fate = 'requeued'")
    db.execute("CREATE INDEX groups_filtered ON groups (drawn) WHERE fate = 'filtered'")


def _from_6(db: sqlite3.Connection) -> None:
    """Rename fields of stored reports to those of `status.runtime.lastRound`."""
    names = {"longQueue": "deferredPrompts", "lentMachines": "loanedMachines", "workerGroups": "loanedGroups"}
    reasons = {"NotNow": "OutsideWindow", "SumsNotTaken": "TrainerUnavailable"}
    for step, text in db.execute("SELECT step, report FROM boundaries WHERE report IS NOT NULL").fetchall():
        report = {names.get(name, name): value for name, value in json.loads(text).items()}
        lending = report.pop("lending", None)
        if lending == "Lent":
            report["loan"] = {"state": "Loaned"}
        elif lending is not None:
            report["loan"] = {"state": "NotLoaned", "reason": reasons.get(lending, lending)}
        db.execute("UPDATE boundaries SET report = ? WHERE step = ?", (json.dumps(report), step))


def _from_7(db: sqlite3.Connection) -> None:
    """Add the values of reward rules, and samples that wait for their file. Former rewards have no values by rule."""
    for table in ("trajectories", "samples"):
        db.execute(f"ALTER TABLE {table} ADD COLUMN terms TEXT")
    db.execute(
        """
        CREATE TABLE kept_samples (
        step INTEGER NOT NULL, number INTEGER NOT NULL,
        record TEXT NOT NULL, tokens BLOB NOT NULL,
        PRIMARY KEY (step, number)
        )
        """
    )


def _from_8(db: sqlite3.Connection) -> None:
    """Add the tables of evaluations, and named prompt sources; there are none yet."""
    db.execute(
        """
        CREATE TABLE evaluations (
        step INTEGER NOT NULL CHECK (step >= 0), name TEXT NOT NULL,
        settings TEXT NOT NULL, waited REAL NOT NULL DEFAULT 0,
        result TEXT, abandoned TEXT,
        PRIMARY KEY (step, name),
        CHECK (result IS NULL OR abandoned IS NULL)
        ) WITHOUT ROWID
        """
    )
    db.execute(
        """
        CREATE TABLE evaluation_samples (
        step INTEGER NOT NULL, name TEXT NOT NULL, idx INTEGER NOT NULL, sample INTEGER NOT NULL CHECK (sample >= 0),
        tokens INTEGER NOT NULL, finish TEXT, reward REAL, terms TEXT, reason TEXT,
        PRIMARY KEY (step, name, idx, sample),
        CHECK ((reward IS NULL) = (reason IS NOT NULL)),
        CHECK (reward IS NULL OR finish IS NOT NULL),
        FOREIGN KEY (step, name) REFERENCES evaluations (step, name) ON DELETE CASCADE
        ) WITHOUT ROWID
        """
    )
    db.execute("CREATE TABLE sources (number INTEGER PRIMARY KEY CHECK (number > 0), name TEXT NOT NULL UNIQUE)")
    for table in ("boundaries", "rounds", "pool"):
        db.execute(f"ALTER TABLE {table} ADD COLUMN sources TEXT NOT NULL DEFAULT '[]'")
    db.execute("ALTER TABLE rounds ADD COLUMN races TEXT NOT NULL DEFAULT '[]'")


def _from_9(db: sqlite3.Connection) -> None:
    """Keep the update during which a group was filtered, and what rounds know by tensor parallel size."""
    _keep_ends_of_groups(db)
    _keep_sizes(db)


def _keep_ends_of_groups(db: sqlite3.Connection) -> None:
    """Keep the update during which a group was filtered. Before, its place in the order of draws said it."""
    db.execute("ALTER TABLE groups ADD COLUMN ended INTEGER")
    db.execute(
        "WITH tops AS MATERIALIZED (SELECT step, MAX(drawn) AS top FROM groups WHERE step IS NOT NULL GROUP BY step)"
        " UPDATE groups AS g SET ended = ifnull((SELECT MIN(step) FROM tops WHERE top > g.drawn),"
        " (SELECT MAX(step) + 1 FROM boundaries)) WHERE fate = 'filtered'"
    )
    db.execute("CREATE INDEX groups_filtered_in ON groups (ended) WHERE fate = 'filtered'")


def _keep_sizes(db: sqlite3.Connection) -> None:
    """Keep the speeds of engines by their tensor parallel size, and the sizes of machines in a round.

    Before, all engines of a round had the same size."""
    db.execute(
        """
        CREATE TABLE speeds (
        step INTEGER NOT NULL REFERENCES rounds (step) ON DELETE CASCADE,
        tensor_parallel INTEGER NOT NULL,
        speed TEXT NOT NULL,
        PRIMARY KEY (step, tensor_parallel)
        ) WITHOUT ROWID
        """
    )
    db.execute(
        "INSERT INTO speeds SELECT step, ifnull(json_extract(report, '$.tensorParallelSize'), 0), speed"
        " FROM decisions JOIN boundaries USING (step) WHERE speed IS NOT NULL"
    )
    db.execute("ALTER TABLE decisions DROP COLUMN speed")
    db.execute("ALTER TABLE rounds ADD COLUMN tensor_parallel INTEGER")
    db.execute(
        """
        CREATE TABLE layouts (
        step INTEGER NOT NULL REFERENCES rounds (step) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        machine TEXT NOT NULL, tensor_parallel INTEGER NOT NULL CHECK (tensor_parallel > 0),
        PRIMARY KEY (step, number)
        ) WITHOUT ROWID
        """
    )


def _from_10(db: sqlite3.Connection) -> None:
    """Keep the tokens of evaluations for their samples. Former responses have none."""
    for column in ("response BLOB", "attempt INTEGER", "version INTEGER", "replica TEXT", "cause TEXT"):
        db.execute(f"ALTER TABLE evaluation_samples ADD COLUMN {column}")
    db.execute(
        """
        CREATE TABLE kept_evaluation_samples (
        step INTEGER NOT NULL, name TEXT NOT NULL, number INTEGER NOT NULL,
        record TEXT NOT NULL, tokens BLOB NOT NULL,
        PRIMARY KEY (step, name, number),
        FOREIGN KEY (step, name) REFERENCES evaluations (step, name) ON DELETE CASCADE
        )
        """
    )


def _count_switches(db: sqlite3.Connection) -> None:
    """Count the switches of machines. Before, each change of a machine's size counted as one."""
    db.execute(
        """
        CREATE TABLE layout_switches (
        step INTEGER NOT NULL REFERENCES rounds (step) ON DELETE CASCADE,
        machine TEXT NOT NULL,
        made INTEGER NOT NULL CHECK (made >= 0), failed INTEGER NOT NULL CHECK (failed >= 0),
        PRIMARY KEY (step, machine)
        ) WITHOUT ROWID
        """
    )
    db.execute("INSERT INTO layout_switches SELECT step, machine, COUNT(*), 0 FROM layouts GROUP BY step, machine")


STEPS: dict[int, Callable[[sqlite3.Connection], None]] = {
    1: _from_1,
    2: _from_2,
    3: _from_3,
    4: _from_4,
    5: _from_5,
    6: _from_6,
    7: _from_7,
    8: _from_8,
    9: _from_9,
    10: _from_10,
    11: add_episodes,
    12: keep_when_turns_are_asked_for,
    13: keep_refusing_limits,
    14: add_tool_calls,
    15: keep_who_asked_for_turns,
    16: keep_pauses,
    17: keep_digests_of_contexts,
    18: _count_switches,
    19: keep_answers_and_seconds,
}
"""By the format that each starts from."""
