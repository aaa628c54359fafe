"""Schema of evaluations: what is under way, and results. No table of training refers to these, and they to none."""

TABLES = """
-- An evaluation of the weights after `step` updates. `settings`: a digest. `waited`: seconds for which training waited.
CREATE TABLE evaluations (
  step INTEGER NOT NULL CHECK (step >= 0), name TEXT NOT NULL,
  settings TEXT NOT NULL, waited REAL NOT NULL DEFAULT 0,
  result TEXT, abandoned TEXT,
  PRIMARY KEY (step, name),
  CHECK (result IS NULL OR abandoned IS NULL)
) WITHOUT ROWID;

CREATE TABLE evaluation_samples (
  step INTEGER NOT NULL, name TEXT NOT NULL, idx INTEGER NOT NULL, sample INTEGER NOT NULL CHECK (sample >= 0),
  tokens INTEGER NOT NULL, finish TEXT, reward REAL, terms TEXT, reason TEXT,
  -- For `rljob samples`: token ids (NULL if no samples are kept), where they are from, and why their reward failed.
  response BLOB, attempt INTEGER, version INTEGER, replica TEXT, cause TEXT,
  PRIMARY KEY (step, name, idx, sample),
  CHECK ((reward IS NULL) = (reason IS NOT NULL)),
  CHECK (reward IS NULL OR finish IS NOT NULL),
  FOREIGN KEY (step, name) REFERENCES evaluations (step, name) ON DELETE CASCADE
) WITHOUT ROWID;

-- Samples of an evaluation with a result, until their file is written. It has a row id, as its rows are long.
CREATE TABLE kept_evaluation_samples (
  step INTEGER NOT NULL, name TEXT NOT NULL, number INTEGER NOT NULL,
  record TEXT NOT NULL, tokens BLOB NOT NULL,
  PRIMARY KEY (step, name, number),
  FOREIGN KEY (step, name) REFERENCES evaluations (step, name) ON DELETE CASCADE
);
"""
