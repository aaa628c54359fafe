"""What a campaign of long episodes counts in the store, and what it does not let pass."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from hack.chaos.__main__ import asked, keep, least_rounds, parser, rows_of
from hack.chaos.history import interrupted_episodes
from hack.chaos.in_pods import even_results
from hack.chaos.job import EPISODES_PER_UPDATE, PROGRAM, REWARD, manifest
from hack.chaos.long_episodes import FAULTS, LongEpisodes, problems, read
from hack.chaos.rows import ROWS, TOOLS
from rljob_api import load
from rljob_env.foreign_code.functions import load_function
from rljob_runtime.audit import audit
from rljob_runtime.coordinator.store.records import Boundary
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.protocols.trajectory import Cursor, PromptKey, TrajectoryKey
from tests.support.histories import broken
from tests.support.stored_episodes import (
    ABORTED,
    begin_asynchronous,
    collect,
    generate,
    open_round,
    settle,
    two_turns,
    update,
)

PROMPTS = [PromptKey(0, index) for index in range(3)]
TURNS = 2
TOKENS = 3
"""Turns and sampled tokens of an episode of these stores."""
CALLED = (
    "INSERT INTO tool_calls (episode, node, place, name, digest, resumption, stored_at)"
    " SELECT id, 2, 0, 'calculate', x'00', 1, 1.0 FROM episodes WHERE step IS NOT NULL"
)
FIRST = "(SELECT MIN(id) FROM episodes WHERE step IS NOT NULL)"
GOOD = LongEpisodes(episodes=1000, turns=20_000, calls=20_000)


@pytest.fixture(params=["rounds", "groups"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Three episodes that were trained on, in either mode, and a call of a tool in each."""
    (tmp_path / "made").mkdir()
    made = Store(tmp_path / "made" / "state.db", "uid-1")
    if request.param == "rounds":
        made.start_at(Boundary(0, Cursor()))
        plan = open_round(made, 1, *PROMPTS)
        for key in plan.trajectories():
            generate(made, plan, key)
        settle(made, plan)
    else:
        begin_asynchronous(made, *PROMPTS)
        for step, prompt in enumerate(PROMPTS, 1):
            collect(made, TrajectoryKey(prompt, 0))
            update(made, step, prompt)
    made.close()
    (tmp_path / "called").mkdir()
    return broken(tmp_path / "made" / "state.db", tmp_path / "called", CALLED)


def found(path: Path, turns: int = TURNS) -> LongEpisodes:
    return read(path.parent, audit(path).to_dict(), turns)


def told(path: Path, *corruptions: str, turns: int = TURNS) -> list[str]:
    """Return what is wrong with the store after these statements."""
    folder = path.parent.parent / "corrupted"
    folder.mkdir()
    return [*problems(found(broken(path, folder, *corruptions), turns), 3, False)]


def test_a_campaign_without_losses_has_nothing_to_tell(store: Path) -> None:
    episodes = found(store)
    assert episodes == LongEpisodes(episodes=3, turns=6, calls=3, resumed=0)
    assert [*problems(episodes, 3, False)] == []
    assert str(episodes) == "episodes=3 turns=6 tokens lost=0 resumed=0 tool calls twice=0 fake zeros=0 reencoded=0"


def begun(number: int, end: str) -> tuple[str, str]:
    """Return statements that add an attempt before all others, of the first response or of response `number`.

    It has a turn of one token. `end`: its state and cause, as SQL."""
    return (
        "INSERT INTO episodes (id, epoch, idx, sample, version, environment, started, state, cause, ended)"
        f" VALUES (-1, 0, {number}, 0, 1, 'calc', 0.0, {end}, 1.0)",
        "INSERT INTO turns (episode, node, parent, kind, version, digest, tokens, logprobs, finish, stored_at)"
        " VALUES (-1, 1, 0, 'sampled', 1, 'd', x'09000000', x'00000000', 'stop', 1.0)",
    )


CORRUPTIONS: dict[str, tuple[tuple[str, ...], str]] = {
    "a stored call is executed again": (
        (f"UPDATE tool_calls SET executions = 2 WHERE episode = {FIRST}",),
        "1 stored calls of tools were executed again",
    ),
    "there is no call": (("DELETE FROM tool_calls",), "no call of a tool is in the store"),
    "a reward is none that an episode earns": (
        (f"UPDATE episodes SET reward = 0.0 WHERE id = {FIRST}",),
        "1 responses have a reward that no episode earns",
    ),
    "a failure is trained on": (
        (f"UPDATE episodes SET state = 'aborted', cause = 'environment', reward = NULL WHERE id = {FIRST}",),
        "1 responses have a reward that no episode earns",
    ),
    "a token is another": (
        (f"UPDATE turns SET tokens = x'09000000' WHERE episode = {FIRST} AND node = 2",),
        f"{TOKENS} trained tokens have no proved origin",
    ),
    "an episode is missing": ((f"DELETE FROM episodes WHERE id = {FIRST}",), "2 episodes were trained on, and 3 are"),
    "an attempt failed in vain": (
        begun(0, "'aborted', 'engine'"),
        "1 tokens are lost with attempts that ended: engine",
    ),
    "the attempt of a filtered response failed": (
        begun(77, "'aborted', 'environment'"),
        "1 tokens are lost with attempts that ended: environment",
    ),
    "a dropped attempt is begun again": (
        begun(0, "'aborted', 'not needed'"),
        "1 tokens are lost with attempts that ended: not needed",
    ),
    "an attempt has no end and is begun again": (
        begun(0, "NULL, NULL"),
        "1 tokens are lost with attempts that ended: no end",
    ),
}


@pytest.mark.parametrize(("statements", "wanted"), CORRUPTIONS.values(), ids=CORRUPTIONS.keys())
def test_what_faults_took_from_episodes_is_told(store: Path, statements: tuple[str, ...], wanted: str) -> None:
    assert any(text.startswith(wanted) for text in told(store, *statements))


def test_an_attempt_that_is_not_needed_any_more_has_lost_nothing(store: Path) -> None:
    """The job ended, or dropped its group: no other attempt generates the response."""
    assert told(store, *begun(77, "'aborted', 'not needed'")) == []


def test_an_episode_with_too_few_turns_is_told(store: Path) -> None:
    with closing(sqlite3.connect(store)) as db:
        ((number,),) = db.execute(f"SELECT {FIRST}")
    limited = (
        f"UPDATE episodes SET state = 'truncated', reached = 'seconds', started = 1.0, ended = 601.0 WHERE id = {FIRST}"
    )
    first, *others = told(store, limited, turns=TURNS + 1)
    assert first == (
        f"a trained episode has too few turns: attempt {number}, {TURNS} turns, truncated by its seconds after 600 s, "
        "resumption 0, last turn: stop"
    )
    assert len(others) == 2
    assert all(" completed after " in one for one in others)


def test_a_reward_of_a_response_that_no_episode_earns_is_told(store: Path) -> None:
    with closing(sqlite3.connect(store)) as db:
        rounds = db.execute("SELECT COUNT(*) FROM trajectories").fetchone() != (0,)
    found = told(store, f"UPDATE {'trajectories' if rounds else 'samples'} SET reward = 0.0")
    assert any(text.startswith("3 responses have a reward") for text in found)


def test_tokens_of_an_attempt_that_another_one_came_after_are_lost(tmp_path: Path) -> None:
    """As a coordinator stores it: the attempt failed after two turns, and the next one was trained on."""
    made = Store(tmp_path / "state.db", "uid-1")
    made.start_at(Boundary(0, Cursor()))
    plan = open_round(made, 1, PROMPTS[0])
    (key,) = plan.trajectories()
    number = made.turns.begin(key, plan.version, 0.0, "calc")
    for nodes in two_turns(plan.version):
        made.turns.commit(number, nodes, b"{}", 1.0)
    made.turns.end(number, ABORTED, 2.0)
    generate(made, plan, key)
    settle(made, plan)
    made.close()
    assert found(tmp_path / "state.db").lost == {ABORTED.cause: TOKENS}


def test_a_job_whose_updates_are_pruned_proves_too_little() -> None:
    assert [*problems(GOOD, 1000, False)] == []
    (why,) = problems(replace(GOOD, pruned=7), 1000, False)
    assert why.startswith("7 updates are pruned")


def test_without_a_store_nothing_is_proved(tmp_path: Path) -> None:
    episodes = read(tmp_path, {"error": "no state.db"}, 20)
    assert episodes == LongEpisodes()
    assert any("0 episodes were trained on, and 1000" in text for text in problems(episodes, 1000, False))


def test_a_campaign_has_ten_kinds_of_faults_with_those_of_agents() -> None:
    args = parser().parse_args(["--turns", "20", "--episodes", "1000"])
    assert rows_of(args) == list(FAULTS)
    assert len(set(FAULTS) & set(ROWS)) == 10
    assert set(FAULTS) >= {"gateway-killed", "runner-deleted", "runner-hung"}
    assert set(FAULTS).isdisjoint(TOOLS), "a call that its server loses ends the attempt"
    assert least_rounds(args) * EPISODES_PER_UPDATE == 1000
    assert least_rounds(parser().parse_args(["--rounds", "7"])) == 7
    for wrong in (["--episodes", "1000"], ["--turns", "20", "--rows", "tool-server-hung"]):
        with pytest.raises(SystemExit):
            asked(wrong)


def test_a_campaign_that_loses_runners_must_show_that_others_went_on(store: Path) -> None:
    """Without that, no stored call could have been executed again, and their number says nothing."""
    folder = store.parent.parent / "resumed"
    folder.mkdir()
    (why,) = problems(found(store), 3, True)
    assert why.startswith("no episode went on with another runner")
    resumed = found(broken(store, folder, f"UPDATE episodes SET resumption = 2 WHERE id = {FIRST}"))
    assert resumed.resumed == 2
    assert [*problems(resumed, 3, True)] == []


@pytest.mark.parametrize(
    ("end", "zeros"),
    [
        ("'completed', NULL, 0.0", 1),
        ("'truncated', NULL, NULL", 1),
        ("'completed', NULL, 0.5", 0),
        ("'aborted', 'not needed', NULL", 0),
        ("'aborted', 'not needed', 0.0", 1),
    ],
)
def test_a_zero_that_was_not_trained_on_is_one_too(store: Path, end: str, zeros: int) -> None:
    """Its group may have been requeued, or be left over at the end."""
    folder = store.parent.parent / "left"
    folder.mkdir()
    left = (
        "INSERT INTO episodes (id, epoch, idx, sample, version, environment, started, state, cause, reward, ended)"
        f" VALUES (-1, 0, 77, 0, 1, 'calc', 0.0, {end}, 1.0)"
    )
    assert found(broken(store, folder, left)).fake_zeros == zeros


def test_the_job_has_episodes_of_so_many_turns_and_keeps_them_all() -> None:
    _, code, job = manifest("Asynchronous", 3, agents=True, turns=20)
    spec = load(job).spec
    (environment,) = spec.environments
    assert (environment.max_turns, environment.state) == (20, "Stateless")
    assert environment.gives_reward
    assert spec.algorithm.prompts_per_round * spec.algorithm.responses_per_prompt == EPISODES_PER_UPDATE
    assert spec.store.keep_rounds > 10_000
    assert {environment.reward, *(tool.function for tool in environment.tools or ())} == {
        f"{REWARD.name}:score",
        "calculator.py:calculate",
    }
    assert set(code["data"]) >= {"even_results.py", "calculator.py"}


def test_a_program_plays_each_episode_with_as_many_turns() -> None:
    _, code, job = manifest("Asynchronous", 3, agents=True, turns=20, programs=True)
    (environment,) = load(job).spec.environments
    assert (environment.kind, environment.tools, environment.max_turns) == ("Agent", None, 20)
    assert environment.command == ("python", PROGRAM.name, "20")
    assert set(code["data"]) >= {"even_results.py", "calculator.py", PROGRAM.name}
    assert environment.reward == f"{REWARD.name}:score"


def test_programs_have_calls_of_their_own_and_must_run_again(store: Path) -> None:
    folder = store.parent.parent / "programs"
    folder.mkdir()
    episodes = found(broken(store, folder, "DELETE FROM tool_calls"))
    assert [*problems(episodes, 3, False, programs=True)] == []
    assert "twice" not in str(episodes)
    (why,) = problems(episodes, 3, True, programs=True)
    assert why == "no episode went on with another runner, so that no program ran again"
    with pytest.raises(SystemExit):
        asked(["--programs"])


@pytest.mark.parametrize(("stateful", "state"), [(False, "Stateless"), (True, "Stateful")])
def test_a_campaign_may_let_episodes_execute_their_calls_again(stateful: bool, state: str) -> None:
    _, _, job = manifest("Asynchronous", 3, agents=True, turns=20, stateful=stateful)
    assert load(job).spec.environments[0].state == state


def test_episodes_that_execute_calls_again_must_show_it(store: Path) -> None:
    folder = store.parent.parent / "replayed"
    folder.mkdir()
    resumed = f"UPDATE episodes SET resumption = 2 WHERE id = {FIRST}"
    (why,) = problems(found(broken(store, folder, resumed)), 3, True, stateful=True)
    assert why.startswith("no stored call was executed again")
    again = f"UPDATE tool_calls SET executions = 2 WHERE episode = {FIRST}"
    replayed = found(broken(store, folder, resumed, again))
    assert [*problems(replayed, 3, True, stateful=True)] == []
    assert len([*problems(replayed, 3, True)]) == 1
    for wrong in (["--stateful"], ["--turns", "20", "--stateful", "--programs"]):
        with pytest.raises(SystemExit):
            asked(wrong)


@pytest.mark.parametrize(
    ("statements", "count"),
    [
        ((), 0),
        ((f"UPDATE episodes SET resumption = 2 WHERE id = {FIRST}",), 1),
        (begun(0, "'aborted', 'environment'"), 1),
        (begun(0, "'aborted', 'not needed'"), 0),
        (begun(0, "'aborted', 'runner left'"), 0),
    ],
    ids=["none", "goes on elsewhere", "failed", "not needed", "handed back"],
)
def test_episodes_that_a_loss_interrupted_are_counted(store: Path, statements: tuple[str, ...], count: int) -> None:
    folder = store.parent.parent / "interrupted"
    folder.mkdir()
    assert interrupted_episodes(broken(store, folder, *statements).parent) == count
    assert interrupted_episodes(folder / "without a store") == 0


def test_the_reward_is_never_zero() -> None:
    score = load_function(REWARD.parent, f"{REWARD.name}:score")
    odd = [{"role": "tool", "content": "7"}] * 20
    assert score({}, odd, "") == even_results.score({}, odd, "") == pytest.approx(1 / 21)


def test_the_store_of_a_failed_campaign_is_kept(tmp_path: Path) -> None:
    (tmp_path / "volume/job").mkdir(parents=True)
    for name in ("state.db", "state.db-wal", "model.safetensors"):
        (tmp_path / "volume/job" / name).write_text(name)
    for _ in range(2):
        kept = keep(tmp_path / "volume", tmp_path / "build/kept")
        assert {str(file.relative_to(kept)) for file in kept.rglob("*.*")} == {"job/state.db", "job/state.db-wal"}
