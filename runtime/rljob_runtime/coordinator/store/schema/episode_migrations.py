"""Episode migrations: the steps of `migrations` that concern episodes. The text of a step never changes."""

from __future__ import annotations

import sqlite3


def add_episodes(db: sqlite3.Connection) -> None:
    """Add the tables of episodes, empty."""
    db.execute(
        """
        CREATE TABLE episodes (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        epoch INTEGER NOT NULL, idx INTEGER NOT NULL, sample INTEGER NOT NULL CHECK (sample >= 0),
        version INTEGER NOT NULL, environment TEXT NOT NULL, started REAL NOT NULL,
        state TEXT CHECK (state IN ('completed', 'truncated', 'aborted')),
        reached TEXT, cause TEXT, detail TEXT, reward REAL, metrics TEXT, ended REAL,
        former INTEGER NOT NULL DEFAULT 0,
        step INTEGER, loss BLOB,
        CHECK ((state IS NULL) = (ended IS NULL)),
        CHECK ((state IS 'truncated') = (reached IS NOT NULL)),
        CHECK ((state IS 'aborted') = (cause IS NOT NULL)),
        CHECK (reward IS NULL OR state IN ('completed', 'truncated')),
        CHECK ((step IS NULL) = (loss IS NULL)),
        CHECK (step IS NULL OR (state IS NOT NULL AND state IS NOT 'aborted'))
        )
        """
    )
    db.execute("CREATE INDEX episodes_by_key ON episodes (epoch, idx, sample)")
    db.execute("CREATE INDEX episodes_open ON episodes (former) WHERE state IS NULL")
    db.execute("CREATE INDEX episodes_by_step ON episodes (step) WHERE step IS NOT NULL")
    db.execute("CREATE UNIQUE INDEX episodes_trained_once ON episodes (epoch, idx, sample) WHERE step IS NOT NULL")
    db.execute(
        """
        CREATE TABLE turns (
        number INTEGER PRIMARY KEY,
        episode INTEGER NOT NULL REFERENCES episodes (id) ON DELETE CASCADE,
        node INTEGER NOT NULL, parent INTEGER NOT NULL CHECK (parent >= 0),
        kind TEXT NOT NULL CHECK (kind IN ('given', 'sampled')),
        version INTEGER, digest TEXT, tokens BLOB NOT NULL, logprobs BLOB,
        finish TEXT, body BLOB, stored_at REAL NOT NULL,
        UNIQUE (episode, node),
        CHECK (node > parent),
        CHECK (length(tokens) > 0 AND length(tokens) % 4 = 0),
        CHECK (logprobs IS NULL OR length(logprobs) = length(tokens)),
        CHECK ((kind = 'sampled') = (logprobs IS NOT NULL)),
        CHECK ((kind = 'sampled') = (version IS NOT NULL)),
        CHECK ((kind = 'sampled') = (digest IS NOT NULL)),
        CHECK ((kind = 'sampled') = (finish IS NOT NULL))
        )
        """
    )


def keep_when_turns_are_asked_for(db: sqlite3.Connection) -> None:
    """Keep when each turn was asked for."""
    db.execute("ALTER TABLE turns ADD COLUMN opened REAL")


def keep_refusing_limits(db: sqlite3.Connection) -> None:
    """Keep which limit refuses further turns of an attempt that has not ended."""
    db.execute("ALTER TABLE episodes ADD COLUMN refusing TEXT")
    db.execute("UPDATE episodes SET refusing = reached")


def add_tool_calls(db: sqlite3.Connection) -> None:
    """Add the calls of tools. The runners of open attempts did not report theirs."""
    db.execute("ALTER TABLE episodes ADD COLUMN resumption INTEGER")
    db.execute(
        """
        CREATE TABLE tool_calls (
        number INTEGER PRIMARY KEY,
        episode INTEGER NOT NULL REFERENCES episodes (id) ON DELETE CASCADE,
        node INTEGER NOT NULL, place INTEGER NOT NULL CHECK (place >= 0),
        name TEXT NOT NULL, digest BLOB NOT NULL, content BLOB,
        resumption INTEGER NOT NULL, executions INTEGER NOT NULL DEFAULT 1, replays INTEGER NOT NULL DEFAULT 0,
        stored_at REAL NOT NULL,
        UNIQUE (episode, node, place)
        )
        """
    )


def keep_who_asked_for_turns(db: sqlite3.Connection) -> None:
    """Keep which resumption asked for each turn last. Of former turns none is known."""
    db.execute("ALTER TABLE turns ADD COLUMN resumption INTEGER")


def keep_pauses(db: sqlite3.Connection) -> None:
    """Keep when attempts had no runner. Former attempts keep a start that was moved by it."""
    db.execute("ALTER TABLE episodes ADD COLUMN pauses TEXT")


def keep_digests_of_contexts(db: sqlite3.Connection) -> None:
    """Let digests of what was trained on cover contexts and rewards. Those of former updates stay, and are shorter."""


def keep_answers_and_seconds(db: sqlite3.Connection) -> None:
    """Keep the answers that programs state, and how long calls of tools took. Of former ones neither is known."""
    db.execute("ALTER TABLE episodes ADD COLUMN answer TEXT")
    db.execute("ALTER TABLE tool_calls ADD COLUMN seconds REAL CHECK (seconds >= 0)")
