"""What `rljob run` says of folders that it cannot use, of a Ray that fails, and at its end."""

from __future__ import annotations

import io
import os
import re
import sqlite3
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn

import pytest
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

from rljob_api import load
from rljob_api.admission.loading import parse
from rljob_api.errors import ABSENT
from rljob_api.status import Finished, FinishedOutcome, RoundReport, RuntimeStatus, StatusWarning
from rljob_runtime import cli, local
from rljob_runtime.cli import app
from rljob_runtime.cli.run.display import STOPPING, display
from rljob_runtime.cli.run.ending import INTERRUPTED
from rljob_runtime.cli.screen import screen
from rljob_runtime.cli.views.status import runtime_view
from rljob_runtime.coordinator.store.connection import StoreUnusable
from rljob_runtime.local import template_check
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "minimal.yaml"
COMPLETE = Finished(outcome=FinishedOutcome.COMPLETE, reason="RoundsFinished", message="5 rounds are done")


@pytest.fixture
def rljob(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`rljob run` of the example, with `run` in place of the job."""
    monkeypatch.chdir(tmp_path)

    def invoke(run: Callable[..., RuntimeStatus], *arguments: str) -> Any:
        monkeypatch.setattr(local, "run", run)
        result = CliRunner().invoke(app, ["run", "-f", str(EXAMPLE), *arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


def raising(error: BaseException) -> Callable[..., NoReturn]:
    def run(*arguments: Any, **more: Any) -> NoReturn:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (local.FolderRefused("runs/a: another run (process 7) works in this folder"), 2, "runs/a: another run"),
        (StoreUnusable("state.db has format 99"), 2, "state.db has format 99"),
        (local.RayFailed("Ray's raylet has ended; raylet.err ends with: x"), 1, "minimal: Ray's raylet has ended"),
    ],
)
def test_what_is_expected_to_go_wrong_is_a_line(rljob, error, code, said):
    result = rljob(raising(error))
    assert result.exit_code == code
    assert result.stderr.startswith(said)
    assert len(result.stderr.splitlines()) == 1


def test_a_workdir_that_is_a_file_is_a_line(rljob, tmp_path):
    (tmp_path / "file").write_text("")
    real = local.run
    result = rljob(real, "--workdir", "file")
    assert result.exit_code == 2
    assert "cannot be used: " in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_last_line_of_a_job_and_of_one_that_was_complete_before(rljob):
    done = RuntimeStatus(round=5, weight_version=6, reward=0.5, model_path="runs/minimal/model", finished=COMPLETE)

    def train(job: Any, place: Any, show: Any, tell_round: Callable[..., None], *_: Any, **__: Any) -> RuntimeStatus:
        tell_round(RoundReport(round=5), None)
        return done

    assert rljob(train).stdout.splitlines()[1:] == [
        "minimal: Complete rounds=5 weight_version=6 reward=0.5",
        "  model        runs/minimal/model",
    ]
    before = done.model_copy(update={"reward": None})
    assert rljob(lambda *_, **__: before).stdout.splitlines() == [
        "minimal: Complete rounds=5: nothing was left to do",
        "  model        runs/minimal/model",
    ]


BRACKETS = "spec.x.limits[memory]: the template refuses it: [/INST] :fire: " + "and so on " * 20
"""Of a message from another program: neither a style nor a picture, and no end of a line."""


def test_a_message_is_shown_as_it_is_written_and_in_one_line(rljob):
    failed = Finished(outcome=FinishedOutcome.FAILED, reason="PromptsNotUsable", message=BRACKETS)

    warned = RuntimeStatus(warnings=(StatusWarning(reason="StoreSlow", message=BRACKETS),))
    result = rljob(lambda *_, **__: RuntimeStatus(finished=failed))
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [f"minimal: not complete (PromptsNotUsable: {BRACKETS}); logs in runs/minimal"]
    console = screen()
    with console.capture() as captured:
        console.print(runtime_view(warned, 5))
    drawn = " ".join(captured.get().split())
    assert "limits[memory]" in drawn
    assert "[/INST] :fire:" in drawn


def test_all_commands_print_on_the_one_kind_of_console():
    folder = Path(cli.__file__).parent
    assert [path.name for path in folder.rglob("*.py") if re.search(r"\bConsole\(", path.read_text())] == ["screen.py"]


def test_problems_are_told_once_where_no_screen_shows_them(rljob):
    absent = StatusWarning(reason="MachinesNotJoined", message="rollout-0 does not join: SegmentBusy")

    def run(job: Any, place: Any, show: Callable[[RuntimeStatus], None], *_: Any, **__: Any) -> RuntimeStatus:
        for problems in ((), (absent,), (absent,), ()):
            show(RuntimeStatus(warnings=problems))
        return RuntimeStatus(round=5, finished=COMPLETE, model_path="model")

    assert rljob(run).stderr.splitlines() == ["MachinesNotJoined: rollout-0 does not join: SegmentBusy"]


def test_each_round_is_a_line_where_no_screen_shows_it(rljob):
    def run(job: Any, place: Any, show: Any, tell_round: Callable[..., None], *_: Any, **__: Any) -> RuntimeStatus:
        for number in (1, 2):
            tell_round(RoundReport(round=number, reward=number / 4, responses=64, seconds=2.25), None)
        return RuntimeStatus(round=8, finished=COMPLETE, model_path="model", weight_version=9)

    lines = rljob(run).stdout.splitlines()
    assert lines[:2] == ["round 1/8  reward 0.25  64 responses  2.2 s", "round 2/8  reward 0.5  64 responses  2.2 s"]


def test_an_interrupted_run_prints_the_command_that_continues_it(rljob):
    told = rljob(lambda *_, **__: RuntimeStatus(round=2), "--set", "spec.rounds=3", "--workdir", "my runs")
    assert told.exit_code == INTERRUPTED
    assert told.stdout.splitlines()[-1] == (
        f"continue with: rljob run {EXAMPLE} --set spec.rounds=3 --workdir 'my runs'"
    )


def test_an_interrupt_while_ray_starts_is_one_line(rljob):
    told = rljob(raising(KeyboardInterrupt()))
    assert told.exit_code == INTERRUPTED
    assert told.stderr.splitlines() == [
        f"minimal: interrupted before the first round; start again with: rljob run {EXAMPLE}"
    ]


def test_an_interrupt_before_continuing_reports_unchanged_rounds(rljob, tmp_path):
    (tmp_path / "w").mkdir()
    (tmp_path / "w/rounds.jsonl").write_text("")
    told = rljob(raising(KeyboardInterrupt()), "--workdir", "w")
    assert told.exit_code == INTERRUPTED
    assert told.stderr.splitlines() == [
        "minimal: interrupted before it continued; rounds and checkpoints are as before; "
        f"continue with: rljob run {EXAMPLE} --workdir w"
    ]


def test_a_second_interrupt_says_how_to_go_on(rljob):
    told = rljob(raising(local.EndedEarly()), "--workdir", "w")
    assert told.exit_code == INTERRUPTED
    assert told.stderr.splitlines() == [
        "minimal: ended; it goes on from its last checkpoint; logs in w",
        f"continue with: rljob run {EXAMPLE} --workdir w",
    ]


def test_an_interrupt_while_a_run_ends_reports_its_last_checkpoint(rljob):
    def run(job: Any, place: Any, show: Any, tell_round: Callable[..., None], *_: Any, **__: Any) -> RuntimeStatus:
        tell_round(RoundReport(round=1), None)
        raise KeyboardInterrupt

    told = rljob(run, "--workdir", "w")
    assert told.exit_code == INTERRUPTED
    assert told.stderr.splitlines() == [
        "minimal: ended; it goes on from its last checkpoint; logs in w",
        f"continue with: rljob run {EXAMPLE} --workdir w",
    ]


def test_the_first_interrupt_says_what_happens_and_what_the_second_does(rljob):
    def run(*_: Any, on_interrupt: Callable[[], None], **__: Any) -> RuntimeStatus:
        on_interrupt()
        return RuntimeStatus(round=2)

    told = rljob(run)
    assert told.exit_code == INTERRUPTED
    assert told.stderr.splitlines() == [STOPPING]
    assert told.stdout.splitlines()[-1] == f"continue with: rljob run {EXAMPLE}"


def test_on_a_terminal_rounds_and_the_notice_stay_above_the_drawing():
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=30)
    with display(console, 8) as shown:
        shown.round(RoundReport(round=1, reward=0.25, responses=64, seconds=2.25), None)
        shown.status(RuntimeStatus(round=1, stage="Training"))
        shown.interrupted()
    drawn = Text.from_ansi(console.file.getvalue()).plain.splitlines()
    assert drawn.count("round 1/8  reward 0.25  64 responses  2.2 s") == 1
    assert drawn.count(STOPPING) == 1
    assert drawn.index(STOPPING) < max(place for place, line in enumerate(drawn) if "Training" in line)


def test_values_that_changed_since_the_last_run_are_told(rljob):
    def run(
        job: Any, place: Any, show: Any, tell_round: Any, tell_changes: Callable[..., None], **__: Any
    ) -> RuntimeStatus:
        assert job.spec.rounds == 3
        tell_changes([("spec.rounds", 8, 3), ("spec.runPolicy.x", ABSENT, "a")])
        return RuntimeStatus(round=3, finished=COMPLETE)

    assert rljob(run, "--set", "spec.rounds=3").stdout.splitlines()[:2] == [
        "minimal: spec.rounds is 3; it was 8",
        "minimal: spec.runPolicy.x is 'a'; it was absent",
    ]


def test_a_dry_run_prints_a_manifest_that_loads_and_starts_nothing(rljob, tmp_path):
    told = rljob(raising(AssertionError("started")), "--dry-run", "--set", "spec.rounds=3")
    assert told.exit_code == 0
    job = load(told.stdout)
    assert job.spec.rounds == 3
    assert (
        job.spec.to_dict()
        == load(
            {**parse(EXAMPLE.read_text()), "spec": {**parse(EXAMPLE.read_text())["spec"], "rounds": 3}}
        ).spec.to_dict()
    )
    comments = [line for line in told.stdout.splitlines() if line.startswith("# ")]
    assert comments[0] == "# folder: runs/minimal (new)"
    assert [comment.split(":")[0] for comment in comments] == ["# folder", "# model", "# memory", "# accelerators"]
    assert comments[2].startswith(
        "# memory: 0.1 million weights: the trainer needs at least 1.8 MiB, the replica needs"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_agents_checks_their_template_as_a_run_would(rljob, tmp_path, monkeypatch):
    asked: list[tuple[str, Path | None]] = []
    agents = ["--set", "spec.environments=[{name: calc, kind: Agent, command: [python, a.py]}]"]
    agents += ["--set", f"spec.model.source={tmp_path}"]

    def check(job: Any, model: Path | None) -> str:
        asked.append((job.name, model))
        return "it appends"

    monkeypatch.setattr(template_check, "check_template", check)
    told = rljob(raising(AssertionError("started")), "--dry-run", *agents)
    assert told.exit_code == 0, told.stderr
    assert "# chat template: it appends" in told.stdout.splitlines()
    assert asked == [("minimal", tmp_path)]
    refusal = template_check.TemplateRefused("TemplateNotAppendOnly: it changes earlier turns")
    monkeypatch.setattr(template_check, "check_template", raising(refusal))
    refused = rljob(raising(AssertionError("started")), "--dry-run", *agents)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr == "minimal: TemplateNotAppendOnly: it changes earlier turns\n"


def test_a_dry_run_in_a_used_folder_reports_changes_and_refusals(rljob, tmp_path):
    started = raising(AssertionError("started"))
    with (
        local.run_folder.hold(tmp_path / "w", load(EXAMPLE.read_text())),
        sqlite3.connect(tmp_path / "w/state.db") as db,
    ):
        db.execute("CREATE TABLE rounds AS SELECT 1 AS step")
    told = rljob(started, "--dry-run", "--workdir", "w", "--set", "spec.rounds=90")
    assert told.exit_code == 0
    assert told.stdout.splitlines()[:2] == ["# folder: w (continues)", "# change: spec.rounds is 90; it was 8"]
    refused = rljob(started, "--dry-run", "--workdir", "w", "--set", "spec.data.seed=90")
    assert refused.exit_code == 2
    assert refused.stderr.startswith("w: spec.data.seed: 90 cannot change in this folder; it was ")
    assert refused.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "spec.roundz=3"], "spec.roundz: 3 is not a field of spec; did you mean rounds?"),
        (["--set", "spec.rounds=many"], "spec.rounds: 'many' must be a whole number"),
        (["--set", "rounds=3"], "--set: 'rounds=3' must begin with a path below spec or metadata, such as spec.rounds"),
        (["--set", "spec.rounds"], "--set: 'spec.rounds' must be PATH=VALUE, for example spec.rounds=3"),
        (["--claim", "data=nowhere"], "must name a folder; "),
        (["--set", "spec.model.source=pvc://m/x"], "add --claim m=FOLDER with its folder on this machine"),
    ],
)
def test_a_wrong_option_is_one_line_with_what_is_right(rljob, arguments, said):
    told = rljob(raising(AssertionError("started")), *arguments)
    assert told.exit_code == 2
    assert len(told.stderr.splitlines()) == 1
    assert told.stderr.startswith(f"{EXAMPLE}: ")
    assert said in told.stderr


def test_missing_accelerators_are_reported_before_anything_starts(rljob, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    told = rljob(raising(AssertionError("started")), "--set", "spec.rollout.acceleratorsPerMachine=1")
    assert told.exit_code == 2
    assert f"{EXAMPLE}: spec.rollout.acceleratorsPerMachine: 1 needs " in told.stderr
    assert "this machine has 0" in told.stderr


def test_no_file_and_two_files_are_refused():
    for arguments in (["run"], ["run", "a.yaml", "-f", "b.yaml"]):
        told = CliRunner().invoke(app, arguments)
        assert told.exit_code == 2
        assert told.stderr == "name one manifest: rljob run FILE\n"


def test_reward_functions_beside_the_manifest_can_be_imported(tmp_path, monkeypatch):
    (tmp_path / "job.yaml").write_text(EXAMPLE.read_text())
    monkeypatch.setenv("PYTHONPATH", "/before")
    seen: list[str] = []

    def run(*_: Any, **__: Any) -> RuntimeStatus:
        seen.append(os.environ["PYTHONPATH"])
        return RuntimeStatus(finished=COMPLETE)

    monkeypatch.setattr(local, "run", run)
    assert CliRunner().invoke(app, ["run", str(tmp_path / "job.yaml"), "--workdir", str(tmp_path)]).exit_code == 0
    assert seen == [f"{tmp_path}:/before"]


def test_the_version_is_the_packages():
    assert CliRunner().invoke(app, ["--version"]).stdout == f"rljob {version('rljob')}\n"
