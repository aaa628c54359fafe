"""Mutants of rljob_runtime.scheduling.fault_detection."""

from hack.mutants import Mutant

STALL_DETECTION = "tests/unit/scheduling/fault_detection/test_stall_detection.py"
SUSPICION = "tests/unit/scheduling/fault_detection/test_suspicion.py"

MUTANTS = (
    Mutant(
        name="what the trainer does not ship counts against the machines",
        target="rljob_runtime.scheduling.fault_detection.machine_loss:suggests_broken_machine",
        before="reason not in (SILENT, NOT_SHIPPED)",
        after="reason != SILENT",
        tests=(f"{STALL_DETECTION}::test_a_trainer_that_ships_nothing_makes_no_machine_keep_failing",),
    ),
    Mutant(
        name="who says no twice is replaced",
        target="rljob_runtime.scheduling.fault_detection.machine_loss:suggests_broken_machine",
        before="reason not in (SILENT, NOT_SHIPPED) and not refused",
        after="reason not in (SILENT, NOT_SHIPPED)",
        tests=(f"{STALL_DETECTION}::test_a_machine_that_says_no_twice_is_not_replaced_for_it",),
    ),
    Mutant(
        name="a machine that waits for its feeder in vain is to blame",
        target="rljob_runtime.scheduling.fault_detection.stall_detection:StalledLinks.record",
        before="one != (machine, incarnation)",
        after="one is None",
        tests=(
            f"{STALL_DETECTION}::test_a_feeder_is_blamed_once_two_have_waited_for_it_in_vain",
            f"{STALL_DETECTION}::test_only_the_relay_that_forwards_nothing_keeps_failing",
        ),
    ),
    Mutant(
        name="a replica that hangs is waited for",
        target="rljob_runtime.scheduling.fault_detection.stall_detection:ProgressMonitor.stalled",
        before="now - self._since >= self._seconds",
        after="False",
        tests=(STALL_DETECTION,),
    ),
    Mutant(
        name="a machine may fail again and again",
        target="rljob_runtime.scheduling.fault_detection.stall_detection:RestartHistory.record",
        before="before is not None and now - before <= self._seconds",
        after="False",
        tests=(STALL_DETECTION,),
    ),
    Mutant(
        name="a machine without power is given a third heartbeat",
        target="rljob_runtime.scheduling.fault_detection.suspicion:MISSED_HEARTBEATS",
        before="2",
        after="3",
        tests=(
            (
                "tests/unit/coordinator/fleet/test_failure_detector.py::test_a_machine_that_is_gone_has_two_"
                "witnesses_within_seconds"
            ),
        ),
    ),
    Mutant(
        name="a coordinator that stood still blames the machines",
        target="rljob_runtime.scheduling.fault_detection.suspicion:Heartbeats.record_miss",
        before="own_delay > heartbeat / 2",
        after="False",
        tests=(f"{SUSPICION}::test_a_coordinator_that_stood_still_blames_no_machine",),
    ),
    Mutant(
        name="a busy machine is given no more time than an idle one",
        target="rljob_runtime.scheduling.fault_detection.suspicion:Heartbeats.timeout",
        before="min(MOST_SECONDS, TIMES_SLOWEST * slowest)",
        after="0.0 * slowest",
        tests=(f"{SUSPICION}::test_a_busy_machine_is_given_the_time_that_it_is_seen_to_take",),
    ),
    Mutant(
        name="a witness that reaches a machine is not heard",
        target="rljob_runtime.scheduling.fault_detection.suspicion:Suspicion.witnesses",
        before="self.reachable_from & set(present)",
        after="False",
        tests=(f"{SUSPICION}::test_one_neighbour_that_reaches_a_machine_is_enough",),
    ),
)
