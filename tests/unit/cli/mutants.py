"""Mutants of rljob_runtime.cli."""

from hack.mutants import Mutant

MUTANTS = (
    Mutant(
        name="a round is predicted as if each size had as many replicas",
        target="rljob_runtime.cli.profile.start:JobRound.start",
        before="rollout.slots // size",
        after="rollout.slots",
        tests=("tests/unit/rollout/profiling/test_profiler.py::test_the_size_to_start_at_is_told_and_written",),
        canary=True,
    ),
    Mutant(
        name="brackets in a message are taken for a style",
        target="rljob_runtime.cli.screen:screen",
        before="markup=False, emoji=False",
        after="",
        tests=("tests/unit/cli/run/test_command.py::test_a_message_is_shown_as_it_is_written_and_in_one_line",),
    ),
    Mutant(
        name="a null is assigned in place of a removal",
        target="rljob_runtime.cli.assignments:_put",
        before="value is None and isinstance(node, dict)",
        after="False",
        tests=("tests/unit/cli/test_assignments.py",),
    ),
    Mutant(
        name="a missing right is not named",
        target="rljob_runtime.cli.cluster:Cluster.ask",
        before="(400, 403, 409, 422)",
        after="(400, 409, 422)",
        tests=("tests/unit/cli/samples/test_pods.py::test_what_stands_in_the_way_has_one_line",),
    ),
    Mutant(
        name="kubectl offers names of files beside the commands of its plug-in",
        target="rljob_runtime.cli.kubectl_complete:main",
        before="NO_FILES if found else FILES",
        after="FILES",
        tests=("tests/unit/cli/test_completion.py::test_kubectl_is_told_when_names_of_files_may_follow",),
    ),
)
