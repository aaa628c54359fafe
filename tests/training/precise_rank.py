"""What a unit's fork server forks in tests: ranks whose norms compute in the format of the weights."""

from __future__ import annotations

import pytest
from training_toys import keep_norms_precise

from rljob_runtime.training.loans.worker_rank import GradientRank

PEER = "precise_rank:PreciseUnitRank"


class PreciseUnitRank(GradientRank):
    @staticmethod
    def warm_up() -> None:
        GradientRank.warm_up()
        keep_norms_precise(pytest.MonkeyPatch())
