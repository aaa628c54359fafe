"""What a unit's fork server forks in tests: ranks whose norms compute in the format of the weights."""

from __future__ import annotations

import pytest

from rljob_runtime.training.loans.worker_rank import GradientRank
from tests.support.training.toys import keep_norms_precise

PEER = f"{__name__}:PreciseUnitRank"


class PreciseUnitRank(GradientRank):
    @staticmethod
    def warm_up() -> None:
        GradientRank.warm_up()
        keep_norms_precise(pytest.MonkeyPatch())
