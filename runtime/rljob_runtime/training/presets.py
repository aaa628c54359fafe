"""Presets: the parts of each kind of algorithm.

A kind is a row of this table. A field of the spec overrides the part of its name. Sources: GRPO (DeepSeekMath, 2024),
Dr. GRPO (Liu et al. 2025), RLOO (Ahmadian et al. 2024), DAPO (Yu et al. 2025), GSPO (Zheng et al. 2025), CISPO
(MiniMax-M1, 2025; bound of ScaleRL).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from rljob_api.spec.algorithm import (
    AdvantageBaseline,
    Algorithm,
    AlgorithmKind,
    Clipping,
    ImportanceRatio,
    LossAggregation,
)

UNBOUNDED = 1.0
"""clip_low that bounds no ratio: ratios are above 1 - 1."""


@dataclass(frozen=True)
class Parts:
    """The parts of an algorithm. Each has the name of its field in `Algorithm`."""

    advantage_baseline: AdvantageBaseline = AdvantageBaseline.GROUP_MEAN
    normalize_advantages_by_std: bool = True
    importance_ratio: ImportanceRatio = ImportanceRatio.TOKEN
    clipping: Clipping = Clipping.OBJECTIVE
    clip_low: float = 0.2
    clip_high: float = 0.2
    loss_aggregation: LossAggregation = LossAggregation.TOKEN_MEAN


PRESETS: dict[AlgorithmKind, Parts] = {
    AlgorithmKind.GRPO: Parts(loss_aggregation=LossAggregation.SEQUENCE_MEAN),
    AlgorithmKind.DR_GRPO: Parts(normalize_advantages_by_std=False, loss_aggregation=LossAggregation.FIXED_LENGTH),
    AlgorithmKind.RLOO: Parts(
        advantage_baseline=AdvantageBaseline.LEAVE_ONE_OUT,
        normalize_advantages_by_std=False,
        loss_aggregation=LossAggregation.SEQUENCE_SUM,
    ),
    AlgorithmKind.DAPO: Parts(clip_high=0.28),
    AlgorithmKind.GSPO: Parts(
        importance_ratio=ImportanceRatio.SEQUENCE,
        clip_low=3e-4,
        clip_high=4e-4,
        loss_aggregation=LossAggregation.SEQUENCE_MEAN,
    ),
    AlgorithmKind.CISPO: Parts(clipping=Clipping.WEIGHT, clip_low=UNBOUNDED, clip_high=4.0),
}


def parts_of(algorithm: Algorithm) -> Parts:
    """Return the parts of the kind, with the fields that the spec sets in their place."""
    preset = PRESETS[algorithm.kind]
    chosen = {field.name: getattr(algorithm, field.name) for field in fields(Parts)}
    return Parts(**{name: getattr(preset, name) if value is None else value for name, value in chosen.items()})
