"""Which machines a job has: the choice changes as little as possible, and the count stays in its bounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.policies.scaling import machines as machine_scaling
from tests.support.operator.harness import make_job

machine_names = st.lists(st.integers(0, 12).map(lambda n: f"rollout-{n}"), unique=True, max_size=10)


@pytest.mark.parametrize(
    ("current", "count", "broken", "chosen"),
    [
        ([], 2, [], ["rollout-0", "rollout-1"]),
        (["rollout-0", "rollout-1"], 3, [], ["rollout-0", "rollout-1", "rollout-2"]),
        (["rollout-0", "rollout-1", "rollout-2"], 2, [], ["rollout-0", "rollout-1"]),
        (["rollout-0", "rollout-1", "rollout-2"], 2, ["rollout-0"], ["rollout-1", "rollout-2"]),
        (["rollout-1", "rollout-2"], 3, [], ["rollout-0", "rollout-1", "rollout-2"]),
        (["rollout-10", "rollout-9"], 1, [], ["rollout-9"]),  # by number, not by letter
    ],
)
def test_choice_of_machines(current: list[str], count: int, broken: list[str], chosen: list[str]) -> None:
    assert machine_scaling.choose_machines(current, count, broken) == tuple(chosen)


@given(machine_names, st.integers(0, 12), machine_names)
def test_choice_changes_as_little_as_possible(current: list[str], count: int, broken: list[str]) -> None:
    chosen = machine_scaling.choose_machines(current, count, broken)
    assert len(chosen) == len(set(chosen)) == count
    kept = set(chosen) & set(current)
    assert len(kept) == min(count, len(current))
    dropped = set(current) - kept
    if dropped - set(broken):  # a working machine goes only when no broken one is left
        assert not kept & set(broken)
    assert machine_scaling.choose_machines(chosen, count, broken) == chosen


@pytest.mark.parametrize(("machines", "wanted"), [(1, 2), (3, 3), (9, 5)])
def test_count_stays_inside_the_bounds(machines: int, wanted: int) -> None:
    rollout = make_job(rollout={"machines": 3, "minMachines": 2, "maxMachines": 5}).spec.rollout
    assert machine_scaling.wanted_count(rollout.model_copy(update={"machines": machines})) == wanted
