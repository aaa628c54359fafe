"""`rljob simulate`: what it prints, writes and returns."""

import json
import re
import sys

import pytest
from typer.testing import CliRunner

from rljob_runtime.cli import app
from rljob_runtime.simulation.faults import FaultPlan
from rljob_runtime.simulation.invariants import Violation
from rljob_runtime.simulation.play import Outcome
from rljob_runtime.simulation.scenario import draw_scenario, plan_of


def run(*arguments: str):
    return CliRunner().invoke(app, ["simulate", *arguments])


def failing(needed: str):
    """A player in which runs fail whose plan has this fault."""

    def play(scenario, plan: FaultPlan, observers=()) -> Outcome:
        fails = any(str(fault) == needed for fault in plan.faults)
        violation = Violation("one place", "a prompt is in two", 1.5, 7) if fails else None
        return Outcome(violation, 10.0, 20, 1, "00")

    return play


def test_seeds_that_hold():
    result = run("--seeds", "3", "--seed", "5")
    assert result.exit_code == 0
    assert re.search(r"3 seeds from 5: every invariant held after each of [\d,]+ events", result.output)


def test_a_failing_seed_is_shrunk_and_told_how_to_play_again(monkeypatch, tmp_path):
    plan = plan_of(draw_scenario(4))
    assert len(plan.faults) > 1
    needed = str(plan.faults[-1])
    # The package has a function of the module's name.
    monkeypatch.setattr(sys.modules["rljob_runtime.cli.simulate"], "play", failing(needed))
    result = run("--seeds", "6", "--trace-out", str(tmp_path / "t.json"))
    assert result.exit_code == 1
    assert "seed 4 fails." in result.output
    assert "one place: a prompt is in two (at 1.500 s, event 7)" in result.output
    assert f"faults, 1 of {len(plan.faults)}" in result.output
    assert (
        f'rljob simulate --mode OnPolicy --seeds 1 --seed 4 --plan "{needed}" --trace-out seed-4.json' in result.output
    )


def test_a_plan_is_played_again_with_a_timeline(tmp_path):
    file = tmp_path / "trace.json"
    result = run("--seeds", "1", "--seed", "2", "--plan", "4 crash trainer 2", "--trace-out", str(file))
    assert result.exit_code == 0
    assert "4 crash trainer 2" in {event["name"] for event in json.loads(file.read_text())["traceEvents"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plan", "4 crash trainer 2"], "--plan is for one seed"),
        (["--seeds", "1", "--plan", "4 crush trainer 2"], "'crush' is no kind of fault"),
        (["--trace-out", "/no/such/folder/t.json"], "/no/such/folder is no folder"),
        (["--seeds", "0"], "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_played_is_told_in_a_line(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
