"""Mutants of rljob_runtime.scheduling.fault_detection."""

from hack.mutants import Mutant

STALL_DETECTION = "tests/unit/scheduling/fault_detection/test_stall_detection.py"
FAILING_POLICIES = "tests/unit/scheduling/fault_detection/test_failing_policies.py"
LOGPROB_AGREEMENT = "tests/unit/scheduling/fault_detection/test_logprob_agreement.py"
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
        name="the report of a witness that reaches a machine is ignored",
        target="rljob_runtime.scheduling.fault_detection.suspicion:Suspicion.witnesses",
        before="self.reachable_from & set(present)",
        after="False",
        tests=(f"{SUSPICION}::test_one_neighbour_that_reaches_a_machine_is_enough",),
    ),
    Mutant(
        name="a process that keeps dying is started for ever",
        target="rljob_runtime.scheduling.fault_detection.process_restarts:ProcessRestarts.delay",
        before="self.failures + 1",
        after="1",
        tests=("tests/unit/scheduling/fault_detection/test_process_restarts.py",),
    ),
    Mutant(
        name="a policy that decided counts its earlier failures",
        target="rljob_runtime.scheduling.fault_detection.failing_policies:FailingPolicies.decided",
        before="del self._failures[policy]",
        after="pass",
        tests=(f"{FAILING_POLICIES}::test_a_policy_is_asked_until_it_failed_three_times_in_a_row",),
    ),
    Mutant(
        name="engines that do not start immediately never do",
        target="rljob_runtime.scheduling.fault_detection.layout_refusals:LayoutRefusals.unable",
        before="self.count >= MIN_REFUSALS and self.last - self.first >= patience",
        after="self.count >= MIN_REFUSALS",
        tests=("tests/unit/coordinator/fleet/test_layouts.py::test_engines_that_start_after_a_while_end_no_job",),
    ),
    Mutant(
        name="a first round of another engine's numbers is followed by a second",
        target="rljob_runtime.scheduling.fault_detection.logprob_agreement:engine_mismatch",
        before="kl <= LARGEST_MISMATCH",
        after="not kl > 1e9",
        tests=(f"{LOGPROB_AGREEMENT}::test_a_job_whose_engine_disagrees_stops_at_its_first_round",),
    ),
)
