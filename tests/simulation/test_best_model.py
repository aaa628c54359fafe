"""The best model of jobs under faults: the one that is exported is the best of those that were kept."""

from dataclasses import replace

import pytest

from rljob_api.evaluation_metric import EvaluationMetric
from rljob_api.spec.training import Mode
from rljob_runtime.coordinator.trainer import best_model
from rljob_runtime.protocols import VolumeFull
from rljob_runtime.simulator.drawn_scenario import draw_scenario, plan_of
from rljob_runtime.simulator.faults.plan import FaultPlan
from rljob_runtime.simulator.peers.trainer import TrainerDisk
from rljob_runtime.simulator.run import simulate
from rljob_runtime.simulator.scenario import BestModel, Evaluated, Scenario

SHORT, LONGER = (0, 2, 5), (1, 3, 4)
"""Seeds by how long their runs take."""


def scenario_of(seed: int, mode: Mode = Mode.ON_POLICY, room: int | None = None) -> Scenario:
    drawn = replace(draw_scenario(seed, mode), evaluations=(Evaluated(2, 2, 1),), edit=None)
    return replace(drawn, rounds=4, best_model=BestModel(EvaluationMetric.AVERAGE, room))


@pytest.mark.parametrize(
    ("mode", "room", "seeds"),
    [
        (Mode.ON_POLICY, None, SHORT),
        pytest.param(Mode.ON_POLICY, None, LONGER, marks=pytest.mark.slow),
        pytest.param(Mode.ASYNCHRONOUS, 1, SHORT + LONGER, marks=pytest.mark.slow),
        pytest.param(Mode.ON_POLICY, 1, SHORT + LONGER, marks=pytest.mark.slow),
        pytest.param(Mode.ASYNCHRONOUS, None, SHORT + LONGER, marks=pytest.mark.slow),
    ],
)
def test_the_best_kept_model_is_exported_under_faults(mode, room, seeds):
    for seed in seeds:
        scenario = scenario_of(seed, mode, room)
        outcome = simulate(scenario, plan_of(scenario))
        assert outcome.passed, f"seed {seed}: {outcome.violation}"


def test_a_model_that_is_there_stays_when_it_is_written_again_without_room():
    """A later coordinator writes the model of its first round again, in case a former one has not."""
    disk = TrainerDisk(room=0)
    disk.save_model(2, (("a",),))
    for content, kept in (((("a",),), True), ((("b",),), False)):
        with pytest.raises(VolumeFull):
            disk.save_model(2, content)
        assert (disk.models[2], 2 in disk.not_kept) == ((("a",),), not kept)


def test_jobs_with_a_best_model_and_little_room_are_drawn():
    drawn = [draw_scenario(seed, mode) for seed in range(200) for mode in Mode]
    found = [one.best_model for one in drawn if one.best_model is not None]
    assert {(one.metric, one.room) for one in found} >= {
        (metric, room) for metric in EvaluationMetric for room in (None, 1, 2)
    }
    assert all(one.job.spec.checkpoint.keep_best is not None for one in drawn if one.best_model is not None)
    assert any(one.evaluations and one.best_model is None for one in drawn)


def violations() -> str:
    return " ".join(str(simulate(scenario_of(seed), FaultPlan()).violation) for seed in (5, 10, 14))


def test_another_model_than_the_best_is_noticed(monkeypatch):
    monkeypatch.setattr(best_model, "best_of", lambda results, metric: results[-1] if results else None)
    assert "the best model is that of round" in violations()


def test_other_weights_under_the_number_of_the_best_are_noticed(monkeypatch):
    save = TrainerDisk.save_model
    monkeypatch.setattr(TrainerDisk, "save_model", lambda self, step, content: save(self, step, (("other",),)))
    assert "has other weights than the final ones began with" in violations()
