"""Mutants of rljob_runtime.samples."""

from hack.mutants import Mutant

MUTANTS = (
    Mutant(
        name="the best responses are the worst",
        target="rljob_runtime.samples.choice:choose",
        before="-_reward(candidates[place])",
        after="_reward(candidates[place])",
        canary=True,
        tests=("tests/unit/samples/test_choice.py::test_who_is_kept",),
    ),
    Mutant(
        name="an abandoned round keeps its file",
        target="rljob_runtime.samples.round_files:RoundFiles.write_lines",
        before="other > number or other < oldest",
        after="other < oldest",
        tests=("tests/unit/samples/test_files.py::test_old_and_abandoned_rounds_are_deleted",),
    ),
    Mutant(
        name="a model's text is markup in the page",
        target="rljob_runtime.samples.page:page",
        before='f\'{head[:-1]}, "samples": [{", ".join(kept)}]}}\'.translate(_ESCAPES)',
        after='f\'{head[:-1]}, "samples": [{", ".join(kept)}]}}\'',
        tests=("tests/unit/samples/test_page.py::test_texts_are_data_and_come_back_as_they_were",),
    ),
    Mutant(
        name="a turn that goes on from the beginning does not say so",
        target="rljob_runtime.samples.episode:_plain",
        before='held not in (None, "", [], {})',
        after="held",
        tests=("tests/unit/samples/test_episode.py::test_an_episode_is_read_back_as_it_was",),
    ),
    Mutant(
        name="an exported trace has no filter",
        target="rljob_runtime.samples.lengths:export",
        before='row["kept"]',
        after="True",
        tests=("tests/unit/samples/test_lengths.py::test_what_is_written_is_read_back",),
    ),
    Mutant(
        name="a terminal follows a model's control characters",
        target="rljob_runtime.samples.visible:_hidden",
        before='("Cc", "Cf", "Cs", "Co")',
        after='("Cf", "Cs", "Co")',
        tests=("tests/unit/samples/test_visible.py",),
    ),
    Mutant(
        name="samples of rare evaluations are deleted by their rounds",
        target="rljob_runtime.samples.files:EvaluationSampleFolder.oldest",
        before="rounds[-keep:][0]",
        after="rounds[-1] - keep + 1",
        tests=("tests/unit/coordinator/evaluation/test_samples.py::test_the_newest_files_of_each_evaluation_stay",),
    ),
    Mutant(
        name="an episode of an evaluation has no texts",
        target="rljob_runtime.samples.files:all_folders",
        before="[SampleFolder(job), *_of_evaluations(job).values()]",
        after="[SampleFolder(job)]",
        tests=(
            "tests/unit/cli/episodes/test_command.py::test_an_attempt_of_an_evaluation_has_the_texts_of_its_sample",
        ),
    ),
)
