"""Replay: a job whose responses have given lengths and whose weights do not change.

It runs the product's own engines, relays, coordinator and processes, for measuring what rounds cost.

A replica is asked for responses of an exact number of tokens (ends of sequence ignored, PolyTrace §5). The trainer
counts steps and publishes the same weights each time, through the real relays.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch

from rljob_api.status import Member, Role
from rljob_runtime.models.folder import ModelFolder
from rljob_runtime.protocols import (
    Backend,
    Chain,
    ContributeReport,
    ContributionReceipt,
    Delta,
    EngineProfile,
    GenerateRequest,
    KeptEngines,
    KvExport,
    MachinePeers,
    ProfileLimits,
    PublishReport,
    Refused,
    RelayMember,
    Replica,
    ReplicaReport,
    Trainer,
    TrainerState,
    TrainReport,
)
from rljob_runtime.protocols.delegating import DelegatingBackend
from rljob_runtime.protocols.trajectory import FinishReason, Group, PromptKey, TrajectoryKey
from rljob_runtime.relay.publisher import Publisher
from rljob_runtime.workloads import Workload


class Lengths(Protocol):
    """Tokens of responses."""

    def of(self, key: TrajectoryKey, version: int) -> int:
        """Return the tokens of this response if these weights generate it."""
        ...


class ReplayedLengths:
    """Tokens of responses, by a workload.

    A prompt that is launched again, by other weights, is as hard as before, and its responses are new.
    """

    def __init__(self, workload: Workload, most_responses: int) -> None:
        self._workload = workload
        self._most = most_responses
        self._launches: defaultdict[PromptKey, list[int]] = defaultdict(list)
        """The weight versions that answered a prompt."""

    def of(self, key: TrajectoryKey, version: int) -> int:
        """Return the tokens of this response if these weights generate it."""
        versions = self._launches[key.prompt]
        if version not in versions:
            versions.append(version)
        drawn = self._workload.prompt(key.prompt.epoch, key.prompt.index, self._most, versions.index(version))
        return drawn.responses[key.sample].output_tokens


class ReplayingReplica:
    """`protocols.Replica` that asks the one behind it for responses of given lengths."""

    def __init__(self, replica: Replica, lengths: Lengths) -> None:
        self.name = replica.name
        self._replica = replica
        self._lengths = lengths

    async def release_accelerators(self, term: int, tensor_parallel: int) -> KeptEngines:
        return await self._replica.release_accelerators(term, tensor_parallel)

    async def switch_layout(self, term: int, tensor_parallel: int) -> KeptEngines:
        return await self._replica.switch_layout(term, tensor_parallel)

    async def submit(self, term: int, requests: Sequence[GenerateRequest]) -> None:
        await self._replica.submit(term, [self._replayed(request) for request in requests])

    async def abort(self, term: int, attempts: Mapping[TrajectoryKey, int]) -> None:
        await self._replica.abort(term, attempts)

    async def export_kv(self, term: int, attempts: Mapping[TrajectoryKey, int]) -> KvExport:
        return await self._replica.export_kv(term, attempts)

    async def drop_kv(self, term: int) -> None:
        await self._replica.drop_kv(term)

    async def profile(self, term: int, limits: ProfileLimits) -> EngineProfile:
        return await self._replica.profile(term, limits)

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        report = await self._replica.poll(term, after, wait_seconds)
        return replace(report, deltas=tuple(map(self._told, report.deltas)))

    async def load(self, term: int, version: int) -> int:
        return await self._replica.load(term, version)

    def _replayed(self, request: GenerateRequest) -> GenerateRequest:
        tokens = self._lengths.of(request.key, request.weight_version)
        most = min(tokens, request.sampling.max_tokens)
        return replace(request, sampling=replace(request.sampling, max_tokens=most, stop_token_ids=(), ignore_eos=True))

    def _told(self, delta: Delta) -> Delta:
        """Return the delta as if the response had ended itself.

        A response that ends at a limit below the job's own would count as stopped, and the planner would learn almost
        nothing of lengths.
        """
        if delta.finish_reason is not FinishReason.LENGTH:
            return delta
        ended = delta.offset + len(delta.token_ids) == self._lengths.of(delta.key, delta.weight_version)
        return replace(delta, finish_reason=FinishReason.STOP) if ended else delta


class StillTrainer:
    """`protocols.Trainer` of a model that does not learn: an update takes no time and changes nothing.

    `publisher` may have served other jobs before; versions continue to rise.
    """

    def __init__(self, folder: ModelFolder, publisher: Publisher) -> None:
        self._folder = folder
        self._publisher = publisher
        self._step = 0
        self._weights: dict[str, torch.Tensor] | None = None

    async def start(self, term: int) -> TrainerState:
        if self._weights is None:
            self._weights = await asyncio.to_thread(lambda: dict(self._folder.weights()))
        parameters = sum(tensor.numel() for tensor in self._weights.values())
        return TrainerState(self._step, None, parameters, self._folder.model_files(), self._step)

    async def contribute(self, term: int, step: int, groups: Sequence[Group]) -> ContributeReport:
        raise Refused("this trainer computes no gradients")

    async def open_gradient_inboxes(self, term: int, count: int) -> tuple[RelayMember, ...]:
        raise Refused("this trainer computes no gradients")

    async def accept(self, term: int, receipt: ContributionReceipt, groups: Sequence[Group]) -> ContributeReport:
        raise Refused("this trainer computes no gradients")

    async def train(self, term: int, step: int, groups: Sequence[Group]) -> TrainReport:
        if step not in (self._step, self._step + 1):
            raise Refused(f"step {step} is not the next: {self._step} are done")
        self._step = step
        tokens = sum(len(scored.response.token_ids) for group in groups for scored in group.responses)
        return TrainReport(step, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, tokens, 0.0)

    async def publish(self, term: int, version: int, step: int, chain: Chain) -> PublishReport:
        weights = self._weights
        if step != self._step or weights is None:
            raise Refused(f"version {version} of step {step}: {self._step} is at hand")
        report = await asyncio.to_thread(self._publisher.publish, version, weights)
        await asyncio.to_thread(self._publisher.ship, term, chain)
        return report

    async def checkpoint(self, term: int, step: int, coordinator_snapshot: str) -> str:
        # Nothing is written: it lives as long as the run that it belongs to.
        if step != self._step:
            raise Refused(f"step {step} is not at hand: {self._step} is")
        return f"step-{step}"

    async def export(self, term: int) -> str:
        return str(self._folder.path)

    async def save_model(self, term: int, step: int) -> tuple[int, ...]:
        return (step,)

    async def retain_models(self, term: int, keep: Sequence[int] | None) -> tuple[int, ...]:
        return tuple(keep or ())

    async def export_best(self, term: int, step: int) -> str:
        return str(self._folder.path)


class ReplayBackend(DelegatingBackend):
    """The rollout machines of another backend, their replicas replaying, and this trainer."""

    def __init__(self, machines: Backend, trainer: Trainer, lengths: Lengths) -> None:
        super().__init__(machines)
        self._trainer = trainer
        self._lengths = lengths

    async def trainer(self, term: int, members: Sequence[Member]) -> Trainer:
        return self._trainer

    async def has_trainer(self, members: Sequence[Member]) -> bool:
        return True

    async def rollout_machine(self, term: int, member: Member, model_files: dict[str, bytes]) -> MachinePeers:
        found = await super().rollout_machine(term, member, model_files)
        return replace(found, replicas=tuple(ReplayingReplica(replica, self._lengths) for replica in found.replicas))

    async def release(self, member: Member) -> None:
        if member.role is not Role.TRAINER:
            await super().release(member)
