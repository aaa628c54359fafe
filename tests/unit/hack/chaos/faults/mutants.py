"""Mutants of hack.chaos.faults."""

from hack.mutants import Mutant

MUTANTS = (
    Mutant(
        name="chaos: a machine that switched before is said to switch",
        target="hack.chaos.faults.in_switch:IN_SWITCH",
        before="fresh = files() - old",
        after="fresh = files()",
        text=True,
        tests=("tests/unit/hack/chaos/faults/test_injector.py::test_a_fault_in_a_switch_waits_for_its_moment",),
    ),
    Mutant(
        name="chaos: KV that is still written is said to be complete",
        target="hack.chaos.faults.in_switch:IN_SWITCH",
        before='what == "writing" or kv_end(path) is not None',
        after="True",
        text=True,
        tests=("tests/unit/hack/chaos/faults/test_injector.py::test_a_fault_in_a_switch_waits_for_its_moment",),
    ),
    Mutant(
        name="chaos: a machine goes on before the job is suspended in its switch",
        target="hack.chaos.faults.switches:SwitchFaults._edited",
        before="self._patch(spec)",
        after="pass",
        tests=(
            "tests/unit/hack/chaos/faults/test_injector.py::test_a_machine_stands_still_in_its_switch_until_the_job_was_hit[switch-suspended-story2]",
        ),
    ),
    Mutant(
        name="chaos: damaged KV is what it was before",
        target="hack.chaos.faults.in_switch:DAMAGE_KV",
        before="file.write(data.translate(inverted))",
        after="file.write(data)",
        text=True,
        tests=(
            "tests/unit/hack/chaos/faults/test_injector.py::test_damaged_kv_is_noticed_and_nothing_else_of_its_file_changes",
        ),
    ),
    Mutant(
        name="chaos: shared memory is filled with what the relay needs",
        target="hack.chaos.faults.in_shared_memory:FILL",
        before="- weights - left",
        after="- left",
        text=True,
        tests=(
            "tests/unit/hack/chaos/faults/test_in_shared_memory.py::test_shared_memory_is_filled_up_to_what_the_relay_needs",
        ),
    ),
    Mutant(
        name="chaos: the program that kills is killed",
        target="hack.chaos.faults.in_pod:RUNNING",
        before="if pid != os.getpid()",
        after="",
        text=True,
        tests=(
            "tests/unit/hack/chaos/faults/test_agent_faults.py::test_a_process_is_killed_by_its_words_and_not_the_one_that_kills",
        ),
    ),
    Mutant(
        name="chaos: a runner's node is cut off with it",
        target="hack.chaos.faults.pod_network:process_of",
        before='"containerd-shim" not in command',
        after="True",
        tests=("tests/unit/hack/chaos/faults/test_pod_network.py::test_a_pods_process_is_found_by_its_control_group",),
    ),
)
