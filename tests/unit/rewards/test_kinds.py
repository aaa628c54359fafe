"""Every kind of reward has its scorer."""

from __future__ import annotations

from rljob_api.spec.rewards import FUNCTION_KINDS, RewardKind
from rljob_runtime.rewards.rules import BUILT_IN


def test_every_kind_that_a_function_computes_names_its_function() -> None:
    own = {RewardKind.CODE, RewardKind.JUDGE, RewardKind.ENVIRONMENT}
    assert set(FUNCTION_KINDS) == set(RewardKind) - own
    assert set(BUILT_IN) == set(FUNCTION_KINDS) - {RewardKind.PYTHON}
