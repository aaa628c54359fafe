"""Sample writing in a simulated run: a writer that keeps all samples, and what reads them at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from rljob_api.spec.resources import Samples
from rljob_runtime.coordinator.samples.writer import PromptTexts, SampleWriter
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.simulator.invariants.samples import evaluation_sample_faults, sample_faults
from rljob_runtime.simulator.peers.observed_store import InlineStore

T = TypeVar("T")

KEPT_SAMPLES = Samples(per_round="All", keep_rounds=1000)


def _no_advantages(rewards: Sequence[float]) -> list[None]:
    return [None for _ in rewards]


async def _spec() -> Samples:
    return KEPT_SAMPLES


async def inline(work: Callable[[], T], name: str) -> T:
    """Run work that may block: virtual time has no threads."""
    return work()


async def open_writer(folder: Path, store: InlineStore, seed: int, prompts: PromptTexts) -> SampleWriter:
    """Return a writer that keeps all samples in `folder`."""
    writer = SampleWriter(folder, store, seed, _no_advantages, _spec, inline)
    await writer.use(KEPT_SAMPLES)
    writer.use_prompts(prompts)
    return writer


def written_sample_faults(folder: Path, store: Store, store_lost: bool) -> Iterator[tuple[str, str]]:
    """Yield the invariant and the fault of each file that differs from the store's history."""
    for fault in sample_faults(folder, store, store_lost, KEPT_SAMPLES.keep_rounds):
        yield "each round has its samples", fault
    for fault in evaluation_sample_faults(folder, store, store_lost):
        yield "each evaluation has its samples", fault
