"""Mutants of rljob_runtime.training."""

from hack.mutants import Mutant

MUTANTS = (
    Mutant(
        name="the trainer computes in the published format on every device",
        target="rljob_runtime.training.config:TrainingConfig.autocast",
        before="product_dtype(self.dtype, device)",
        after="self.dtype",
        tests=("tests/unit/models/test_product_dtype.py::test_the_trainer_runs_autocast_where_the_processor_has_it",),
    ),
    Mutant(
        name="mode OnPolicy has a cap",
        target="rljob_runtime.training.config:TrainingConfig.from_spec",
        before="algorithm.truncated_importance_sampling.cap if spec.mode is Mode.ASYNCHRONOUS else None",
        after="algorithm.truncated_importance_sampling.cap",
        tests=("tests/unit/training/algorithm/test_loss.py::test_only_an_asynchronous_job_has_a_cap",),
    ),
)
