"""Schema of episodes: the attempts of trajectories of many turns, and the nodes of their trees.

Constraints hold what makes a trained token provable:

- an attempt ends once, and takes no node after its end; an aborted one has no reward, and is not trained on;
- a node is stored after its parent, and never changes; nothing extends a turn that was cut at its token limit;
- a sampled node has one log-probability a token, and one weight version; a given node has neither;
- of all attempts of a trajectory, one is trained on;
- a call of a tool follows from a stored turn, and never changes.

A job without environments has no rows here.
"""

from rljob_runtime.coordinator.store.schema.core import refuse

TABLES = """
-- An attempt of an episode. `id`: its number, which is never given twice. `version`: the weights when it began.
-- `started`: when its first runner took it, and before that when it began. `pauses`: when it had no runner later, as
-- JSON, [since, until] of each; absent without any. Attempts of format 16 have a later start instead.
-- `reached`: the limit of a truncated one. `cause`: of an aborted one. `detail`: of both. `metrics`: JSON.
-- `former`: of an earlier draw of its prompt, or of rounds that a rewind undid, or its response was restarted, or its
-- round, update or evaluation has ended.
-- `refusing`: the limit that refuses further turns. It is there before the attempt ends, and decides how it ends.
-- `resumption`: how often another runner went on with it; absent if its runner knows of no resumptions.
-- `step`: the update that trained on it. `loss`: the digest of what it trained on: sampled tokens, what precedes them,
-- log-probabilities and reward. Until format 17 it has 16 bytes, of sampled tokens and log-probabilities alone.
-- `answer`: what its program says that its answer is, until the round or update of the attempt is closed.
CREATE TABLE episodes (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  epoch INTEGER NOT NULL, idx INTEGER NOT NULL, sample INTEGER NOT NULL CHECK (sample >= 0),
  version INTEGER NOT NULL, environment TEXT NOT NULL, started REAL NOT NULL,
  state TEXT CHECK (state IN ('completed', 'truncated', 'aborted')),
  reached TEXT, cause TEXT, detail TEXT, reward REAL, metrics TEXT, ended REAL,
  former INTEGER NOT NULL DEFAULT 0,
  step INTEGER, loss BLOB, refusing TEXT, resumption INTEGER, pauses TEXT, answer TEXT,
  CHECK ((state IS NULL) = (ended IS NULL)),
  CHECK ((state IS 'truncated') = (reached IS NOT NULL)),
  CHECK ((state IS 'aborted') = (cause IS NOT NULL)),
  CHECK (reward IS NULL OR state IN ('completed', 'truncated')),
  CHECK ((step IS NULL) = (loss IS NULL)),
  CHECK (step IS NULL OR (state IS NOT NULL AND state IS NOT 'aborted'))
);

CREATE INDEX episodes_by_key ON episodes (epoch, idx, sample);
CREATE INDEX episodes_open ON episodes (former) WHERE state IS NULL;
CREATE INDEX episodes_by_step ON episodes (step) WHERE step IS NOT NULL;
CREATE UNIQUE INDEX episodes_trained_once ON episodes (epoch, idx, sample) WHERE step IS NOT NULL;

-- The nodes of an attempt's tree, in the order in which they were stored. `parent`: 0 for none. Tokens are int32 and
-- log-probabilities float32. `digest`: of the request that a sampled node answers; `body`: this request,
-- compressed, until its round or update is closed. `opened`: when this request came; absent for turns of format 12.
-- `resumption`: the one whose program asked for a turn last; absent where the loop is ours. An attempt counts only if
-- the program that ended it has asked for all of its turns.
CREATE TABLE turns (
  number INTEGER PRIMARY KEY,
  episode INTEGER NOT NULL REFERENCES episodes (id) ON DELETE CASCADE,
  node INTEGER NOT NULL, parent INTEGER NOT NULL CHECK (parent >= 0),
  kind TEXT NOT NULL CHECK (kind IN ('given', 'sampled')),
  version INTEGER, digest TEXT, tokens BLOB NOT NULL, logprobs BLOB,
  finish TEXT, body BLOB, stored_at REAL NOT NULL, opened REAL, resumption INTEGER,
  UNIQUE (episode, node),
  CHECK (node > parent),
  CHECK (length(tokens) > 0 AND length(tokens) % 4 = 0),
  CHECK (logprobs IS NULL OR length(logprobs) = length(tokens)),
  CHECK ((kind = 'sampled') = (logprobs IS NOT NULL)),
  CHECK ((kind = 'sampled') = (version IS NOT NULL)),
  CHECK ((kind = 'sampled') = (digest IS NOT NULL)),
  CHECK ((kind = 'sampled') = (finish IS NOT NULL))
);

-- The executed calls of tools, in their order. `node`, `place`: the turn that asks for the call, and its place there.
-- `digest`: of name, arguments and observation. `content`: arguments and observation as JSON, compressed, until the
-- round or update of the attempt is closed. `resumption`: of the runner that reported it last. `executions`: how often
-- it was executed for the first time, which is once; `replays`: how often again, to bring tools to their state.
-- `seconds`: how long the first execution took, which ended at `stored_at`; absent for calls until format 19.
CREATE TABLE tool_calls (
  number INTEGER PRIMARY KEY,
  episode INTEGER NOT NULL REFERENCES episodes (id) ON DELETE CASCADE,
  node INTEGER NOT NULL, place INTEGER NOT NULL CHECK (place >= 0),
  name TEXT NOT NULL, digest BLOB NOT NULL, content BLOB,
  resumption INTEGER NOT NULL, executions INTEGER NOT NULL DEFAULT 1, replays INTEGER NOT NULL DEFAULT 0,
  stored_at REAL NOT NULL, seconds REAL CHECK (seconds >= 0),
  UNIQUE (episode, node, place)
);
"""

TRIGGERS = "\n".join(
    [
        refuse(
            "attempt_ends_once",
            "UPDATE OF state, reached, cause, detail, reward, metrics, ended ON episodes",
            "OLD.state IS NOT NULL",
            "an attempt of an episode ends once",
        ),
        refuse(
            "answer_stays",
            "UPDATE OF answer ON episodes",
            "OLD.state IS NOT NULL AND NEW.answer IS NOT NULL",
            "the answer of an attempt comes with its end",
        ),
        refuse(
            "node_of_open_attempt",
            "INSERT ON turns",
            "EXISTS (SELECT 1 FROM episodes WHERE id = NEW.episode AND state IS NOT NULL)",
            "an attempt takes no node after its end",
        ),
        refuse(
            "node_after_its_parent",
            "INSERT ON turns",
            "NEW.parent <> 0 AND NOT EXISTS"
            " (SELECT 1 FROM turns WHERE episode = NEW.episode AND node = NEW.parent AND finish IS NOT 'length')",
            "a node is stored after its parent, which was not cut",
        ),
        refuse(
            "node_stays",
            "UPDATE OF episode, node, parent, kind, version, digest, tokens, logprobs, finish ON turns",
            "TRUE",
            "a node never changes",
        ),
        refuse(
            "call_of_open_attempt",
            "INSERT ON tool_calls",
            "EXISTS (SELECT 1 FROM episodes WHERE id = NEW.episode AND state IS NOT NULL)",
            "an attempt takes no call of a tool after its end",
        ),
        refuse(
            "call_of_stored_turn",
            "INSERT ON tool_calls",
            "NOT EXISTS (SELECT 1 FROM turns WHERE episode = NEW.episode AND node = NEW.node AND kind = 'sampled')",
            "a call of a tool follows from a stored turn",
        ),
        refuse(
            "call_stays",
            "UPDATE OF episode, node, place, name, digest, stored_at, seconds ON tool_calls",
            "TRUE",
            "a call of a tool never changes",
        ),
    ]
)
