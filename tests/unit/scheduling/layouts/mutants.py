"""Mutants of what a look at a round changes of its machines."""

from hack.mutants import Mutant

LOOK_DECISION = "tests/unit/scheduling/layouts/test_look_decision.py"
TRAINING_BOUND = "tests/unit/scheduling/layouts/test_training_bound.py"
PREFILL_CLOCK = "tests/unit/scheduling/layouts/test_prefill_clock.py"
KV_HANDOVER = "tests/unit/coordinator/on_policy/test_kv_handover.py"
REPORT = "tests/unit/coordinator/on_policy/test_switch_report.py"
LAYOUT_SWITCH = "tests/unit/scheduling/layouts/test_layout_switch.py"
ADAPTIVE = "tests/unit/scheduling/layouts/test_adaptive_switches.py"

MUTANTS = (
    Mutant(
        name="a file that was not used is no reason",
        target="rljob_runtime.scheduling.layouts.layout_switch:record_import",
        before="switch.not_taken.update(one.unused)",
        after="pass",
        tests=(f"{KV_HANDOVER}::test_kv_that_is_damaged_is_computed_again_and_told",),
    ),
    Mutant(
        name="prompts count for nothing where responses go on",
        target="rljob_runtime.scheduling.layouts.layout_switch:replicas_of",
        before="replace(responses[key], group=groups[key.prompt])",
        after="Running(0, responses[key].generated, groups[key.prompt])",
        tests=(
            f"{LAYOUT_SWITCH}::test_where_responses_go_on",
            f"{LAYOUT_SWITCH}::test_responses_go_on_where_the_decision_played_them",
        ),
    ),
    Mutant(
        name="all engines count as built",
        target="rljob_runtime.scheduling.layouts.adaptive_switches:snapshot_of",
        before="Builds(machine.built, look.rounds, machine.discarded)",
        after="Builds(None, look.rounds)",
        tests=(f"{ADAPTIVE}::test_a_build_must_be_repaid",),
    ),
    Mutant(
        name="a refused switch counts as made after a restart",
        target="rljob_runtime.scheduling.layouts.layout_switch:LayoutSwitch.count",
        before="SwitchCount(failed=1)",
        after="SwitchCount(made=1)",
        tests=(f"{REPORT}::test_a_restarted_coordinator_counts_the_switches_of_its_round[refused]",),
    ),
    Mutant(
        name="a machine is decided for as if it were alone",
        target="rljob_runtime.scheduling.layouts.adaptive_switches:snapshot_of",
        before="name not in machine.engines and look.sizes.get(name)",
        after="False",
        tests=(f"{ADAPTIVE}::test_a_snapshot_has_the_machine_and_what_runs_elsewhere",),
    ),
    Mutant(
        name="a refused size is decided for again",
        target="rljob_runtime.scheduling.layouts.adaptive_switches:AdaptiveSwitches._decide",
        before="self._rules.sizes & {machine.tensor_parallel, *machine.sizes}",
        after="self._rules.sizes",
        tests=(f"{ADAPTIVE}::test_the_decision_of_a_look",),
    ),
    Mutant(
        name="every prefill after a switch is measured, also of KV that was moved",
        target="rljob_runtime.scheduling.layouts.layout_switch:record_prefill",
        before="not switch.exported_tokens",
        after="True",
        tests=(f"{ADAPTIVE}::test_prefill_is_measured_against_its_prediction",),
    ),
    Mutant(
        name="a prefill that was seen in part is a rate",
        target="rljob_runtime.scheduling.layouts.layout_switch:record_prefill",
        before="clock.is_complete",
        after="True",
        tests=(f"{ADAPTIVE}::test_prefill_is_measured_against_its_prediction",),
    ),
    Mutant(
        name="the first token of a machine ends its prefill",
        target="rljob_runtime.scheduling.layouts.prefill_clock:PrefillClock.has_ended",
        before="not self._pending",
        after="not self._pending or self._last is not None",
        tests=(
            f"{PREFILL_CLOCK}::test_the_clock_runs_until_every_response_has_a_token",
            f"{KV_HANDOVER}::test_a_prefill_in_several_passes_is_measured_to_its_end",
        ),
    ),
    Mutant(
        name="a response that has left holds the prefill for ever",
        target="rljob_runtime.scheduling.layouts.prefill_clock:PrefillClock.retain",
        before="self._drop(key)",
        after="pass",
        tests=(f"{PREFILL_CLOCK}::test_the_clock_runs_until_every_response_has_a_token",),
    ),
    Mutant(
        name="a machine is loaned and switches",
        target="rljob_runtime.scheduling.layouts.look_decision:LookDecision.of",
        before="not switching",
        after="True",
        tests=(f"{LOOK_DECISION}::test_one_look_has_one_winner",),
    ),
    Mutant(
        name="a switch of one machine counts as if it were the last one",
        target="rljob_runtime.scheduling.layouts.look_decision:switches_gain",
        before="max(before, default=0.0) - max(after, default=0.0)",
        after="sum(one.gain or 0.0 for one in decisions)",
        tests=(f"{LOOK_DECISION}::test_one_look_has_one_winner",),
    ),
    Mutant(
        name="a switch is judged by its generation alone",
        target="rljob_runtime.scheduling.layouts.look_decision:LookDecision.of",
        before="played is not None",
        after="False",
        tests=(f"{LOOK_DECISION}::test_a_switch_is_worth_what_the_round_gains",),
    ),
    Mutant(
        name="a switch that saves its round nothing displaces a loan",
        target="rljob_runtime.scheduling.layouts.look_decision:_round_gain",
        before="min(most, played.training)",
        after="min(most, played.training) if played.generation > 0.3 else most",
        tests=(
            f"{LOOK_DECISION}::test_a_switch_is_worth_what_the_round_gains",
            f"{LOOK_DECISION}::test_a_loan_wins_against_a_switch_before_a_machine_that_ends_last",
        ),
    ),
    Mutant(
        name="a machine whose end is unknown never ends last",
        target="rljob_runtime.scheduling.layouts.look_decision:_round_gain",
        before="0.0 if unknown else most",
        after="most",
        tests=(
            f"{LOOK_DECISION}::test_one_look_has_one_winner",
            f"{LOOK_DECISION}::test_a_loan_wins_against_a_switch_before_a_machine_that_ends_last",
        ),
    ),
    Mutant(
        name="a trainer has nothing to catch up with",
        target="rljob_runtime.scheduling.layouts.training_bound:round_gain",
        before="training_end(backlog, with_switches, token)",
        after="training_end(0, with_switches, token)",
        tests=(TRAINING_BOUND,),
    ),
    Mutant(
        name="a machine that switches does not pause",
        target="rljob_runtime.scheduling.layouts.training_bound:_play",
        before="pace.pause",
        after="0.0",
        tests=(TRAINING_BOUND,),
    ),
    Mutant(
        name="all engines of a round have the speed of one size",
        target="rljob_runtime.scheduling.layouts.training_bound:round_gain",
        before="look.engines[look.sizes[name]].latency",
        after="look.engines[4].latency",
        tests=(f"{TRAINING_BOUND}::test_each_engine_has_the_speed_of_its_own_machine",),
    ),
    Mutant(
        name="a visit takes its export for that of the other size",
        target="rljob_runtime.scheduling.layouts.layout_switch:record_probes",
        before="costs.record(target, start, Part.EXPORT, busiest, most.export_seconds)",
        after="costs.record(start, target, Part.EXPORT, busiest, most.export_seconds)",
        tests=(
            "tests/unit/scheduling/adaptive_tp/test_idle_profile.py::test_a_visit_teaches_copies_of_kv_by_its_busiest_engine",
        ),
    ),
)
