"""Engine factory: builds an engine by its kind. vLLM is imported only for kind VLLM."""

from __future__ import annotations

from rljob_runtime.rollout.engines.base import EngineSettings, SleepableEngine

KINDS = ("VLLM", "Reference")


def make_engine(kind: str, settings: EngineSettings) -> SleepableEngine:
    """Build an engine without weights; this takes seconds. Raises `ValueError` for an unknown kind."""
    if kind == "VLLM":
        from rljob_runtime.rollout.engines.vllm import VllmEngine

        return VllmEngine(settings)
    if kind == "Reference":
        from rljob_runtime.rollout.engines.reference.engine import ReferenceEngine

        return ReferenceEngine(settings)
    raise ValueError(f"spec.rollout.engine: {kind!r} is not one of {', '.join(KINDS)}")
