"""When a fault counts as observed, as repaired, and as never repaired."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hack.chaos.observation import Observation, observe
from hack.chaos.recovery import SETTLED, Recovery
from hack.chaos.rows import ROWS
from tests.support.chaos import HEALTHY, JOB, PODS, filled_again, pod, without


def recovery(row: str, *victims: str, before: Observation = HEALTHY) -> Recovery:
    return Recovery(ROWS[row], victims, before, at=100.0)


def play(found: Recovery, *looks: tuple[float, Observation]) -> Recovery:
    """Looks at so many seconds after the fault."""
    for seconds, seen in looks:
        found.observe(replace(seen, at=100.0 + seconds))
    return found


def rounds(
    seen: Observation, first: float, count: int = SETTLED + 2, begin: int = 10
) -> list[tuple[float, Observation]]:
    """So many updates, one a second."""
    return [(first + number, replace(seen, round=begin + number)) for number in range(count)]


def test_an_observation_reads_what_exists_and_absent_parts_are_unhealthy() -> None:
    assert HEALTHY.healthy
    assert (HEALTHY.round, HEALTHY.term, HEALTHY.version, HEALTHY.checkpoint, HEALTHY.desired) == (10, 1, 11, 10, 3)
    assert observe(1.0, {}, []) == Observation(1.0)
    assert not Observation(1.0).healthy


@pytest.mark.parametrize(
    "pods",
    [
        [*PODS[:4], pod("rollout-2", "node-4", ready=False)],
        PODS[:4],
        [*PODS[:4], pod("rollout-2", "node-4", deletionTimestamp="2026-01-01T00:00:00Z")],
        PODS[1:],
        [PODS[0], *PODS[2:]],
    ],
)
def test_a_job_is_whole_with_every_machine_ready_only(pods) -> None:
    assert not observe(0.0, JOB, pods).healthy


@pytest.mark.parametrize(
    "change",
    [
        {"chain": ("rollout-0", "rollout-1")},
        {"suspects": frozenset({("rollout-1", 1)})},
        {"paused": True},
        {"desired": 4},
    ],
)
def test_a_job_is_not_whole_with_any_doubt(change) -> None:
    assert not replace(HEALTHY, **change).healthy


def test_a_replacement_beside_the_old_pod_counts() -> None:
    assert filled_again(without(HEALTHY, "rollout-1"), "rollout-1").healthy
    assert not filled_again(without(HEALTHY, "rollout-1"), "rollout-1", ready=False).healthy


def test_a_node_that_is_lost_is_seen_replaced_and_made_good() -> None:
    lost = without(HEALTHY, "rollout-1")
    coming, there = (filled_again(lost, "rollout-1", ready=ready) for ready in (False, True))
    found = recovery("node-off", "node-3")
    assert found.machines == ("rollout-1",)
    play(found, (0.2, HEALTHY), (0.9, lost), (3.0, coming), (20.0, there))
    assert (found.detected, found.acted, found.back, found.done) == (
        pytest.approx(0.9),
        pytest.approx(3.0),
        None,
        False,
    )
    play(found, *rounds(there, 21.0))
    assert found.back == pytest.approx(21.0 + 1)
    assert not found.wrong


def test_updates_before_anybody_noticed_are_no_recovery() -> None:
    found = play(recovery("replica-killed", "rollout-1"), *rounds(HEALTHY, 0.1, count=8))
    assert not found.done
    found.time_out()
    assert found.wrong == ["not detected", "not well within 90 s"]


def test_a_suspect_is_a_sign_and_its_absolution_an_end() -> None:
    doubted = replace(HEALTHY, suspects=frozenset({("rollout-1", 1)}))
    found = play(recovery("replica-killed", "rollout-1"), (0.3, doubted), (2.5, HEALTHY), *rounds(HEALTHY, 3.0))
    assert (found.detected, found.acted) == (pytest.approx(0.3), pytest.approx(2.5))
    assert found.back == pytest.approx(4.0)


def test_a_fault_before_recovery_settled_restarts_the_clock() -> None:
    lost = without(HEALTHY, "rollout-1")
    looks = [(0.3, lost), *rounds(HEALTHY, 1.0, count=3), (5.0, lost), *rounds(HEALTHY, 9.0, begin=12)]
    assert play(recovery("relay-killed", "rollout-1"), *looks).back == pytest.approx(10.0)


def test_a_machine_that_must_be_replaced_is_not_well_without_that() -> None:
    lost = without(HEALTHY, "rollout-1")
    found = play(recovery("replica-again", "rollout-1"), (0.3, lost), *rounds(HEALTHY, 1.0, count=9))
    assert found.acted is not None
    assert found.back is None


def test_nothing_is_well_while_a_fault_lasts() -> None:
    doubted = replace(HEALTHY, paused=True)
    found = recovery("many-nodes", "node-3", "node-4")
    play(found, (4.0, doubted), *rounds(HEALTHY, 5.0, count=9))
    assert found.back is None
    found.taken_back = 120.0
    play(found, *rounds(HEALTHY, 20.0, begin=30))
    assert found.back == pytest.approx(21.0)


@pytest.mark.parametrize("row", ["operator-killed", "api-paused", "etcd-paused"])
def test_a_fault_outside_the_job_replaces_no_pod(row: str) -> None:
    found = recovery(row, "")
    found.taken_back = 101.0
    play(found, (2.0, filled_again(HEALTHY, "rollout-2")))
    assert found.wrong == ["rollout-2 was replaced"]
    fine = recovery(row, "")
    fine.taken_back = 101.0
    assert play(fine, *rounds(HEALTHY, 1.5)).back == pytest.approx(2.5)
    assert fine.detected is None
    assert not fine.wrong


def test_a_trainer_is_back_when_it_has_gone_on_from_its_checkpoint() -> None:
    starting = replace(HEALTHY, stage="Starting", round=13)
    found = recovery("trainer-killed", "trainer-0", before=replace(HEALTHY, round=13))
    play(found, (0.5, starting), *rounds(replace(HEALTHY, round=10), 6.0, begin=10, count=7))
    assert (found.detected, found.acted) == (pytest.approx(0.5), pytest.approx(6.0))
    assert found.back == pytest.approx(7.0)


def test_a_new_term_shows_that_the_coordinator_was_lost() -> None:
    after = replace(HEALTHY, term=2)
    found = play(recovery("coordinator-killed", "coordinator-0"), (3.0, after), *rounds(after, 4.0))
    assert (found.detected, found.acted, found.back) == (pytest.approx(3), pytest.approx(3), pytest.approx(5))


def test_a_full_disk_is_told_and_training_goes_on_until_there_is_room() -> None:
    told = replace(HEALTHY, problems=frozenset({"CheckpointFailed"}))
    found = recovery("disk-full", "trainer-0")
    play(found, *rounds(told, 1.0, count=5))
    assert found.detected == pytest.approx(1.0)
    found.taken_back = 120.0
    play(found, *rounds(told, 21.0, count=5))
    assert found.back is None
    play(found, *rounds(HEALTHY, 30.0, begin=20))
    assert found.acted == pytest.approx(30.0)
    assert found.back == pytest.approx(31.0)


def test_a_job_that_failed_is_never_well() -> None:
    found = play(recovery("relay-killed", "rollout-0"), (1.0, replace(HEALTHY, failed="RewardsKeepFailing")))
    assert found.done
    assert found.wrong == ["the job failed: RewardsKeepFailing"]
    assert not found.observe(HEALTHY) or found.back is None


@pytest.mark.parametrize(
    ("switches", "nbytes", "right"),
    [(2, 0, True), (0, 0, False), (2, 4096, False)],
    ids=["yes", "no switch", "KV moved"],
)
def test_a_full_shared_memory_is_seen_by_switches_that_move_no_kv(switches: int, nbytes: int, right: bool) -> None:
    found = recovery("shared-memory-full", "", before=replace(HEALTHY, switches=2, moved_bytes=4096))
    full = replace(HEALTHY, switches=switches, moved_bytes=nbytes)
    play(found, *rounds(full, 1.0, count=4))
    found.taken_back = 110.0
    play(found, *rounds(replace(HEALTHY, switches=2, moved_bytes=4096), 11.0, begin=14))
    assert (found.back is not None) is right
    found.time_out()
    assert found.wrong == ([] if right else ["not detected", "not well within 150 s"])


@pytest.mark.parametrize("disturbed", [False, True])
def test_a_full_shared_memory_disturbs_no_machine(disturbed: bool) -> None:
    found = recovery("switch-no-room", "")
    full = replace(HEALTHY, switches=2, moved_bytes=0)
    play(found, *rounds(full, 1.0, count=4))
    found.taken_back = 110.0
    if disturbed:
        play(found, (10.5, replace(HEALTHY, suspects=frozenset({("rollout-1", 1)}))))
    play(found, *rounds(HEALTHY, 11.0, begin=14))
    assert found.wrong == (["rollout-1 was disturbed"] if disturbed else [])
    assert (found.back is None) is disturbed


@pytest.mark.parametrize(
    ("changes", "right"),
    [
        ({"refused": 1, "round": 11}, True),
        ({"problems": frozenset({"LayoutRefused"})}, True),
        ({"refused": 1}, False),
        ({"switches": 1, "round": 11}, False),
    ],
    ids=["inside a round", "at a boundary", "in the round before", "none"],
)
def test_a_refused_size_is_seen(changes: dict[str, Any], right: bool) -> None:
    found = play(recovery("switch-refused", "rollout-1"), (1.0, replace(HEALTHY, **changes)))
    assert (found.detected is not None) is right


def test_a_job_with_fewer_machines_than_before_is_not_well() -> None:
    two = tuple(pod for pod in HEALTHY.pods if pod.machine != "rollout-2")
    smaller = replace(HEALTHY, desired=2, pods=two, chain=("rollout-0", "rollout-1"))
    assert smaller.healthy
    found = recovery("switch-scaled", "rollout-2")
    found.taken_back = 101.0
    play(found, *rounds(smaller, 2.0, count=6))
    assert (found.detected, found.back) == (pytest.approx(2.0), None)
    play(found, *rounds(HEALTHY, 9.0, begin=16))
    assert found.back == pytest.approx(10.0)


def test_an_observation_has_the_switches_of_the_last_round() -> None:
    listed = [{"fromSize": 1, "toSize": 2, "reachedSize": reached} for reached in (2, 1, 0, 1)]
    report = {"made": 3, "kvBytes": 4096, "switches": listed}
    runtime = JOB["status"]["runtime"] | {"lastRound": {"layoutSwitches": report}}
    seen = observe(0.0, {"status": JOB["status"] | {"runtime": runtime}}, PODS)
    assert (seen.switches, seen.refused, seen.moved_bytes) == (3, 2, 4096)
    assert (HEALTHY.switches, HEALTHY.refused, HEALTHY.moved_bytes) == (0, 0, 0)
