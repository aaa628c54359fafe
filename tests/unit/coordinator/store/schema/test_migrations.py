"""Stores that earlier runtimes wrote: dumps of jobs of their time, stopped in the middle of round 3."""

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from rljob_api.status import FinishedOutcome, LoanReport, RoundKind, RoundReport
from rljob_runtime.coordinator.store.connection import StoreUnusable
from rljob_runtime.coordinator.store.records import Boundary
from rljob_runtime.coordinator.store.schema.core import FORMAT
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.protocols.trajectory import Cursor, FinishReason, Lease, PromptKey, Response
from rljob_runtime.scheduling.episodes.ends import EndState, EpisodeEnd
from rljob_runtime.scheduling.episodes.limits import Limit
from rljob_runtime.scheduling.episodes.times import Pause
from rljob_runtime.scheduling.layouts.fleet_layout import RoundLayout, SwitchCount
from rljob_runtime.scheduling.round_plan import PromptOutcome, RoundOutcome
from rljob_runtime.scheduling.round_planner.plans import Plan
from rljob_runtime.scheduling.tail_batching import Factors
from tests.support.simulated_job import Stage, job

DUMPS = Path(__file__).parent / "store_formats"
FORMATS = range(1, FORMAT)


@pytest.fixture(params=FORMATS)
def version(request) -> int:
    return request.param


@pytest.fixture
def path(tmp_path, version) -> Path:
    return write(tmp_path / "state.db", version)


def write(path: Path, version: int, more: str = "") -> Path:
    db = sqlite3.connect(path)
    db.executescript((DUMPS / f"{version}.sql").read_text() + more)
    assert db.execute("PRAGMA user_version").fetchone() == (version,)
    db.close()
    return path


def schema(path: Path) -> dict[str, object]:
    """Columns by table, and the text of indexes and triggers."""
    db = sqlite3.connect(path)
    found: dict[str, object] = {}
    for kind, name, text in db.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall():
        if kind == "table":
            columns = {row[1:] for row in db.execute(f"PRAGMA table_xinfo({name})")}
            found[name] = {(*column[:4], column[4] > 0) for column in columns}, text.count("CHECK")
        else:
            found[name] = text
    assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    db.close()
    return found


def test_every_earlier_format_is_known() -> None:
    assert sorted(int(dump.stem) for dump in DUMPS.glob("*.sql")) == list(FORMATS)


def test_the_schema_is_that_of_a_new_store(path, tmp_path):
    Store(path, "uid-1").close()
    Store(tmp_path / "new.db", "uid-1").close()
    assert schema(path) == schema(tmp_path / "new.db")


def test_the_round_under_way_goes_on_where_it_was(path, version):
    before = sqlite3.connect(path)
    lengths = dict(before.execute("SELECT epoch || '.' || idx || '.' || sample, SUM(length(tokens) / 4) FROM chunks "
                                  "GROUP BY 1").fetchall())  # fmt: skip
    before.close()
    store = Store(path, "uid-1")
    boundary, opened = store.boundaries.newest(), store.rounds.under_way()
    assert (boundary.step, boundary.report.round) == (2, 2)
    shape = opened.plan.shape
    assert (opened.plan.step, shape.kind, shape.prompts, shape.groups, shape.responses) == (3, RoundKind.LONG, 3, 3, 2)
    assert opened.plan.rules.max_prompts == 9
    # Decisions and lengths are kept since format 4.
    assert opened.chosen.plan == (Plan() if version < 4 else Plan(Factors(1.5, 1.5)))
    assert len(opened.saved) == 6
    assert lengths == {str(key): len(partial.token_ids) for key, partial in opened.partials.items()}
    known = store.remembered(1).rounds
    assert len(known) == (0 if version < 4 else 2)
    assert not store.experience.in_use()
    # It is finished, trained on and closed under the constraints of now.
    keys = opened.plan.trajectories()
    store.trajectories.launched(3, opened.plan.version, [(key, Lease("rollout-0", 9)) for key in keys])
    whole = [Response(key, 9, opened.plan.version, (), (), FinishReason.STOP, "rollout-0") for key in keys]
    store.trajectories.finish(3, [], whole)
    for key in keys:
        store.trajectories.score(3, key, 1.0)
    store.trajectories.assign(3, keys)
    fates = dict.fromkeys(opened.plan.prompts, PromptOutcome.TRAINED)
    left = tuple(prompt for prompt in boundary.queue if prompt not in fates)
    settlement = RoundOutcome(opened.plan.prompts, fates, {}, keys)
    store.rounds.close(settlement, Boundary(3, Cursor(0, 20), report=boundary.report, queue=left))
    (only,) = store.remembered(1).rounds[len(known) :]
    assert sum(one.tokens for prompt in only.prompts.values() for one in prompt.responses) == sum(lengths.values())
    store.close()


def test_reports_have_the_field_names_of_now(path, version):
    Store(path, "uid-1").close()
    db = sqlite3.connect(path)
    texts = db.execute("SELECT report FROM boundaries WHERE report IS NOT NULL ORDER BY step").fetchall()
    db.close()
    reports = [RoundReport.model_validate_json(text) for (text,) in texts]
    assert [report.round for report in reports] == [1, 2]
    if version > 1:
        assert [report.deferred_prompts for report in reports] == [2, 4]
    if version == 6:
        assert [report.loan for report in reports] == [
            LoanReport(state="Loaned"),
            LoanReport(state="NotLoaned", reason="OutsideWindow"),
        ]
        assert (reports[0].loaned_machines, reports[0].loaned_groups) == (1, 2)


def test_speeds_belong_to_the_layout_of_their_round(tmp_path):
    path = write(tmp_path / "state.db", 9)
    store = Store(path, "uid-1")
    found = store.remembered(100)
    store.close()
    db = sqlite3.connect(path)
    assert db.execute("SELECT step, tensor_parallel FROM speeds ORDER BY step").fetchall() == [(1, 1), (2, 2)]
    db.close()
    assert [one.speed.replicas for one in found.rounds if one.speed is not None] == [2, 2]
    assert {1: len(found.elsewhere[1]), 2: len(found.alone)} == {1: 1, 2: 1}


def test_a_job_goes_on_from_it_to_its_end(path):
    """Its trainer comes back from nothing: the store is rewound, and every step is run and constrained again."""
    stage = Stage(path, job(rounds=4, tail={"enabled": True, "promptFactor": 1.5, "responseFactor": 1.5}))
    # They know only of rows that they observed being written.
    stage.watchers.remove(stage.invariants)
    assert stage.play().outcome is FinishedOutcome.COMPLETE
    assert stage.rounds == [1, 2, 3, 4]


def test_migration_drops_settled_prompts_of_an_open_round_of_format_1(tmp_path):
    """It drew all prompts again where no group was left, and kept the former ones in the same round."""
    void = "UPDATE prompts SET fate = 'filtered', reason = 'RewardFailed' WHERE step = 3 AND idx = 6;\n"
    ended = "UPDATE trajectories SET outcome = 'discarded', reason = 'RewardFailed' WHERE step = 3 AND idx = 6;\n"
    store = Store(write(tmp_path / "state.db", 1, void + ended), "uid-1")
    opened = store.rounds.under_way()
    assert opened.plan.prompts == (PromptKey(0, 7), PromptKey(0, 8))
    assert {key.prompt for key in opened.saved} == set(opened.plan.prompts)
    store.close()


def test_a_store_of_another_job_stays_as_it_was(path, version):
    with pytest.raises(StoreUnusable, match="belongs to job uid-1"):
        Store(path, "uid-2")
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA user_version").fetchone() == (version,)
    db.close()


def test_a_store_of_a_later_format_is_refused(tmp_path):
    Store(tmp_path / "state.db", "uid-1").close()
    db = sqlite3.connect(tmp_path / "state.db")
    db.execute(f"PRAGMA user_version = {FORMAT + 1}")
    db.close()
    with pytest.raises(StoreUnusable, match=f"has format {FORMAT + 1}, this runtime knows {FORMAT}"):
        Store(tmp_path / "state.db", "uid-1")


def test_filtered_groups_of_format_9_count_where_their_file_has_them(tmp_path):
    """The update whose groups were drawn last after them, or the next one."""
    groups = [(1, 1, "trained"), (2, None, "filtered"), (3, 2, "trained"), (4, 1, "trained"), (5, None, "filtered")]
    rows = "".join(
        "INSERT INTO groups (epoch, idx, draw, drawn, version, replica, ready, step, place, fate, reason) VALUES"
        f" (9, {drawn}, 0, {drawn}, 1, 'rollout-0', {drawn}, {step or 'NULL'}, {'NULL' if step is None else drawn},"
        f" '{fate}', {'NULL' if step else repr('EqualRewards')});\n"
        for drawn, step, fate in groups
    )
    path = write(tmp_path / "state.db", 9, f"INSERT INTO pool VALUES (1, 0, 9, '[]');\n{rows}")
    Store(path, "uid-1").close()
    db = sqlite3.connect(path)
    assert db.execute("SELECT drawn, ended FROM groups ORDER BY drawn").fetchall() == [
        (1, None), (2, 1), (3, None), (4, None), (5, 3)
    ]  # fmt: skip
    db.close()


def test_turns_of_format_12_have_no_time_of_their_request(tmp_path):
    store = Store(write(tmp_path / "state.db", 12), "uid-1")
    (kept,) = store.turns.open_attempts()
    assert [node.id for node in kept.nodes] == [1, 2]
    assert kept.spans == {}
    store.close()


def test_attempts_of_format_13_refuse_no_turn_before_their_end(tmp_path):
    store = Store(write(tmp_path / "state.db", 13), "uid-1")
    (kept,) = store.turns.open_attempts()
    assert (kept.refusing, list(kept.spans)) == (None, [2])
    store.turns.refuse(kept.number, Limit.TURNS)
    assert store.turns.open_attempts()[0].refusing is Limit.TURNS
    store.close()


def test_turns_of_format_15_belong_to_no_program_that_runs_again(tmp_path):
    store = Store(write(tmp_path / "state.db", 15), "uid-1")
    (kept,) = store.turns.open_attempts()
    assert (kept.resumption, list(kept.spans), kept.asked_by) == (0, [2], {})
    store.turns.repeat(kept.number, 2, 1)
    assert store.turns.open_attempts()[0].asked_by == {2: 1}
    store.close()


def test_attempts_of_format_16_have_no_pauses(tmp_path):
    store = Store(write(tmp_path / "state.db", 16), "uid-1")
    (kept,) = store.turns.open_attempts()
    assert (kept.started, kept.pauses) == (100.0, ())
    store.turns.lease([(kept.number, 100.0, [Pause(101.5, 102.0)], 1)])
    assert store.turns.open_attempts()[0].pauses == (Pause(101.5, 102.0),)
    store.close()


def test_changes_of_sizes_count_as_switches_up_to_format_18(tmp_path):
    store = Store(write(tmp_path / "state.db", 18), "uid-1")
    layout = store.rounds.under_way().layout
    assert (layout.size, dict(layout.machines)) == (1, {"rollout-1": 2})
    assert layout.switches == {"rollout-0": SwitchCount(2), "rollout-1": SwitchCount(1)}
    counts = {"rollout-1": SwitchCount(1, 2)}
    store.rounds.change_layouts(3, [("rollout-1", 1)], counts)
    assert store.rounds.under_way().layout == RoundLayout(1, {}, layout.switches | counts)
    store.rounds.begin_generation(3, 2)
    assert store.rounds.under_way().layout == RoundLayout(2)
    store.close()


def test_calls_of_format_19_have_no_seconds_and_its_attempts_no_answer(tmp_path):
    store = Store(write(tmp_path / "state.db", 19), "uid-1")
    (kept,) = store.turns.open_attempts()
    (call,) = store.tool_calls.of(kept.number, 1 << 20)
    assert (call.name, call.observation, call.seconds, kept.answer) == ("add", "5", None, None)
    store.tool_calls.add(kept.number, replace(call, place=1, seconds=2.5), 0, 104.0)
    store.turns.end(kept.number, EpisodeEnd(EndState.COMPLETED), 105.0, answer="42")
    (ended,) = store.turns.newest([kept.key]).values()
    assert ended.answer == "42"
    assert [one.seconds for one in store.tool_calls.of(kept.number, 1 << 20)] == [None, 2.5]
    store.close()
