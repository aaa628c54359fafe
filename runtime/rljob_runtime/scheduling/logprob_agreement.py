"""Whether trainer and engine compute the same distribution: asked once, of the first round that is trained on policy.

There both have the same weights, so their log-probabilities differ by rounding. A difference as large as below means
another attention, another template of weights, or a wrong temperature: the job would train on other numbers than its
responses were drawn with, and complete.
"""

from __future__ import annotations

LARGEST_MISMATCH = 0.1
"""Nats a token. Ratios of trainer to engine are then typically 1.5 or 0.6: the clip has cut most of the gradient.
Engines in bfloat16 are at 0.001, experts that rounding chooses at 0.01."""


def engine_mismatch(kl: float) -> str | None:
    """Why a job must not go on whose first round has this KL of the sampler to the trainer; None where it may."""
    if kl <= LARGEST_MISMATCH:
        return None
    return (
        f"the engine's log-probabilities are not the trainer's: their KL is {kl:.3g} a token in the first round, and "
        f"{LARGEST_MISMATCH:g} is the most that rounding explains. Training on them would be on other numbers than "
        "what was sampled. Another spec.rollout.engine, other engineOptions or another spec.model would be right"
    )
