"""Mutants of the chains of machines that switch: no machine waits for another one."""

from hack.mutants import Mutant

SWITCHER = "tests/unit/coordinator/on_policy/test_switcher.py"
FAULTS = "tests/unit/coordinator/on_policy/test_switch_faults.py"
CHAINS = "tests/unit/coordinator/on_policy/test_switch_chains.py"
KV = "tests/unit/coordinator/on_policy/test_kv_handover.py"
BESIDE_LOANS = "tests/unit/coordinator/on_policy/test_switches_beside_loans.py"
REPORT = "tests/unit/coordinator/on_policy/test_switch_report.py"

MUTANTS = (
    Mutant(
        name="no machine switches during a loan",
        target="rljob_runtime.coordinator.on_policy.looks:Looks.begin",
        before="self._is_due(OptionalPolicy.SWITCHES, lambda: self._switcher.is_due(done, total))",
        after="not self._loans.loaned and self._switcher.is_due(done, total)",
        tests=(f"{BESIDE_LOANS}::test_a_machine_switches_beside_a_loan_and_the_loan_goes_on",),
    ),
    Mutant(
        name="a loan ends because the last other machine switches",
        target="rljob_runtime.coordinator.on_policy.generation:Generation._launch",
        before="not names and self._loans.loaned and not self.switcher.under_way()",
        after="not names and self._loans.loaned",
        tests=(f"{BESIDE_LOANS}::test_a_machine_switches_beside_a_loan_and_the_loan_goes_on",),
    ),
    Mutant(
        name="a refused export has no reason",
        target="rljob_runtime.coordinator.on_policy.kv_handover:KvHandovers._export",
        before="refused[replica.name] = receipt.refusal",
        after="pass",
        tests=(f"{KV}::test_a_switch_without_a_file_computes_again_and_tells_why",),
    ),
    Mutant(
        name="a build counts as a gain that was missed",
        target="rljob_runtime.coordinator.on_policy.switch_report:predicted_gain",
        before="decision.gain - decision.unpaid_in_round",
        after="decision.gain",
        tests=(f"{REPORT}::test_gains_are_summed_over_switches_that_have_both",),
    ),
    Mutant(
        name="gains that were not measured are summed",
        target="rljob_runtime.coordinator.on_policy.switch_report:_gains",
        before="told is not None and measured is not None",
        after="told is not None",
        tests=(f"{REPORT}::test_gains_are_summed_over_switches_that_have_both",),
    ),
    Mutant(
        name="a stage waits while a machine writes its KV",
        target="rljob_runtime.coordinator.on_policy.stops:Stops.apply",
        before="self._stop_in_background(switch)",
        after="await self._stop_machine(switch, self.switcher.stopping[machine], self._running_on({machine}))",
        tests=(
            f"{CHAINS}::test_nothing_waits_while_a_machine_writes_its_kv",
            f"{CHAINS}::test_machines_of_one_look_switch_each_by_itself",
        ),
    ),
    Mutant(
        name="a machine that stops is given responses",
        target="rljob_runtime.coordinator.on_policy.generation:Generation._launchable",
        before="self._loans.loaned | self.switcher.stopping.keys()",
        after="self._loans.loaned",
        tests=(f"{CHAINS}::test_newcomers_do_not_wait_for_a_machine_that_writes",),
    ),
    Mutant(
        name="an interruption loses what a machine that stops has made",
        target="rljob_runtime.coordinator.on_policy.stops:Stops.everything",
        before="await asyncio.wait(self._stopping)",
        after="pass",
        tests=(f"{CHAINS}::test_an_interruption_waits_for_an_export_and_loses_no_token",),
    ),
    Mutant(
        name="KV files that were written after the round's end are kept",
        target="rljob_runtime.coordinator.on_policy.kv_handover:KvHandovers._export",
        before="self._closed",
        after="False",
        tests=(f"{CHAINS}::test_a_round_that_ends_while_a_machine_writes_does_not_wait_for_it",),
    ),
    Mutant(
        name="KV files are dropped while their responses still stop",
        target="rljob_runtime.coordinator.on_policy.kv_handover:KvHandovers._export",
        before="self._written[switch.machine] = _Handover(switch, machine, nbytes, files)",
        after="self._open[switch.machine] = _Handover(switch, machine, nbytes, files)",
        tests=(
            f"{CHAINS}::test_machines_of_one_look_switch_each_by_itself",
            f"{KV}::test_responses_of_a_machine_that_switches_go_on_with_their_kv",
        ),
    ),
    Mutant(
        name="a machine that never stops holds the round",
        target="rljob_runtime.coordinator.on_policy.kv_handover:KvHandovers.stop",
        before="asyncio.timeout(stop_bound(switch))",
        after="asyncio.timeout(None)",
        tests=(f"{CHAINS}::test_a_machine_that_does_not_stop_is_lost_and_holds_back_no_other",),
    ),
    Mutant(
        name="the wait for a place in an engine counts as prefill",
        target="rljob_runtime.coordinator.on_policy.switcher:Switcher.record_stats",
        before="pending[1].record_full(replica)",
        after="pass",
        tests=(
            (
                "tests/unit/coordinator/on_policy/test_kv_handover.py"
                "::test_a_prefill_in_several_passes_is_measured_to_its_end"
            ),
        ),
    ),
    Mutant(
        name="responses of a machine that switches leave the race",
        target="rljob_runtime.coordinator.on_policy.generation:Generation._look",
        before="expected.replicas",
        after="dict.fromkeys(expected.replicas, '')",
        tests=(f"{SWITCHER}::test_what_waits_for_a_switch_does_not_count_on_other_machines",),
    ),
    Mutant(
        name="a restarted coordinator forgets the switches of its round",
        target="rljob_runtime.coordinator.on_policy.switcher:Switcher.__init__",
        before="opened.layout.switches",
        after="{}",
        tests=(f"{REPORT}::test_a_restarted_coordinator_counts_the_switches_of_its_round",),
    ),
    Mutant(
        name="a switch that ends as its stage is interrupted is forgotten",
        target="rljob_runtime.coordinator.on_policy.generation:Generation.run",
        before="await self._record_layouts()",
        after="pass",
        tests=(f"{REPORT}::test_a_switch_that_ends_as_its_stage_is_interrupted_counts",),
    ),
    Mutant(
        name="a refused switch is stored with the next change of a size only",
        target="rljob_runtime.coordinator.on_policy.generation:Generation._record_layouts",
        before="changes or switches != self.layout.switches",
        after="changes",
        tests=(f"{REPORT}::test_a_restarted_coordinator_counts_the_switches_of_its_round[refused]",),
    ),
    Mutant(
        name="losers of a race wait for the KV of their machine, and the round with them",
        target="rljob_runtime.coordinator.on_policy.generation:Generation._abort_losers",
        before="self._pool.drop(aborts)",
        after="self._pool.abort(aborts)",
        tests=(f"{KV}::test_a_round_goes_on_while_a_machine_takes_its_kv[tail1]",),
    ),
)
