"""Mutants of rljob_runtime.coordinator.fleet."""

from hack.mutants import Mutant

CHAINS = "tests/unit/coordinator/on_policy/test_switch_chains.py"
BROADCAST = "tests/unit/coordinator/fleet/test_broadcast.py"
FAILURE_DETECTOR = "tests/unit/coordinator/fleet/test_failure_detector.py"
KEPT = "tests/unit/coordinator/fleet/test_kept_engines.py"
LAYOUTS = "tests/unit/coordinator/fleet/test_layouts.py"
MEMBERSHIP = "tests/unit/coordinator/fleet/test_membership.py"
LOANS = "tests/unit/coordinator/stream_training/test_loans.py"

SWITCHER = "tests/unit/coordinator/on_policy/test_switcher.py"

IDLE = "tests/unit/coordinator/on_policy/test_idle_profiler.py"

MUTANTS = (
    Mutant(
        name="a size whose engines were discarded is measured again",
        target="rljob_runtime.coordinator.fleet.layouts:Layouts._switch",
        before="self._ran[name] |= self._kept[name]",
        after="self._ran[name] = set(self._kept[name])",
        tests=(f"{KEPT}::test_a_size_counts_as_built_while_every_leading_slot_keeps_it",),
    ),
    Mutant(
        name="a newcomer waits for a machine that writes its KV",
        target="rljob_runtime.coordinator.fleet.weights:FleetWeights._load",
        before="machine.loaded_version == version and not needs_layout",
        after="False",
        tests=(f"{CHAINS}::test_newcomers_do_not_wait_for_a_machine_that_writes",),
    ),
    Mutant(
        name="a newcomer waits for a machine that loads",
        target="rljob_runtime.coordinator.fleet.weights:FleetWeights._load_alone",
        before="self._fleet.notify()",
        after="pass",
        tests=(f"{CHAINS}::test_a_newcomer_does_not_wait_for_a_machine_that_loads",),
    ),
    Mutant(
        name="newer weights lose a machine that measures another layout",
        target="rljob_runtime.coordinator.fleet.weights:FleetWeights.visit_layout",
        before="self._load_to_measure(machine, version)",
        after="self._load_alone(machine, version)",
        tests=(f"{IDLE}::test_an_overrun_longer_than_predicted_is_spent_too",),
    ),
    Mutant(
        name="waits for a profile are not counted",
        target="rljob_runtime.coordinator.fleet.weights:FleetWeights._holding",
        before="self.visits.record_delay(clock() - since, foreseen)",
        after="pass",
        tests=(f"{IDLE}::test_an_update_that_ends_early_ends_the_profile",),
    ),
    Mutant(
        name="a machine stays in the layout that it measured",
        target="rljob_runtime.coordinator.fleet.weights:FleetWeights.visit_layout",
        before="visit.back = await self._go(machine, None)",
        after="pass",
        tests=(f"{IDLE}::test_resting_machines_measure_each_size_and_no_stage_begins_later",),
    ),
    Mutant(
        name="new engines are measured as kept ones",
        target="rljob_runtime.coordinator.fleet.layouts:Layouts._switch",
        before='"build"',
        after='"start"',
        tests=(f"{KEPT}::test_a_size_counts_as_built_while_every_leading_slot_keeps_it",),
    ),
    Mutant(
        name="an engine that one slot discarded counts as built",
        target="rljob_runtime.coordinator.fleet.layouts:_sizes",
        before="all(size in engines[one.name].sizes for one in machine.leading(size))",
        after="True",
        tests=(f"{KEPT}::test_a_size_counts_as_built_while_every_leading_slot_keeps_it[one of two slots discards]",),
    ),
    Mutant(
        name="a new coordinator takes engines that it finds for built ones",
        target="rljob_runtime.coordinator.fleet.layouts:Layouts._switch",
        before="sum(one.built for one in engines.values()) > before",
        after="tensor_parallel not in self._kept.get(name, ())",
        tests=(f"{KEPT}::test_a_new_coordinator_learns_which_engines_are_kept",),
    ),
    Mutant(
        name="new processes start in the layout that killed them",
        target="rljob_runtime.coordinator.fleet.layouts:Layouts.processes_ended",
        before="self._switched.pop(machine, None)",
        after="pass",
        tests=(f"{SWITCHER}::test_responses_of_a_machine_that_dies_in_its_switch_go_elsewhere",),
    ),
    Mutant(
        name="what everybody holds is on its way",
        target="rljob_runtime.coordinator.fleet.broadcast:Broadcast.push_to_relays",
        before="clock() if is_new else None",
        after="clock()",
        tests=(f"{BROADCAST}::test_a_version_that_is_shipped_again_takes_no_time",),
    ),
    Mutant(
        name="there is always a machine for the chain",
        target="rljob_runtime.coordinator.fleet.broadcast:Broadcast.push_to_relays",
        before="not chained or not self._all_members(chained)",
        after="not self._all_members(chained)",
        tests=(f"{BROADCAST}::test_all_machines_fail_while_the_chain_closes_over_the_first",),
    ),
    Mutant(
        name="neighbours are forgotten when the chain closes",
        target="rljob_runtime.coordinator.fleet.failure_detector:FailureDetector.suspect",
        before="self._chain()",
        after="()",
        tests=(f"{FAILURE_DETECTOR}::test_the_neighbours_in_the_chain_as_it_was_are_asked",),
    ),
    Mutant(
        name="a process that ended has two witnesses",
        target="rljob_runtime.coordinator.fleet.failure_detector:FailureDetector._probe",
        before="suspected.suspicion.with_report(neighbour.name, reached)",
        after="suspected.suspicion.with_report(neighbour.name, False)",
        tests=(f"{FAILURE_DETECTOR}::test_a_process_that_ended_on_a_machine_that_lives_has_one_witness",),
    ),
    Mutant(
        name="a machine that keeps failing is absolved when it works",
        target="rljob_runtime.coordinator.fleet.failure_detector:FailureDetector.record_success",
        before="suspected is not None and suspected.suspicion.reason != KEEPS_FAILING",
        after="suspected is not None",
        tests=(f"{FAILURE_DETECTOR}::test_a_working_machine_that_failed_again_too_soon_is_replaced",),
    ),
    Mutant(
        name="a machine that is called back is not fed",
        target="rljob_runtime.coordinator.fleet.fleet:Fleet.end_loan",
        before="reload and machine.loaded_version is None",
        after="False",
        tests=(f"{LOANS}::test_a_machine_that_is_called_back_generates_again_on_its_accelerators",),
    ),
    Mutant(
        name="a former incarnation keeps the machine's memory",
        target="rljob_runtime.coordinator.fleet.fleet:Fleet._find",
        before="await self._end_former(member)",
        after="",
        tests=("tests/unit/coordinator/fleet/test_absent_machines.py",),
    ),
    Mutant(
        name="the processes of a silent machine are ended immediately",
        target="rljob_runtime.coordinator.fleet.fleet:Fleet._run_machine",
        before="machine.loss_reason == SILENT",
        after="machine.loss_reason is None",
        tests=(f"{FAILURE_DETECTOR}::test_a_machine_that_answers_again_is_absolved_and_keeps_its_processes",),
    ),
    Mutant(
        name="the chain stays open until the next version",
        target="rljob_runtime.coordinator.fleet.fleet:Fleet.mark_lost",
        before="self._detector.start(self._broadcast.repair_chain())",
        after="pass",
        tests=(f"{FAILURE_DETECTOR}::test_a_machine_that_is_gone_has_two_witnesses_within_seconds",),
    ),
    Mutant(
        name="commands to a replica that is lost are waited for",
        target="rljob_runtime.coordinator.fleet.fleet:Fleet.run_while_member",
        before="call if machine is None else machine.run_while_member(call)",
        after="call",
        tests=(f"{MEMBERSHIP}::test_a_command_to_a_lost_replica_does_not_wait",),
    ),
    Mutant(
        name="engine slots are laid out while the worker holds the memory",
        target="rljob_runtime.coordinator.fleet.layouts:Layouts.apply",
        before="await release_accelerators(machine, self._term)",
        after="pass",
        tests=(f"{LOANS}::test_a_restarted_coordinator_ends_loans_before_it_switches_layouts",),
    ),
    Mutant(
        name="no replica makes room for a wider layout",
        target="rljob_runtime.coordinator.fleet.layouts:Layouts._switch",
        before=(
            "await asyncio.gather(*(one.release_accelerators(self._term, tensor_parallel) for one in machine.replicas))"
        ),
        after="[KeptEngines() for _ in machine.replicas]",
        tests=(f"{LAYOUTS}::test_an_accelerator_works_for_one_engine_at_a_time",),
    ),
    Mutant(
        name="a machine without any layout is not told",
        target="rljob_runtime.coordinator.fleet.layouts:Layouts._report",
        before="[one.reason for one in self._unable.values()]",
        after="[]",
        tests=(f"{LAYOUTS}::test_a_machine_without_a_layout_joins_when_its_engines_start",),
    ),
    Mutant(
        name="machines that cannot start their engines are waited for for ever",
        target="rljob_runtime.coordinator.fleet.layouts:Layouts.unable_to_start",
        before="bool(failures)",
        after="False",
        tests=(f"{LAYOUTS}::test_a_job_whose_machines_start_no_engine_ends_with_their_error",),
    ),
    Mutant(
        name="machines that are still to come are thought to be unable",
        target="rljob_runtime.coordinator.fleet.layouts:Layouts.unable_to_start",
        before="{*machines, *self._members}",
        after="machines",
        tests=(f"{LAYOUTS}::test_one_bad_machine_does_not_end_a_job_before_the_others_join",),
    ),
    Mutant(
        name="a machine's next pod is thought to be unable",
        target="rljob_runtime.coordinator.fleet.layouts:Layouts.remove",
        before="self._unable.pop(machine, None)",
        after="",
        tests=(f"{LAYOUTS}::test_what_a_machine_refused_is_no_word_of_its_next_pod",),
    ),
    Mutant(
        name="a loaned machine is laid out when a newcomer is fed",
        target="rljob_runtime.coordinator.fleet.weights:FleetWeights._load_alone",
        before="machine.loaned",
        after="False",
        tests=(f"{LOANS}::test_a_newcomer_gets_weights_while_a_loan_continues",),
    ),
    Mutant(
        name="a machine that goes as it loads weights is waited for",
        target="rljob_runtime.coordinator.fleet.weights:FleetWeights.load_everywhere",
        before="machine.run_unless_left(self._load(machine, version))",
        after="self._load(machine, version)",
        tests=(f"{FAILURE_DETECTOR}::test_a_machine_lost_while_it_loads_weights_delays_no_other",),
    ),
    Mutant(
        name="weights of before a change of layout are thought to be there",
        target="rljob_runtime.coordinator.fleet.weights:FleetWeights._apply_layout",
        before="machine.loaded_version = None",
        after="pass",
        tests=(f"{LAYOUTS}::test_the_next_round_runs_in_the_targets_layout_in_the_same_processes",),
    ),
    Mutant(
        name="no call starts the trainer for starving machines",
        target="rljob_runtime.coordinator.fleet.weights:FleetWeights.load_newcomers",
        before="self.version == version",
        after="False",
        tests=(f"{MEMBERSHIP}::test_a_round_without_weights_gets_them_from_a_restarted_trainer",),
    ),
    Mutant(
        name="the trainer's line waits for the broadcast",
        target="rljob_runtime.coordinator.fleet.weights:FleetWeights.switch_layout",
        before="self._layouts.is_target(layout, requested) and not needed",
        after="False",
        tests=(
            (
                "tests/unit/coordinator/asynchronous/test_loop.py::test_an_update_does_not_wait_for_the_broadcast_"
                "of_the_one_before"
            ),
        ),
    ),
    Mutant(
        name="a machine that was lost leaves the fleet again",
        target="rljob_runtime.coordinator.fleet.fleet:Fleet._remove",
        before="self.layouts.remove(name)",
        after="self.layouts.remove(name)\nself.timeline.event(LEFT, name, machine_row(name))",
        tests=(
            "tests/unit/coordinator/reporting/test_idle_metrics.py::test_a_machine_that_was_lost_before_does_not_leave_the_fleet_again",
        ),
    ),
    Mutant(
        name="a machine that was only silent forgets its layout",
        target="rljob_runtime.coordinator.fleet.fleet:Fleet.mark_lost",
        before="machine.loss_reason = reason",
        after="machine.loss_reason = reason; self.layouts.processes_ended(name)",
        tests=(
            "tests/unit/coordinator/on_policy/test_switch_faults.py::test_a_machine_that_was_only_silent_keeps_its_size",
        ),
    ),
    Mutant(
        name="the time until a size was refused is in no report",
        target="rljob_runtime.coordinator.fleet.layouts:Layouts._apply",
        before="self._parts[name]['failed'] = clock() - began",
        after="pass",
        tests=(
            "tests/unit/coordinator/on_policy/test_switch_faults.py::test_the_seconds_of_a_refused_switch_are_those_of_its_responses",
        ),
    ),
)
