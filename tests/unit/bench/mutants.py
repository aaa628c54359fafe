"""Mutants of rljob_bench."""

from hack.mutants import Mutant

AGENTS = "tests/unit/bench/test_agents.py"
PAT_REAL = "tests/unit/bench/test_pat_real.py"
REPACK_REAL = "tests/unit/bench/test_repack_real.py"
ROLLPACKER_REAL = "tests/unit/bench/test_rollpacker_real.py"

MUTANTS = (
    Mutant(
        name="episodes are compared with a rate of their own",
        target="rljob_bench.agents:figures",
        before="measured.rate('plain')",
        after="measured.rate('episodes')",
        tests=(f"{AGENTS}::test_the_figures_compare_episodes_with_plain_generation",),
    ),
    Mutant(
        name="the gateway's cost is compared with itself",
        target="rljob_bench.agents:_gateway_figures",
        before="measured.tokens_rate('direct')",
        after="measured.tokens_rate('gateway')",
        tests=(f"{AGENTS}::test_the_gateways_cost_is_that_of_the_same_turns_in_the_same_run",),
    ),
    Mutant(
        name="repack is measured against itself",
        target="rljob_bench.repack_real:job_of",
        before='"enabled": repack',
        after='"enabled": True',
        tests=(f"{REPACK_REAL}::test_both_jobs_are_accepted_and_differ_in_repack_alone",),
    ),
    Mutant(
        name="what passes between rounds is not charged",
        target="rljob_bench.rollpacker_real:RollPackerExperiment.seconds",
        before="self.closed[-1] - self.closed[0] + (self.reports[0].seconds or 0.0)",
        after="sum(report.seconds or 0.0 for report in self.reports)",
        tests=(f"{ROLLPACKER_REAL}::test_jobs_are_charged_whole_and_predictions_by_round",),
    ),
    Mutant(
        name="the state that was chosen is right by definition",
        target="rljob_bench.switch_figures:StatePair.is_right",
        before="min(self.move, self.recompute)",
        after="self.chosen",
        tests=(f"{PAT_REAL}::test_neighbouring_switches_show_which_state_was_cheaper",),
    ),
    Mutant(
        name="steps are predicted by their first moment only",
        target="rljob_bench.switch_predictions:stretches_of",
        before="(before, after)",
        after="(before, before)",
        tests=(f"{PAT_REAL}::test_steps_are_predicted_for_each_replica_between_two_looks",),
    ),
    Mutant(
        name="the policy knows the lengths of its block",
        target="rljob_bench.pat_real:Setting._compared",
        before="Turn(place + 1, Way.ADAPTIVE)",
        after="Turn(max(1, place), Way.ADAPTIVE)",
        tests=(f"{PAT_REAL}::test_a_round_that_is_decided_is_the_first_with_its_lengths",),
    ),
    Mutant(
        name="the policy's round is always the first of its place",
        target="rljob_bench.pat_real:Setting._compared",
        before="(place - 1) % len(ways)",
        after="1",
        tests=(f"{PAT_REAL}::test_each_way_takes_each_place_of_a_block_in_turn",),
    ),
    Mutant(
        name="a setting whose limit is no gain can pay",
        target="rljob_bench.switch_figures:_pay_row",
        before="limit >= GAIN_GOAL",
        after="limit >= LEAST",
        tests=(f"{PAT_REAL}::test_the_result_tells_whether_a_switch_can_pay",),
    ),
    Mutant(
        name="gains that cancel out hide their errors",
        target="rljob_bench.switch_predictions:_gain_figures",
        before="sum(abs(one.measured) for one in gains)",
        after="sum(one.measured for one in gains)",
        tests=(f"{PAT_REAL}::test_gains_that_cancel_out_do_not_hide_their_errors",),
    ),
    Mutant(
        name="changes of the layout between turns count against the policy",
        target="rljob_bench.switch_figures:other_seconds",
        before="report.layout_seconds or 0.0",
        after="0.0",
        tests=(f"{PAT_REAL}::test_seconds_beyond_generation_end_with_the_round",),
    ),
)
