"""The timeline of a job: what is recorded, what is kept, and what a full disk costs."""

import asyncio
from collections import defaultdict
from itertools import pairwise

import pytest
from typer.testing import CliRunner

from rljob_api.spec.training import Mode
from rljob_api.status import RoundReport
from rljob_runtime.cli import app
from rljob_runtime.coordinator.reporting import timeline as module
from rljob_runtime.coordinator.reporting.round_log import RoundJournal
from rljob_runtime.coordinator.reporting.timeline import Timeline, TimelineLog
from rljob_runtime.protocols import TrainReport
from rljob_runtime.simulator.core import virtual_time
from rljob_runtime.timeline import packing
from rljob_runtime.timeline.record import Record, read_records
from tests.support.simulated_job import Stage, job

TRAINED = TrainReport(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1, 0.0)


def written(timeline: Timeline) -> list[Record]:
    found: list[Record] = []
    timeline.written(found.append)
    return found


async def failing(timeline: Timeline) -> None:
    with timeline.during("trainer", "train", round=1):
        await asyncio.sleep(2)
        raise ValueError("lost")


async def recorded() -> Timeline:
    timeline = Timeline()
    timeline.start(3)
    with pytest.raises(ValueError, match="lost"):
        await failing(timeline)
    for held in (True, True, False, False):
        timeline.busy("a/replica-0", "generate", held)
        await asyncio.sleep(1)
    timeline.close(1)
    timeline.busy("a/replica-0", "generate", held=True)
    timeline.close(2)
    timeline.busy("a/replica-0", "generate", held=False)
    timeline.close()
    return timeline


def test_intervals_are_recorded_with_the_boundary_that_ends_them():
    first, last = written(virtual_time.run(recorded()))
    rows = [(one.row, one.name, one.since, one.until) for one in first.intervals]
    assert rows == [
        ("coordinator/life", "CoordinatorStarted", 0.0, None),
        ("trainer", "train", 0.0, 2.0),
        ("a/replica-0", "generate", 2.0, 4.0),
    ]
    assert (first.round, first.term, last.round) == (1, 3, 2)
    assert len(last.intervals) == 1, "it was open at the boundary"


def test_changes_of_a_replica_are_bounded_and_their_seconds_exact(monkeypatch):
    async def changing() -> Timeline:
        monkeypatch.setattr(module, "MOST_ACTIVITIES", 40)
        monkeypatch.setattr(module, "MOST_INTERVALS", 100)
        timeline = Timeline()
        for turn in range(5000):
            timeline.activity("a/replica-0", ("generate", "wait for environments", "wait for environments")[turn % 3])
            await asyncio.sleep(1)
        timeline.activity("a/replica-0", None)
        timeline.activity("a/replica-0", None)
        timeline.close(1)
        assert timeline.recorded() == ()
        return timeline

    (record,) = written(virtual_time.run(changing()))
    assert (len(record.intervals) <= 100, record.lost) == (True, 0)
    seconds = dict.fromkeys(("generate", "wait for environments"), 0.0)
    for one in record.intervals:
        seconds[one.name] += one.until - one.since
    assert seconds == {"generate": 1667, "wait for environments": 3333}


@pytest.mark.parametrize("gap", [0.0, 0.5], ids=["without gaps", "with gaps"])
def test_many_replicas_leave_room_for_events(gap: float, monkeypatch):
    monkeypatch.setattr(module, "MOST_ACTIVITIES", 40)
    monkeypatch.setattr(module, "MOST_INTERVALS", 100)

    async def changing() -> Timeline:
        timeline = Timeline()
        for turn in range(60):
            for row in range(50):
                timeline.activity(f"{row}/replica-0", ("generate", "wait for environments")[turn % 2])
            await asyncio.sleep(1)
            if gap:
                for row in range(50):
                    timeline.activity(f"{row}/replica-0", None)
                await asyncio.sleep(gap)
        timeline.event("MachineLost", "rollout-0", "rollout-0/machine")
        timeline.close(1)
        return timeline

    (record,) = written(virtual_time.run(changing()))
    assert [one.name for one in record.intervals].count("MachineLost") == 1
    assert len(record.intervals) <= 50 * packing.LEAST * packing.MOST_OF_ROW + 1
    assert (record.lost > 0) is bool(gap), "gaps keep intervals apart"


async def test_events_are_passed_on_and_an_observer_that_raises_ends_nothing():
    timeline, told = Timeline(), []
    timeline.on_event = told.append
    timeline.round = 4
    timeline.event("MachineLost", "rollout-0: " + "x" * 9999, "rollout-0/machine")
    timeline.on_event = lambda event: 1 / 0
    timeline.event("Repack", "2 responses", "coordinator/moves")
    timeline.close(5)
    (event,) = told
    assert (event.name, event.round, len(event.message)) == ("MachineLost", 5, module.LONGEST_MESSAGE)
    (record,) = written(timeline)
    assert [one.args["message"][:11] for one in record.intervals] == ["rollout-0: ", "2 responses"]


async def test_what_is_too_much_is_counted(monkeypatch):
    monkeypatch.setattr(module, "MOST_INTERVALS", 3)
    timeline = Timeline()
    for _ in range(5):
        timeline.event("MachineJoined", "a", "a")
    timeline.close(1)
    (record,) = written(timeline)
    assert (len(record.intervals), record.lost) == (3, 2)


async def test_the_file_keeps_the_newest_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_BYTES", 5000)
    timeline = Timeline()
    log = TimelineLog(tmp_path, timeline, to_epoch=1000.0)
    for number in range(1, 61):
        timeline.event("TrainerLost", "its pods changed", "trainer")
        timeline.close(number)
        log(RoundReport(round=number), TRAINED)
        assert (tmp_path / "timeline.jsonl").stat().st_size <= 5000
    kept = [record.round for record in read_records((tmp_path / "timeline.jsonl").read_text())]
    assert kept == list(range(kept[0], 61))
    assert 10 < len(kept) < 60


async def test_a_full_disk_costs_no_round_and_its_intervals_come_later(tmp_path):
    timeline, file = Timeline(), tmp_path / "timeline.jsonl"
    file.mkdir()  # in the way
    journal = RoundJournal({"timeline.jsonl": lambda: TimelineLog(tmp_path, timeline)})
    for number in (1, 2):
        timeline.event("TrainerLost", "its pods changed", "trainer")
        timeline.close(number)
        journal(RoundReport(round=number), TRAINED)
    while journal.waiting:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert journal.problem() is not None
    file.rmdir()
    timeline.close(3)
    journal(RoundReport(round=3), TRAINED)
    journal.close()
    assert [record.round for record in read_records(file.read_text())] == [1, 2]


JOBS = {
    "on policy": {"tail": {"enabled": True, "promptFactor": 1.5, "responseFactor": 1.5}},
    "asynchronous": {"mode": Mode.ASYNCHRONOUS},
}


@pytest.mark.parametrize("kind", JOBS)
def test_phases_of_a_round_have_the_seconds_of_its_report(kind, tmp_path):
    stage = Stage(tmp_path / "state.db", job=job(rounds=4, prompts=4, responses=4, **JOBS[kind]))
    records: list[Record] = []
    stage.observers.append(lambda report, trained: stage.coordinator._reporter.timeline.written(records.append))
    stage.play()
    stage.coordinator._reporter.timeline.close()
    stage.coordinator._reporter.timeline.written(records.append)
    intervals = [one for record in records for one in record.intervals]
    phases = {(one.args["round"], one.name): one for one in intervals if one.row == "coordinator/rounds"}
    first = "generation" if kind == "on policy" else "wait for groups"
    for report in stage.closed:
        seconds = {name: one.until - one.since for (number, name), one in phases.items() if number == report.round}
        waited = report.generation_seconds if kind == "on policy" else report.trainer_wait_seconds
        assert seconds == {
            first: pytest.approx(waited, abs=0.05),
            "training": pytest.approx(report.training_seconds, abs=0.002),
            "weight sync": pytest.approx(report.broadcast_seconds, abs=0.05),
        }
    rows = defaultdict(list)
    for one in intervals:
        if one.until is not None:
            rows[one.row].append(one)
    for spans in rows.values():
        spans.sort(key=lambda one: one.since)
        assert all(one.until <= after.since for one, after in pairwise(spans) if one.row != "trainer"), spans
    replicas = [f"rollout-{number}/replica-0" for number in range(2)]
    assert {"trainer", "coordinator/rewards", *replicas, "rollout-0/relay", "rollout-1/relay"} <= rows.keys()
    for replica in replicas:
        assert {one.name for one in rows[replica]} == {"load", "generate"}
    assert {one.name for one in rows["trainer"]} == {"start", "train", "publish", "checkpoint", "export"}
    busy = sum(one.until - one.since for replica in replicas for one in rows[replica] if one.name == "generate")
    assert busy > 0


def run(*arguments: object):
    return CliRunner().invoke(app, ["timeline", *map(str, arguments)], env={"COLUMNS": "160"})


async def test_the_command_writes_the_newest_rounds(tmp_path):
    timeline = Timeline()
    log = TimelineLog(tmp_path, timeline)
    for number in (1, 2, 3):
        timeline.event(f"Event{number}", "…", "trainer")
        timeline.close(number)
    log.close()
    out = tmp_path / "out.json"
    done = run(tmp_path, "--out", out, "--rounds", 2)
    assert (done.exit_code, done.output) == (0, f"{out}: 2 rounds, 2 intervals; open it in https://ui.perfetto.dev\n")
    assert "Event1" not in out.read_text()
    assert "Event3" in out.read_text()


def test_what_cannot_be_shown_is_said_in_a_line(tmp_path):
    cases = [
        ((tmp_path, "--out", tmp_path / "x.json"), "has no timeline: no round has ended"),
        ((tmp_path / "missing", "--out", tmp_path / "x.json"), "no such folder"),
    ]
    (tmp_path / "run").mkdir()
    (tmp_path / "run/timeline.jsonl").write_text('{"round": 1, "term": 1, "intervals": [["a", "b", 1.0, null, {}]]}\n')
    cases.append(((tmp_path / "run", "--out", tmp_path / "no/x.json"), "cannot be written: No such file"))
    for arguments, reason in cases:
        done = run(*arguments)
        assert done.exit_code == 2, done.output
        assert reason in done.output
        assert "Traceback" not in done.output
