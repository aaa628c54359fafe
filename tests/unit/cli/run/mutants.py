"""Mutants of rljob_runtime.cli.run."""

from hack.mutants import Mutant

MUTANTS = (
    Mutant(
        name="a path is relative to the current folder",
        target="rljob_runtime.cli.run.manifest:_localise",
        before="folder.absolute() / Path(source).expanduser()",
        after="Path(source).expanduser()",
        tests=("tests/unit/cli/run/test_manifest.py",),
    ),
    Mutant(
        name="accelerators of the trainer are not counted",
        target="rljob_runtime.cli.run.accelerators:missing_accelerators",
        before="needed <= present",
        after="rollout.machines * rollout.accelerators_per_machine <= present",
        tests=("tests/unit/cli/run/test_accelerators.py",),
    ),
    Mutant(
        name="a run that has not continued tells of no rounds",
        target="rljob_runtime.cli.run.ending:ending",
        before="not result.round and result.weight_version is None and (folder / 'rounds.jsonl').exists()",
        after="False",
        tests=(
            "tests/unit/local/test_mismatch.py::test_a_run_that_is_interrupted_before_it_continued_keeps_its_rounds",
        ),
    ),
    Mutant(
        name="a run that found all rounds done tells of its reward",
        target="rljob_runtime.cli.run.ending:_complete",
        before="not rounds",
        after="False",
        tests=("tests/unit/cli/run/test_command.py::test_the_last_line_of_a_job_and_of_one_that_was_complete_before",),
    ),
    Mutant(
        name="a dry run says nothing of a chat template",
        target="rljob_runtime.cli.run.command:_preview",
        before="job.spec.environments",
        after="False",
        tests=(("tests/unit/cli/run/test_command.py::test_a_dry_run_of_agents_checks_their_template_as_a_run_would"),),
    ),
)
