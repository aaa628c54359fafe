"""Mutants of rljob_runtime.training.checkpoint."""

from hack.mutants import Mutant

STORE = "tests/unit/training/checkpoint/test_store.py"
CHECKPOINTS = (
    f"{STORE}::test_an_unfinished_one_does_not_count",
    f"{STORE}::test_an_unfinished_one_alone_is_no_reason_to_stop",
    f"{STORE}::test_a_damaged_one_is_passed_over_and_can_be_written_again",
)

KEPT = "tests/unit/training/checkpoint/test_kept_models.py"

MUTANTS = (
    Mutant(
        name="a checkpoint counts without its marker",
        target="rljob_runtime.training.checkpoint.store:CheckpointStore._marked",
        before="(folder / MARKER).is_file",
        after="folder.is_dir",
        tests=CHECKPOINTS,
        canary=True,
    ),
    Mutant(
        name="a checkpoint's checksum is not looked at",
        target="rljob_runtime.training.checkpoint.store:CheckpointStore._verify",
        before="file_sha256(path) != written.sha256",
        after="False",
        tests=CHECKPOINTS,
    ),
    Mutant(
        name="all models are deleted where they are only listed",
        target="rljob_runtime.training.checkpoint.kept_models:KeptModels.retain",
        before="keep is None or step in keep",
        after="step in (keep or ())",
        tests=(f"{KEPT}::test_models_are_deleted_except_those_to_keep",),
    ),
    Mutant(
        name="the best model is lost while another takes its place",
        target="rljob_runtime.training.checkpoint.kept_models:KeptModels.export",
        before="(partial, old)",
        after="(partial, old, target)",
        tests=(f"{KEPT}::test_an_export_that_fails_leaves_the_earlier_one",),
    ),
)
