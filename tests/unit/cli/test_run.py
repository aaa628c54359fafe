"""What `rljob run` says of folders that it cannot use, of a Ray that fails, and at its end."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from typer.testing import CliRunner

from rljob_api.status import Finished, FinishedOutcome, RuntimeStatus, StatusWarning
from rljob_runtime import cli, local
from rljob_runtime.cli import app
from rljob_runtime.coordinator.store.connection import StoreUnusable
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


def raising(error: Exception) -> Callable[..., NoReturn]:
    def run(*arguments: Any) -> NoReturn:
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
    assert "minimal: Complete rounds=5 weight_version=6 reward=0.5" in rljob(lambda *_: done).stdout
    before = done.model_copy(update={"weight_version": None, "reward": None})
    told = " ".join(rljob(lambda *_: before).stdout.split())
    assert "minimal: Complete rounds=5: nothing was left to do, the model is in runs/minimal/model" in told
    assert "None" not in told


BRACKETS = "spec.x.limits[memory]: the template refuses it: [/INST] :fire: " + "and so on " * 20
"""Of a message that somebody else wrote: neither a style nor a picture, and no end of a line."""


def test_a_message_is_shown_as_it_is_written_and_in_one_line(rljob):
    failed = Finished(outcome=FinishedOutcome.FAILED, reason="PromptsNotUsable", message=BRACKETS)

    def run(job: Any, place: Any, show: Callable[[RuntimeStatus], None]) -> RuntimeStatus:
        show(RuntimeStatus(warnings=(StatusWarning(reason="StoreSlow", message=BRACKETS),)))
        return RuntimeStatus(finished=failed)

    result = rljob(run)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert f"minimal: not complete (PromptsNotUsable: {BRACKETS}); logs in runs/minimal" == lines[-1]
    drawn = " ".join(" ".join(lines[:-1]).split())
    assert "limits[memory]" in drawn
    assert "[/INST] :fire:" in drawn


def test_all_commands_print_on_the_one_kind_of_console():
    folder = Path(cli.__file__).parent
    assert [path.name for path in folder.glob("*.py") if re.search(r"\bConsole\(", path.read_text())] == ["screen.py"]


def test_problems_are_told_once_where_no_screen_shows_them(rljob):
    absent = StatusWarning(reason="MachinesNotJoined", message="rollout-0 does not join: SegmentBusy")

    def run(job: Any, place: Any, show: Callable[[RuntimeStatus], None]) -> RuntimeStatus:
        for problems in ((), (absent,), (absent,), ()):
            show(RuntimeStatus(warnings=problems))
        return RuntimeStatus(round=5, finished=COMPLETE, model_path="model")

    assert rljob(run).stderr.splitlines() == ["MachinesNotJoined: rollout-0 does not join: SegmentBusy"]
