"""A whole asynchronous job of which the test knows all: how long each response is, what the weights of each version
are, what went to and from every replica."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rljob_api import RLJob, load
from rljob_api.status import Finished, RoundReport
from rljob_bench.lib.recorded_peers import Event, RecordedBackend
from rljob_bench.lib.replay import ReplayBackend, ReplayingReplica, StillTrainer
from rljob_bench.lib.replayed_job import SHORT_SUMS
from rljob_runtime.coordinator.asynchronous import repack
from rljob_runtime.coordinator.build import Folders, run_job
from rljob_runtime.coordinator.inputs import LazyRewards
from rljob_runtime.local.control_plane import LocalControlPlane
from rljob_runtime.local.run import local_places
from rljob_runtime.models.folder import ModelFolder
from rljob_runtime.models.toy import VOCABULARY, toy_tokenizer
from rljob_runtime.protocols import GenerateRequest, MachinePeers
from rljob_runtime.protocols.remote import CallTimeouts, RemoteRelay, RemoteReplica
from rljob_runtime.protocols.trajectory import Group, TrajectoryKey
from rljob_runtime.ray_backend.actors import ActorPlacement, make_relay, make_replica
from rljob_runtime.ray_backend.backend import RayBackend
from rljob_runtime.ray_backend.local_ray import local_ray
from rljob_runtime.relay.publisher import Publisher
from rljob_runtime.relay.relay import read_key
from rljob_runtime.relay.segment import SHARED_MEMORY
from rljob_runtime.relay.settings import RelaySettings
from rljob_runtime.scheduling.asynchronous.repack_gain import merges_that_fit
from rljob_runtime.training.spec_advantages import advantages_of

LONG, SHORT = 700, 20
"""Tokens: a replica is through with its short responses before it has looked twice, and its long one runs on for many
looks."""
CONTEXT = 1024
UPDATES, PROMPTS, RESPONSES = 8, 4, 4
PATIENT = CallTimeouts(command=300, poll=300, heartbeat=60)
"""A machine that is busy is no machine that is lost."""


def small_model(folder: Path) -> ModelFolder:
    """Random weights, wide enough that the distributions are far from flat; characters are its tokens."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        # With tied ones the likeliest token is the last one again.
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(1)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.07)
    model.save_pretrained(folder)
    toy_tokenizer().save_pretrained(folder)
    return ModelFolder.open(folder)


def job(engine: str, model: Path) -> RLJob:
    """Three replicas; all that is begun is trained on, so every response that moves comes to its end."""
    return load(
        {
            "apiVersion": "rljob.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": "repack", "uid": "repack"},
            "spec": {
                "mode": "Asynchronous",
                "rounds": UPDATES,
                "model": {"source": str(model), "dtype": "float32"},
                "data": {
                    "prompts": {"reasoningGym": {"task": "basic_arithmetic", "size": 200, "config": SHORT_SUMS}},
                    "chatTemplate": False,
                    "maxPromptTokens": 128,
                    "maxResponseTokens": LONG,
                    "seed": 1,
                },
                "rewards": [
                    {"name": "number", "kind": "Python", "function": "rljob_runtime.rewards.builtin:has_number"}
                ],
                "algorithm": {"promptsPerRound": PROMPTS, "responsesPerPrompt": RESPONSES},
                "experience": {"maxPrompts": 2 * PROMPTS},
                # Of its eight responses two are long: with three left a replica is in its tail.
                "repack": {"enabled": True, "intervalSeconds": 0.2, "maxBatch": 4},
                "rollout": {"machines": 3, "engine": engine, "engineOptions": {"kvCacheBytes": "64Mi"}},
                "relay": {"heartbeatSeconds": 10, "rebuildTimeoutSeconds": 60},
                "checkpoint": {"emptyDir": {}, "everyRounds": UPDATES},
            },
        }
    )


class Lengths:
    """Every prompt has one long response: replicas are in their tails most of the time, and so together."""

    def of(self, key: TrajectoryKey, version: int) -> int:
        return LONG if key.sample == 0 else SHORT


def is_greedy(key: TrajectoryKey) -> bool:
    """Two thirds of the prompts are answered greedily."""
    return key.prompt.index % 3 != 1


class _Replaying(ReplayingReplica):
    def _replayed(self, request: GenerateRequest) -> GenerateRequest:
        asked = super()._replayed(request)
        return replace(asked, sampling=replace(asked.sampling, temperature=0.0)) if is_greedy(request.key) else asked


class _Binding(ReplayBackend):
    stop: Callable[[], None]

    async def rollout_machine(self, term: int, member: Any, model_files: dict[str, bytes]) -> MachinePeers:
        found = await self._backend.rollout_machine(term, member, model_files)
        return replace(found, replicas=tuple(_Replaying(replica, self._lengths) for replica in found.replicas))

    async def release(self, member: Any) -> None:
        """Nothing fails in these jobs: one that loses a machine is not worth waiting for."""
        self.stop()
        await super().release(member)


class DriftingTrainer(StillTrainer):
    """Its weights are others after each update, and it remembers all: those of every version, and what it was given."""

    def __init__(self, folder: ModelFolder, publisher: Publisher) -> None:
        super().__init__(folder, publisher)
        self._first = dict(folder.weights())
        self.versions: dict[int, dict[str, torch.Tensor]] = {}
        self.groups: list[Group] = []

    async def publish(self, term: int, version: int, step: int, chain: Any) -> Any:
        random = torch.Generator().manual_seed(step)
        self._weights = self.versions[version] = {
            name: tensor + 0.01 * torch.randn(tensor.shape, generator=random) for name, tensor in self._first.items()
        }
        return await super().publish(term, version, step, chain)

    async def train(self, term: int, step: int, groups: Any) -> Any:
        self.groups += groups
        return await super().train(term, step, groups)


class _Wire:
    def __init__(self, peer: Any) -> None:
        self._peer = peer

    async def call(self, timeout: float, method: str, *arguments: Any) -> Any:
        return await getattr(self._peer, method)(*arguments)


class _InProcess:
    """The rollout machines of a `Backend`, in threads of this process."""

    def __init__(self, job: RLJob, placement: ActorPlacement) -> None:
        self._job = job
        self._placement = placement
        self.peers: list[Any] = []

    async def rollout_machine(self, term: int, member: Any, model_files: dict[str, bytes]) -> MachinePeers:
        relay = make_relay(self._job, member, self._placement)
        replica = make_replica(self._job, member, self._placement, "replica-0", model_files)
        self.peers += [relay, replica]
        remote = RemoteReplica(f"{member.machine}/replica-0", _Wire(replica), PATIENT)
        return MachinePeers(member, RemoteRelay(member.machine, _Wire(relay), PATIENT), (remote,))

    async def release(self, member: Any) -> None:
        return


@contextlib.asynccontextmanager
async def _machines(job: RLJob, placement: ActorPlacement) -> AsyncIterator[Any]:
    if job.spec.rollout.engine == "VLLM":
        # Engines of vLLM share what is global in a process.
        yield RayBackend(job, placement, resource_of=lambda member: member.machine, timeouts=PATIENT)
        return
    machines = _InProcess(job, placement)
    yield machines
    for peer in machines.peers:
        closed = peer.close()
        if asyncio.iscoroutine(closed):
            await closed


@contextlib.contextmanager
def _ray(job: RLJob) -> Iterator[None]:
    with local_ray(job) if job.spec.rollout.engine == "VLLM" else contextlib.nullcontext():
        yield


@dataclass
class Played:
    """`history`: see `recorded_peers`. `store`: the job's folder with its store."""

    folder: ModelFolder
    store: Path
    history: list[Event] = field(default_factory=list)
    reports: list[RoundReport] = field(default_factory=list)
    versions: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    groups: list[Group] = field(default_factory=list)
    finished: Finished | None = None

    def model(self, version: int) -> LlamaForCausalLM:
        """What the trainer held when it published this version."""
        model: LlamaForCausalLM = LlamaForCausalLM(self.folder.config).eval()
        model.load_state_dict(self.versions[version])
        return model


def play_job(engine: str, folder: Path) -> Played:
    """The job, to its end."""
    model = small_model(folder / "model")
    manifest = job(engine, model.path)
    with (
        local_places(folder, SHARED_MEMORY / f"rljob-{folder.parent.name}-{folder.name}") as placement,
        _ray(manifest),
        # On these engines most moves cost time. What a move does to responses is the question here.
        patch.object(repack, "merges_that_pay", merges_that_fit),
    ):
        return asyncio.run(_play(manifest, model, placement))


async def _play(job: RLJob, model: ModelFolder, placement: ActorPlacement) -> Played:
    played = Played(model, placement.volume)
    settings = RelaySettings.of(job.spec.relay)
    clock = asyncio.get_running_loop().time
    shared = placement.shared_memory / "trainer-0"
    with Publisher(shared, read_key(placement.relay_key), settings, torch.float32) as publisher:
        async with _machines(job, placement) as machines:
            trainer = DriftingTrainer(model, publisher)
            replaying = _Binding(machines, trainer, Lengths())
            backend = RecordedBackend(replaying, played.history, clock)
            played.finished = await run_job(
                job,
                LazyRewards(job.spec),
                LocalControlPlane(job, lambda status: None),
                backend,
                Folders(placement.volume, placement.scratch),
                term=1,
                advantages=advantages_of(job.spec),
                observers=[lambda report, trained: played.reports.append(report)],
                on_start=lambda coordinator: setattr(replaying, "stop", coordinator.stop),
            )
    played.versions, played.groups = trainer.versions, trainer.groups
    return played
