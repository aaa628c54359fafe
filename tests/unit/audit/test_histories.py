"""`rljob check`: whole histories pass, and each thing that can be wrong with one is told with its key."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rljob_runtime.audit import NoHistory, Rule, audit
from rljob_runtime.cli import app
from rljob_runtime.coordinator.store.records import Boundary, Pool, Tokens
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.protocols.trajectory import Cursor, FinishReason, Lease, PromptKey, Response, TrajectoryKey
from rljob_runtime.scheduling.round_plan import PromptOutcome
from rljob_runtime.simulator.peers.inputs import SimulatedPrompts
from tests.support.histories import broken, expect
from tests.support.simulated_job import Stage, job, until

TAIL = {"enabled": True, "promptFactor": 1.5, "responseFactor": 1.5}
RESPONSES = 2
FRESH = [PromptKey(0, index) for index in (3, 1, 0, 2, 4)]


@pytest.fixture(scope="module")
def rounds(tmp_path_factory) -> Path:
    """Rounds of mode OnPolicy that raced and were rewound, over more than an epoch, cut in the middle of one."""
    path = tmp_path_factory.mktemp("rounds") / "state.db"
    stage = Stage(path, job(rounds=8, every_rounds=3, tail=TAIL), prompts=SimulatedPrompts(size=11))

    async def lose_the_trainer(stage: Stage) -> None:
        await until(lambda: len(stage.closed) == 5)
        stage.world.kill("trainer")

    assert stage.play(lose_the_trainer) is not None
    assert len(stage.closed) > 8, "it was rewound"
    return path


class Experience:
    """A job of mode Asynchronous, as its coordinator would write it."""

    def __init__(self, path: Path) -> None:
        self.store = Store(path, "uid-1")
        self.store.start_at(Boundary(0, Cursor()), pool=Pool())
        self.store.versions.publish(1, 0)
        self.step, self.position, self.version = 0, 0, 1

    def draw(self, *prompts: PromptKey, again: bool = False) -> None:
        self.position += 0 if again else len(prompts)
        known = self.store.experience.draw(prompts, Cursor(0, self.position), self.version, "rollout-0", RESPONSES)
        keys = [TrajectoryKey(prompt, sample) for prompt in prompts for sample in range(RESPONSES)]
        self.store.experience.launched((key, Lease("rollout-0", known.get(key, 0) + 1)) for key in keys)

    def generate(self, *prompts: PromptKey, whole: bool = True) -> None:
        keys = [TrajectoryKey(prompt, sample) for prompt in prompts for sample in range(RESPONSES)]
        store = self.store.experience
        store.append([Tokens(key, 0, (5, 6), (-1.0, -2.0)) for key in keys])
        store.append([Tokens(key, 2, (7,), (-0.5,)) for key in keys])
        if whole:
            ends = [Response(key, 1, 1, (5, 6, 7), (-1.0, -2.0, -0.5), FinishReason.STOP, "rollout-0") for key in keys]
            store.finish([], ends)
            store.score((key, 1.0) for key in keys)

    def update(self, *prompts: PromptKey) -> None:
        self.step += 1
        self.store.experience.assign(self.step, prompts)
        self.store.experience.close_update(Boundary(self.step, Cursor(0, self.position)))
        self.version += 1
        self.store.versions.publish(self.version, self.step)


@pytest.fixture(scope="module")
def groups(tmp_path_factory) -> Path:
    """Two updates, a prompt that is filtered, one that was drawn twice and is ready, one under way; one update was
    made twice."""
    path = tmp_path_factory.mktemp("groups") / "state.db"
    one, two, three, four, five = FRESH
    work = Experience(path)
    work.draw(one, two, three)
    work.generate(one, two)
    work.generate(three, whole=False)
    work.store.experience.end([three], PromptOutcome.REQUEUED, "VersionGone")
    work.draw(three, again=True)
    work.generate(three)
    work.update(one)
    work.store.experience.forget(1)
    work.update(two)
    work.store.rewind(1)
    work.step, work.version = 1, 4
    work.store.versions.publish(4, 1)
    work.update(two)
    work.draw(four)
    work.store.experience.end([four], PromptOutcome.FILTERED, "RewardFailed")
    work.draw(five)
    work.generate(five, whole=False)
    work.store.close()
    return path


def test_a_whole_history_of_rounds_passes(rounds) -> None:
    verdict = audit(rounds)
    assert verdict.findings == ()
    assert (verdict.mode, verdict.began, verdict.ended) == ("OnPolicy", 0, 8)
    assert (verdict.trajectories, verdict.prompts["trained"]) == (8 * 3 * 2, 8 * 3)
    assert verdict.draws > sum(verdict.prompts.values()), "some were drawn again"
    assert verdict.versions == 8


def test_a_whole_history_of_groups_passes(groups) -> None:
    verdict = audit(groups.parent)
    assert verdict.findings == ()
    assert (verdict.mode, verdict.began, verdict.ended, verdict.draws) == ("Asynchronous", 0, 2, 6)
    assert verdict.prompts == {"trained": 2, "filtered": 1, "open": 2}
    assert (verdict.trajectories, verdict.tokens, verdict.versions) == (4, 12, 1)


def test_a_round_under_way_passes(tmp_path) -> None:
    stage = Stage(tmp_path / "state.db", job(rounds=6, prompts=4, tail=TAIL))
    seen = []

    async def look(stage: Stage) -> None:
        while True:
            await asyncio.sleep(0.3)
            if stage.closed:
                seen.append(audit(stage.path))

    stage.play(look)
    assert len(seen) > 5
    assert all(verdict.findings == () for verdict in seen)
    assert any(verdict.prompts.get("open") for verdict in seen)


def test_a_job_without_its_first_rounds_passes(tmp_path) -> None:
    """Its store was lost: it begins at the trainer's checkpoint, with the prompts that waited then."""
    store = Store(tmp_path / "state.db", "uid-1")
    store.start_at(Boundary(7, Cursor(2, 5)), version=9, pool=Pool(Cursor(2, 5), (PromptKey(1, 4),)))
    store.close()
    verdict = audit(tmp_path)
    assert verdict.findings == ()
    assert (verdict.began, verdict.ended, verdict.prompts) == (7, 7, {"requeued": 1})


LAST = "(SELECT MAX(step) FROM boundaries)"
TRAINED = "outcome = 'trained' AND step = 2"
ONE = "(epoch, idx, sample) IN (SELECT epoch, idx, sample FROM trajectories WHERE outcome = 'trained' LIMIT 1)"
ROUNDS = {
    "an update is missing": (Rule.GAP, "update 4", ["DELETE FROM boundaries WHERE step = 4"]),
    "an update has no round": (Rule.GAP, "update 4", ["DELETE FROM rounds WHERE step = 4"]),
    "a prompt has no outcome": (Rule.LOST, r"\d+\.\d+", ["UPDATE prompts SET fate = NULL WHERE step = 2"]),
    "a filtered prompt has no reason": (
        Rule.UNFOUNDED,
        r"\d+\.\d+",
        ["UPDATE prompts SET fate = 'filtered' WHERE step = 2"],
    ),
    "a prompt is gone": (Rule.LOST, "epoch 0", ["DELETE FROM prompts WHERE step = 1 AND fate = 'trained'"]),
    "a prompt that waits is in no queue": (
        Rule.LOST,
        r"\d+\.\d+",
        [f"UPDATE prompts SET fate = 'requeued', reason = 'RaceLost' WHERE step = {LAST}"],
    ),
    "a trained prompt waits": (
        Rule.TWICE,
        r"\d+\.\d+",
        [
            "UPDATE boundaries SET long_queue = (SELECT json_array(epoch || '.' || idx) FROM prompts"
            f" WHERE fate = 'trained' LIMIT 1) WHERE step = {LAST}"
        ],
    ),
    "a trained prompt is drawn again": (
        Rule.TWICE,
        r"\d+\.\d+",
        [
            f"INSERT INTO prompts SELECT {LAST}, epoch, idx, 90 + ordinal, fate, reason FROM prompts WHERE step = 1"
            " AND fate = 'trained'"
        ],
    ),
    "a response is trained on twice": (
        Rule.TWICE,
        r"\d+\.\d+\.\d",
        [
            "INSERT INTO trajectories SELECT 8, epoch, idx, sample, attempt, failures, 1, replica, finish, reward,"
            f" terms, tokens, outcome, reason FROM trajectories WHERE step = 1 AND {ONE}"
        ],
    ),
    "a response has no outcome": (
        Rule.LOST,
        r"\d+\.\d+\.\d",
        ["UPDATE trajectories SET outcome = NULL WHERE step = 3"],
    ),
    "a response is discarded for no reason": (
        Rule.UNFOUNDED,
        r"\d+\.\d+\.\d",
        [f"UPDATE trajectories SET outcome = 'discarded' WHERE {TRAINED}"],
    ),
    "a response has no reward": (
        Rule.UNFOUNDED,
        r"\d+\.\d+\.\d",
        [f"UPDATE trajectories SET reward = NULL WHERE {TRAINED}"],
    ),
    "a response has no token": (
        Rule.UNFOUNDED,
        r"\d+\.\d+\.\d",
        [f"UPDATE trajectories SET tokens = 0 WHERE {TRAINED}"],
    ),
    "a response was not assigned": (Rule.UNFOUNDED, r"\d+\.\d+\.\d", ["DELETE FROM assigned WHERE step = 2"]),
    "a response was assigned and dropped": (
        Rule.LOST,
        r"\d+\.\d+\.\d",
        [f"UPDATE trajectories SET outcome = 'discarded', reason = 'RaceLost' WHERE {TRAINED}"],
    ),
    "a group is short": (Rule.LOST, r"\d+\.\d+", [f"DELETE FROM trajectories WHERE {TRAINED} AND sample = 0"]),
    "a response is of another version": (
        Rule.MIXED,
        r"\d+\.\d+\.\d",
        [f"UPDATE trajectories SET version = 1 WHERE {TRAINED}"],
    ),
    "a version is unknown": (Rule.MIXED, "update 2", ["UPDATE rounds SET version = 99 WHERE step = 2"]),
    "an attempt falls": (
        Rule.TWICE,
        r"\d+\.\d+\.\d",
        ["UPDATE trajectories SET attempt = 9 WHERE step = 1 AND outcome = 'discarded'"],
    ),
}
SAME = "epoch = 0 AND idx = {}"
GROUPS = {
    "an update is missing": (Rule.GAP, "update 1", ["DELETE FROM boundaries WHERE step = 1"]),
    "an update has no groups": (
        Rule.GAP,
        "update 1",
        ["UPDATE groups SET step = NULL, place = NULL WHERE step = 1"],
    ),
    "a place is empty": (Rule.GAP, "update 2", ["UPDATE groups SET place = 1 WHERE step = 2"]),
    "a prompt is gone": (Rule.LOST, "epoch 0", ["DELETE FROM groups WHERE idx = 2"]),
    "a draw is gone": (Rule.GAP, r"0\.0", ["DELETE FROM groups WHERE idx = 0 AND draw = 0"]),
    "a draw that was trained is drawn again": (
        Rule.TWICE,
        r"0\.0",
        ["UPDATE groups SET fate = 'trained', step = 1, place = 1, queued = NULL WHERE idx = 0 AND draw = 0"],
    ),
    "two groups of a prompt are open": (
        Rule.TWICE,
        r"0\.0",
        ["UPDATE groups SET fate = NULL, queued = NULL WHERE idx = 0 AND draw = 0"],
    ),
    "two draws are trained on": (
        Rule.TWICE,
        r"0\.0",
        ["UPDATE groups SET fate = 'trained', step = 2, place = 1 + draw, queued = NULL WHERE idx = 0"],
    ),
    "a filtered prompt has no reason": (
        Rule.UNFOUNDED,
        r"0\.2",
        ["UPDATE groups SET reason = NULL WHERE fate = 'filtered'"],
    ),
    "what is filtered is assigned": (
        Rule.TWICE,
        r"0\.2",
        ["UPDATE groups SET step = 2, place = 1 WHERE fate = 'filtered'"],
    ),
    "it is trained on by an update that is not done": (
        Rule.UNFOUNDED,
        r"0\.1",
        ["UPDATE groups SET step = 3 WHERE step = 2"],
    ),
    "it is assigned to an update that is over": (
        Rule.LOST,
        r"0\.1",
        ["UPDATE groups SET fate = NULL WHERE step = 2"],
    ),
    "a group was never ready": (Rule.UNFOUNDED, r"0\.1", ["UPDATE groups SET ready = NULL WHERE step = 2"]),
    "a group has no version": (Rule.MIXED, r"0\.1", ["UPDATE groups SET version = NULL WHERE step = 2"]),
    "a version is unknown": (Rule.MIXED, r"0\.1", ["UPDATE groups SET version = 99 WHERE step = 2"]),
    "weights are newer than the update": (
        Rule.MIXED,
        r"0\.1",
        ["UPDATE groups SET version = (SELECT MAX(version) FROM versions) WHERE step = 2"],
    ),
    "a response has no reward": (
        Rule.UNFOUNDED,
        r"0\.1\.0",
        ["UPDATE samples SET reward = NULL WHERE idx = 1 AND sample = 0"],
    ),
    "a response is scored before its end": (
        Rule.UNFOUNDED,
        r"0\.4\.1",
        ["UPDATE samples SET reward = 1.0 WHERE idx = 4 AND sample = 1"],
    ),
    "a response is gone": (Rule.LOST, r"0\.1", ["DELETE FROM samples WHERE idx = 1 AND sample = 0"]),
    "all responses are gone": (Rule.LOST, r"0\.2", ["DELETE FROM samples WHERE idx = 2"]),
    "an attempt falls": (
        Rule.TWICE,
        r"0\.0\.1",
        ["UPDATE samples SET attempt = 9 WHERE idx = 0 AND draw = 0 AND sample = 1"],
    ),
    "a logprob is missing": (
        Rule.UNEQUAL,
        r"0\.4\.0",
        ["UPDATE experience_chunks SET logprobs = x'00000000' WHERE idx = 4 AND sample = 0 AND start = 0"],
    ),
    "a chunk is missing": (
        Rule.UNEQUAL,
        r"0\.4\.0",
        ["DELETE FROM experience_chunks WHERE idx = 4 AND sample = 0 AND start = 0"],
    ),
    "tokens are gone": (Rule.UNEQUAL, r"0\.1\.1", ["DELETE FROM experience_chunks WHERE idx = 1 AND sample = 1"]),
    "tokens are counted twice": (
        Rule.UNEQUAL,
        r"0\.1\.1",
        ["UPDATE samples SET tokens = 3 WHERE idx = 1 AND sample = 1"],
    ),
}


@pytest.mark.parametrize(("rule", "key", "corruptions"), ROUNDS.values(), ids=ROUNDS.keys())
def test_what_is_wrong_with_rounds_is_told_with_its_key(rounds, tmp_path, rule, key, corruptions) -> None:
    expect(audit(broken(rounds, tmp_path, *corruptions)), rule, key)


@pytest.mark.parametrize(("rule", "key", "corruptions"), GROUPS.values(), ids=GROUPS.keys())
def test_what_is_wrong_with_groups_is_told_with_its_key(groups, tmp_path, rule, key, corruptions) -> None:
    expect(audit(broken(groups, tmp_path, *corruptions)), rule, key)


def test_tokens_of_a_round_under_way_are_looked_at(tmp_path) -> None:
    stage = Stage(tmp_path / "state.db", job(rounds=2, prompts=4))
    found = []

    async def look(stage: Stage) -> None:
        while not found:
            await asyncio.sleep(0.1)
            if stage.store is not None and stage.store._db.execute("SELECT 1 FROM chunks").fetchone():
                folder = tmp_path / "copy"
                folder.mkdir()
                found.append(broken(stage.path, folder, "UPDATE chunks SET logprobs = x'00' WHERE start = 0"))

    stage.play(look)
    expect(audit(found[0]), Rule.UNEQUAL, r"\d+\.\d+\.\d")


def test_records_that_could_not_be_used_are_no_loss(groups, tmp_path) -> None:
    skipped = """UPDATE boundaries SET totals = '{"skippedPrompts": 2}' WHERE step = 2"""
    path = broken(groups, tmp_path, "UPDATE pool SET position = position + 2", skipped)
    assert (audit(path).findings, audit(path).skipped) == ((), 2)
    (tmp_path / "more").mkdir()
    assert audit(broken(path, tmp_path / "more", "UPDATE pool SET position = position + 1")).lost == 1


def test_the_command_proves_it_or_says_what_is_wrong(groups, tmp_path) -> None:
    def check(*arguments: str):
        return CliRunner().invoke(app, ["check", *arguments])

    done = check(str(groups.parent))
    assert done.exit_code == 0
    assert done.stdout.strip() == (
        "check: updates 1 to 2: 5 prompts drawn 6 times (2 trained, 1 filtered, 0 requeued, 2 open); trained on 4 "
        "responses of 1 versions, 12 tokens; lost 0, duplicated 0, broken 0"
    )
    bad = broken(groups, tmp_path, "UPDATE groups SET fate = NULL WHERE step = 2")
    done = check(str(bad))
    assert done.exit_code == 1
    assert "lost: 0.1: is assigned to update 2, and 2 is the last that is done (draw 0)" in done.stdout
    assert "lost 1, duplicated 0" in done.stdout
    told = json.loads(check(str(bad), "--json").stdout)
    assert (told["lost"], told["duplicated"], told["ended"]) == (1, 0, 2)
    assert ("lost", "0.1") in [(finding["rule"], finding["key"]) for finding in told["findings"]]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "is not there"),
        (b"no database at all, but a text that is long enough to be taken for one" * 30, "is no database"),
        (b"", "is no state store: it has no table of boundaries"),
    ],
)
def test_what_is_no_store_is_told(tmp_path, content, said) -> None:
    if content is not None:
        (tmp_path / "state.db").write_bytes(content)
    with pytest.raises(NoHistory, match=said):
        audit(tmp_path)
    assert CliRunner().invoke(app, ["check", str(tmp_path)]).exit_code == 2


def test_a_damaged_file_is_a_finding(groups, tmp_path) -> None:
    copy = broken(groups, tmp_path, "UPDATE samples SET replica = printf('%05000d', 1)")
    with closing(sqlite3.connect(copy)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.execute("PRAGMA journal_mode = DELETE")
    content = bytearray(copy.read_bytes())
    content[8 * 4096 : 9 * 4096] = b"\xff" * 4096
    copy.write_bytes(content)
    assert Rule.DAMAGED in {finding.rule for finding in audit(copy).findings}
