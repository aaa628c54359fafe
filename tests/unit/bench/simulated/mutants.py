"""Mutants of the simulated benchmarks."""

from hack.mutants import Mutant

PAT = "tests/unit/bench/simulated/test_pat.py"
PAT_ACCOUNTS = "tests/unit/bench/simulated/test_pat_accounts.py"

MUTANTS = (
    Mutant(
        name="a job of the benchmark never learns what a switch takes",
        target="rljob_bench.simulated.pat_accounts:_measure",
        before="assumed.record(*pair, part, 1.0, truth.unit(*pair, part) * noise)",
        after="pass",
        tests=(f"{PAT_ACCOUNTS}::test_a_job_learns_its_rates",),
    ),
    Mutant(
        name="every state that a switch chooses is the cheaper one",
        target="rljob_bench.simulated.pat_accounts:choices",
        before="Choice(number, seconds[state], min(seconds.values()))",
        after="Choice(number, min(seconds.values()), min(seconds.values()))",
        tests=(f"{PAT_ACCOUNTS}::test_a_job_learns_its_rates",),
    ),
    Mutant(
        name="a size that runs in the benchmark is never observed",
        target="rljob_bench.simulated.switches.stage_play:Play._with_known",
        before="self.engines[size] if size in ran else one",
        after="one",
        tests=(
            "tests/unit/bench/simulated/test_pat.py::test_a_size_that_is_believed_to_be_fast_is_left_when_it_has_run",
        ),
    ),
    Mutant(
        name="the informed policy knows an earlier round's lengths only",
        target="rljob_bench.simulated.switches.stage_play:Play.informed",
        before="self.machine.chooser(own, self.stage.cap)",
        after="self._policy",
        tests=(f"{PAT}::test_the_informed_policy_knows_the_lengths_of_the_stage",),
    ),
    Mutant(
        name="what the start loses counts as lost by the policy",
        target="rljob_bench.simulated.switches.comparison:Compared.losses",
        before="(self.ours.seconds, self.best_start.seconds, self.informed.seconds, self.limit)",
        after="(self.ours.seconds, self.ours.seconds, self.informed.seconds, self.limit)",
        tests=(f"{PAT}::test_what_is_lost_of_the_limit_has_three_parts",),
    ),
    Mutant(
        name="a planner of the benchmark never observes the size that it chose",
        target="rljob_bench.simulated.switches.stage_play:Play.start",
        before="self._with_known(ran)",
        after="self.machine",
        tests=(f"{PAT}::test_a_start_that_is_believed_to_be_fast_is_left_when_it_has_run",),
    ),
    Mutant(
        name="sleeping engines keep no communication groups",
        target="rljob_bench.simulated.pat_accounts:kept_bytes",
        before="sum(size > 1 for size in sizes) * GROUP_BYTES",
        after="0.0",
        tests=(f"{PAT_ACCOUNTS}::test_kept_engines_cost_contexts_graphs_and_groups_but_no_weights",),
    ),
    Mutant(
        name="the switch of an earlier round is searched with this stage's lengths",
        target="rljob_bench.simulated.switches.comparison:best_switch",
        before="play.own_earlier",
        after="play.asked[0]",
        tests=(f"{PAT}::test_the_switch_of_the_earlier_round_is_played_on_this_one",),
    ),
)
