"""Store schema: constraints hold the run's invariants, so that no bug above can break them silently.

- a trajectory has one weight version, and one final outcome: trained or discarded(reason);
- only a scored trajectory that was assigned to the step is trained on; an assignment is for one step, once;
- a round is closed only when every drawn prompt and every response has its outcome; rounds are consecutive;
- tokens are appended without a gap; version numbers only rise; an attempt never falls;
- a prompt is drawn once per epoch, and again only after it was requeued; a requeued prompt is in the long-prompt queue
  of its round's boundary, and leaves the queue when it is drawn;
- the anchor of a timeout only rises.

Tables of `mode: Asynchronous` are in `asynchronous`, those of evaluations in `evaluation`, those of episodes in
`episodes`.
"""

from rljob_runtime.audit import stored_keys

FORMAT = 20

_IDENTITY = "step INTEGER NOT NULL, epoch INTEGER NOT NULL, idx INTEGER NOT NULL"
_PROMPT = stored_keys.prompt_sql()
_SAME = "step = NEW.step AND epoch = NEW.epoch AND idx = NEW.idx"


def refuse(name: str, event: str, when: str, message: str) -> str:
    """Return a trigger that aborts the statement with the invariant's text."""
    return f"CREATE TRIGGER {name} BEFORE {event} WHEN {when} BEGIN SELECT RAISE(ABORT, 'invariant: {message}'); END;"


TABLES = f"""
-- Prompt sources of a job that names them (`rljob_runtime.audit.stored_keys`).
{stored_keys.TABLE};

CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- The state after `step` updates. To rewind is to drop the rows above. `long_queue`: texts of prompts, oldest first.
CREATE TABLE boundaries (
  step INTEGER PRIMARY KEY CHECK (step >= 0),
  epoch INTEGER NOT NULL, position INTEGER NOT NULL CHECK (position >= 0),
  sources TEXT NOT NULL DEFAULT '[]', -- The cursors of named sources.
  long_queue TEXT NOT NULL DEFAULT '[]',
  -- JSON, measured until then: `switchCosts` (`SwitchCosts`) and `loanRates` (`LoanMeasurements`).
  planner TEXT NOT NULL DEFAULT '{{}}',
  report TEXT, totals TEXT NOT NULL DEFAULT '{{}}'
);

-- What the adaptive timeouts learned in a round: the newest row of a test holds.
CREATE TABLE anchors (
  step INTEGER NOT NULL REFERENCES boundaries (step) ON DELETE CASCADE,
  rule TEXT NOT NULL, test TEXT NOT NULL, milliseconds INTEGER NOT NULL CHECK (milliseconds >= 0),
  PRIMARY KEY (rule, test, step)
) WITHOUT ROWID;

CREATE INDEX anchors_by_step ON anchors (step);

-- `trained`: something was trained on with it that is pruned.
CREATE TABLE versions (version INTEGER PRIMARY KEY CHECK (version > 0), step INTEGER NOT NULL, lost INTEGER NOT NULL
DEFAULT 0, trained INTEGER NOT NULL DEFAULT 0);

CREATE INDEX versions_by_step ON versions (step);

-- Mean rewards of rounds, summed up: `number` of them so far, and their sum.
CREATE TABLE rewards (step INTEGER PRIMARY KEY, number INTEGER NOT NULL UNIQUE, total REAL NOT NULL);

-- What is left of pruned rounds (or updates), by the epoch of their prompts: `draws` of prompts, `fresh` ones among
-- them (drawn by the cursor), those that ended in each way, what was trained on, and the highest index.
CREATE TABLE pruned (
  step INTEGER NOT NULL, epoch INTEGER NOT NULL,
  draws INTEGER NOT NULL, fresh INTEGER NOT NULL, trained INTEGER NOT NULL, filtered INTEGER NOT NULL,
  trajectories INTEGER NOT NULL, tokens INTEGER NOT NULL, highest INTEGER NOT NULL,
  PRIMARY KEY (step, epoch)
) WITHOUT ROWID;

-- A round under way or done, as it was opened (`Shape`, `Rules`); the cursor is the one after its last draw.
CREATE TABLE rounds (
  step INTEGER PRIMARY KEY CHECK (step > 0),
  version INTEGER NOT NULL REFERENCES versions (version),
  kind TEXT NOT NULL, prompts INTEGER NOT NULL, responses INTEGER NOT NULL, groups INTEGER NOT NULL,
  group_size INTEGER NOT NULL,
  max_failures INTEGER NOT NULL, drop_equal INTEGER NOT NULL, max_prompts INTEGER NOT NULL,
  epoch INTEGER NOT NULL, position INTEGER NOT NULL,
  sources TEXT NOT NULL DEFAULT '[]', -- The cursors of named sources.
  races TEXT NOT NULL DEFAULT '[]', -- Their parts of the shape.
  tensor_parallel INTEGER -- Of most machines when its generation began.
);

-- The machines that changed their tensor parallel size in a round, in order: a restarted coordinator goes on in it.
CREATE TABLE layouts (
  step INTEGER NOT NULL REFERENCES rounds (step) ON DELETE CASCADE,
  number INTEGER NOT NULL,
  machine TEXT NOT NULL, tensor_parallel INTEGER NOT NULL CHECK (tensor_parallel > 0),
  PRIMARY KEY (step, number)
) WITHOUT ROWID;

-- How many switches each machine has ended in a round. Not every change of a size is a switch.
CREATE TABLE layout_switches (
  step INTEGER NOT NULL REFERENCES rounds (step) ON DELETE CASCADE,
  machine TEXT NOT NULL,
  made INTEGER NOT NULL CHECK (made >= 0), failed INTEGER NOT NULL CHECK (failed >= 0),
  PRIMARY KEY (step, machine)
) WITHOUT ROWID;

-- How a round was to be played, decided with its draw (`plans.SelectedPlan`).
CREATE TABLE decisions (
  step INTEGER PRIMARY KEY REFERENCES rounds (step) ON DELETE CASCADE,
  chosen TEXT NOT NULL
);

-- What a round's engines of each tensor parallel size did (`observed_speed.Speed`).
CREATE TABLE speeds (
  step INTEGER NOT NULL REFERENCES rounds (step) ON DELETE CASCADE,
  tensor_parallel INTEGER NOT NULL, -- 0 in a round of a store that did not name it.
  speed TEXT NOT NULL,
  PRIMARY KEY (step, tensor_parallel)
) WITHOUT ROWID;

CREATE TABLE prompts (
  {_IDENTITY}, ordinal INTEGER NOT NULL,
  fate TEXT CHECK (fate IN ('trained', 'filtered', 'requeued')), reason TEXT,
  PRIMARY KEY (step, epoch, idx),
  CHECK (fate NOT IN ('filtered', 'requeued') OR reason IS NOT NULL),
  FOREIGN KEY (step) REFERENCES rounds (step) ON DELETE CASCADE
) WITHOUT ROWID;

CREATE INDEX prompts_by_key ON prompts (epoch, idx);

CREATE TABLE trajectories (
  {_IDENTITY}, sample INTEGER NOT NULL,
  attempt INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0,
  version INTEGER, replica TEXT, finish TEXT, reward REAL,
  terms TEXT, -- The value of each rule, as JSON; absent before the reward, and where only the sum is known.
  tokens INTEGER, -- How far it came, once its round is closed: whole if it has a `finish`, else stopped there.
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

-- Responses whose file (`rljob_runtime.samples`) is to be written: with `number` from 0 for the ones that were chosen
-- when the round closed, and below 0 for those that ended before. `record`: a sample without texts. `tokens`: int32.
CREATE TABLE kept_samples (
  step INTEGER NOT NULL, number INTEGER NOT NULL,
  record TEXT NOT NULL, tokens BLOB NOT NULL,
  PRIMARY KEY (step, number)
);

CREATE UNIQUE INDEX trained_once ON trajectories (epoch, idx, sample) WHERE outcome = 'trained';
"""

TRIGGERS = "\n".join(
    [
        refuse(
            "outcome_once",
            "UPDATE OF outcome ON trajectories",
            "OLD.outcome IS NOT NULL AND NEW.outcome IS NOT OLD.outcome",
            "a trajectory ends once",
        ),
        refuse(
            "one_version",
            "UPDATE OF version ON trajectories",
            "OLD.version IS NOT NULL AND NEW.version IS NOT OLD.version",
            "a trajectory has one weight version",
        ),
        refuse(
            "attempt_rises",
            "UPDATE OF attempt ON trajectories",
            "NEW.attempt < OLD.attempt",
            "an attempt never falls",
        ),
        refuse(
            "trained_when_assigned",
            "UPDATE OF outcome ON trajectories",
            f"NEW.outcome = 'trained' AND NOT EXISTS (SELECT 1 FROM assigned WHERE {_SAME} AND sample = NEW.sample)",
            "only what was assigned to the step is trained on",
        ),
        refuse(
            "fate_once",
            "UPDATE OF fate ON prompts",
            "OLD.fate IS NOT NULL AND NEW.fate IS NOT OLD.fate",
            "a prompt has one fate",
        ),
        refuse(
            "drawn_once",
            "INSERT ON prompts",
            "EXISTS (SELECT 1 FROM prompts WHERE epoch = NEW.epoch AND idx = NEW.idx AND fate IS NOT 'requeued')",
            "a prompt is drawn again only after it was requeued",
        ),
        refuse(
            "queue_gains",
            "INSERT ON boundaries",
            f"EXISTS (SELECT {_PROMPT} FROM prompts WHERE step = NEW.step AND fate = 'requeued'"
            " EXCEPT SELECT value FROM json_each(NEW.long_queue))",
            "a requeued prompt is in the long-prompt queue",
        ),
        refuse(
            "queue_keeps",
            "INSERT ON boundaries",
            "EXISTS (SELECT value FROM boundaries, json_each(long_queue) WHERE step = NEW.step - 1"
            f" EXCEPT SELECT {_PROMPT} FROM prompts WHERE step = NEW.step"
            " EXCEPT SELECT value FROM json_each(NEW.long_queue))",
            "a prompt leaves the long-prompt queue by being drawn",
        ),
        refuse(
            "rounds_in_order",
            "INSERT ON boundaries",
            "EXISTS (SELECT 1 FROM boundaries) AND NOT EXISTS (SELECT 1 FROM boundaries WHERE step = NEW.step - 1)",
            "rounds follow each other",
        ),
        refuse(
            "all_prompts_settled",
            "INSERT ON boundaries",
            "EXISTS (SELECT 1 FROM prompts WHERE step = NEW.step AND fate IS NULL)"
            " OR EXISTS (SELECT 1 FROM trajectories WHERE step = NEW.step AND outcome IS NULL)",
            "every prompt has a fate and every response an outcome before its round is closed",
        ),
        refuse(
            "anchors_rise",
            "INSERT ON anchors",
            "EXISTS (SELECT 1 FROM anchors WHERE rule = NEW.rule AND test = NEW.test"
            " AND milliseconds >= NEW.milliseconds)",
            "the anchor of a timeout only rises",
        ),
        refuse(
            "versions_rise",
            "INSERT ON versions",
            "NEW.version <= (SELECT COALESCE(MAX(version), 0) FROM versions)",
            "a weight version is never used twice",
        ),
        refuse(
            "no_hole",
            "INSERT ON chunks",
            "NEW.start <> (SELECT COALESCE(SUM(length(tokens) / 4), 0) FROM chunks"
            f" WHERE {_SAME} AND sample = NEW.sample)",
            "tokens are appended without a hole",
        ),
    ]
)
