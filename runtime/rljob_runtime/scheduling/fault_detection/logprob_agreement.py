"""Log-probability agreement: check that trainer and engine compute the same distribution.

The check runs once, on the first round that is trained on policy. Both have the same weights there, so their
log-probabilities differ by rounding only. A large difference means another attention, another weight layout or a wrong
temperature: the job would complete, but train on wrong numbers.
"""

from __future__ import annotations

LARGEST_MISMATCH = 0.1
"""Nats per token. Ratios of trainer to engine are then typically 1.5 or 0.6, and the clip removes most of the gradient.
Engines in bfloat16 reach 0.001; experts that rounding selects reach 0.01."""


def engine_mismatch(kl: float) -> str | None:
    """Return why a job whose first round has this KL (sampler to trainer) must stop; None if it may continue."""
    if kl <= LARGEST_MISMATCH:
        return None
    return (
        f"the engine's log-probabilities are not the trainer's: their KL is {kl:.3g} a token in the first round, and "
        f"{LARGEST_MISMATCH:g} is the most that rounding explains. Training on them would be on other numbers than "
        "what was sampled. Another spec.rollout.engine, other engineOptions or another spec.model would be right"
    )
