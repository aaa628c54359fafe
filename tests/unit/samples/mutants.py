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
        target="rljob_runtime.samples.files:SampleFolder.write",
        before="other > number or other <= number - keep",
        after="other <= number - keep",
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
        name="a terminal follows a model's control characters",
        target="rljob_runtime.samples.visible:_hidden",
        before='("Cc", "Cf", "Cs", "Co")',
        after='("Cf", "Cs", "Co")',
        tests=("tests/unit/samples/test_visible.py",),
    ),
)
