"""Mutants of rljob_runtime.simulator.peers."""

from hack.mutants import Mutant

TRACED = "tests/unit/simulator/peers/test_traced_harness.py"

MUTANTS = (
    Mutant(
        name="programs never meet their timeout",
        target="rljob_runtime.simulator.peers.code_rewards:ProgramRewards.score",
        before="min(math.inf if endless else drawn, allowance.cpu_seconds)",
        after="drawn",
        tests=(
            ("tests/unit/bench/simulated/test_benchmarks.py::test_programs_end_at_the_timeout_that_the_policy_decides"),
        ),
    ),
    Mutant(
        name="sums are brought as if each had a link for itself",
        target="rljob_runtime.simulator.peers.gradient_worker:SimulatedWorker.deliver",
        before="self._costs.bring * sharing",
        after="self._costs.bring",
        tests=("tests/unit/coordinator/stream_training/test_loans.py::test_sums_share_the_trainers_link",),
    ),
    Mutant(
        name="a simulated harness takes an outage for the policy's time",
        target="rljob_runtime.simulator.peers.runners:SimulatedRunners._harness_in_time",
        before="runner.missed >= began",
        after="False",
        tests=("tests/unit/coordinator/episodes/test_outages.py::test_no_time_out_of_a_job_spans_two_coordinators",),
    ),
    Mutant(
        name="a simulated harness that hangs ends at its deadline",
        target="rljob_runtime.simulator.peers.runners:SimulatedRunners._harness_in_time",
        before="None if fault is Fault.HANGS else assignment.deadline",
        after="assignment.deadline",
        tests=(
            "tests/unit/coordinator/episodes/test_late_harnesses.py::"
            "test_a_job_goes_on_beside_harnesses_that_hang_or_ask_too_late",
        ),
    ),
    Mutant(
        name="a turn after tools that said nothing has the length of the next one",
        target="rljob_runtime.simulator.peers.inputs:place_of",
        before="2 if not place or turns[place - 1].tool_tokens else 1",
        after="2",
        tests=(f"{TRACED}::test_a_traced_episode_has_the_turns_and_waits_of_its_workload",),
    ),
    Mutant(
        name="an engine cuts the turns of a traced episode",
        target="rljob_runtime.simulator.peers.traced_harness:TracedScript.most_tokens_of",
        before="1 + max(1, turns[min(turn, len(turns) - 1)].tokens)",
        after="max(1, turns[min(turn, len(turns) - 1)].tokens)",
        tests=(f"{TRACED}::test_a_traced_episode_has_the_turns_and_waits_of_its_workload",),
    ),
)
