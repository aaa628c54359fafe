"""Fault plans as values: drawn, printed, read back, refused, shrunk."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_operator.policies.lifecycle.eviction import grace_seconds
from rljob_runtime.simulator.drawn_scenario import draw_scenario, draw_switching, plan_of
from rljob_runtime.simulator.faults.plan import (
    APPLICABLE,
    GRACE_SECONDS,
    Fault,
    FaultPlan,
    FaultType,
    Role,
    draw_leaves,
    draw_plan,
    possible_targets,
    role_of,
    shrink,
)

seeds = st.integers(0, 2**32)


@given(seeds, st.integers(1, 8), st.integers(1, 4))
def test_a_plan_that_was_drawn_is_read_back_as_it_was_printed(seed, machines, replicas):
    plan = draw_plan(seed, machines, replicas, horizon=30.0)
    assert FaultPlan.parse(str(plan)) == plan
    assert plan == draw_plan(seed, machines, replicas, horizon=30.0)
    assert 1 <= len(plan.faults) <= 8
    assert list(plan.faults) == sorted(plan.faults)
    targets = {target for of_role in possible_targets(machines, replicas).values() for target in of_role}
    assert {fault.target for fault in plan.faults} <= targets


@given(seeds)
def test_a_plan_of_leaves_has_nothing_that_fails_and_time_enough(seed):
    plan = draw_leaves(seed, horizon=30.0)
    assert FaultPlan.parse(str(plan)) == plan == draw_leaves(seed, horizon=30.0)
    assert 1 <= len(plan.faults) <= 4
    assert plan.planned
    assert not FaultPlan.parse(f"{plan}; 1 crash trainer 1").planned
    assert not FaultPlan.parse(f"{plan}; 1 leave trainer 1").planned, "it is killed before it has saved anything"
    assert not FaultPlan.parse(f"{plan}; 1 crash coordinator 1").planned, "no process may be there to save it"
    assert FaultPlan.parse("1 crash coordinator 1; 9 crash coordinator 20").planned
    assert not FaultPlan.parse("1 crash coordinator 21").planned
    assert not FaultPlan.parse("1 disk-lost coordinator 1").planned


def test_the_simulated_grace_is_that_of_a_pod():
    job = draw_scenario(0).job
    assert grace_seconds(job.spec) == GRACE_SECONDS


def test_everything_that_can_happen_is_drawn():
    plans = (draw_plan(seed, 2, 2, 30.0, runners=2, layouts=True) for seed in range(2000))
    drawn = {(role_of(fault.target), fault.kind) for plan in plans for fault in plan.faults}
    assert drawn == {(role, kind) for role, kinds in APPLICABLE.items() for kind in kinds}


def test_workers_are_befallen_where_there_are_some():
    def befallen(workers: bool) -> set[str]:
        return {f.target for seed in range(500) for f in draw_plan(seed, 2, 1, 30.0, workers=workers).faults}

    assert befallen(True) - befallen(False) == {"rollout-0/worker", "rollout-1/worker"}
    assert role_of("rollout-0/worker") is Role.REPLICA


def test_gateway_and_runners_are_befallen_where_there_are_some():
    """And the other faults of a seed do not change."""

    def plans(runners: int) -> list[set[Fault]]:
        return [set(draw_plan(seed, 2, 1, 30.0, runners=runners).faults) for seed in range(500)]

    without, more = plans(0), plans(2)
    assert all(before <= after for before, after in zip(without, more, strict=True))
    added = {fault.target for before, after in zip(without, more, strict=True) for fault in after - before}
    assert added == {"gateway", "runner-0", "runner-1"}


def test_layouts_are_refused_in_half_of_the_jobs_that_have_several():
    """And the other faults of a seed do not change."""

    def plans(layouts: bool) -> list[set[Fault]]:
        return [set(draw_plan(seed, 2, 2, 30.0, layouts=layouts).faults) for seed in range(500)]

    without, more = plans(False), plans(True)
    assert all(before <= after for before, after in zip(without, more, strict=True))
    added = [fault for before, after in zip(without, more, strict=True) for fault in after - before]
    assert {fault.kind for fault in added} == {FaultType.LAYOUT_REFUSED}
    assert {fault.target for fault in added} == {f"rollout-{one}/replica-{two}" for one in (0, 1) for two in (0, 1)}
    assert 150 < len(added) < 250
    assert any(
        fault.kind is FaultType.LAYOUT_REFUSED for seed in range(40) for fault in plan_of(draw_switching(seed)).faults
    )


def test_every_kind_and_role_is_there():
    assert {kind for kinds in APPLICABLE.values() for kind in kinds} == set(FaultType)
    assert set(APPLICABLE) == set(Role)
    assert {role_of(target) for targets in possible_targets(3, 2, runners=1).values() for target in targets} == set(
        Role
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("3 crash rollout-0", "3 words; `TIME KIND TARGET DURATION`"),
        ("3 crush rollout-0 2", "'crush' is no kind of fault: crash, hang"),
        ("3 crash rollout-x 2", "target 'rollout-x' is nothing here; trainer, rewards"),
        ("3 disk-full rewards 2", "disk-full does not apply to rewards; crash, hang, slow do"),
        ("-1 crash trainer 2", "must be seconds from 0"),
        ("nan crash trainer 2", "must be seconds from 0"),
        ("3 crash trainer inf", "must be seconds from 0"),
        ("soon crash trainer 2", "could not convert string to float: 'soon'"),
        ("1 crash trainer 2; 3 crash", "fault '3 crash'"),
    ],
)
def test_what_is_no_plan_is_refused_by_the_fault(text, message):
    with pytest.raises(ValueError, match=message):
        FaultPlan.parse(text)


def test_a_plan_may_be_written_in_lines_and_in_any_order():
    plan = FaultPlan.parse("\n 7 hang trainer 1\n3.5 crash rollout-0/relay 2 ;\n")
    assert plan.faults == (
        Fault(3.5, FaultType.CRASH, "rollout-0/relay", 2.0),
        Fault(7.0, FaultType.HANG, "trainer", 1.0),
    )
    assert plan.end == 8.0
    assert FaultPlan.parse("") == FaultPlan()
    assert FaultPlan().end == 0.0


@given(seeds, st.data())
def test_a_shrunk_plan_fails_and_needs_each_of_its_faults(seed, data):
    plan = draw_plan(seed, 4, 2, 60.0)
    needed = set(data.draw(st.lists(st.sampled_from(plan.faults), unique=True)))
    asked = []

    def fails(smaller: FaultPlan) -> bool:
        asked.append(smaller)
        return needed <= set(smaller.faults)

    assert set(shrink(plan, fails).faults) == needed
    assert len(asked) == len(set(asked))


def test_shrinking_finds_one_of_two_reasons():
    plan = draw_plan(11, 4, 2, 60.0, most=8)
    first, last = plan.faults[0], plan.faults[-1]
    smallest = shrink(plan, lambda smaller: first in smaller.faults or last in smaller.faults)
    assert smallest.faults in ((first,), (last,))
