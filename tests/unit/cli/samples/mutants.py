"""Mutants of rljob_runtime.cli.samples."""

from hack.mutants import Mutant

MUTANTS = (
    Mutant(
        name="a page has no samples of evaluations",
        target="rljob_runtime.cli.samples.command:samples",
        before="[] if evaluation is not None or of_source is not None else _evaluated(source)",
        after="[]",
        tests=(
            "tests/unit/cli/samples/test_command.py::test_a_page_has_training_and_all_evaluations_and_the_newest_first",
        ),
    ),
    Mutant(
        name="a page with little room has no samples of evaluations",
        target="rljob_runtime.cli.samples.command:_write_page",
        before="-sample.round",
        after="sample.prompt_id.startswith('evaluation:')",
        tests=(
            "tests/unit/cli/samples/test_command.py::test_a_page_has_training_and_all_evaluations_and_the_newest_first",
        ),
    ),
)
