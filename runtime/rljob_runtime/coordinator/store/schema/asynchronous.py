"""Asynchronous schema: the prompt pool, and groups from their draw to their outcome.

As in `core`, constraints hold the invariants of the run:

- a prompt has at most one open group, and is drawn again only after it was requeued;
- a group has one weight version and one outcome: trained, filtered(reason) or requeued(reason). Only a rewind removes
  an outcome, with its update;
- an attempt never falls, across draws too; tokens are appended without a gap, until the response is finished;
- a group is ready when all its responses are finished and scored; after that it does not change;
- a ready group is assigned to the next update, and to one at a time. An update that closes trains on its assigned
  groups and on no others; a prompt is trained on once;
- the pool's cursor never goes back.
"""

from rljob_runtime.coordinator.store.schema.core import refuse

_GROUP = "epoch INTEGER NOT NULL, idx INTEGER NOT NULL, draw INTEGER NOT NULL"
_PROMPT = "epoch = NEW.epoch AND idx = NEW.idx"
_SAME_GROUP = f"{_PROMPT} AND draw = NEW.draw"
_SAME_SAMPLE = f"{_SAME_GROUP} AND sample = NEW.sample"

TABLES = f"""
-- Where the next fresh prompt is drawn. There is a row in stores of asynchronous jobs only.
CREATE TABLE pool (
  one INTEGER PRIMARY KEY CHECK (one = 1),
  epoch INTEGER NOT NULL CHECK (epoch >= 0), position INTEGER NOT NULL CHECK (position >= 0),
  sources TEXT NOT NULL DEFAULT '[]' -- The cursors of named sources.
);

-- `drawn`, `ready`, `queued`: rising numbers, the order in which groups were drawn, became ready and were requeued.
-- `replica`: where it was launched. `step` and `place`: the update that it is assigned to, and where in it.
-- `ended`: the update under way when it was filtered.
-- Without a version: of a history whose store was lost, and not drawn since.
CREATE TABLE groups (
  {_GROUP} CHECK (draw >= 0),
  drawn INTEGER NOT NULL UNIQUE,
  version INTEGER REFERENCES versions (version), replica TEXT,
  ready INTEGER UNIQUE, step INTEGER, place INTEGER,
  fate TEXT CHECK (fate IN ('trained', 'filtered', 'requeued')), reason TEXT, queued INTEGER UNIQUE,
  ended INTEGER,
  PRIMARY KEY (epoch, idx, draw),
  CHECK ((version IS NOT NULL AND replica IS NOT NULL) OR fate IS 'requeued'),
  CHECK ((step IS NULL) = (place IS NULL)),
  CHECK (step IS NULL OR ready IS NOT NULL),
  CHECK (fate IS NOT 'trained' OR step IS NOT NULL),
  CHECK (fate NOT IN ('filtered', 'requeued') OR (reason IS NOT NULL AND step IS NULL)),
  CHECK ((fate IS 'requeued') = (queued IS NOT NULL))
) WITHOUT ROWID;

CREATE UNIQUE INDEX groups_open ON groups (epoch, idx) WHERE fate IS NULL;
CREATE UNIQUE INDEX groups_trained_once ON groups (epoch, idx) WHERE fate = 'trained';
CREATE UNIQUE INDEX groups_by_step ON groups (step, place) WHERE step IS NOT NULL;
CREATE INDEX groups_requeued ON groups (epoch, idx, draw) WHERE fate = 'requeued';
CREATE INDEX groups_filtered ON groups (drawn) WHERE fate = 'filtered';
CREATE INDEX groups_filtered_in ON groups (ended) WHERE fate = 'filtered';

-- `tokens`: how far it came, once its chunks are gone.
CREATE TABLE samples (
  {_GROUP}, sample INTEGER NOT NULL CHECK (sample >= 0),
  attempt INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0,
  replica TEXT, finish TEXT, reward REAL, terms TEXT, tokens INTEGER,
  PRIMARY KEY (epoch, idx, draw, sample),
  CHECK (reward IS NULL OR finish IS NOT NULL),
  FOREIGN KEY (epoch, idx, draw) REFERENCES groups (epoch, idx, draw) ON DELETE CASCADE
) WITHOUT ROWID;

CREATE INDEX samples_with_chunks ON samples (epoch, idx, draw) WHERE tokens IS NULL;

-- Tokens (int32) and log-probabilities (float32, as engines compute them) as they came.
CREATE TABLE experience_chunks (
  {_GROUP}, sample INTEGER NOT NULL, start INTEGER NOT NULL,
  tokens BLOB NOT NULL, logprobs BLOB NOT NULL,
  PRIMARY KEY (epoch, idx, draw, sample, start),
  CHECK (length(tokens) > 0 AND length(logprobs) = length(tokens)),
  FOREIGN KEY (epoch, idx, draw, sample) REFERENCES samples (epoch, idx, draw, sample) ON DELETE CASCADE
) WITHOUT ROWID;
"""

_STEP_GONE = "NOT EXISTS (SELECT 1 FROM boundaries WHERE step = OLD.step)"

TRIGGERS = "\n".join(
    [
        refuse(
            "cursor_rises",
            "UPDATE ON pool",
            "(NEW.epoch, NEW.position) < (OLD.epoch, OLD.position)",
            "the cursor of the pool never goes back",
        ),
        refuse(
            "group_drawn_again",
            "INSERT ON groups",
            f"EXISTS (SELECT 1 FROM groups WHERE {_PROMPT} AND fate IS NOT 'requeued')",
            "a prompt is drawn again only after it was requeued",
        ),
        refuse(
            "group_draws_count",
            "INSERT ON groups",
            f"NEW.draw <> (SELECT COUNT(*) FROM groups WHERE {_PROMPT})",
            "the draws of a prompt are counted without a hole",
        ),
        refuse(
            "group_one_version",
            "UPDATE OF version ON groups",
            "NEW.version IS NOT OLD.version",
            "a group has one weight version",
        ),
        refuse(
            "group_ready_when_scored",
            "UPDATE OF ready ON groups",
            "NEW.ready IS NOT OLD.ready AND (OLD.ready IS NOT NULL"
            f" OR EXISTS (SELECT 1 FROM samples WHERE {_SAME_GROUP} AND reward IS NULL)"
            f" OR NOT EXISTS (SELECT 1 FROM samples WHERE {_SAME_GROUP}))",
            "a group is ready once, when all of its responses are scored",
        ),
        refuse(
            "group_assigned_once",
            "UPDATE OF step ON groups",
            f"OLD.step IS NOT NULL AND (NEW.step IS NOT NULL OR NOT {_STEP_GONE})",
            "a group is assigned to one update",
        ),
        refuse(
            "group_assigned_to_next",
            "UPDATE OF step ON groups",
            "NEW.step IS NOT NULL AND NEW.step IS NOT (SELECT MAX(step) + 1 FROM boundaries)",
            "groups are assigned to the next update",
        ),
        refuse(
            "group_fate_once",
            "UPDATE OF fate ON groups",
            "OLD.fate IS NOT NULL AND NEW.fate IS NOT OLD.fate"
            f" AND NOT (OLD.fate = 'trained' AND NEW.step IS NULL AND NEW.fate IS NOT 'filtered' AND {_STEP_GONE})",
            "a group has one fate",
        ),
        refuse(
            "assigned_is_trained",
            "INSERT ON boundaries",
            "EXISTS (SELECT 1 FROM groups WHERE step = NEW.step AND fate IS NULL)",
            "what was assigned to an update is trained on when it is closed",
        ),
        refuse(
            "sample_attempt_kept",
            "INSERT ON samples",
            f"NEW.attempt < (SELECT MAX(attempt) FROM samples WHERE {_PROMPT} AND sample = NEW.sample)",
            "an attempt never falls",
        ),
        refuse(
            "sample_attempt_rises",
            "UPDATE OF attempt ON samples",
            "NEW.attempt < OLD.attempt",
            "an attempt never falls",
        ),
        refuse(
            "sample_of_ready_group",
            "UPDATE OF attempt, failures, replica, finish, reward ON samples",
            f"EXISTS (SELECT 1 FROM groups WHERE {_SAME_GROUP} AND (ready IS NOT NULL OR fate IS NOT NULL))",
            "a group that is ready or ended does not change",
        ),
        refuse(
            "experience_no_hole",
            "INSERT ON experience_chunks",
            "NEW.start <> ifnull((SELECT start + length(tokens) / 4 FROM experience_chunks"
            f" WHERE {_SAME_SAMPLE} ORDER BY start DESC LIMIT 1), 0)",
            "tokens are appended without a hole",
        ),
        refuse(
            "experience_finished",
            "INSERT ON experience_chunks",
            f"EXISTS (SELECT 1 FROM samples WHERE {_SAME_SAMPLE} AND (finish IS NOT NULL OR tokens IS NOT NULL))",
            "a finished response has all of its tokens",
        ),
    ]
)
