"""Profiled engines: engines as `rljob profile` measured them, in place of the roofline's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rljob_runtime.perf_model.fitting import fit
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.model_shape import ModelShape
from rljob_runtime.perf_model.profile import Profile, ProfileError

ENGINE = "VLLM"
"""The engine whose speed the roofline predicts; only its profiles can replace it."""


@dataclass(frozen=True)
class ProfiledEngine:
    """Engine of one layout. `kv_tokens`: capacity of the KV cache."""

    latency: LatencyModel
    kv_tokens: int


@dataclass(frozen=True)
class ProfiledEngines:
    """Engines by TP size. `source`: what was measured, on what hardware."""

    source: str
    sizes: Mapping[int, ProfiledEngine]

    @classmethod
    def of(cls, profile: Profile, model: ModelShape) -> ProfiledEngines:
        """Fit all layouts of the profile. Raises `ProfileError` for another model or engine, or too few samples."""
        profile.check_engine(model, ENGINE)
        subject = profile.subject
        fits = {size: fit(profile, size) for size in profile.tensor_parallel_sizes}
        return cls(
            f"{subject.model.name} on {subject.engine} {subject.engine_version}, {subject.hardware}",
            {size: ProfiledEngine(fitted.latency, fitted.kv_tokens) for size, fitted in fits.items()},
        )

    def at(self, tensor_parallel: int) -> ProfiledEngine:
        """Return the engine of this layout. Raises `ProfileError` if it was not measured."""
        if tensor_parallel not in self.sizes:
            known = ", ".join(map(str, sorted(self.sizes))) or "none"
            raise ProfileError(
                f"profile.kv_tokens: tensor parallel size {tensor_parallel} is wanted, measured: {known}; "
                f"a profile with this size would be right (`rljob profile --tensor-parallel {tensor_parallel}`)"
            )
        return self.sizes[tensor_parallel]
