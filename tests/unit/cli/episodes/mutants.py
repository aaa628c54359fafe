"""Mutants of rljob_runtime.cli.episodes."""

from hack.mutants import Mutant

MUTANTS = (
    Mutant(
        name="a turn above a fork is new in each trajectory",
        target="rljob_runtime.cli.episodes.atif:atif_documents",
        before="told |= {node.id for node in path if node.is_sampled}",
        after="",
        tests=("tests/unit/cli/episodes/test_command.py::test_each_sampled_token_is_in_one_step_that_is_no_copy",),
    ),
)
