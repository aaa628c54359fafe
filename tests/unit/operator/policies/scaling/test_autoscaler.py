"""How many rollout machines a job has: tables, properties, and a plant of producers and a consumer."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rljob_api.spec import RLJobSpec
from rljob_api.status import BackOff, ElasticityHistory, Replacements, RoundReport
from rljob_operator.policies.scaling import autoscaler
from tests.support.operator.harness import NOW, make_job
from tests.support.operator.plan_cluster import Cluster, asynchronous

SECONDS = 100.0


def spec(machines: int = 4, smallest: int = 1, largest: int = 8) -> RLJobSpec:
    bounds = {"machines": machines, "minMachines": smallest, "maxMachines": largest}
    return asynchronous(rollout=bounds).spec


def update(round_: int, starving: float | None = 0.0, flooding: float | None = 0.0) -> RoundReport:
    return RoundReport(
        round=round_,
        seconds=SECONDS,
        trainer_wait_seconds=None if starving is None else starving * SECONDS,
        buffer_full_seconds=None if flooding is None else flooding * SECONDS,
    )


class Run:
    """Updates one after the other, and the number of machines after each."""

    def __init__(self, of: RLJobSpec) -> None:
        self.spec = of
        self.history: ElasticityHistory | None = autoscaler.desired_machines(of, None, None, False, None, NOW).history
        self.replacements: Replacements | None = None
        self.now = NOW
        self.round = 0
        self.counts: list[int] = []
        self.whys: list[str] = []

    def play(self, *figures: tuple[float | None, float | None], whole: bool = True) -> list[int]:
        for starving, flooding in figures:
            self.round += 1
            self.now += timedelta(seconds=SECONDS)
            said = update(self.round, starving, flooding)
            found = autoscaler.desired_machines(self.spec, self.history, said, whole, self.replacements, self.now)
            self.history = found.history
            self.counts.append(found.count)
            self.whys += [found.why] if found.why else []
            assert autoscaler.desired_machines(
                self.spec, self.history, said, whole, self.replacements, self.now
            ) == replace(found, why=""), "an update counts once"
        return self.counts


@pytest.mark.parametrize(
    ("starving", "flooding", "count"),
    [
        (0.0, 0.0, 4),
        (0.10, 0.0, 4),
        (0.12, 0.0, 5),
        (0.0, 0.20, 4),
        (0.0, 0.24, 4),  # three machines could do it only just
        (0.0, 0.30, 3),
        (0.5, 0.5, 4),
        (None, 0.5, 4),
        (0.5, None, 4),
    ],
)
def test_four_updates_decide(starving: float | None, flooding: float | None, count: int) -> None:
    run = Run(spec())
    assert run.play(*[(starving, flooding)] * autoscaler.UPDATES) == [4, 4, 4, count]
    assert bool(run.whys) is (count != 4)


def test_the_reason_says_what_was_seen() -> None:
    run = Run(spec())
    run.play(*[(0.25, 0.0)] * 4, *[(0.0, 0.5)] * 4)
    assert run.whys == ["the trainer waited for 25% of updates 1 to 4", "the buffer was full for 50% of updates 5 to 8"]


def test_only_a_job_with_bounds_is_elastic() -> None:
    fixed = spec(4, 4, 4)
    assert Run(fixed).play(*[(0.9, 0.0)] * 8) == [4] * 8
    assert Run(fixed).history is None


def test_rounds_are_not_judged_by_what_updates_wait_for() -> None:
    on_policy = make_job(rollout={"machines": 4, "minMachines": 1, "maxMachines": 8}).spec
    assert Run(on_policy).play(*[(0.9, 0.0)] * 8) == [4] * 8


def test_updates_without_all_machines_are_no_measure() -> None:
    run = Run(spec())
    run.play(*[(0.5, 0.0)] * 3)
    run.play(*[(0.5, 0.0)] * 8, whole=False)
    assert run.play(*[(0.5, 0.0)] * 3)[-1] == 4
    assert run.play((0.5, 0.0))[-1] == 5


def test_a_replacement_gives_rest() -> None:
    run = Run(spec())
    run.play(*[(0.5, 0.0)] * 3)
    entry = BackOff(failures=1, last_failure_time=run.now + timedelta(seconds=SECONDS - 1))
    run.replacements = Replacements(backoff={"rollout-0": entry})
    assert run.play((0.5, 0.0))[-1] == 4
    assert run.play((0.5, 0.0))[-1] == 5


def test_a_number_set_by_a_user_is_followed_and_continued_from() -> None:
    run = Run(spec())
    run.play(*[(0.5, 0.0)] * 8)
    assert run.counts[-1] == 6
    run.spec = spec(3)
    assert run.play((0.5, 0.0))[-1] == 3
    assert run.play(*[(0.5, 0.0)] * 4)[-1] == 4
    run.spec = spec(3, 1, 3)
    assert run.play((0.0, 0.0))[-1] == 3


def test_a_run_that_returns_to_a_checkpoint_learns_again() -> None:
    run = Run(spec())
    run.play(*[(0.5, 0.0)] * 3)
    run.round = 0
    assert run.play(*[(0.5, 0.0)] * 4)[-1] == 4
    assert run.play((0.5, 0.0))[-1] == 5


def plant(machines: int, demand: float) -> tuple[float, float]:
    """(starving, flooding) where so many machines serve a trainer that could eat what `demand` of them make."""
    return max(0.0, 1.0 - machines / demand), max(0.0, 1.0 - demand / machines)


def decided(machines: int, demand: float, wobble: float) -> int:
    """The step where all figures are off by this factor."""
    starving, flooding = (share * wobble for share in plant(machines, demand))
    others_can = (1 - flooding) * machines * autoscaler.SPARE <= machines - 1
    return (starving > autoscaler.STARVING) - (flooding > autoscaler.FLOODING and others_can)


@given(st.integers(1, 16), st.floats(0.3, 20.0), st.integers(0, 2**16))
@example(1, 15.53125, 12)
def test_it_settles_where_no_machine_waits_much(start: int, demand: float, noise: int) -> None:
    """From any number, at any demand: it moves in one direction, stops, and stays, but that a number which only the
    noise keeps may be left late."""
    run = Run(spec(start, 1, 16))
    counts = [start]
    for number in range(120):
        starving, flooding = plant(counts[-1], demand)
        wobble = 1.0 + 0.04 * (((noise + number) * 7919) % 101 / 50 - 1)
        counts.append(run.play((starving * wobble, flooding * wobble))[-1])
    steps = [now - was for was, now in pairwise(counts)]
    assert all(abs(step) <= 1 for step in steps)
    assert len({step for step in steps if step}) <= 1, counts
    left_late = set(counts[-40:]) - {counts[-1]}
    assert all(decided(count, demand, 0.96) != decided(count, demand, 1.04) for count in left_late), counts
    starving, flooding = plant(counts[-1], demand)
    assert starving <= autoscaler.STARVING * 1.1 or counts[-1] == 16
    assert flooding <= autoscaler.FLOODING * 1.1 or counts[-1] == 1 or counts[-1] - 1 < demand * 1.1


shares = st.none() | st.floats(0.0, 1.5)


@given(
    st.lists(
        st.tuples(shares, shares, st.booleans(), st.integers(1, 8), st.sampled_from([0, 0, 0, -3, 2])), max_size=60
    )
)
def test_bounds_are_kept_and_steps_are_single_and_apart(rounds: list[Any]) -> None:
    run = Run(spec(4, 2, 6))
    last_change = -autoscaler.UPDATES
    count = 4
    for number, (starving, flooding, whole, machines, jump) in enumerate(rounds):
        scaled = machines == 1
        if scaled:
            run.spec = spec(2 + number % 5, 2, 6)
        run.round = max(0, run.round + jump)
        now = run.play((starving, flooding), whole=whole)[-1]
        assert 2 <= now <= 6
        if now != count:
            assert scaled or (abs(now - count) == 1 and number - last_change >= autoscaler.UPDATES and whole)
            last_change = number
        elif scaled:
            last_change = max(last_change, number - autoscaler.UPDATES)
        count = now


@given(shares, shares)
def test_constant_figures_never_turn_it_round(starving: float | None, flooding: float | None) -> None:
    counts = [4, *Run(spec()).play(*[(starving, flooding)] * 60)]
    steps = {now - was for was, now in pairwise(counts)} - {0}
    assert len(steps) <= 1


def finish(cluster: Cluster, round_: int, **runtime: Any) -> None:
    """The coordinator reports an update in which the trainer waited half of the time."""
    target = cluster.status.target
    assert target is not None
    last = {"round": round_, "seconds": 10, "trainerWaitSeconds": 5, "bufferFullSeconds": 0}
    cluster.report(event=round_, applied=target.revision, lastRound=last, **runtime)


def test_a_starving_trainer_gets_a_machine_and_a_full_buffer_drains_one() -> None:
    cluster = Cluster(asynchronous(rollout={"machines": 2, "minMachines": 1, "maxMachines": 3}))
    cluster.settle()
    cluster.start_all()
    cluster.settle()
    told: list[str] = []
    for number in range(1, 5):
        cluster.now += timedelta(seconds=100)
        finish(cluster, number)
        told += [f"{event.reason}: {event.message}" for event in cluster.decide().events]
        cluster.settle()
    reason = "ScaledUp: the trainer waited for 50% of updates 1 to 4"
    assert f"RolloutScaledUp: from 2 to 3 rollout machines ({reason})" in told
    target = cluster.status.target
    assert target is not None
    assert (target.machines, target.reason) == (("rollout-0", "rollout-1", "rollout-2"), reason)
    cluster.start_all()
    cluster.settle()
    for number in range(5, 9):
        cluster.now += timedelta(seconds=100)
        last = {"round": number, "seconds": 10, "trainerWaitSeconds": 0, "bufferFullSeconds": 9}
        cluster.report(event=number, applied=cluster.status.target.revision, lastRound=last)  # type: ignore[union-attr]
        cluster.settle()
    assert cluster.status.target is not None
    assert cluster.status.target.machines == ("rollout-0", "rollout-1")
    assert not cluster.pods["demo-rollout-2-1"].deleting, "it hands over its work first"
    revision = cluster.status.target.revision
    cluster.report(event=9, applied=revision, drained=["rollout-2"], lastRound={"round": 8, "seconds": 10})
    cluster.settle()
    assert cluster.pods["demo-rollout-2-1"].deleting
    assert cluster.decide().empty


def test_what_was_learned_stays_in_the_status_without_bounds() -> None:
    """The bounds may come back."""
    run = Run(spec())
    run.play((0.5, 0.0))
    assert run.history is not None
    assert autoscaler.desired_machines(spec(4, 4, 4), run.history, None, True, None, NOW) == autoscaler.MachineCount(
        4, run.history
    )
