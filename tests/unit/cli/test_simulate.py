"""`rljob simulate`: what it prints, writes and returns."""

import json
import re
import sys

import pytest
from typer.testing import CliRunner

from rljob_runtime.cli import app
from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.simulator.drawn_scenario import draw_scenario, draw_switching, plan_of
from rljob_runtime.simulator.faults.plan import FaultPlan
from rljob_runtime.simulator.invariants.common import Violation
from rljob_runtime.simulator.run import SimulationResult

# The package has a function of the module's name.
simulate = sys.modules["rljob_runtime.cli.simulate"]


def run(*arguments: str):
    return CliRunner().invoke(app, ["simulate", *arguments])


def failing(needed: str):
    """A player in which runs fail whose plan has this fault."""

    def play(scenario, plan: FaultPlan, observers=()) -> SimulationResult:
        fails = any(str(fault) == needed for fault in plan.faults)
        violation = Violation("one place", "a prompt is in two", 1.5, 7) if fails else None
        return SimulationResult(violation, 10.0, 20, 1, "00")

    return play


def test_seeds_that_hold():
    result = run("--seeds", "3", "--seed", "301")
    assert result.exit_code == 0
    assert re.search(r"3 seeds from 301: every invariant held after each of [\d,]+ events", result.output)


def test_a_budget_adds_seeds_to_those_asked_for(monkeypatch):
    monkeypatch.setattr(simulate, "run_simulation", failing("no fault"))
    result = run("--seeds", "1", "--seconds", "0.5")
    assert result.exit_code == 0
    done = re.search(r"(\d+) seeds from 0: every invariant held", result.output)
    assert done
    assert int(done[1]) > 1


@pytest.mark.parametrize(
    ("clock", "portions"),
    [
        ([0.0, 0.0], [range(5, 15)]),
        ([0.0, 99.0], [range(5, 15)]),
        ([0.0, 1.0, 8.0, 9.0], [range(5, 15), range(15, 19), range(19, 23)]),
    ],
    ids=["no budget", "a budget spent on the seeds asked for", "a budget for more"],
)
def test_a_budget_is_looked_at_between_portions(clock, portions):
    times = iter(clock)
    budget = 9.0 if clock[-1] else 0.0
    assert list(simulate.portions(5, 10, budget, 2, lambda: next(times))) == portions
    assert not list(times), "the clock is read once a portion"


def test_a_failing_seed_is_shrunk_and_told_how_to_play_again(monkeypatch, tmp_path):
    plan = plan_of(draw_scenario(4))
    assert len(plan.faults) > 1
    needed = str(plan.faults[-1])
    monkeypatch.setattr(simulate, "run_simulation", failing(needed))
    result = run("--seeds", "6", "--trace-out", str(tmp_path / "t.json"))
    assert result.exit_code == 1
    assert "seed 4 fails." in result.output
    assert "one place: a prompt is in two (at 1.500 s, event 7)" in result.output
    assert f"faults, 1 of {len(plan.faults)}" in result.output
    assert (
        f'rljob simulate --mode OnPolicy --seeds 1 --seed 4 --plan "{needed}" --trace-out seed-4.json' in result.output
    )


def test_seeds_of_jobs_that_switch_are_drawn_and_played_again_as_such(monkeypatch):
    played = []

    def play(scenario, plan: FaultPlan, observers=()) -> SimulationResult:
        played.append(scenario)
        return SimulationResult(Violation("one place", "a prompt is in two", 1.5, 7), 10.0, 20, 1, "00")

    monkeypatch.setattr(simulate, "run_simulation", play)
    result = run("--switches", "--seed", "3", "--seeds", "1")
    assert result.exit_code == 1
    assert "rljob simulate --switches --seeds 1 --seed 3 " in result.output
    assert set(map(repr, played)) == {repr(draw_switching(3))}


def test_every_job_that_is_to_switch_may():
    scenarios = [draw_switching(seed) for seed in range(60)]
    assert all(one.site.wider and one.episodes is None for one in scenarios)
    by_policy = [one for one in scenarios if not one.switches]
    assert 0 < len(by_policy) < len(scenarios) / 2
    for one in by_policy:
        own = Settings.of(one.job)
        assert own.switch_rules is not None, "the job's own policy may switch"
        assert own.switch_rules.sizes == {one.site.tensor_parallel, *(size for size, _ in one.site.wider)}
        fastest = min(engine.latency.step(1, 0) for _, engine in one.site.wider)
        assert fastest < one.site.engine.latency.step(1, 0), "a switch may gain"
    assert {one.site.engine.prefill_budget is None for one in scenarios} == {True, False}
    assert {one.site.engine.kv is None for one in scenarios} == {True, False}


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
        (["--trace-out", "/no/such/folder/t.json"], "/no/such/folder is not a folder"),
        (["--seeds", "1", "--seconds", "5", "--plan", ""], "--plan is for one seed"),
        (["--switches", "--mode", "Asynchronous"], "--switches is for --mode OnPolicy"),
        (["--seeds", "0"], "greater than or equal to 1"),
    ],
)
def test_what_cannot_be_played_is_told_in_a_line(arguments, message):
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
