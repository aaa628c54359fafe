BEGIN TRANSACTION;
CREATE TABLE assigned (
  step INTEGER NOT NULL, epoch INTEGER NOT NULL, idx INTEGER NOT NULL, sample INTEGER NOT NULL,
  PRIMARY KEY (epoch, idx, sample),
  FOREIGN KEY (step, epoch, idx, sample) REFERENCES trajectories (step, epoch, idx, sample) ON DELETE CASCADE
) WITHOUT ROWID;
INSERT INTO "assigned" VALUES(1,0,0,0);
INSERT INTO "assigned" VALUES(1,0,0,1);
INSERT INTO "assigned" VALUES(1,0,1,0);
INSERT INTO "assigned" VALUES(1,0,1,1);
INSERT INTO "assigned" VALUES(1,0,2,0);
INSERT INTO "assigned" VALUES(1,0,2,1);
INSERT INTO "assigned" VALUES(2,0,3,0);
INSERT INTO "assigned" VALUES(2,0,3,1);
INSERT INTO "assigned" VALUES(2,0,4,0);
INSERT INTO "assigned" VALUES(2,0,4,1);
INSERT INTO "assigned" VALUES(2,0,5,0);
INSERT INTO "assigned" VALUES(2,0,5,1);
CREATE TABLE boundaries (
  step INTEGER PRIMARY KEY CHECK (step >= 0),
  epoch INTEGER NOT NULL, position INTEGER NOT NULL CHECK (position >= 0),
  long_queue TEXT NOT NULL DEFAULT '[]',
  planner TEXT NOT NULL DEFAULT '{}',
  report TEXT, totals TEXT NOT NULL DEFAULT '{}'
);
INSERT INTO "boundaries" VALUES(0,0,0,'[]','{}',NULL,'{"trainedTrajectories": 0, "discardedTrajectories": 0, "abortedSamples": 0, "filteredGroups": 0, "skippedPrompts": 0, "tokens": 0, "coordinatorRestarts": 0}');
INSERT INTO "boundaries" VALUES(1,0,3,'[]','{}','{"round": 1, "kind": "Long", "seconds": 3.391, "generationSeconds": 0.89, "trainingSeconds": 2.005, "broadcastSeconds": 0.496, "responses": 6, "tokens": 128, "meanResponseTokens": 21.33, "maxResponseTokens": 39, "preemptions": 0, "reward": 0.4220000000000001, "abortedSamples": 0, "filteredGroups": 0}','{"trainedTrajectories": 6, "discardedTrajectories": 0, "abortedSamples": 0, "filteredGroups": 0, "skippedPrompts": 0, "tokens": 128, "coordinatorRestarts": 0}');
INSERT INTO "boundaries" VALUES(2,0,6,'[]','{}','{"round": 2, "kind": "Long", "seconds": 3.347, "generationSeconds": 0.848, "trainingSeconds": 2.005, "broadcastSeconds": 0.495, "responses": 6, "tokens": 123, "meanResponseTokens": 20.5, "maxResponseTokens": 37, "preemptions": 0, "reward": 0.4266666666666667, "abortedSamples": 0, "filteredGroups": 0}','{"trainedTrajectories": 12, "discardedTrajectories": 0, "abortedSamples": 0, "filteredGroups": 0, "skippedPrompts": 0, "tokens": 251, "coordinatorRestarts": 0}');
CREATE TABLE chunks (
  step INTEGER NOT NULL, epoch INTEGER NOT NULL, idx INTEGER NOT NULL, sample INTEGER NOT NULL, start INTEGER NOT NULL,
  tokens BLOB NOT NULL, logprobs BLOB NOT NULL,
  PRIMARY KEY (step, epoch, idx, sample, start),
  CHECK (length(logprobs) = 2 * length(tokens)),
  FOREIGN KEY (step, epoch, idx, sample) REFERENCES trajectories (step, epoch, idx, sample) ON DELETE CASCADE
) WITHOUT ROWID;
INSERT INTO "chunks" VALUES(3,0,6,0,0,X'B6370000',X'A01A2FDD2486DCBF');
INSERT INTO "chunks" VALUES(3,0,6,0,1,X'F2120000',X'666666666666C3BF');
INSERT INTO "chunks" VALUES(3,0,6,0,2,X'4039000074770000',X'1D5A643BDF4FDDBF14AE47E17A94EEBF');
INSERT INTO "chunks" VALUES(3,0,6,0,4,X'BA5A0000',X'60E5D022DB39E7BF');
INSERT INTO "chunks" VALUES(3,0,6,0,5,X'E1120000',X'A245B6F3FD54C3BF');
INSERT INTO "chunks" VALUES(3,0,6,0,6,X'17430000',X'CDCCCCCCCC2CE1BF');
INSERT INTO "chunks" VALUES(3,0,6,0,7,X'75280000',X'105839B4C8B6D4BF');
INSERT INTO "chunks" VALUES(3,0,6,0,8,X'8A100000',X'560E2DB29DEFC0BF');
INSERT INTO "chunks" VALUES(3,0,6,0,9,X'BC1A0000',X'C74B37894160CBBF');
INSERT INTO "chunks" VALUES(3,0,6,1,0,X'98210000',X'333333333333D1BF');
INSERT INTO "chunks" VALUES(3,0,6,1,1,X'02160000',X'F0A7C64B3789C6BF');
INSERT INTO "chunks" VALUES(3,0,6,1,2,X'E9040000',X'E9263108AC1CA4BF');
INSERT INTO "chunks" VALUES(3,0,6,1,3,X'2B2E0000107A0000',X'17D9CEF753A3D7BF736891ED7C3FEFBF');
INSERT INTO "chunks" VALUES(3,0,6,1,5,X'75560000',X'355EBA490C22E6BF');
INSERT INTO "chunks" VALUES(3,0,6,1,6,X'D3250000',X'04560E2DB25DD3BF');
INSERT INTO "chunks" VALUES(3,0,6,1,7,X'AF6C0000',X'A69BC420B0D2EBBF');
INSERT INTO "chunks" VALUES(3,0,6,1,8,X'8C6C0000',X'7D3F355EBAC9EBBF');
INSERT INTO "chunks" VALUES(3,0,6,1,9,X'395E0000',X'E5D022DBF91EE8BF');
INSERT INTO "chunks" VALUES(3,0,7,0,0,X'AE520000',X'D122DBF97E2AE5BF');
INSERT INTO "chunks" VALUES(3,0,7,0,1,X'F8090000',X'D122DBF97E6AB4BF');
INSERT INTO "chunks" VALUES(3,0,7,0,2,X'B53A0000EE660000',X'022B8716D90EDEBF9A9999999959EABF');
INSERT INTO "chunks" VALUES(3,0,7,0,4,X'98600000',X'EE7C3F355EBAE8BF');
INSERT INTO "chunks" VALUES(3,0,7,0,5,X'6D140000',X'D122DBF97EEAC4BF');
INSERT INTO "chunks" VALUES(3,0,7,0,6,X'F3720000',X'5A643BDF4F6DEDBF');
INSERT INTO "chunks" VALUES(3,0,7,0,7,X'C80D0000',X'D34D62105839BCBF');
INSERT INTO "chunks" VALUES(3,0,7,0,8,X'97410000',X'D122DBF97ECAE0BF');
INSERT INTO "chunks" VALUES(3,0,7,0,9,X'25210000',X'B81E85EB51F8D0BF');
INSERT INTO "chunks" VALUES(3,0,7,1,0,X'DE700000',X'BE9F1A2FDDE4ECBF');
INSERT INTO "chunks" VALUES(3,0,7,1,1,X'E30C0000',X'3108AC1C5A64BABF');
INSERT INTO "chunks" VALUES(3,0,7,1,2,X'E74F0000',X'14AE47E17A74E4BF');
INSERT INTO "chunks" VALUES(3,0,7,1,3,X'AD560000160E0000',X'AAF1D24D6230E6BF0C022B8716D9BCBF');
INSERT INTO "chunks" VALUES(3,0,8,0,0,X'C51B0000',X'560E2DB29D6FCCBF');
INSERT INTO "chunks" VALUES(3,0,8,0,1,X'AE160000',X'D34D62105839C7BF');
INSERT INTO "chunks" VALUES(3,0,8,0,2,X'CA580000E9540000',X'7B14AE47E1BAE6BFE9263108ACBCE5BF');
INSERT INTO "chunks" VALUES(3,0,8,1,0,X'02720000',X'560E2DB29D2FEDBF');
INSERT INTO "chunks" VALUES(3,0,8,1,1,X'C1750000',X'85EB51B81E25EEBF');
INSERT INTO "chunks" VALUES(3,0,8,1,2,X'89610000',X'F2D24D6210F8E8BF');
INSERT INTO "chunks" VALUES(3,0,8,1,3,X'EF140000B7080000',X'560E2DB29D6FC5BF0C022B8716D9B1BF');
INSERT INTO "chunks" VALUES(3,0,8,1,5,X'19350000',X'560E2DB29D2FDBBF');
INSERT INTO "chunks" VALUES(3,0,8,1,6,X'336E0000',X'BC7493180436ECBF');
INSERT INTO "chunks" VALUES(3,0,8,1,7,X'14250000',X'96438B6CE7FBD2BF');
INSERT INTO "chunks" VALUES(3,0,8,1,8,X'31240000',X'48E17A14AE87D2BF');
INSERT INTO "chunks" VALUES(3,0,8,1,9,X'89420000',X'9CC420B07208E1BF');
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('job','uid-1');
INSERT INTO "meta" VALUES('starts','1');
INSERT INTO "meta" VALUES('term','1');
CREATE TABLE prompts (
  step INTEGER NOT NULL, epoch INTEGER NOT NULL, idx INTEGER NOT NULL, ordinal INTEGER NOT NULL,
  fate TEXT CHECK (fate IN ('trained', 'filtered', 'requeued')), reason TEXT,
  PRIMARY KEY (step, epoch, idx),
  CHECK (fate IS NOT 'filtered' OR reason IS NOT NULL),
  FOREIGN KEY (step) REFERENCES rounds (step) ON DELETE CASCADE
) WITHOUT ROWID;
INSERT INTO "prompts" VALUES(1,0,0,0,'trained',NULL);
INSERT INTO "prompts" VALUES(1,0,1,1,'trained',NULL);
INSERT INTO "prompts" VALUES(1,0,2,2,'trained',NULL);
INSERT INTO "prompts" VALUES(2,0,3,0,'trained',NULL);
INSERT INTO "prompts" VALUES(2,0,4,1,'trained',NULL);
INSERT INTO "prompts" VALUES(2,0,5,2,'trained',NULL);
INSERT INTO "prompts" VALUES(3,0,6,0,NULL,NULL);
INSERT INTO "prompts" VALUES(3,0,7,1,NULL,NULL);
INSERT INTO "prompts" VALUES(3,0,8,2,NULL,NULL);
CREATE TABLE rounds (
  step INTEGER PRIMARY KEY CHECK (step > 0),
  kind TEXT NOT NULL, version INTEGER NOT NULL REFERENCES versions (version), responses INTEGER NOT NULL,
  epoch INTEGER NOT NULL, position INTEGER NOT NULL
);
INSERT INTO "rounds" VALUES(1,'Long',1,2,0,3);
INSERT INTO "rounds" VALUES(2,'Long',2,2,0,6);
INSERT INTO "rounds" VALUES(3,'Long',3,2,0,9);
CREATE TABLE trajectories (
  step INTEGER NOT NULL, epoch INTEGER NOT NULL, idx INTEGER NOT NULL, sample INTEGER NOT NULL,
  attempt INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0,
  version INTEGER, replica TEXT, finish TEXT, reward REAL,
  outcome TEXT CHECK (outcome IN ('trained', 'discarded')), reason TEXT,
  PRIMARY KEY (step, epoch, idx, sample),
  CHECK (outcome IS NOT 'discarded' OR reason IS NOT NULL),
  CHECK (outcome IS NOT 'trained' OR (reward IS NOT NULL AND finish IS NOT NULL AND version IS NOT NULL)),
  CHECK (reward IS NULL OR finish IS NOT NULL),
  FOREIGN KEY (step, epoch, idx) REFERENCES prompts (step, epoch, idx) ON DELETE CASCADE
) WITHOUT ROWID;
INSERT INTO "trajectories" VALUES(1,0,0,0,1,0,1,'rollout-0/replica-0','stop',0.434,'trained',NULL);
INSERT INTO "trajectories" VALUES(1,0,0,1,1,0,1,'rollout-1/replica-0','stop',0.185,'trained',NULL);
INSERT INTO "trajectories" VALUES(1,0,1,0,1,0,1,'rollout-0/replica-0','stop',0.734,'trained',NULL);
INSERT INTO "trajectories" VALUES(1,0,1,1,1,0,1,'rollout-1/replica-0','stop',0.81,'trained',NULL);
INSERT INTO "trajectories" VALUES(1,0,2,0,1,0,1,'rollout-0/replica-0','stop',0.228,'trained',NULL);
INSERT INTO "trajectories" VALUES(1,0,2,1,1,0,1,'rollout-1/replica-0','stop',0.141,'trained',NULL);
INSERT INTO "trajectories" VALUES(2,0,3,0,1,0,2,'rollout-0/replica-0','stop',0.318,'trained',NULL);
INSERT INTO "trajectories" VALUES(2,0,3,1,1,0,2,'rollout-1/replica-0','stop',0.128,'trained',NULL);
INSERT INTO "trajectories" VALUES(2,0,4,0,1,0,2,'rollout-0/replica-0','stop',0.419,'trained',NULL);
INSERT INTO "trajectories" VALUES(2,0,4,1,1,0,2,'rollout-1/replica-0','stop',0.945,'trained',NULL);
INSERT INTO "trajectories" VALUES(2,0,5,0,1,0,2,'rollout-0/replica-0','stop',0.309,'trained',NULL);
INSERT INTO "trajectories" VALUES(2,0,5,1,1,0,2,'rollout-1/replica-0','stop',0.441,'trained',NULL);
INSERT INTO "trajectories" VALUES(3,0,6,0,1,0,3,'rollout-0/replica-0',NULL,NULL,NULL,NULL);
INSERT INTO "trajectories" VALUES(3,0,6,1,1,0,3,'rollout-1/replica-0',NULL,NULL,NULL,NULL);
INSERT INTO "trajectories" VALUES(3,0,7,0,1,0,3,'rollout-0/replica-0',NULL,NULL,NULL,NULL);
INSERT INTO "trajectories" VALUES(3,0,7,1,1,0,3,'rollout-1/replica-0','stop',0.566,NULL,NULL);
INSERT INTO "trajectories" VALUES(3,0,8,0,1,0,3,'rollout-0/replica-0','stop',0.812,NULL,NULL);
INSERT INTO "trajectories" VALUES(3,0,8,1,1,0,3,'rollout-1/replica-0',NULL,NULL,NULL,NULL);
CREATE TABLE versions (version INTEGER PRIMARY KEY CHECK (version > 0), step INTEGER NOT NULL, lost INTEGER NOT NULL
DEFAULT 0);
INSERT INTO "versions" VALUES(1,0,0);
INSERT INTO "versions" VALUES(2,1,0);
INSERT INTO "versions" VALUES(3,2,0);
CREATE UNIQUE INDEX trained_once ON trajectories (epoch, idx, sample) WHERE outcome = 'trained';
CREATE TRIGGER outcome_once BEFORE UPDATE OF outcome ON trajectories WHEN OLD.outcome IS NOT NULL AND NEW.outcome IS NOT OLD.outcome BEGIN SELECT RAISE(ABORT, 'invariant: a trajectory ends once'); END;
CREATE TRIGGER one_version BEFORE UPDATE OF version ON trajectories WHEN OLD.version IS NOT NULL AND NEW.version IS NOT OLD.version BEGIN SELECT RAISE(ABORT, 'invariant: a trajectory has one weight version'); END;
CREATE TRIGGER attempt_rises BEFORE UPDATE OF attempt ON trajectories WHEN NEW.attempt < OLD.attempt BEGIN SELECT RAISE(ABORT, 'invariant: an attempt never falls'); END;
CREATE TRIGGER trained_when_assigned BEFORE UPDATE OF outcome ON trajectories WHEN NEW.outcome = 'trained' AND NOT EXISTS (SELECT 1 FROM assigned WHERE step = NEW.step AND epoch = NEW.epoch AND idx = NEW.idx AND sample = NEW.sample) BEGIN SELECT RAISE(ABORT, 'invariant: only what was assigned to the step is trained on'); END;
CREATE TRIGGER fate_once BEFORE UPDATE OF fate ON prompts WHEN OLD.fate IS NOT NULL AND NEW.fate IS NOT OLD.fate BEGIN SELECT RAISE(ABORT, 'invariant: a prompt has one fate'); END;
CREATE TRIGGER rounds_in_order BEFORE INSERT ON boundaries WHEN EXISTS (SELECT 1 FROM boundaries) AND NOT EXISTS (SELECT 1 FROM boundaries WHERE step = NEW.step - 1) BEGIN SELECT RAISE(ABORT, 'invariant: rounds follow each other'); END;
CREATE TRIGGER all_prompts_settled BEFORE INSERT ON boundaries WHEN EXISTS (SELECT 1 FROM prompts WHERE step = NEW.step AND fate IS NULL) OR EXISTS (SELECT 1 FROM trajectories WHERE step = NEW.step AND outcome IS NULL) BEGIN SELECT RAISE(ABORT, 'invariant: every prompt has a fate and every response an outcome before its round is closed'); END;
CREATE TRIGGER versions_rise BEFORE INSERT ON versions WHEN NEW.version <= (SELECT COALESCE(MAX(version), 0) FROM versions) BEGIN SELECT RAISE(ABORT, 'invariant: a weight version is never used twice'); END;
CREATE TRIGGER no_hole BEFORE INSERT ON chunks WHEN NEW.start <> (SELECT COALESCE(SUM(length(tokens) / 4), 0) FROM chunks WHERE step = NEW.step AND epoch = NEW.epoch AND idx = NEW.idx AND sample = NEW.sample) BEGIN SELECT RAISE(ABORT, 'invariant: tokens are appended without a hole'); END;
COMMIT;
PRAGMA user_version = 1;
