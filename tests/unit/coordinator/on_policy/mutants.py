"""Mutants of rljob_runtime.coordinator.on_policy."""

from hack.mutants import Mutant

RUNS = "tests/simulation/test_runs.py"
BENCHMARKS = "tests/unit/bench/simulated/test_benchmarks.py"
LOOP = "tests/unit/coordinator/on_policy/test_loop.py"
PLAN_NEXT_ROUND = "tests/unit/coordinator/on_policy/test_plan_next_round.py"
LOANS = "tests/unit/coordinator/stream_training/test_loans.py"

EVALUATIONS = "tests/unit/coordinator/evaluation/test_evaluations.py"

SWITCHER = "tests/unit/coordinator/on_policy/test_switcher.py"
SWITCHES = f"{SWITCHER}::test_a_machine_switches_up_and_back_and_no_token_is_lost"
RESTART = f"{SWITCHER}::test_a_restarted_coordinator_goes_on_in_the_layout_of_the_round"
SWITCH_REPORT = "tests/unit/coordinator/on_policy/test_switch_report.py"
ADAPTIVE_JOB = "tests/unit/coordinator/on_policy/test_adaptive_job.py"
POLICY_FAILURES = "tests/unit/coordinator/on_policy/test_policy_failures.py"

KV = "tests/unit/coordinator/on_policy/test_kv_handover.py"
MOVED = f"{KV}::test_responses_of_a_machine_that_switches_go_on_with_their_kv"
HANGS = f"{KV}::test_a_replica_that_hangs_holds_back_no_other_file"
LATE_DROP = f"{KV}::test_an_export_does_not_wait_for_a_removal_that_hangs"

MUTANTS = (
    Mutant(
        name="what a switch gained is counted from the beginning of the round",
        target="rljob_runtime.coordinator.on_policy.switch_report:measured_gain",
        before="switch.at + without - switch.last_token",
        after="without - switch.last_token",
        tests=(f"{SWITCH_REPORT}::test_a_switch_is_listed_with_prediction_and_measurement",),
    ),
    Mutant(
        name="tokens after a switch are not seen",
        target="rljob_runtime.coordinator.on_policy.switcher:Switcher.record_tokens",
        before="switch.last_token = now - self._began",
        after="pass",
        tests=(f"{ADAPTIVE_JOB}::test_a_job_that_may_switch_does_and_tells_it_everywhere",),
    ),
    Mutant(
        name="each size is predicted with the switches of the present one",
        target="rljob_runtime.coordinator.on_policy.plan_next_round:_Predictor.planner",
        before="self.saved.get(start, 0.0)",
        after="self.saved.get((inputs.size, start[1]), 0.0)",
        tests=(
            "tests/unit/coordinator/on_policy/test_switch_forecast.py::"
            "test_each_size_is_predicted_with_the_switches_that_follow_it",
        ),
    ),
    Mutant(
        name="each number of machines is predicted with the switches of the present one",
        target="rljob_runtime.coordinator.on_policy.plan_next_round:_Savings.of",
        before="self._on(number, factors)",
        after="self._on(self.inputs.machines, factors)",
        tests=(
            "tests/unit/coordinator/on_policy/test_switch_forecast.py::"
            "test_each_number_of_machines_is_predicted_with_its_own_switches",
        ),
    ),
    Mutant(
        name="races are compared without their switches",
        target="rljob_runtime.coordinator.on_policy.plan_next_round:_saved_in_any_race",
        before="candidates.is_undecided and factors is not None",
        after="False",
        tests=(
            "tests/unit/coordinator/on_policy/test_switch_forecast.py::test_races_are_compared_with_their_switches",
        ),
    ),
    Mutant(
        name="a round is predicted as if its switches moved no KV",
        target="rljob_runtime.coordinator.on_policy.plan_next_round:_switching",
        before="switch_costs.kv",
        after="None",
        tests=(
            "tests/unit/coordinator/on_policy/test_switch_forecast.py::test_a_switch_that_moves_kv_is_predicted_as_one",
        ),
    ),
    Mutant(
        name="the size of KV is forgotten after the round",
        target="rljob_runtime.coordinator.on_policy.looks:Looks.begin",
        before="engines.kv is not None",
        after="False",
        tests=(f"{KV}::test_what_a_move_takes_becomes_a_rate",),
    ),
    Mutant(
        name="a policy that failed is asked again in the same round",
        target="rljob_runtime.coordinator.on_policy.looks:Looks._failed",
        before="self._asked.discard(policy)",
        after="pass",
        tests=(f"{POLICY_FAILURES}::test_a_failing_switch_policy_is_given_up_and_the_job_completes",),
    ),
    Mutant(
        name="a size that no machine has is switched to",
        target="rljob_runtime.coordinator.on_policy.switcher:Switcher.decide",
        before="decision.target not in (None, *self._sizes)",
        after="False",
        tests=(f"{POLICY_FAILURES}::test_a_failing_switch_policy_is_given_up_and_the_job_completes",),
    ),
    Mutant(
        name="a switch that shall move KV computes it again",
        target="rljob_runtime.coordinator.on_policy.kv_handover:KvHandovers.stop",
        before="switch.moves_kv",
        after="False",
        tests=(MOVED,),
    ),
    Mutant(
        name="KV files are kept until the round ends",
        target="rljob_runtime.coordinator.on_policy.kv_handover:KvHandovers._end",
        before="self._fleet.is_member(handover.machine)",
        after="False",
        tests=(MOVED, f"{KV}::test_files_end_with_their_round"),
    ),
    Mutant(
        name="KV files are dropped before the requests that name them",
        target="rljob_runtime.coordinator.on_policy.kv_handover:KvHandovers.end_taken",
        before="waits(key)",
        after="False",
        tests=(MOVED,),
    ),
    Mutant(
        name="a KV file whose removal failed is kept",
        target="rljob_runtime.coordinator.on_policy.kv_handover:KvHandovers.end_taken",
        before="self._drop_due(machine)",
        after="pass",
        tests=(HANGS, f"{KV}::test_a_kv_file_left_in_its_round_is_removed_in_a_later_one"),
    ),
    Mutant(
        name="a replica that hangs holds back the files of others",
        target="rljob_runtime.coordinator.on_policy.kv_handover:KvHandovers._drop_due",
        before="replica.name not in machine.dropping",
        after="not machine.dropping",
        tests=(HANGS,),
    ),
    Mutant(
        name="an export waits for a removal however long it takes",
        target="rljob_runtime.coordinator.on_policy.kv_handover:KvHandovers._still_dropping",
        before="timeout=WAIT_SECONDS",
        after="timeout=None",
        tests=(LATE_DROP,),
    ),
    Mutant(
        name="a late removal takes the new KV file",
        target="rljob_runtime.coordinator.on_policy.kv_handover:KvHandovers._export",
        before="launch.lease.replica not in dropping",
        after="True",
        tests=(LATE_DROP,),
    ),
    Mutant(
        name="KV files outlive their round",
        target="rljob_runtime.coordinator.on_policy.generation:Generation._end_tasks",
        before="self._kv.close()",
        after="pass",
        tests=(f"{KV}::test_files_end_with_their_round",),
    ),
    Mutant(
        name="a refused export loses its responses",
        target="rljob_runtime.coordinator.on_policy.kv_handover:KvHandovers.stop",
        before="self._export(switch, machine, stopped)",
        after="self._export(switch, machine, stopped[1:])",
        tests=(f"{KV}::test_a_switch_without_a_file_computes_again_and_tells_why",),
    ),
    Mutant(
        name="the report tells the predicted state",
        target="rljob_runtime.coordinator.on_policy.switch_report:_listed",
        before="one.state.value if one.state is not None else None",
        after="decision.state.value if decision is not None and decision.state is not None else None",
        tests=(f"{SWITCH_REPORT}::test_the_state_is_what_was_done_and_not_what_was_predicted",),
    ),
    Mutant(
        name="a switch forgets what the last poll had",
        target="rljob_runtime.coordinator.on_policy.stops:Stops._stop_machine",
        before="await self.pool.collect({launch.lease.replica for launch in launches}, last=True)",
        after="pass",
        tests=(SWITCHES,),
    ),
    Mutant(
        name="a loan forgets what the last poll had",
        target="rljob_runtime.coordinator.on_policy.stops:Stops._stop",
        before="await self.pool.collect({launch.lease.replica for launch in stopped}, last=True)",
        after="pass",
        tests=(f"{LOANS}::test_no_token_is_lost_when_a_loan_begins",),
    ),
    Mutant(
        name="the report tells the last size",
        target="rljob_runtime.coordinator.on_policy.loop:OnPolicyLoop._close",
        before="generation.layout.size",
        after="self._context.fleet.tensor_parallel",
        tests=(f"{SWITCHER}::test_a_round_in_which_all_machines_switch_reports_its_first_size",),
    ),
    Mutant(
        name="a restarted coordinator lays an open round out again",
        target="rljob_runtime.coordinator.on_policy.loop:OnPolicyLoop._open_round",
        before="self._commands.apply(opened.plan.shape.kind, layout=opened.layout)",
        after="self._commands.apply(opened.plan.shape.kind)",
        tests=(RESTART,),
    ),
    Mutant(
        name="the layouts of an open round are not recorded",
        target="rljob_runtime.coordinator.on_policy.generation:Generation._record_layouts",
        before="self.layout.changes_to(dict(self._fleet.layouts.switched))",
        after="[]",
        tests=(SWITCHES, RESTART),
    ),
    Mutant(
        name="a size that was refused is tried again",
        target="rljob_runtime.coordinator.on_policy.switcher:Switcher._view",
        before="size not in refused",
        after="True",
        tests=(f"{SWITCHER}::test_a_refused_size_leaves_the_machine_and_its_responses_in_place",),
    ),
    Mutant(
        name="responses of a machine that switches go elsewhere",
        target="rljob_runtime.coordinator.on_policy.switcher:Switcher.placement",
        before="self._running.values()",
        after="()",
        tests=(f"{SWITCHER}::test_others_generate_during_a_switch",),
    ),
    Mutant(
        name="a switch that was decided for another machine is made",
        target="rljob_runtime.coordinator.on_policy.switcher:Switcher.begin",
        before="not self._is_unchanged(seen)",
        after="False",
        tests=(f"{SWITCHER}::test_a_switch_decided_for_a_machine_that_has_changed_is_not_made",),
    ),
    Mutant(
        name="machines that switch after one look are torn away together",
        target="rljob_runtime.coordinator.on_policy.switcher:Switcher.machines",
        before="self._running.keys()",
        after="self._running.keys() | self._looked.keys()",
        tests=(f"{SWITCHER}::test_each_of_two_switching_machines_waits_for_all_its_responses",),
    ),
    Mutant(
        name="a machine without responses switches",
        target="rljob_runtime.coordinator.on_policy.switcher:Switcher.begin",
        before="not busy",
        after="False",
        tests=(f"{SWITCHER}::test_a_machine_whose_responses_have_ended_does_not_switch",),
    ),
    Mutant(
        name="a round waits for the decision to switch",
        target="rljob_runtime.coordinator.on_policy.generation:Generation._look",
        before='self._tasks.start(self._looks.decide(look, seen), name="look")',
        after="await self._looks.decide(look, seen)",
        tests=(f"{SWITCHER}::test_the_round_goes_on_while_a_look_is_decided",),
    ),
    Mutant(
        name="a restarted coordinator forgets the speed of other sizes",
        target="rljob_runtime.coordinator.on_policy.loop:OnPolicyLoop.begin",
        before="past=await store.do(lambda its: its.speeds(ROUNDS_KEPT))",
        after="",
        tests=(f"{SWITCHER}::test_a_restarted_coordinator_knows_the_speed_of_every_size",),
    ),
    Mutant(
        name="looks overlap",
        target="rljob_runtime.coordinator.on_policy.looks:Looks.begin",
        before="self._looking",
        after="False",
        tests=(f"{SWITCHER}::test_the_round_goes_on_while_a_look_is_decided",),
    ),
    Mutant(
        name="newer weights do not wait for an evaluation",
        target="rljob_runtime.coordinator.on_policy.evaluation:OnPolicyEvaluation.during_update",
        before="not self.evaluator.active",
        after="True",
        tests=(f"{EVALUATIONS}::test_evaluation_is_abandoned_if_the_job_pauses_after_the_update",),
    ),
    Mutant(
        name="replicas that are idle in a round generate nothing for an evaluation",
        target="rljob_runtime.coordinator.on_policy.generation:Generation._launch_evaluations",
        before="self._stops.load(name)",
        after="1",
        tests=(f"{EVALUATIONS}::test_idle_replicas_and_updates_are_used_before_training_waits",),
    ),
    Mutant(
        name="a loaned machine is launched upon",
        target="rljob_runtime.coordinator.on_policy.generation:Generation._launchable",
        before="self._loans.loaned | self.switcher.stopping.keys()",
        after="self.switcher.stopping.keys()",
        tests=(f"{LOANS}::test_responses_of_a_loaned_machine_continue_from_received_tokens",),
    ),
    Mutant(
        name="losers run on",
        target="rljob_runtime.coordinator.on_policy.generation:Generation._abort_losers",
        before="await self._pool.drop(aborts)",
        after="assert aborts",
        tests=("tests/unit/scheduling/test_tail_batching.py::test_what_lost_is_aborted_on_its_engine",),
    ),
    Mutant(
        name="a restart begins a response again from nothing",
        target="rljob_runtime.coordinator.on_policy.round_responses:RoundResponses.restore",
        before="self.partials.restore(key, made)",
        after="pass",
        tests=tuple(
            f"{RUNS}::test_seeds_hold_every_invariant[{portion}-OnPolicy]" for portion in (0, 1, 2, 20, 21, 22)
        ),
    ),
    Mutant(
        name="a round that does not stream loans machines",
        target="rljob_runtime.coordinator.on_policy.loop:OnPolicyLoop._generate",
        before="self._context.settings.lending if streams else None",
        after="self._context.settings.lending",
        tests=(f"{LOANS}::test_auto_loans_only_where_it_streams",),
    ),
    Mutant(
        name="groups fetched at the end are fetched as they end",
        target="rljob_runtime.coordinator.on_policy.loop:OnPolicyLoop._generate",
        before="streaming.offer if self._context.settings.fetch_as_they_end else held.extend",
        after="streaming.offer",
        tests=(f"{BENCHMARKS}::test_groups_fetched_together_are_shared_with_loaned_machines",),
    ),
    Mutant(
        name="groups fetched at the end are not shared with loaned machines",
        target="rljob_runtime.coordinator.on_policy.loop:OnPolicyLoop._generate",
        before="streaming.offer(held)",
        after="pass",
        tests=(f"{BENCHMARKS}::test_groups_fetched_together_are_shared_with_loaned_machines",),
    ),
    Mutant(
        name="responses are not assigned before they are trained on",
        target="rljob_runtime.coordinator.on_policy.loop:OnPolicyLoop._train",
        before="await self._context.store.do(lambda store: store.trajectories.assign(step, keys))",
        after="assert keys",
        tests=(
            f"{LOOP}::test_a_job_runs_to_its_end",
            f"{LOOP}::test_a_failed_reward_is_no_zero_and_is_tried_again",
        ),
    ),
    Mutant(
        name="anchors are not stored",
        target="rljob_runtime.coordinator.on_policy.loop:OnPolicyLoop._close",
        before="self._context.rewards.take_anchors()",
        after="{}",
        tests=(
            "tests/unit/coordinator/generation/test_scoring.py::test_a_coordinator_that_comes_back_has_its_anchors",
        ),
    ),
    Mutant(
        name="engines are counted for machines",
        target="rljob_runtime.coordinator.on_policy.round_inputs:inputs_of",
        before="fleet.replicas * size // settings.slots",
        after="fleet.replicas",
        tests=(f"{PLAN_NEXT_ROUND}::test_no_machine_beyond_a_bound_is_predicted",),
    ),
    Mutant(
        name="every layout is predicted with the engines of the present one",
        target="rljob_runtime.coordinator.on_policy.round_inputs:RoundInputs.fleets_by_size",
        before="fit_latency(speeds), self.fleet.replicas * self.size // size, speeds[-1]",
        after="self.fleet.latency, self.fleet.replicas, speeds[-1]",
        tests=(f"{PLAN_NEXT_ROUND}::test_a_round_is_predicted_in_every_observed_layout",),
    ),
    Mutant(
        name="a report lists every switch",
        target="rljob_runtime.coordinator.on_policy.switch_report:switches_report",
        before="ended[:MOST_LISTED]",
        after="ended",
        tests=(f"{SWITCH_REPORT}::test_the_list_is_bounded_and_the_sums_are_not",),
    ),
    Mutant(
        name="a switch that failed is told as made",
        target="rljob_runtime.coordinator.on_policy.switch_report:switches_report",
        before="one.count",
        after="SwitchCount(made=1)",
        tests=(f"{SWITCH_REPORT}::test_a_round_whose_switches_failed_says_so_and_lists_them",),
    ),
    Mutant(
        name="switches are not in the report",
        target="rljob_runtime.coordinator.on_policy.loop:OnPolicyLoop._close",
        before="self._context.settings.switch_rules is not None",
        after="False",
        tests=(f"{ADAPTIVE_JOB}::test_a_job_that_may_switch_does_and_tells_it_everywhere",),
    ),
    Mutant(
        name="a round tells its last look only",
        target="rljob_runtime.coordinator.on_policy.switcher:Switcher._record",
        before="most_telling([decision, self.decision])",
        after="decision",
        tests=(f"{ADAPTIVE_JOB}::test_a_job_that_does_not_switch_says_why",),
    ),
    Mutant(
        name="the status of a job on policy has no metrics of its update",
        target="rljob_runtime.coordinator.on_policy.report:round_report",
        before="**training_metrics(trained),",
        after="",
        tests=(
            "tests/unit/coordinator/reporting/test_training_metrics.py::"
            "test_report_and_status_have_what_the_update_measured",
        ),
    ),
    Mutant(
        name="requests of an evaluation hold up a switch",
        target="rljob_runtime.coordinator.on_policy.generation:Generation._observed",
        before="count - load(name)",
        after="count",
        tests=(f"{SWITCHER}::test_what_the_round_has_in_the_queues_of_engines_is_known[evaluation1]",),
    ),
)
