"""Mutants of rljob_bench.lib."""

from hack.mutants import Mutant

AGENTS = "tests/unit/bench/test_agents.py"
BENCHMARKS = "tests/unit/bench/simulated/test_benchmarks.py"
PAT_REAL = "tests/unit/bench/test_pat_real.py"
PLANNED = "tests/unit/bench/lib/test_planned_switch.py"
REPACK_REAL = "tests/unit/bench/test_repack_real.py"
ROLLPACKER_REAL = "tests/unit/bench/test_rollpacker_real.py"
SAMPLE_COST = "tests/unit/bench/lib/test_sample_cost.py"

MUTANTS = (
    Mutant(
        name="writes between the blocks of episodes count as theirs",
        target="rljob_bench.lib.episodes.own_writes:OwnWrites.begin",
        before="self._before = replace(self._seen)",
        after="pass",
        tests=(f"{AGENTS}::test_writes_count_while_episodes_are_played",),
    ),
    Mutant(
        name="samples of an evaluation cost nothing in the benchmark",
        target="rljob_bench.lib.sample_cost:SampleCost.measure",
        before="kept.evaluation - plain.evaluation",
        after="0.0",
        tests=(f"{SAMPLE_COST}::test_the_job_that_is_first_changes_and_the_difference_counts",),
    ),
    Mutant(
        name="engines of a profile are as fast as the roofline's",
        target="rljob_bench.lib.cluster:BenchmarkCluster._speed",
        before="self.engines is not None",
        after="self.engines is not None and size > 8",
        tests=(f"{BENCHMARKS}::test_engines_of_a_profile_are_as_fast_and_as_large_as_measured",),
    ),
    Mutant(
        name="a loaned machine loses what it had generated",
        target="rljob_bench.lib.cluster:BenchmarkCluster.engine",
        before='STREAM_SECONDS if self.lendable else float("inf")',
        after='float("inf")',
        tests=(f"{BENCHMARKS}::test_what_a_loaned_machine_generated_continues_elsewhere",),
    ),
    Mutant(
        name="a move by hand takes nothing along",
        target="rljob_bench.lib.move_probe:MoveBenchmark.move",
        before="tuple(source.tokens[one.key, one.attempt])",
        after="()",
        tests=(f"{REPACK_REAL}::test_a_move_by_hand_is_made_as_the_coordinator_makes_it",),
        canary=True,
    ),
    Mutant(
        name="the end of one stream of the server is the end of the watch",
        target="rljob_bench.lib.kubernetes.operator_observers:PodWatch._follow",
        before="""
            while True:
                try:
                    await self._stream(kube, namespace, await self._list(kube, namespace))
                except Unreachable as error:
                    say(f"the watch of pods broke, and starts again: {error}")
                    await asyncio.sleep(0.5)
        """,
        after="""
            for _ in range(1):
                try:
                    await self._stream(kube, namespace, await self._list(kube, namespace))
                except Unreachable as error:
                    say(f"the watch of pods broke, and starts again: {error}")
                    await asyncio.sleep(0.5)
        """,
        tests=("tests/unit/bench/test_operator.py::test_the_watch_goes_on_where_the_server_ends_its_stream",),
    ),
    Mutant(
        name="a response that ended where it was counts as moved",
        target="rljob_bench.lib.recorded_peers:moves",
        before="moving.pop(delta.key, None)",
        after="",
        tests=(f"{REPACK_REAL}::test_moves_are_read_off_the_traffic",),
    ),
    Mutant(
        name="a prompt that is launched again has the lengths that it had",
        target="rljob_bench.lib.replay:ReplayedLengths.of",
        before="versions.index(version)",
        after="0",
        tests=(f"{ROLLPACKER_REAL}::test_other_weights_draw_new_lengths_for_a_prompt",),
    ),
    Mutant(
        name="a replayed response ends at a limit",
        target="rljob_bench.lib.replay:ReplayingReplica._told",
        before="FinishReason.STOP",
        after="FinishReason.LENGTH",
        tests=(f"{ROLLPACKER_REAL}::test_what_ends_where_the_workload_says_has_ended_by_itself",),
    ),
    Mutant(
        name="a trace may have responses that no engine holds",
        target="rljob_bench.lib.settings:room",
        before="min(_kv_tokens(setting), MAX_TOKENS_PER_SEQUENCE)",
        after="MAX_TOKENS_PER_SEQUENCE",
        tests=(f"{BENCHMARKS}::test_a_trace_whose_longest_response_fits_no_engine_is_refused",),
    ),
    Mutant(
        name="a job is not charged for its long rounds",
        target="rljob_bench.lib.experiment:Experiment.seconds",
        before="(report.seconds or 0.0 for report in self.reports)",
        after="(report.seconds or 0.0 for report in self.reports[:4])",
        tests=(f"{BENCHMARKS}::test_a_job_pays_for_every_round_and_for_the_reward_stage_of_each",),
    ),
    Mutant(
        name="a reward stage costs nothing",
        target="rljob_bench.lib.experiment:Experiment.prompt_seconds",
        before="self.seconds(reward_stage)",
        after="self.seconds()",
        tests=(f"{BENCHMARKS}::test_speed_is_prompts_over_seconds",),
    ),
    Mutant(
        name="of a plain job's first rounds all of its seconds are told",
        target="rljob_bench.lib.experiment:Experiment.first",
        before="reports=self.reports[:rounds]",
        after="",
        tests=(f"{BENCHMARKS}::test_the_first_rounds_of_a_plain_job_are_a_shorter_job",),
    ),
    Mutant(
        name="rounds of a block have other lengths",
        target="rljob_bench.lib.turns:BlockLengths.of",
        before="numbers.setdefault(key.prompt, len(numbers))",
        after="key.prompt.index",
        tests=(f"{PAT_REAL}::test_rounds_of_a_block_have_the_same_lengths_prompt_by_prompt",),
    ),
    Mutant(
        name="a planned switch waits until it is worth it",
        target="rljob_bench.lib.switches.planned_switch:_is_due",
        before="return late and plan.wait >= plan.never * (1 - SAME)",
        after="return False",
        tests=(f"{PLANNED}::test_a_switch_that_no_plan_wants_is_made_late",),
    ),
    Mutant(
        name="a planned switch is made before its moment",
        target="rljob_bench.lib.switches.planned_switch:_is_due",
        before="now <= plan.wait",
        after="True",
        tests=(f"{PLANNED}::test_it_waits_for_its_moment",),
    ),
    Mutant(
        name="a round of a planned switch makes all that follow",
        target="rljob_bench.lib.turns:Turns._plan",
        before="machine.switches",
        after="0",
        tests=(f"{PAT_REAL}::test_a_round_of_a_planned_switch_makes_one",),
    ),
)
