"""Lineage: trained tokens of episodes are those of one attempt's sampled nodes; what is wrong is told with its key."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rljob_api.constants import ENVIRONMENT_TERM
from rljob_runtime.audit import Rule, audit, lineage
from rljob_runtime.audit.findings import EpisodeCounts
from rljob_runtime.audit.stored_turns import loss_digest
from rljob_runtime.cli import app
from rljob_runtime.coordinator.store.records import Boundary
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.tables import attempts
from rljob_runtime.protocols.trajectory import Cursor, PromptKey, TrajectoryKey
from rljob_runtime.scheduling.episodes.ends import MOST_HAND_BACKS, NO_FAILURES, EndState, EpisodeEnd
from rljob_runtime.scheduling.episodes.limits import Limit
from tests.support.histories import broken, expect
from tests.support.stored_episodes import (
    ABORTED,
    begin_asynchronous,
    collect,
    generate,
    open_round,
    play_round,
    settle,
    update,
)

PROMPTS = [PromptKey(0, index) for index in range(9)]


@pytest.fixture(scope="module")
def rounds(tmp_path_factory) -> Path:
    """Two rounds: one attempt was aborted and one truncated, and a round between them was undone."""
    path = tmp_path_factory.mktemp("rounds") / "state.db"
    store = Store(path, "uid-1")
    store.start_at(Boundary(0, Cursor()))
    plan = open_round(store, 1, *PROMPTS[:5])
    failed, *others = plan.trajectories()
    generate(store, plan, failed, ABORTED)
    store.trajectories.restart(1, failed, 1)
    generate(store, plan, failed)
    for key in others:
        generate(store, plan, key, EpisodeEnd(EndState.TRUNCATED, limit=Limit.TURNS))
    settle(store, plan)
    play_round(store, 2, *PROMPTS[5:])
    store.rewind(1)
    plan = open_round(store, 2, *PROMPTS[5:], version=3)
    for key in plan.trajectories():
        generate(store, plan, key)
    settle(store, plan)
    store.close()
    return path


@pytest.fixture(scope="module")
def groups(tmp_path_factory) -> Path:
    """Two updates of groups; the tokens of the second one are still there. A third group is under way."""
    path = tmp_path_factory.mktemp("groups") / "state.db"
    store = Store(path, "uid-1")
    begin_asynchronous(store, *PROMPTS[:3])
    for step, prompt in enumerate(PROMPTS[:2], 1):
        collect(store, TrajectoryKey(prompt, 0))
        update(store, step, prompt)
    store.experience.forget(1)
    store.turns.begin(TrajectoryKey(PROMPTS[2], 0), 1, 9.0, "calc")
    store.close()
    return path


def test_rounds_of_episodes_pass(rounds) -> None:
    verdict = audit(rounds)
    assert verdict.findings == ()
    states = {"completed": 9, "truncated": 4, "aborted": 1}
    assert verdict.episodes == EpisodeCounts(states, proved=9, turns=18, tokens=27, unproved=0)


def test_updates_of_episodes_pass(groups) -> None:
    verdict = audit(groups)
    assert verdict.findings == ()
    assert verdict.episodes == EpisodeCounts({"completed": 2, "open": 1}, proved=2, turns=4, tokens=6, unproved=0)


FIRST = "(SELECT id FROM episodes WHERE step = 1 LIMIT 1)"
KEY = r"0\.0\.0"
CALL = (
    "INSERT INTO tool_calls (episode, node, place, name, digest, resumption, executions, stored_at)"
    f" VALUES ({FIRST}, {{node}}, 0, 'add', x'00', 1, {{executions}}, 1.0)"
)
CORRUPTIONS = {
    "a trained token is another": (
        Rule.LINEAGE,
        [f"UPDATE turns SET tokens = x'09000000' WHERE episode = {FIRST} AND node = 2"],
    ),
    "a trained logprob is another": (
        Rule.LINEAGE,
        [f"UPDATE turns SET logprobs = x'0000803f' WHERE episode = {FIRST} AND node = 2"],
    ),
    "a given token is another": (
        Rule.LINEAGE,
        [f"UPDATE turns SET tokens = x'09000000' WHERE episode = {FIRST} AND node = 3"],
    ),
    "a turn stands elsewhere": (
        Rule.LINEAGE,
        [f"UPDATE turns SET parent = 1 WHERE episode = {FIRST} AND node = 3"],
    ),
    "the digest is gone": (Rule.LINEAGE, [f"UPDATE episodes SET loss = NULL WHERE id = {FIRST}"]),
    "the digest is a text": (Rule.LINEAGE, [f"UPDATE episodes SET loss = 'sixteen letters!' WHERE id = {FIRST}"]),
    "given tokens are a text": (
        Rule.LINEAGE,
        [f"UPDATE turns SET tokens = 'four' WHERE episode = {FIRST} AND node = 3"],
    ),
    "a sampled node is gone": (Rule.LINEAGE, [f"DELETE FROM turns WHERE episode = {FIRST} AND node = 4"]),
    "a given node passes for a sampled one": (
        Rule.LINEAGE,
        [
            "UPDATE turns SET kind = 'sampled', logprobs = x'00000000', version = 1, digest = '', finish = 'stop'"
            f" WHERE episode = {FIRST} AND node = 1"
        ],
    ),
    "turns are in another order": (
        Rule.LINEAGE,
        [f"UPDATE turns SET number = -1 WHERE episode = {FIRST} AND node = 4"],
    ),
    "the trained attempt is aborted": (
        Rule.LINEAGE,
        [f"UPDATE episodes SET state = 'aborted', reward = NULL WHERE id = {FIRST}"],
    ),
    "the trained attempt has no end": (
        Rule.LINEAGE,
        [f"UPDATE episodes SET state = NULL, reward = NULL WHERE id = {FIRST}"],
    ),
    "a response is of no attempt": (Rule.LINEAGE, [f"UPDATE episodes SET step = NULL WHERE id = {FIRST}"]),
    "a response has no attempt": (Rule.LINEAGE, ["DELETE FROM episodes WHERE idx = 0"]),
    "a response is of two attempts": (
        Rule.TWICE,
        [
            "INSERT INTO episodes (epoch, idx, sample, version, environment, started, state, step, loss)"
            " SELECT epoch, idx, sample, version, environment, started, state, step, loss FROM episodes"
            f" WHERE id = {FIRST}"
        ],
    ),
    "an attempt is tied to another update": (Rule.UNFOUNDED, [f"UPDATE episodes SET step = 2 WHERE id = {FIRST}"]),
    "a fake zero": (
        Rule.UNFOUNDED,
        [f"UPDATE episodes SET state = 'aborted', reward = 0.0 WHERE id = {FIRST}"],
    ),
    "a turn is of another version": (
        Rule.MIXED,
        [
            "INSERT INTO versions (version, step, lost) VALUES (-7, 0, 1)",
            f"UPDATE turns SET version = -7 WHERE episode = {FIRST} AND node = 2",
        ],
    ),
    "an episode goes back to older weights": (
        Rule.MIXED,
        [
            "INSERT INTO versions (version, step, lost) VALUES (77, 0, 1)",
            f"UPDATE turns SET version = 77 WHERE episode = {FIRST} AND node = 2",
        ],
    ),
    "a turn is of an unknown version": (
        Rule.MIXED,
        [f"UPDATE turns SET version = 99 WHERE episode = {FIRST} AND node = 2"],
    ),
    "a call of a tool is executed twice": (Rule.TWICE, [CALL.format(node=2, executions=2)]),
    "a call of a tool is of no turn": (Rule.UNFOUNDED, [CALL.format(node=77, executions=1)]),
    "a program that did not end the attempt asked for a turn": (
        Rule.UNFOUNDED,
        [f"UPDATE turns SET resumption = 0 WHERE episode = {FIRST} AND node = 2"],
    ),
    "a logprob is missing": (
        Rule.UNEQUAL,
        [f"UPDATE turns SET logprobs = x'00000000' WHERE episode = {FIRST} AND node = 4"],
    ),
    "a node has no parent": (Rule.UNFOUNDED, [f"UPDATE turns SET parent = 77 WHERE episode = {FIRST} AND node = 4"]),
    "a cut turn is extended": (
        Rule.UNFOUNDED,
        [f"UPDATE turns SET finish = 'length' WHERE episode = {FIRST} AND node = 2"],
    ),
}


@pytest.mark.parametrize("history", ["rounds", "groups"])
@pytest.mark.parametrize(("rule", "corruptions"), CORRUPTIONS.values(), ids=CORRUPTIONS.keys())
def test_what_is_wrong_with_episodes_is_told_with_its_key(request, tmp_path, history, rule, corruptions) -> None:
    expect(audit(broken(request.getfixturevalue(history), tmp_path, *corruptions)), rule, KEY)


def test_an_episode_that_goes_back_to_older_weights_is_told_by_its_turn(rounds, tmp_path) -> None:
    """Its response has another version then too, which is a finding of its own."""
    verdict = audit(broken(rounds, tmp_path, *CORRUPTIONS["an episode goes back to older weights"][1]))
    assert any("node 4" in one.what and "a newer one generated an earlier turn" in one.what for one in verdict.findings)


@pytest.mark.parametrize(
    ("cause", "times", "proved"),
    [
        (None, 0, False),
        ("environment", 1, True),
        ("engine", 1, True),
        ("not needed", 20, False),
        ("runner left", 8, False),
        ("runner left", 9, True),
    ],
)
@pytest.mark.parametrize(("history", "table"), [("rounds", "prompts"), ("groups", "groups")])
def test_a_group_of_a_failed_environment_has_an_attempt_that_failed(
    request, tmp_path, history, table, cause, times, proved
) -> None:
    filtered = f"UPDATE {table} SET fate = 'filtered', reason = 'EnvironmentFailed' WHERE idx = 1"
    aborted = (
        "INSERT INTO episodes (epoch, idx, sample, version, environment, started, state, cause, ended)"
        f" VALUES (0, 1, 0, 1, 'calc', 0.0, 'aborted', '{cause}', 1.0)"
    )
    verdict = audit(broken(request.getfixturevalue(history), tmp_path, filtered, *[aborted] * times))
    found = [(one.rule, one.key) for one in verdict.findings if "its environment failed" in one.what]
    assert found == ([] if proved else [(Rule.UNFOUNDED, "0.1")])


def test_the_audit_has_the_causes_and_the_bound_of_hand_backs_that_count() -> None:
    assert {lineage.RUNNER_LEFT, lineage.NOT_NEEDED} == NO_FAILURES
    assert lineage.MOST_HAND_BACKS == MOST_HAND_BACKS


UNPROVED = [name for name, (rule, _) in CORRUPTIONS.items() if rule is Rule.LINEAGE]


@pytest.mark.parametrize("name", UNPROVED)
def test_tokens_of_another_origin_are_counted(rounds, tmp_path, name) -> None:
    verdict = audit(broken(rounds, tmp_path, *CORRUPTIONS[name][1]))
    assert (verdict.episodes.proved, verdict.episodes.tokens, verdict.episodes.unproved) == (8, 24, 3)


def test_a_node_is_stored_once(rounds, tmp_path) -> None:
    copy = broken(rounds, tmp_path)
    with closing(sqlite3.connect(copy, isolation_level=None)) as db:
        db.execute("CREATE TABLE copied AS SELECT * FROM turns")
        db.execute("DROP TABLE turns")
        db.execute("ALTER TABLE copied RENAME TO turns")
        db.execute(
            "INSERT INTO turns SELECT 1000 + number, episode, node, parent, kind, version, digest, tokens, logprobs,"
            f" finish, body, stored_at, opened, resumption FROM turns WHERE episode = {FIRST} AND node = 2"
        )
    verdict = audit(copy)
    expect(verdict, Rule.TWICE, KEY)
    expect(verdict, Rule.LINEAGE, KEY)


def test_tokens_that_wait_for_a_checkpoint_are_compared(groups, tmp_path) -> None:
    change = "UPDATE experience_chunks SET tokens = x'09000000' WHERE idx = 1 AND start = 0"
    verdict = audit(broken(groups, tmp_path, change))
    expect(verdict, Rule.LINEAGE, r"0\.1\.0")
    assert verdict.episodes.unproved == 3


@pytest.mark.parametrize("change", ["reward = 0.5", "reward = 'none'", """terms = '{"environment": 0.5}'"""])
@pytest.mark.parametrize(("history", "table"), [("rounds", "trajectories"), ("groups", "samples")])
def test_a_reward_is_that_of_its_attempt_and_of_its_training(request, tmp_path, history, table, change) -> None:
    verdict = audit(broken(request.getfixturevalue(history), tmp_path, f"UPDATE {table} SET {change} WHERE idx = 0"))
    expect(verdict, Rule.LINEAGE, KEY)
    assert verdict.episodes.unproved == 3


@pytest.mark.parametrize("terms", ['{"environment": 1.0}', '{"environment": 0.5, "short": 1.0}', '{"short": 0.5}', "{"])
def test_only_a_reward_of_the_environment_alone_is_compared_with_its_own(rounds, tmp_path, terms) -> None:
    change = f"UPDATE trajectories SET terms = '{terms}' WHERE idx = 0"
    assert audit(broken(rounds, tmp_path, change)).findings == ()


OF_FORMAT_17 = f"UPDATE episodes SET loss = ? WHERE id = {FIRST}"


@pytest.mark.parametrize(
    ("corruption", "rules"),
    [(None, []), ("a trained token is another", [Rule.LINEAGE]), ("a given token is another", [])],
)
def test_digests_of_format_17_prove_sampled_tokens(rounds, tmp_path, corruption, rules) -> None:
    digest = loss_digest((3, 5, 6), [-0.1 * token for token in (3, 5, 6)])
    changes = [] if corruption is None else CORRUPTIONS[corruption][1]
    copy = broken(rounds, tmp_path, OF_FORMAT_17.replace("?", f"x'{digest.hex()}'"), *changes)
    assert [one.rule for one in audit(copy).findings] == rules


def test_the_audit_has_the_name_of_the_environments_term() -> None:
    assert lineage.TERM == ENVIRONMENT_TERM


def test_the_command_tells_origin_and_next_step(rounds, tmp_path) -> None:
    def check(*arguments: str):
        return CliRunner().invoke(app, ["check", *arguments])

    done = check(str(rounds))
    assert done.exit_code == 0
    assert done.stdout.splitlines()[1] == (
        "check: episodes: 14 attempts (9 completed, 4 truncated, 1 aborted, 0 open); 9 trained responses of 18 turns "
        "and 27 tokens are as the engines emitted them; tokens of another origin 0"
    )
    bad = broken(rounds, tmp_path, *CORRUPTIONS["a trained token is another"][1])
    done = check(str(bad))
    assert done.exit_code == 1
    assert (
        "lineage: 0.0.0: attempt 2 is not what was trained on: tokens, their places, log-probabilities or the reward "
        "differ. Update 1 trained on it: continue from a checkpoint before that update"
    ) in done.stdout
    assert json.loads(check(str(bad), "--json").stdout)["episodes"] == {
        "attempts": {"aborted": 1, "completed": 9, "truncated": 4},
        "proved": 8,
        "turns": 16,
        "tokens": 24,
        "unproved": 3,
    }


def test_episodes_of_kept_rounds_are_proved(tmp_path) -> None:
    store = Store(tmp_path / "state.db", "uid-1")
    store.start_at(Boundary(0, Cursor()))
    for step, prompt in enumerate(PROMPTS, 1):
        play_round(store, step, prompt)
        while store.prune(2):
            pass
    store.close()
    verdict = audit(tmp_path)
    assert (verdict.findings, verdict.trajectories, verdict.tokens) == ((), 9, 27)
    assert verdict.episodes == EpisodeCounts({"completed": 2}, proved=2, turns=4, tokens=6, unproved=0)


ALL_GONE = ["DELETE FROM turns", "DELETE FROM episodes"]
NUMBERS_GONE = "DELETE FROM sqlite_sequence"
REPORTED = """UPDATE boundaries SET report = '{"episodes": {"attempts": 9}}' WHERE step = 1"""


@pytest.mark.parametrize("history", ["rounds", "groups"])
@pytest.mark.parametrize("traces", [[], [REPORTED], [NUMBERS_GONE, REPORTED]], ids=["numbers", "both", "reports"])
def test_responses_are_without_origin_if_all_attempts_are_gone(request, tmp_path, history, traces) -> None:
    whole = audit(request.getfixturevalue(history))
    verdict = audit(broken(request.getfixturevalue(history), tmp_path, *ALL_GONE, *traces))
    found = [one for one in verdict.findings if one.rule is Rule.LINEAGE]
    assert len({one.key for one in found}) == len(found) == whole.trajectories
    assert verdict.episodes == EpisodeCounts(unproved=whole.tokens)
    done = CliRunner().invoke(app, ["check", str(tmp_path / "state.db")])
    assert (done.exit_code, f"tokens of another origin {whole.tokens}\n" in done.stdout) == (1, True)


@pytest.mark.parametrize("tables", [["turns"], ["turns", "episodes"]])
def test_tables_of_episodes_that_are_gone_are_told(rounds, tmp_path, tables) -> None:
    copy = broken(rounds, tmp_path, REPORTED)
    with closing(sqlite3.connect(copy, isolation_level=None)) as db:
        for table in tables:
            db.execute(f"DROP TABLE {table}")
    verdict = audit(copy)
    (found,) = verdict.findings
    assert (found.rule, found.key, verdict.episodes.unproved) == (Rule.DAMAGED, "file", 27)
    assert all(table in found.what for table in tables)


def test_the_audit_has_the_numbers_that_a_term_gives() -> None:
    assert lineage.NUMBERS_A_TERM == attempts.NUMBERS_A_TERM


@pytest.mark.parametrize("term", [1, 7])
def test_a_job_without_environments_has_no_line_about_episodes(tmp_path, term) -> None:
    store = Store(tmp_path / "state.db", "uid-1")
    store.start_at(Boundary(0, Cursor()))
    settle(store, open_round(store, 1, PROMPTS[0]))
    store.close()
    with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as db:
        db.execute("""UPDATE boundaries SET report = '{"round": 1}'""")
        attempts.begin_numbers(db, term)  # as a store that begins in this term
    verdict = audit(tmp_path)
    assert verdict.episodes is None
    assert "episodes" not in verdict.to_dict()
