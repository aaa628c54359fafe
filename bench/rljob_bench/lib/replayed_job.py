"""A benchmark's job of replayed lengths (see `replay`): its manifest, and how it is played to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_api import RLJob, load
from rljob_api.status import FinishedOutcome, RLJobStatus, RuntimeStatus
from rljob_runtime.coordinator.build import Folders, run_job
from rljob_runtime.coordinator.coordinator import Coordinator
from rljob_runtime.coordinator.inputs import LazyRewards
from rljob_runtime.coordinator.loop.context import RoundObserver
from rljob_runtime.local.control_plane import LocalControlPlane
from rljob_runtime.protocols import Backend
from rljob_runtime.ray_backend.actors import ActorPlacement
from rljob_runtime.scheduling.layouts.layout_switch import SwitchPolicy
from rljob_runtime.training.spec_advantages import advantages_of
from rljob_runtime.workloads import Generator, Workload, parameters
from rljob_runtime.workloads.scaled import Scaled

GENERATOR = "dapo-32b"
STAND_INS = {
    "trainer": "publishes the same weights each round by the real relays; an update takes no time",
    "rewards": "Python, has_number: 1 for a text with a number; no model is trained for it",
    "lengths": "replayed: ends of sequence ignored, as many tokens as the workload says",
}
MAX_PROMPT_TOKENS = 128
SHORT_SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2, "operators": ["+"]}
"""Responses are scaled down, so prompts must be short, or their prefill is most of a round."""


@dataclass(frozen=True)
class Sizes:
    """`rounds` of `prompts` x `responses` on `machines` engines.

    The longest response of the workload has `longest` tokens here.
    """

    model: str
    engine: str
    dtype: str
    machines: int
    rounds: int
    prompts: int
    responses: int
    longest: int
    concurrent: int
    """Requests at a time on an engine."""


def replayed_job(name: str, sizes: Sizes, seed: int, version: int, **spec: Any) -> RLJob:
    """Return the job as it would be applied, with `spec` added.

    `version`: of weights that are in the relays from jobs before.
    """
    job = load(
        {
            "apiVersion": "rljob.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": name, "uid": name},
            "spec": {
                "rounds": sizes.rounds,
                "model": {"source": sizes.model, "dtype": sizes.dtype},
                "data": {
                    "prompts": {"reasoningGym": {"task": "basic_arithmetic", "size": 2000, "config": SHORT_SUMS}},
                    "systemPrompt": "Add.",
                    "maxPromptTokens": MAX_PROMPT_TOKENS,
                    "maxResponseTokens": sizes.longest,
                    "seed": seed,
                },
                "rewards": [
                    {"name": "number", "kind": "Python", "function": "rljob_runtime.rewards.builtin:has_number"}
                ],
                "algorithm": {
                    "promptsPerRound": sizes.prompts,
                    "responsesPerPrompt": sizes.responses,
                    "maxTokensPerMicrobatch": MAX_PROMPT_TOKENS + sizes.longest,
                },
                "rollout": {
                    "machines": sizes.machines,
                    "engine": sizes.engine,
                    "engineOptions": {"maxConcurrentRequests": sizes.concurrent, "kvCacheBytes": "512Mi"},
                },
                # A machine that is busy is no machine that is lost.
                "relay": {"heartbeatSeconds": 2, "rebuildTimeoutSeconds": 60},
                "checkpoint": {"emptyDir": {}, "everyRounds": sizes.rounds},
                **spec,
            },
        }
    )
    runtime = RuntimeStatus(weight_version=version) if version else None
    return job.model_copy(update={"status": RLJobStatus(runtime=runtime)})


@dataclass(frozen=True)
class Steering:
    """What a benchmark puts in place of a job's own parts, and what it is given of them."""

    control: LocalControlPlane | None = None
    switch_policy: SwitchPolicy | None = None
    on_start: Callable[[Coordinator], None] = lambda coordinator: None


async def play_replayed(
    job: RLJob,
    what: str,
    backend: Backend,
    placement: ActorPlacement,
    term: int,
    observers: Sequence[RoundObserver],
    steering: Steering = Steering(),  # noqa: B008
) -> RuntimeStatus:
    """One job to its end. Raises `RuntimeError`, which says `what` it was, where it fails: then there is no figure."""
    control = steering.control or LocalControlPlane(job, lambda status: None)
    folders = Folders(placement.volume / f"job-{term}", placement.scratch)
    folders.state.mkdir()
    finished = await run_job(
        job,
        LazyRewards(job.spec),
        control,
        backend,
        folders,
        term,
        advantages_of(job.spec),
        observers=observers,
        on_start=steering.on_start,
        switch_policy=steering.switch_policy,
    )
    if finished is None or finished.outcome is not FinishedOutcome.COMPLETE:
        raise RuntimeError(f"{what}: {finished.message if finished else 'interrupted'}")
    return control.status.runtime or RuntimeStatus()


def generated_lengths(seed: int, longest: int) -> Workload:
    """DAPO-like lengths, the longest of them of so many tokens."""
    made = Generator(parameters(GENERATOR), seed)
    return Scaled(made, round(made.parameters.output_tokens.values[-1]), longest)
