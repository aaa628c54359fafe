"""Engines as a profile measured them (`rljob profile`), in place of the roofline's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rljob_runtime.perf_model.fitting import fit
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.model_shape import ModelShape
from rljob_runtime.perf_model.profile import Profile, ProfileError

ENGINE = "VLLM"
"""Whose speed the roofline foretells, and so whose profile can take its place."""


@dataclass(frozen=True)
class ProfiledEngine:
    """Of one layout. `kv_tokens`: capacity of the KV cache."""

    latency: LatencyModel
    kv_tokens: int


@dataclass(frozen=True)
class ProfiledEngines:
    """`sizes`: by tensor parallel size. `source`: what was measured, and on what."""

    source: str
    sizes: Mapping[int, ProfiledEngine]

    @classmethod
    def of(cls, profile: Profile, model: ModelShape) -> ProfiledEngines:
        """All layouts of the profile. Raises `ProfileError` where it is of another model or engine, or too small for a
        law."""
        profile.check_engine(model, ENGINE)
        subject = profile.subject
        fits = {size: fit(profile, size) for size in profile.tensor_parallel_sizes}
        return cls(
            f"{subject.model.name} on {subject.engine} {subject.engine_version}, {subject.hardware}",
            {size: ProfiledEngine(fitted.latency, fitted.kv_tokens) for size, fitted in fits.items()},
        )

    def at(self, tensor_parallel: int) -> ProfiledEngine:
        """Of this layout. Raises `ProfileError` where it was not measured."""
        if tensor_parallel not in self.sizes:
            known = ", ".join(map(str, sorted(self.sizes))) or "none"
            raise ProfileError(
                f"profile.kv_tokens: tensor parallel size {tensor_parallel} is wanted, measured: {known}; "
                f"a profile with this size would be right (`rljob profile --tensor-parallel {tensor_parallel}`)"
            )
        return self.sizes[tensor_parallel]
