PRAGMA user_version = 19;
BEGIN TRANSACTION;
CREATE TABLE anchors (
  step INTEGER NOT NULL REFERENCES boundaries (step) ON DELETE CASCADE,
  rule TEXT NOT NULL, test TEXT NOT NULL, milliseconds INTEGER NOT NULL CHECK (milliseconds >= 0),
  PRIMARY KEY (rule, test, step)
) WITHOUT ROWID;
CREATE TABLE assigned (
  step INTEGER NOT NULL, epoch INTEGER NOT NULL, idx INTEGER NOT NULL, sample INTEGER NOT NULL,
  PRIMARY KEY (epoch, idx, sample),
  FOREIGN KEY (step, epoch, idx, sample) REFERENCES trajectories (step, epoch, idx, sample) ON DELETE CASCADE
) WITHOUT ROWID;
INSERT INTO "assigned" VALUES(1,0,2,1);
INSERT INTO "assigned" VALUES(1,0,2,2);
INSERT INTO "assigned" VALUES(1,0,3,0);
INSERT INTO "assigned" VALUES(1,0,3,2);
INSERT INTO "assigned" VALUES(1,0,4,0);
INSERT INTO "assigned" VALUES(1,0,4,1);
INSERT INTO "assigned" VALUES(2,0,6,1);
INSERT INTO "assigned" VALUES(2,0,6,2);
INSERT INTO "assigned" VALUES(2,0,8,0);
INSERT INTO "assigned" VALUES(2,0,8,2);
INSERT INTO "assigned" VALUES(2,0,9,0);
INSERT INTO "assigned" VALUES(2,0,9,1);
CREATE TABLE boundaries (
  step INTEGER PRIMARY KEY CHECK (step >= 0),
  epoch INTEGER NOT NULL, position INTEGER NOT NULL CHECK (position >= 0),
  long_queue TEXT NOT NULL DEFAULT '[]',
  planner TEXT NOT NULL DEFAULT '{}',
  report TEXT, totals TEXT NOT NULL DEFAULT '{}'
, sources TEXT NOT NULL DEFAULT '[]');
INSERT INTO "boundaries" VALUES(0,0,0,'[]','{}',NULL,'{"trainedTrajectories": 0, "discardedTrajectories": 0, "abortedSamples": 0, "filteredGroups": 0, "requeuedPrompts": 0, "skippedPrompts": 0, "tokens": 0, "discardedTokens": 0, "coordinatorRestarts": 0}','[]');
INSERT INTO "boundaries" VALUES(1,0,5,'["0.0", "0.1"]','{}','{"round": 1, "kind": "Short", "seconds": 2.971, "generationSeconds": 0.468, "trainingSeconds": 2.005, "broadcastSeconds": 0.498, "responses": 6, "tokens": 223, "meanResponseTokens": 12.67, "maxResponseTokens": 18, "preemptions": 0, "reward": 0.4698, "abortedSamples": 0, "filteredGroups": 0, "launchedPrompts": 5, "launchedResponses": 15, "abortedResponses": 5, "requeuedPrompts": 2, "discardedTokens": 147, "launchedMeanTokens": 16.18, "scoredReward": 0.5279, "deferredPrompts": 2, "plan": "race 1.5 x 1.5", "rewardDelaySeconds": 0.1, "earlyGroups": 0, "tensorParallelSize": 1, "layoutSeconds": 0.0, "overlapSeconds": 0.0, "rewardSeconds": 0.8, "loanedMachines": 1, "loanedGroups": 2, "predictedGainSeconds": 0.25, "loan": {"state": "Loaned"}}','{"trainedTrajectories": 6, "discardedTrajectories": 9, "abortedSamples": 0, "filteredGroups": 0, "requeuedPrompts": 2, "skippedPrompts": 0, "tokens": 223, "discardedTokens": 147, "coordinatorRestarts": 0}','[]');
INSERT INTO "boundaries" VALUES(2,0,10,'["0.0", "0.1", "0.5", "0.7"]','{}','{"round": 2, "kind": "Short", "seconds": 3.229, "generationSeconds": 0.728, "trainingSeconds": 2.005, "broadcastSeconds": 0.497, "responses": 6, "tokens": 250, "meanResponseTokens": 11.83, "maxResponseTokens": 31, "preemptions": 0, "reward": 0.2532, "abortedSamples": 0, "filteredGroups": 0, "launchedPrompts": 5, "launchedResponses": 15, "abortedResponses": 5, "requeuedPrompts": 2, "discardedTokens": 179, "launchedMeanTokens": 19.75, "scoredReward": 0.2776, "deferredPrompts": 4, "plan": "race 1.5 x 1.5", "rewardDelaySeconds": 0.1, "earlyGroups": 0, "tensorParallelSize": 2, "layoutSeconds": 0.0, "overlapSeconds": 0.0, "rewardSeconds": 0.8, "loanedMachines": 0, "loanedGroups": 0, "loan": {"state": "NotLoaned", "reason": "OutsideWindow"}}','{"trainedTrajectories": 12, "discardedTrajectories": 18, "abortedSamples": 0, "filteredGroups": 0, "requeuedPrompts": 4, "skippedPrompts": 0, "tokens": 473, "discardedTokens": 326, "coordinatorRestarts": 0}','[]');
CREATE TABLE chunks (
  step INTEGER NOT NULL, epoch INTEGER NOT NULL, idx INTEGER NOT NULL, sample INTEGER NOT NULL, start INTEGER NOT NULL,
  tokens BLOB NOT NULL, logprobs BLOB NOT NULL,
  PRIMARY KEY (step, epoch, idx, sample, start),
  CHECK (length(logprobs) = 2 * length(tokens)),
  FOREIGN KEY (step, epoch, idx, sample) REFERENCES trajectories (step, epoch, idx, sample) ON DELETE CASCADE
) WITHOUT ROWID;
INSERT INTO "chunks" VALUES(3,0,0,0,0,X'7F1A0000',X'6F1283C0CA21CBBF');
INSERT INTO "chunks" VALUES(3,0,0,0,1,X'D82F0000',X'E5D022DBF97ED8BF');
INSERT INTO "chunks" VALUES(3,0,0,0,2,X'FC010000',X'A8C64B37894190BF');
INSERT INTO "chunks" VALUES(3,0,0,0,3,X'6F6E0000',X'4C3789416045ECBF');
INSERT INTO "chunks" VALUES(3,0,0,0,4,X'B9240000',X'5A643BDF4FCDD2BF');
INSERT INTO "chunks" VALUES(3,0,0,0,5,X'CA4F0000',X'931804560E6DE4BF');
INSERT INTO "chunks" VALUES(3,0,0,0,6,X'3F370000',X'F0A7C64B3749DCBF');
INSERT INTO "chunks" VALUES(3,0,0,0,7,X'C97A0000',X'022B8716D96EEFBF');
INSERT INTO "chunks" VALUES(3,0,0,0,8,X'CD5D0000',X'17D9CEF75303E8BF');
INSERT INTO "chunks" VALUES(3,0,0,0,9,X'011D0000',X'3333333333B3CDBF');
INSERT INTO "chunks" VALUES(3,0,0,0,10,X'85740000',X'4E62105839D4EDBF');
INSERT INTO "chunks" VALUES(3,0,0,0,11,X'DB000000',X'D578E92631087CBF');
INSERT INTO "chunks" VALUES(3,0,0,0,12,X'3F1C0000',X'068195438BECCCBF');
INSERT INTO "chunks" VALUES(3,0,0,0,13,X'0E6D0000',X'5EBA490C02EBEBBF');
INSERT INTO "chunks" VALUES(3,0,0,0,14,X'E7650000',X'83C0CAA14516EABF');
INSERT INTO "chunks" VALUES(3,0,0,0,15,X'F74D0000',X'2FDD240681F5E3BF');
INSERT INTO "chunks" VALUES(3,0,0,0,16,X'8731000008110000',X'CFF753E3A55BD9BF713D0AD7A370C1BF');
INSERT INTO "chunks" VALUES(3,0,0,1,0,X'2E300000',X'5EBA490C02ABD8BF');
INSERT INTO "chunks" VALUES(3,0,0,1,1,X'4D340000',X'BA490C022BC7DABF');
INSERT INTO "chunks" VALUES(3,0,0,1,2,X'14010000',X'448B6CE7FBA981BF');
INSERT INTO "chunks" VALUES(3,0,0,1,3,X'67350000',X'643BDF4F8D57DBBF');
INSERT INTO "chunks" VALUES(3,0,0,1,4,X'217B0000',X'4C3789416085EFBF');
INSERT INTO "chunks" VALUES(3,0,0,1,5,X'355D0000',X'23DBF97E6ADCE7BF');
INSERT INTO "chunks" VALUES(3,0,0,1,6,X'5C730000',X'D578E9263188EDBF');
INSERT INTO "chunks" VALUES(3,0,0,1,7,X'0B290000',X'DD2406819503D5BF');
INSERT INTO "chunks" VALUES(3,0,0,1,8,X'7C3800001C1A0000',X'EC51B81E85EBDCBF23DBF97E6ABCCABF');
INSERT INTO "chunks" VALUES(3,0,0,1,10,X'902F0000',X'273108AC1C5AD8BF');
INSERT INTO "chunks" VALUES(3,0,0,1,11,X'8B250000',X'46B6F3FDD438D3BF');
INSERT INTO "chunks" VALUES(3,0,0,1,12,X'E6790000',X'DBF97E6ABC34EFBF');
INSERT INTO "chunks" VALUES(3,0,0,1,13,X'463C0000',X'5C8FC2F528DCDEBF');
INSERT INTO "chunks" VALUES(3,0,0,1,14,X'A70B0000',X'77BE9F1A2FDDB7BF');
INSERT INTO "chunks" VALUES(3,0,0,1,15,X'A2790000BD170000',X'17D9CEF75323EFBF022B8716D94EC8BF');
INSERT INTO "chunks" VALUES(3,0,1,0,0,X'28580000',X'C520B0726891E6BF');
INSERT INTO "chunks" VALUES(3,0,1,0,1,X'29680000',X'0AD7A3703DAAEABF');
INSERT INTO "chunks" VALUES(3,0,1,0,2,X'6B2E0000',X'6ABC749318C4D7BF');
INSERT INTO "chunks" VALUES(3,0,1,0,3,X'A0750000',X'E9263108AC1CEEBF');
INSERT INTO "chunks" VALUES(3,0,1,0,4,X'E3050000',X'E9263108AC1CA8BF');
INSERT INTO "chunks" VALUES(3,0,1,0,5,X'58520000',X'14AE47E17A14E5BF');
INSERT INTO "chunks" VALUES(3,0,1,0,6,X'F44E0000',X'83C0CAA14536E4BF');
INSERT INTO "chunks" VALUES(3,0,1,0,7,X'2C430000',X'1904560E2D32E1BF');
INSERT INTO "chunks" VALUES(3,0,1,0,8,X'251D0000',X'F2D24D6210D8CDBF');
INSERT INTO "chunks" VALUES(3,0,1,0,9,X'A01B0000',X'7D3F355EBA49CCBF');
INSERT INTO "chunks" VALUES(3,0,1,0,10,X'AA410000',X'8FC2F5285CCFE0BF');
INSERT INTO "chunks" VALUES(3,0,1,0,11,X'25330000',X'560E2DB29D2FDABF');
INSERT INTO "chunks" VALUES(3,0,1,0,12,X'3C3E0000',X'77BE9F1A2FDDDFBF');
INSERT INTO "chunks" VALUES(3,0,1,0,13,X'B41C0000',X'3108AC1C5A64CDBF');
INSERT INTO "chunks" VALUES(3,0,1,0,14,X'2F490000',X'5C8FC2F528BCE2BF');
INSERT INTO "chunks" VALUES(3,0,1,0,15,X'4A5D0000',X'6F1283C0CAE1E7BF');
INSERT INTO "chunks" VALUES(3,0,1,0,16,X'030A000028450000',X'1B2FDD240681B4BF4E62105839B4E1BF');
INSERT INTO "chunks" VALUES(3,0,1,1,0,X'2B310000',X'068195438B2CD9BF');
INSERT INTO "chunks" VALUES(3,0,1,1,1,X'89150000',X'5A643BDF4F0DC6BF');
INSERT INTO "chunks" VALUES(3,0,1,1,2,X'542A0000',X'79E9263108ACD5BF');
INSERT INTO "chunks" VALUES(3,0,1,1,3,X'FA350000',X'894160E5D0A2DBBF');
INSERT INTO "chunks" VALUES(3,0,1,1,4,X'F1520000',X'CFF753E3A53BE5BF');
INSERT INTO "chunks" VALUES(3,0,1,1,5,X'D7720000',X'A01A2FDD2466EDBF');
INSERT INTO "chunks" VALUES(3,0,1,1,6,X'FF570000',X'F4FDD478E986E6BF');
INSERT INTO "chunks" VALUES(3,0,1,1,7,X'B6370000',X'A01A2FDD2486DCBF');
INSERT INTO "chunks" VALUES(3,0,1,1,8,X'F212000040390000',X'666666666666C3BF1D5A643BDF4FDDBF');
INSERT INTO "chunks" VALUES(3,0,1,1,10,X'74770000',X'14AE47E17A94EEBF');
INSERT INTO "chunks" VALUES(3,0,1,1,11,X'BA5A0000',X'60E5D022DB39E7BF');
INSERT INTO "chunks" VALUES(3,0,1,1,12,X'E1120000',X'A245B6F3FD54C3BF');
INSERT INTO "chunks" VALUES(3,0,1,1,13,X'17430000',X'CDCCCCCCCC2CE1BF');
INSERT INTO "chunks" VALUES(3,0,1,1,14,X'75280000',X'105839B4C8B6D4BF');
INSERT INTO "chunks" VALUES(3,0,1,1,15,X'8A100000BC1A0000',X'560E2DB29DEFC0BFC74B37894160CBBF');
INSERT INTO "chunks" VALUES(3,0,5,0,0,X'640D0000',X'068195438B6CBBBF');
INSERT INTO "chunks" VALUES(3,0,5,0,1,X'57190000',X'A69BC420B0F2C9BF');
INSERT INTO "chunks" VALUES(3,0,5,0,2,X'AD3A0000',X'986E1283C00ADEBF');
INSERT INTO "chunks" VALUES(3,0,5,0,3,X'63300000',X'A01A2FDD24C6D8BF');
INSERT INTO "chunks" VALUES(3,0,5,0,4,X'4A2E0000',X'3333333333B3D7BF');
INSERT INTO "chunks" VALUES(3,0,5,0,5,X'F0450000',X'8195438B6CE7E1BF');
INSERT INTO "chunks" VALUES(3,0,5,0,6,X'DA690000',X'0C022B871619EBBF');
INSERT INTO "chunks" VALUES(3,0,5,0,7,X'5E130000',X'A245B6F3FDD4C3BF');
INSERT INTO "chunks" VALUES(3,0,5,0,8,X'680D0000',X'DBF97E6ABC74BBBF');
INSERT INTO "chunks" VALUES(3,0,5,0,9,X'514C0000',X'B6F3FDD47889E3BF');
INSERT INTO "chunks" VALUES(3,0,5,0,10,X'733E0000',X'D34D621058F9DFBF');
INSERT INTO "chunks" VALUES(3,0,5,0,11,X'FE120000',X'A69BC420B072C3BF');
INSERT INTO "chunks" VALUES(3,0,5,0,12,X'2E480000',X'EE7C3F355E7AE2BF');
INSERT INTO "chunks" VALUES(3,0,5,0,13,X'F4330000',X'9A9999999999DABF');
INSERT INTO "chunks" VALUES(3,0,5,0,14,X'B5510000',X'986E1283C0EAE4BF');
INSERT INTO "chunks" VALUES(3,0,5,0,15,X'07570000',X'8195438B6C47E6BF');
INSERT INTO "chunks" VALUES(3,0,5,0,16,X'2C36000057700000',X'23DBF97E6ABCDBBFFCA9F1D24DC2ECBF');
INSERT INTO "chunks" VALUES(3,0,5,1,0,X'DD2D0000',X'08AC1C5A647BD7BF');
INSERT INTO "chunks" VALUES(3,0,5,1,1,X'213E0000',X'8FC2F5285CCFDFBF');
INSERT INTO "chunks" VALUES(3,0,5,1,2,X'60410000',X'23DBF97E6ABCE0BF');
INSERT INTO "chunks" VALUES(3,0,5,1,3,X'831F0000',X'FCA9F1D24D22D0BF');
INSERT INTO "chunks" VALUES(3,0,5,1,4,X'4E370000',X'37894160E550DCBF');
INSERT INTO "chunks" VALUES(3,0,5,1,5,X'81630000',X'0C022B871679E9BF');
INSERT INTO "chunks" VALUES(3,0,5,1,6,X'15130000',X'0AD7A3703D8AC3BF');
INSERT INTO "chunks" VALUES(3,0,5,1,7,X'38770000',X'85EB51B81E85EEBF');
INSERT INTO "chunks" VALUES(3,0,5,1,8,X'914C0000A64C0000',X'60E5D022DB99E3BFAC1C5A643B9FE3BF');
CREATE TABLE decisions (
  step INTEGER PRIMARY KEY REFERENCES rounds (step) ON DELETE CASCADE,
  chosen TEXT NOT NULL);
INSERT INTO "decisions" VALUES(1,'{"race": [1.5, 1.5], "stream": false, "reason": "", "seconds": null, "speedup": null, "explained": null, "layouts": []}');
INSERT INTO "decisions" VALUES(2,'{"race": [1.5, 1.5], "stream": false, "reason": "", "seconds": null, "speedup": null, "explained": null, "layouts": []}');
INSERT INTO "decisions" VALUES(3,'{"race": [1.5, 1.5], "stream": false, "reason": "", "seconds": null, "speedup": null, "explained": null, "layouts": []}');
CREATE TABLE episodes (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        epoch INTEGER NOT NULL, idx INTEGER NOT NULL, sample INTEGER NOT NULL CHECK (sample >= 0),
        version INTEGER NOT NULL, environment TEXT NOT NULL, started REAL NOT NULL,
        state TEXT CHECK (state IN ('completed', 'truncated', 'aborted')),
        reached TEXT, cause TEXT, detail TEXT, reward REAL, metrics TEXT, ended REAL,
        former INTEGER NOT NULL DEFAULT 0,
        step INTEGER, loss BLOB, refusing TEXT, resumption INTEGER, pauses TEXT,
        CHECK ((state IS NULL) = (ended IS NULL)),
        CHECK ((state IS 'truncated') = (reached IS NOT NULL)),
        CHECK ((state IS 'aborted') = (cause IS NOT NULL)),
        CHECK (reward IS NULL OR state IN ('completed', 'truncated')),
        CHECK ((step IS NULL) = (loss IS NULL)),
        CHECK (step IS NULL OR (state IS NOT NULL AND state IS NOT 'aborted'))
        );
INSERT INTO "episodes" VALUES(1,0,7,0,3,'calc',100.0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,NULL,NULL,NULL,0,NULL);
CREATE TABLE evaluation_samples (
        step INTEGER NOT NULL, name TEXT NOT NULL, idx INTEGER NOT NULL, sample INTEGER NOT NULL CHECK (sample >= 0),
        tokens INTEGER NOT NULL, finish TEXT, reward REAL, terms TEXT, reason TEXT, response BLOB, attempt INTEGER, version INTEGER, replica TEXT, cause TEXT,
        PRIMARY KEY (step, name, idx, sample),
        CHECK ((reward IS NULL) = (reason IS NOT NULL)),
        CHECK (reward IS NULL OR finish IS NOT NULL),
        FOREIGN KEY (step, name) REFERENCES evaluations (step, name) ON DELETE CASCADE
        ) WITHOUT ROWID;
CREATE TABLE evaluations (
        step INTEGER NOT NULL CHECK (step >= 0), name TEXT NOT NULL,
        settings TEXT NOT NULL, waited REAL NOT NULL DEFAULT 0,
        result TEXT, abandoned TEXT,
        PRIMARY KEY (step, name),
        CHECK (result IS NULL OR abandoned IS NULL)
        ) WITHOUT ROWID;
CREATE TABLE experience_chunks (
        epoch INTEGER NOT NULL, idx INTEGER NOT NULL, draw INTEGER NOT NULL, sample INTEGER NOT NULL, start INTEGER NOT NULL,
        tokens BLOB NOT NULL, logprobs BLOB NOT NULL,
        PRIMARY KEY (epoch, idx, draw, sample, start),
        CHECK (length(tokens) > 0 AND length(logprobs) = length(tokens)),
        FOREIGN KEY (epoch, idx, draw, sample) REFERENCES samples (epoch, idx, draw, sample) ON DELETE CASCADE
        ) WITHOUT ROWID;
CREATE TABLE groups (
        epoch INTEGER NOT NULL, idx INTEGER NOT NULL, draw INTEGER NOT NULL CHECK (draw >= 0),
        drawn INTEGER NOT NULL UNIQUE,
        version INTEGER REFERENCES versions (version), replica TEXT,
        ready INTEGER UNIQUE, step INTEGER, place INTEGER,
        fate TEXT CHECK (fate IN ('trained', 'filtered', 'requeued')), reason TEXT, queued INTEGER UNIQUE, ended INTEGER,
        PRIMARY KEY (epoch, idx, draw),
        CHECK ((version IS NOT NULL AND replica IS NOT NULL) OR fate IS 'requeued'),
        CHECK ((step IS NULL) = (place IS NULL)),
        CHECK (step IS NULL OR ready IS NOT NULL),
        CHECK (fate IS NOT 'trained' OR step IS NOT NULL),
        CHECK (fate NOT IN ('filtered', 'requeued') OR (reason IS NOT NULL AND step IS NULL)),
        CHECK ((fate IS 'requeued') = (queued IS NOT NULL))
        ) WITHOUT ROWID;
CREATE TABLE kept_evaluation_samples (
        step INTEGER NOT NULL, name TEXT NOT NULL, number INTEGER NOT NULL,
        record TEXT NOT NULL, tokens BLOB NOT NULL,
        PRIMARY KEY (step, name, number),
        FOREIGN KEY (step, name) REFERENCES evaluations (step, name) ON DELETE CASCADE
        );
CREATE TABLE kept_samples (
        step INTEGER NOT NULL, number INTEGER NOT NULL,
        record TEXT NOT NULL, tokens BLOB NOT NULL,
        PRIMARY KEY (step, number)
        );
CREATE TABLE layout_switches (
        step INTEGER NOT NULL REFERENCES rounds (step) ON DELETE CASCADE,
        machine TEXT NOT NULL,
        made INTEGER NOT NULL CHECK (made >= 0), failed INTEGER NOT NULL CHECK (failed >= 0),
        PRIMARY KEY (step, machine)
        ) WITHOUT ROWID;
INSERT INTO "layout_switches" VALUES(3,'rollout-0',2,0);
INSERT INTO "layout_switches" VALUES(3,'rollout-1',1,0);
CREATE TABLE layouts (
        step INTEGER NOT NULL REFERENCES rounds (step) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        machine TEXT NOT NULL, tensor_parallel INTEGER NOT NULL CHECK (tensor_parallel > 0),
        PRIMARY KEY (step, number)
        ) WITHOUT ROWID;
INSERT INTO "layouts" VALUES(3,1,'rollout-0',2);
INSERT INTO "layouts" VALUES(3,2,'rollout-1',2);
INSERT INTO "layouts" VALUES(3,3,'rollout-0',1);
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
INSERT INTO "meta" VALUES('job','uid-1');
INSERT INTO "meta" VALUES('starts','1');
INSERT INTO "meta" VALUES('term','1');
INSERT INTO "meta" VALUES('version_floor','0');
CREATE TABLE pool (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        epoch INTEGER NOT NULL CHECK (epoch >= 0), position INTEGER NOT NULL CHECK (position >= 0)
        , sources TEXT NOT NULL DEFAULT '[]');
CREATE TABLE prompts (
  step INTEGER NOT NULL, epoch INTEGER NOT NULL, idx INTEGER NOT NULL, ordinal INTEGER NOT NULL,
  fate TEXT CHECK (fate IN ('trained', 'filtered', 'requeued')), reason TEXT,
  PRIMARY KEY (step, epoch, idx),
  CHECK (fate NOT IN ('filtered', 'requeued') OR reason IS NOT NULL),
  FOREIGN KEY (step) REFERENCES rounds (step) ON DELETE CASCADE
) WITHOUT ROWID;
INSERT INTO "prompts" VALUES(1,0,0,0,'requeued','RaceLost');
INSERT INTO "prompts" VALUES(1,0,1,1,'requeued','RaceLost');
INSERT INTO "prompts" VALUES(1,0,2,2,'trained',NULL);
INSERT INTO "prompts" VALUES(1,0,3,3,'trained',NULL);
INSERT INTO "prompts" VALUES(1,0,4,4,'trained',NULL);
INSERT INTO "prompts" VALUES(2,0,5,0,'requeued','RaceLost');
INSERT INTO "prompts" VALUES(2,0,6,1,'trained',NULL);
INSERT INTO "prompts" VALUES(2,0,7,2,'requeued','RaceLost');
INSERT INTO "prompts" VALUES(2,0,8,3,'trained',NULL);
INSERT INTO "prompts" VALUES(2,0,9,4,'trained',NULL);
INSERT INTO "prompts" VALUES(3,0,0,0,NULL,NULL);
INSERT INTO "prompts" VALUES(3,0,1,1,NULL,NULL);
INSERT INTO "prompts" VALUES(3,0,5,2,NULL,NULL);
CREATE TABLE pruned (
        step INTEGER NOT NULL, epoch INTEGER NOT NULL,
        draws INTEGER NOT NULL, fresh INTEGER NOT NULL, trained INTEGER NOT NULL, filtered INTEGER NOT NULL,
        trajectories INTEGER NOT NULL, tokens INTEGER NOT NULL, highest INTEGER NOT NULL,
        PRIMARY KEY (step, epoch)
        ) WITHOUT ROWID;
CREATE TABLE rewards (step INTEGER PRIMARY KEY, number INTEGER NOT NULL UNIQUE, total REAL NOT NULL);
INSERT INTO "rewards" VALUES(1,1,0.4698);
INSERT INTO "rewards" VALUES(2,2,0.723);
CREATE TABLE rounds (
  step INTEGER PRIMARY KEY CHECK (step > 0),
  version INTEGER NOT NULL REFERENCES versions (version),
  kind TEXT NOT NULL, prompts INTEGER NOT NULL, responses INTEGER NOT NULL, groups INTEGER NOT NULL,
  group_size INTEGER NOT NULL,
  max_failures INTEGER NOT NULL, drop_equal INTEGER NOT NULL, max_prompts INTEGER NOT NULL,
  epoch INTEGER NOT NULL, position INTEGER NOT NULL
, sources TEXT NOT NULL DEFAULT '[]', races TEXT NOT NULL DEFAULT '[]', tensor_parallel INTEGER);
INSERT INTO "rounds" VALUES(1,1,'Short',5,3,3,2,2,0,15,0,5,'[]','[]',NULL);
INSERT INTO "rounds" VALUES(2,2,'Short',5,3,3,2,2,0,15,0,10,'[]','[]',NULL);
INSERT INTO "rounds" VALUES(3,3,'Long',3,2,3,2,2,0,9,0,10,'[]','[]',1);
CREATE TABLE samples (
        epoch INTEGER NOT NULL, idx INTEGER NOT NULL, draw INTEGER NOT NULL, sample INTEGER NOT NULL CHECK (sample >= 0),
        attempt INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0,
        replica TEXT, finish TEXT, reward REAL, tokens INTEGER, terms TEXT,
        PRIMARY KEY (epoch, idx, draw, sample),
        CHECK (reward IS NULL OR finish IS NOT NULL),
        FOREIGN KEY (epoch, idx, draw) REFERENCES groups (epoch, idx, draw) ON DELETE CASCADE
        ) WITHOUT ROWID;
CREATE TABLE sources (number INTEGER PRIMARY KEY CHECK (number > 0), name TEXT NOT NULL UNIQUE);
CREATE TABLE speeds (
        step INTEGER NOT NULL REFERENCES rounds (step) ON DELETE CASCADE,
        tensor_parallel INTEGER NOT NULL,
        speed TEXT NOT NULL,
        PRIMARY KEY (step, tensor_parallel)
        ) WITHOUT ROWID;
INSERT INTO "speeds" VALUES(1,1,'{"replicas": 2, "kv_tokens": 1099511627776, "max_running": 1024, "stretches": [{"steps": 2.0, "batch": 2.0, "context": 32.75, "seconds": 0.039827223717590954, "prompt_tokens": 0, "lent": false}, {"steps": 1.0, "batch": 2.0, "context": 45.0, "seconds": 0.01995864403166947, "prompt_tokens": 0, "lent": false}, {"steps": 2.0, "batch": 3.0, "context": 51.0, "seconds": 0.04053707033842202, "prompt_tokens": 0, "lent": false}, {"steps": 4.0, "batch": 4.0, "context": 70.0, "seconds": 0.07979999754342915, "prompt_tokens": 0, "lent": false}, {"steps": 1.0, "batch": 4.0, "context": 78.0, "seconds": 0.021528833562068028, "prompt_tokens": 0, "lent": false}, {"steps": 2.0, "batch": 6.0, "context": 54.0, "seconds": 0.039061100009322614, "prompt_tokens": 0, "lent": false}, {"steps": 3.0, "batch": 6.0, "context": 66.83333333333333, "seconds": 0.06064656347191111, "prompt_tokens": 0, "lent": false}, {"steps": 4.0, "batch": 5.0, "context": 72.875, "seconds": 0.07902677509024914, "prompt_tokens": 0, "lent": false}, {"steps": 2.0, "batch": 7.5, "context": 33.75, "seconds": 0.03857744982558997, "prompt_tokens": 0, "lent": false}, {"steps": 4.0, "batch": 7.5, "context": 45.0, "seconds": 0.07938645338098271, "prompt_tokens": 0, "lent": false}, {"steps": 4.0, "batch": 7.75, "context": 63.125, "seconds": 0.08144310831963009, "prompt_tokens": 0, "lent": false}, {"steps": 3.0, "batch": 7.666666666666667, "context": 85.83333333333333, "seconds": 0.058492538434712804, "prompt_tokens": 0, "lent": false}, {"steps": 4.0, "batch": 7.0, "context": 102.875, "seconds": 0.08074920852812051, "prompt_tokens": 0, "lent": false}]}');
INSERT INTO "speeds" VALUES(2,2,'{"replicas": 2, "kv_tokens": 1099511627776, "max_running": 1024, "stretches": [{"steps": 6.0, "batch": 2.0, "context": 32.0, "seconds": 0.14133168175985134, "prompt_tokens": 0, "lent": false}, {"steps": 10.0, "batch": 2.0, "context": 46.6, "seconds": 0.17899732068915863, "prompt_tokens": 0, "lent": false}, {"steps": 5.0, "batch": 2.0, "context": 59.0, "seconds": 0.10000418727387306, "prompt_tokens": 0, "lent": false}, {"steps": 3.0, "batch": 3.0, "context": 30.166666666666668, "seconds": 0.059634512691983055, "prompt_tokens": 0, "lent": false}, {"steps": 1.0, "batch": 3.0, "context": 86.0, "seconds": 0.018868259007323473, "prompt_tokens": 0, "lent": false}, {"steps": 6.0, "batch": 4.0, "context": 96.0, "seconds": 0.13985083638990314, "prompt_tokens": 0, "lent": false}, {"steps": 7.0, "batch": 4.0, "context": 117.14285714285714, "seconds": 0.11936234333606333, "prompt_tokens": 0, "lent": false}, {"steps": 1.0, "batch": 6.0, "context": 41.0, "seconds": 0.020867348752003245, "prompt_tokens": 0, "lent": false}, {"steps": 2.0, "batch": 5.0, "context": 60.0, "seconds": 0.05982038436912607, "prompt_tokens": 0, "lent": false}, {"steps": 8.0, "batch": 5.0, "context": 82.375, "seconds": 0.1406578436943926, "prompt_tokens": 0, "lent": false}, {"steps": 2.0, "batch": 7.5, "context": 33.75, "seconds": 0.0407311264295096, "prompt_tokens": 0, "lent": false}, {"steps": 4.0, "batch": 7.5, "context": 41.5, "seconds": 0.03756492326060723, "prompt_tokens": 0, "lent": false}, {"steps": 2.0, "batch": 7.0, "context": 56.0, "seconds": 0.06130887345902458, "prompt_tokens": 0, "lent": false}, {"steps": 1.125, "batch": 8.0, "context": 26.5, "seconds": 0.04394822307220991, "prompt_tokens": 24, "lent": false}, {"steps": 1.1428571428571428, "batch": 7.0, "context": 26.0, "seconds": 0.044363851681747946, "prompt_tokens": 21, "lent": false}]}');
CREATE TABLE tool_calls (
        number INTEGER PRIMARY KEY,
        episode INTEGER NOT NULL REFERENCES episodes (id) ON DELETE CASCADE,
        node INTEGER NOT NULL, place INTEGER NOT NULL CHECK (place >= 0),
        name TEXT NOT NULL, digest BLOB NOT NULL, content BLOB,
        resumption INTEGER NOT NULL, executions INTEGER NOT NULL DEFAULT 1, replays INTEGER NOT NULL DEFAULT 0,
        stored_at REAL NOT NULL,
        UNIQUE (episode, node, place)
        );
INSERT INTO "tool_calls" VALUES(1,1,2,0,'add',X'CD81887D9C0A1347764F740701EC8A7E',X'78018B56AA8E514A8C51B25230AA55D2515032558A0500327904A3',0,1,0,101.25);
CREATE TABLE trajectories (
  step INTEGER NOT NULL, epoch INTEGER NOT NULL, idx INTEGER NOT NULL, sample INTEGER NOT NULL,
  attempt INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0,
  version INTEGER, replica TEXT, finish TEXT, reward REAL,
  tokens INTEGER, -- How far it came, once its round is closed: whole if it has a `finish`, else stopped there.
  outcome TEXT CHECK (outcome IN ('trained', 'discarded')), reason TEXT, terms TEXT,
  PRIMARY KEY (step, epoch, idx, sample),
  CHECK (outcome IS NOT 'discarded' OR reason IS NOT NULL),
  CHECK (outcome IS NOT 'trained' OR (reward IS NOT NULL AND finish IS NOT NULL AND version IS NOT NULL)),
  CHECK (reward IS NULL OR finish IS NOT NULL),
  FOREIGN KEY (step, epoch, idx) REFERENCES prompts (step, epoch, idx) ON DELETE CASCADE
) WITHOUT ROWID;
INSERT INTO "trajectories" VALUES(1,0,0,0,1,0,1,'rollout-0/replica-0','stop',NULL,18,'discarded','RaceLost',NULL);
INSERT INTO "trajectories" VALUES(1,0,0,1,1,0,1,'rollout-1/replica-0',NULL,NULL,18,'discarded','RaceLost',NULL);
INSERT INTO "trajectories" VALUES(1,0,0,2,1,0,1,'rollout-0/replica-0','stop',0.594,9,'discarded','RaceLost',NULL);
INSERT INTO "trajectories" VALUES(1,0,1,0,1,0,1,'rollout-1/replica-0',NULL,NULL,20,'discarded','RaceLost',NULL);
INSERT INTO "trajectories" VALUES(1,0,1,1,1,0,1,'rollout-0/replica-0','stop',0.81,17,'discarded','RaceLost',NULL);
INSERT INTO "trajectories" VALUES(1,0,1,2,1,0,1,'rollout-1/replica-0','stop',NULL,21,'discarded','RaceLost',NULL);
INSERT INTO "trajectories" VALUES(1,0,2,0,1,0,1,'rollout-0/replica-0',NULL,NULL,13,'discarded','RaceLost',NULL);
INSERT INTO "trajectories" VALUES(1,0,2,1,1,0,1,'rollout-1/replica-0','stop',0.141,5,'trained',NULL,NULL);
INSERT INTO "trajectories" VALUES(1,0,2,2,1,0,1,'rollout-0/replica-0','stop',0.416,14,'trained',NULL,NULL);
INSERT INTO "trajectories" VALUES(1,0,3,0,1,0,1,'rollout-1/replica-0','stop',0.475,18,'trained',NULL,NULL);
INSERT INTO "trajectories" VALUES(1,0,3,1,1,0,1,'rollout-0/replica-0',NULL,NULL,17,'discarded','RaceLost',NULL);
INSERT INTO "trajectories" VALUES(1,0,3,2,1,0,1,'rollout-1/replica-0','stop',0.31,14,'trained',NULL,NULL);
INSERT INTO "trajectories" VALUES(1,0,4,0,1,0,1,'rollout-0/replica-0','stop',0.697,15,'trained',NULL,NULL);
INSERT INTO "trajectories" VALUES(1,0,4,1,1,0,1,'rollout-1/replica-0','stop',0.78,10,'trained',NULL,NULL);
INSERT INTO "trajectories" VALUES(1,0,4,2,1,0,1,'rollout-0/replica-0',NULL,NULL,14,'discarded','RaceLost',NULL);
INSERT INTO "trajectories" VALUES(2,0,5,0,1,0,2,'rollout-0/replica-0','stop',NULL,33,'discarded','RaceLost',NULL);
INSERT INTO "trajectories" VALUES(2,0,5,1,1,0,2,'rollout-1/replica-0','stop',0.441,10,'discarded','RaceLost',NULL);
INSERT INTO "trajectories" VALUES(2,0,5,2,1,0,2,'rollout-0/replica-0',NULL,NULL,32,'discarded','RaceLost',NULL);
INSERT INTO "trajectories" VALUES(2,0,6,0,1,0,2,'rollout-1/replica-0',NULL,NULL,29,'discarded','RaceLost',NULL);
INSERT INTO "trajectories" VALUES(2,0,6,1,1,0,2,'rollout-0/replica-0','stop',0.049,18,'trained',NULL,NULL);
INSERT INTO "trajectories" VALUES(2,0,6,2,1,0,2,'rollout-1/replica-0','stop',0.303,31,'trained',NULL,NULL);
INSERT INTO "trajectories" VALUES(2,0,7,0,1,0,2,'rollout-0/replica-0','stop',NULL,31,'discarded','RaceLost',NULL);
INSERT INTO "trajectories" VALUES(2,0,7,1,1,0,2,'rollout-1/replica-0','stop',0.261,5,'discarded','RaceLost',NULL);
INSERT INTO "trajectories" VALUES(2,0,7,2,1,0,2,'rollout-0/replica-0',NULL,NULL,29,'discarded','RaceLost',NULL);
INSERT INTO "trajectories" VALUES(2,0,8,0,1,0,2,'rollout-1/replica-0','stop',0.209,4,'trained',NULL,NULL);
INSERT INTO "trajectories" VALUES(2,0,8,1,1,0,2,'rollout-0/replica-0',NULL,NULL,5,'discarded','RaceLost',NULL);
INSERT INTO "trajectories" VALUES(2,0,8,2,1,0,2,'rollout-1/replica-0','stop',0.198,7,'trained',NULL,NULL);
INSERT INTO "trajectories" VALUES(2,0,9,0,1,0,2,'rollout-0/replica-0','stop',0.617,4,'trained',NULL,NULL);
INSERT INTO "trajectories" VALUES(2,0,9,1,1,0,2,'rollout-1/replica-0','stop',0.143,7,'trained',NULL,NULL);
INSERT INTO "trajectories" VALUES(2,0,9,2,1,0,2,'rollout-0/replica-0',NULL,NULL,5,'discarded','RaceLost',NULL);
INSERT INTO "trajectories" VALUES(3,0,0,0,2,0,3,'rollout-0/replica-0','stop',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "trajectories" VALUES(3,0,0,1,2,0,3,'rollout-1/replica-0',NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "trajectories" VALUES(3,0,1,0,2,0,3,'rollout-0/replica-0',NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "trajectories" VALUES(3,0,1,1,2,0,3,'rollout-1/replica-0','stop',0.315,NULL,NULL,NULL,NULL);
INSERT INTO "trajectories" VALUES(3,0,5,0,2,0,3,'rollout-0/replica-0',NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "trajectories" VALUES(3,0,5,1,2,0,3,'rollout-1/replica-0','stop',0.501,NULL,NULL,NULL,NULL);
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
INSERT INTO "turns" VALUES(1,1,1,0,'given',NULL,NULL,X'01000000',NULL,NULL,NULL,101.0,NULL,NULL);
INSERT INTO "turns" VALUES(2,1,2,1,'sampled',3,'d',X'02000000',X'000080BF','stop',NULL,101.0,100.5,NULL);
CREATE TABLE versions (version INTEGER PRIMARY KEY CHECK (version > 0), step INTEGER NOT NULL, lost INTEGER NOT NULL
DEFAULT 0, trained INTEGER NOT NULL DEFAULT 0);
INSERT INTO "versions" VALUES(1,0,0,0);
INSERT INTO "versions" VALUES(2,1,0,0);
INSERT INTO "versions" VALUES(3,2,0,0);
CREATE INDEX anchors_by_step ON anchors (step);
CREATE INDEX prompts_by_key ON prompts (epoch, idx);
CREATE UNIQUE INDEX trained_once ON trajectories (epoch, idx, sample) WHERE outcome = 'trained';
CREATE UNIQUE INDEX groups_open ON groups (epoch, idx) WHERE fate IS NULL;
CREATE UNIQUE INDEX groups_trained_once ON groups (epoch, idx) WHERE fate = 'trained';
CREATE UNIQUE INDEX groups_by_step ON groups (step, place) WHERE step IS NOT NULL;
CREATE INDEX samples_with_chunks ON samples (epoch, idx, draw) WHERE tokens IS NULL;
CREATE INDEX versions_by_step ON versions (step);
CREATE INDEX groups_requeued ON groups (epoch, idx, draw) WHERE fate = 'requeued';
CREATE INDEX groups_filtered ON groups (drawn) WHERE fate = 'filtered';
CREATE INDEX groups_filtered_in ON groups (ended) WHERE fate = 'filtered';
CREATE INDEX episodes_by_key ON episodes (epoch, idx, sample);
CREATE INDEX episodes_open ON episodes (former) WHERE state IS NULL;
CREATE INDEX episodes_by_step ON episodes (step) WHERE step IS NOT NULL;
CREATE UNIQUE INDEX episodes_trained_once ON episodes (epoch, idx, sample) WHERE step IS NOT NULL;
CREATE TRIGGER outcome_once BEFORE UPDATE OF outcome ON trajectories WHEN OLD.outcome IS NOT NULL AND NEW.outcome IS NOT OLD.outcome BEGIN SELECT RAISE(ABORT, 'invariant: a trajectory ends once'); END;
CREATE TRIGGER one_version BEFORE UPDATE OF version ON trajectories WHEN OLD.version IS NOT NULL AND NEW.version IS NOT OLD.version BEGIN SELECT RAISE(ABORT, 'invariant: a trajectory has one weight version'); END;
CREATE TRIGGER attempt_rises BEFORE UPDATE OF attempt ON trajectories WHEN NEW.attempt < OLD.attempt BEGIN SELECT RAISE(ABORT, 'invariant: an attempt never falls'); END;
CREATE TRIGGER trained_when_assigned BEFORE UPDATE OF outcome ON trajectories WHEN NEW.outcome = 'trained' AND NOT EXISTS (SELECT 1 FROM assigned WHERE step = NEW.step AND epoch = NEW.epoch AND idx = NEW.idx AND sample = NEW.sample) BEGIN SELECT RAISE(ABORT, 'invariant: only what was assigned to the step is trained on'); END;
CREATE TRIGGER fate_once BEFORE UPDATE OF fate ON prompts WHEN OLD.fate IS NOT NULL AND NEW.fate IS NOT OLD.fate BEGIN SELECT RAISE(ABORT, 'invariant: a prompt has one fate'); END;
CREATE TRIGGER drawn_once BEFORE INSERT ON prompts WHEN EXISTS (SELECT 1 FROM prompts WHERE epoch = NEW.epoch AND idx = NEW.idx AND fate IS NOT 'requeued') BEGIN SELECT RAISE(ABORT, 'invariant: a prompt is drawn again only after it was requeued'); END;
CREATE TRIGGER queue_gains BEFORE INSERT ON boundaries WHEN EXISTS (SELECT ifnull((SELECT name || '/' FROM sources WHERE number = epoch >> 32), '') || (epoch & 4294967295) || '.' || idx FROM prompts WHERE step = NEW.step AND fate = 'requeued' EXCEPT SELECT value FROM json_each(NEW.long_queue)) BEGIN SELECT RAISE(ABORT, 'invariant: a requeued prompt is in the long-prompt queue'); END;
CREATE TRIGGER queue_keeps BEFORE INSERT ON boundaries WHEN EXISTS (SELECT value FROM boundaries, json_each(long_queue) WHERE step = NEW.step - 1 EXCEPT SELECT ifnull((SELECT name || '/' FROM sources WHERE number = epoch >> 32), '') || (epoch & 4294967295) || '.' || idx FROM prompts WHERE step = NEW.step EXCEPT SELECT value FROM json_each(NEW.long_queue)) BEGIN SELECT RAISE(ABORT, 'invariant: a prompt leaves the long-prompt queue by being drawn'); END;
CREATE TRIGGER rounds_in_order BEFORE INSERT ON boundaries WHEN EXISTS (SELECT 1 FROM boundaries) AND NOT EXISTS (SELECT 1 FROM boundaries WHERE step = NEW.step - 1) BEGIN SELECT RAISE(ABORT, 'invariant: rounds follow each other'); END;
CREATE TRIGGER all_prompts_settled BEFORE INSERT ON boundaries WHEN EXISTS (SELECT 1 FROM prompts WHERE step = NEW.step AND fate IS NULL) OR EXISTS (SELECT 1 FROM trajectories WHERE step = NEW.step AND outcome IS NULL) BEGIN SELECT RAISE(ABORT, 'invariant: every prompt has a fate and every response an outcome before its round is closed'); END;
CREATE TRIGGER anchors_rise BEFORE INSERT ON anchors WHEN EXISTS (SELECT 1 FROM anchors WHERE rule = NEW.rule AND test = NEW.test AND milliseconds >= NEW.milliseconds) BEGIN SELECT RAISE(ABORT, 'invariant: the anchor of a timeout only rises'); END;
CREATE TRIGGER versions_rise BEFORE INSERT ON versions WHEN NEW.version <= (SELECT COALESCE(MAX(version), 0) FROM versions) BEGIN SELECT RAISE(ABORT, 'invariant: a weight version is never used twice'); END;
CREATE TRIGGER no_hole BEFORE INSERT ON chunks WHEN NEW.start <> (SELECT COALESCE(SUM(length(tokens) / 4), 0) FROM chunks WHERE step = NEW.step AND epoch = NEW.epoch AND idx = NEW.idx AND sample = NEW.sample) BEGIN SELECT RAISE(ABORT, 'invariant: tokens are appended without a hole'); END;
CREATE TRIGGER cursor_rises BEFORE UPDATE ON pool WHEN (NEW.epoch, NEW.position) < (OLD.epoch, OLD.position) BEGIN SELECT RAISE(ABORT, 'invariant: the cursor of the pool never goes back'); END;
CREATE TRIGGER group_drawn_again BEFORE INSERT ON groups WHEN EXISTS (SELECT 1 FROM groups WHERE epoch = NEW.epoch AND idx = NEW.idx AND fate IS NOT 'requeued') BEGIN SELECT RAISE(ABORT, 'invariant: a prompt is drawn again only after it was requeued'); END;
CREATE TRIGGER group_draws_count BEFORE INSERT ON groups WHEN NEW.draw <> (SELECT COUNT(*) FROM groups WHERE epoch = NEW.epoch AND idx = NEW.idx) BEGIN SELECT RAISE(ABORT, 'invariant: the draws of a prompt are counted without a hole'); END;
CREATE TRIGGER group_one_version BEFORE UPDATE OF version ON groups WHEN NEW.version IS NOT OLD.version BEGIN SELECT RAISE(ABORT, 'invariant: a group has one weight version'); END;
CREATE TRIGGER group_ready_when_scored BEFORE UPDATE OF ready ON groups WHEN NEW.ready IS NOT OLD.ready AND (OLD.ready IS NOT NULL OR EXISTS (SELECT 1 FROM samples WHERE epoch = NEW.epoch AND idx = NEW.idx AND draw = NEW.draw AND reward IS NULL) OR NOT EXISTS (SELECT 1 FROM samples WHERE epoch = NEW.epoch AND idx = NEW.idx AND draw = NEW.draw)) BEGIN SELECT RAISE(ABORT, 'invariant: a group is ready once, when all of its responses are scored'); END;
CREATE TRIGGER group_assigned_once BEFORE UPDATE OF step ON groups WHEN OLD.step IS NOT NULL AND (NEW.step IS NOT NULL OR NOT NOT EXISTS (SELECT 1 FROM boundaries WHERE step = OLD.step)) BEGIN SELECT RAISE(ABORT, 'invariant: a group is assigned to one update'); END;
CREATE TRIGGER group_assigned_to_next BEFORE UPDATE OF step ON groups WHEN NEW.step IS NOT NULL AND NEW.step IS NOT (SELECT MAX(step) + 1 FROM boundaries) BEGIN SELECT RAISE(ABORT, 'invariant: groups are assigned to the next update'); END;
CREATE TRIGGER group_fate_once BEFORE UPDATE OF fate ON groups WHEN OLD.fate IS NOT NULL AND NEW.fate IS NOT OLD.fate AND NOT (OLD.fate = 'trained' AND NEW.step IS NULL AND NEW.fate IS NOT 'filtered' AND NOT EXISTS (SELECT 1 FROM boundaries WHERE step = OLD.step)) BEGIN SELECT RAISE(ABORT, 'invariant: a group has one fate'); END;
CREATE TRIGGER assigned_is_trained BEFORE INSERT ON boundaries WHEN EXISTS (SELECT 1 FROM groups WHERE step = NEW.step AND fate IS NULL) BEGIN SELECT RAISE(ABORT, 'invariant: what was assigned to an update is trained on when it is closed'); END;
CREATE TRIGGER sample_attempt_kept BEFORE INSERT ON samples WHEN NEW.attempt < (SELECT MAX(attempt) FROM samples WHERE epoch = NEW.epoch AND idx = NEW.idx AND sample = NEW.sample) BEGIN SELECT RAISE(ABORT, 'invariant: an attempt never falls'); END;
CREATE TRIGGER sample_attempt_rises BEFORE UPDATE OF attempt ON samples WHEN NEW.attempt < OLD.attempt BEGIN SELECT RAISE(ABORT, 'invariant: an attempt never falls'); END;
CREATE TRIGGER sample_of_ready_group BEFORE UPDATE OF attempt, failures, replica, finish, reward ON samples WHEN EXISTS (SELECT 1 FROM groups WHERE epoch = NEW.epoch AND idx = NEW.idx AND draw = NEW.draw AND (ready IS NOT NULL OR fate IS NOT NULL)) BEGIN SELECT RAISE(ABORT, 'invariant: a group that is ready or ended does not change'); END;
CREATE TRIGGER experience_no_hole BEFORE INSERT ON experience_chunks WHEN NEW.start <> ifnull((SELECT start + length(tokens) / 4 FROM experience_chunks WHERE epoch = NEW.epoch AND idx = NEW.idx AND draw = NEW.draw AND sample = NEW.sample ORDER BY start DESC LIMIT 1), 0) BEGIN SELECT RAISE(ABORT, 'invariant: tokens are appended without a hole'); END;
CREATE TRIGGER experience_finished BEFORE INSERT ON experience_chunks WHEN EXISTS (SELECT 1 FROM samples WHERE epoch = NEW.epoch AND idx = NEW.idx AND draw = NEW.draw AND sample = NEW.sample AND (finish IS NOT NULL OR tokens IS NOT NULL)) BEGIN SELECT RAISE(ABORT, 'invariant: a finished response has all of its tokens'); END;
CREATE TRIGGER attempt_ends_once BEFORE UPDATE OF state, reached, cause, detail, reward, metrics, ended ON episodes WHEN OLD.state IS NOT NULL BEGIN SELECT RAISE(ABORT, 'invariant: an attempt of an episode ends once'); END;
CREATE TRIGGER node_of_open_attempt BEFORE INSERT ON turns WHEN EXISTS (SELECT 1 FROM episodes WHERE id = NEW.episode AND state IS NOT NULL) BEGIN SELECT RAISE(ABORT, 'invariant: an attempt takes no node after its end'); END;
CREATE TRIGGER node_after_its_parent BEFORE INSERT ON turns WHEN NEW.parent <> 0 AND NOT EXISTS (SELECT 1 FROM turns WHERE episode = NEW.episode AND node = NEW.parent AND finish IS NOT 'length') BEGIN SELECT RAISE(ABORT, 'invariant: a node is stored after its parent, which was not cut'); END;
CREATE TRIGGER node_stays BEFORE UPDATE OF episode, node, parent, kind, version, digest, tokens, logprobs, finish ON turns WHEN TRUE BEGIN SELECT RAISE(ABORT, 'invariant: a node never changes'); END;
CREATE TRIGGER call_of_open_attempt BEFORE INSERT ON tool_calls WHEN EXISTS (SELECT 1 FROM episodes WHERE id = NEW.episode AND state IS NOT NULL) BEGIN SELECT RAISE(ABORT, 'invariant: an attempt takes no call of a tool after its end'); END;
CREATE TRIGGER call_of_stored_turn BEFORE INSERT ON tool_calls WHEN NOT EXISTS (SELECT 1 FROM turns WHERE episode = NEW.episode AND node = NEW.node AND kind = 'sampled') BEGIN SELECT RAISE(ABORT, 'invariant: a call of a tool follows from a stored turn'); END;
CREATE TRIGGER call_stays BEFORE UPDATE OF episode, node, place, name, digest ON tool_calls WHEN TRUE BEGIN SELECT RAISE(ABORT, 'invariant: a call of a tool never changes'); END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('episodes',1);
COMMIT;
