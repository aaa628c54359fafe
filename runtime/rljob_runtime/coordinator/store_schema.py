"""The state store's schema. The run's invariants are constraints here, so that no bug above can break them silently:

- a trajectory has one weight version, ends in exactly one of trained and discarded(reason), and does so once;
- only a scored trajectory that was assigned to the step beforehand is trained on; an assignment is for one step, once;
- a round is closed only when every prompt drawn has its fate and every response its outcome; rounds follow each other;
- tokens are appended without a hole; a version's number only rises; an attempt never falls.
"""

FORMAT = 1

_IDENTITY = "step INTEGER NOT NULL, epoch INTEGER NOT NULL, idx INTEGER NOT NULL"
_SAME = "step = NEW.step AND epoch = NEW.epoch AND idx = NEW.idx"


def _refuse(name: str, event: str, when: str, message: str) -> str:
    return f"CREATE TRIGGER {name} BEFORE {event} WHEN {when} BEGIN SELECT RAISE(ABORT, 'invariant: {message}'); END;"


TABLES = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- The state after `step` updates. To rewind is to drop the rows above.
CREATE TABLE boundaries (
  step INTEGER PRIMARY KEY CHECK (step >= 0),
  epoch INTEGER NOT NULL, position INTEGER NOT NULL CHECK (position >= 0),
  long_queue TEXT NOT NULL DEFAULT '[]',
  planner TEXT NOT NULL DEFAULT '{{}}',
  report TEXT, totals TEXT NOT NULL DEFAULT '{{}}'
);

CREATE TABLE versions (version INTEGER PRIMARY KEY CHECK (version > 0), step INTEGER NOT NULL, lost INTEGER NOT NULL
DEFAULT 0);

-- A round under way or done; the cursor is the one after its draw.
CREATE TABLE rounds (
  step INTEGER PRIMARY KEY CHECK (step > 0),
  kind TEXT NOT NULL, version INTEGER NOT NULL REFERENCES versions (version), responses INTEGER NOT NULL,
  epoch INTEGER NOT NULL, position INTEGER NOT NULL
);

CREATE TABLE prompts (
  {_IDENTITY}, ordinal INTEGER NOT NULL,
  fate TEXT CHECK (fate IN ('trained', 'filtered', 'requeued')), reason TEXT,
  PRIMARY KEY (step, epoch, idx),
  CHECK (fate IS NOT 'filtered' OR reason IS NOT NULL),
  FOREIGN KEY (step) REFERENCES rounds (step) ON DELETE CASCADE
) WITHOUT ROWID;

CREATE TABLE trajectories (
  {_IDENTITY}, sample INTEGER NOT NULL,
  attempt INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0,
  version INTEGER, replica TEXT, finish TEXT, reward REAL,
  outcome TEXT CHECK (outcome IN ('trained', 'discarded')), reason TEXT,
  PRIMARY KEY (step, epoch, idx, sample),
  CHECK (outcome IS NOT 'discarded' OR reason IS NOT NULL),
  CHECK (outcome IS NOT 'trained' OR (reward IS NOT NULL AND finish IS NOT NULL AND version IS NOT NULL)),
  CHECK (reward IS NULL OR finish IS NOT NULL),
  FOREIGN KEY (step, epoch, idx) REFERENCES prompts (step, epoch, idx) ON DELETE CASCADE
) WITHOUT ROWID;

-- Tokens (int32) and log-probabilities (float64) as they came; gone when the round is closed.
CREATE TABLE chunks (
  {_IDENTITY}, sample INTEGER NOT NULL, start INTEGER NOT NULL,
  tokens BLOB NOT NULL, logprobs BLOB NOT NULL,
  PRIMARY KEY (step, epoch, idx, sample, start),
  CHECK (length(logprobs) = 2 * length(tokens)),
  FOREIGN KEY (step, epoch, idx, sample) REFERENCES trajectories (step, epoch, idx, sample) ON DELETE CASCADE
) WITHOUT ROWID;

CREATE TABLE assigned (
  {_IDENTITY}, sample INTEGER NOT NULL,
  PRIMARY KEY (epoch, idx, sample),
  FOREIGN KEY (step, epoch, idx, sample) REFERENCES trajectories (step, epoch, idx, sample) ON DELETE CASCADE
) WITHOUT ROWID;

CREATE UNIQUE INDEX trained_once ON trajectories (epoch, idx, sample) WHERE outcome = 'trained';
"""

TRIGGERS = "\n".join(
    [
        _refuse(
            "outcome_once",
            "UPDATE OF outcome ON trajectories",
            "OLD.outcome IS NOT NULL AND NEW.outcome IS NOT OLD.outcome",
            "a trajectory ends once",
        ),
        _refuse(
            "one_version",
            "UPDATE OF version ON trajectories",
            "OLD.version IS NOT NULL AND NEW.version IS NOT OLD.version",
            "a trajectory has one weight version",
        ),
        _refuse(
            "attempt_rises",
            "UPDATE OF attempt ON trajectories",
            "NEW.attempt < OLD.attempt",
            "an attempt never falls",
        ),
        _refuse(
            "trained_when_assigned",
            "UPDATE OF outcome ON trajectories",
            f"NEW.outcome = 'trained' AND NOT EXISTS (SELECT 1 FROM assigned WHERE {_SAME} AND sample = NEW.sample)",
            "only what was assigned to the step is trained on",
        ),
        _refuse(
            "fate_once",
            "UPDATE OF fate ON prompts",
            "OLD.fate IS NOT NULL AND NEW.fate IS NOT OLD.fate",
            "a prompt has one fate",
        ),
        _refuse(
            "rounds_in_order",
            "INSERT ON boundaries",
            "EXISTS (SELECT 1 FROM boundaries) AND NOT EXISTS (SELECT 1 FROM boundaries WHERE step = NEW.step - 1)",
            "rounds follow each other",
        ),
        _refuse(
            "all_prompts_settled",
            "INSERT ON boundaries",
            "EXISTS (SELECT 1 FROM prompts WHERE step = NEW.step AND fate IS NULL)"
            " OR EXISTS (SELECT 1 FROM trajectories WHERE step = NEW.step AND outcome IS NULL)",
            "every prompt has a fate and every response an outcome before its round is closed",
        ),
        _refuse(
            "versions_rise",
            "INSERT ON versions",
            "NEW.version <= (SELECT COALESCE(MAX(version), 0) FROM versions)",
            "a weight version is never used twice",
        ),
        _refuse(
            "no_hole",
            "INSERT ON chunks",
            "NEW.start <> (SELECT COALESCE(SUM(length(tokens) / 4), 0) FROM chunks"
            f" WHERE {_SAME} AND sample = NEW.sample)",
            "tokens are appended without a hole",
        ),
    ]
)
