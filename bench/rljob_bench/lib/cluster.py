"""A cluster of real size, from shapes and data sheets: what its engines, its trainer and its links take."""

from __future__ import annotations

from dataclasses import dataclass, field

from rljob_runtime.perf_model.hardware import VLLM_NVLINK, Accelerator, Achieved
from rljob_runtime.perf_model.model_shape import ModelShape
from rljob_runtime.perf_model.roofline import memory, roofline
from rljob_runtime.protocols.engine_slots import EngineSlots
from rljob_runtime.protocols.remote import CallTimeouts
from rljob_runtime.simulator.peers.assumptions import STANDARD, Assumptions
from rljob_runtime.simulator.peers.cluster import ClusterSpec
from rljob_runtime.simulator.peers.engines.engine_kind import EngineKind
from rljob_runtime.simulator.peers.engines.profiled_engines import ProfiledEngine, ProfiledEngines
from rljob_runtime.simulator.peers.trainer import TrainerCosts
from rljob_runtime.simulator.scenario import Scenario

MAX_PROMPT_TOKENS = 2048
BEAT_SECONDS = 5.0
SUM_BYTES = 4
"""Of a gradient's raw sum, for each parameter: fp32."""
POLL_SECONDS = 60.0
STREAM_SECONDS = 2.0
"""Real engines tell after every step; what a loan loses by this is generated again."""
ROUND_SECONDS = 6 * 3600.0
"""A round that takes longer has come to a stop."""


@dataclass(frozen=True)
class BenchmarkCluster:
    """The cluster of a benchmark.

    `trainer_accelerators` compute updates: with colocation they are those of the rollout machines. Raises `ValueError`
    where the layout does not fit the model or the machine, `ProfileError` where it was not measured.
    """

    model: ModelShape
    accelerator: Accelerator
    machines: int
    trainer_accelerators: int
    accelerators_per_machine: int = 8
    tensor_parallel: int = 1
    wider: tuple[int, ...] = ()
    """Further tensor parallel sizes that the machines can be laid out with, multiples of the first."""
    achieved: Achieved = VLLM_NVLINK
    assumptions: Assumptions = field(default=STANDARD)
    lendable: bool = False
    """Whether rollout machines can be loaned to training."""
    engines: ProfiledEngines | None = None
    """The measured profile, with every size; None: by the roofline."""

    def __post_init__(self) -> None:
        for size in (self.tensor_parallel, *self.wider):
            self._slots.leading(size)
            self._speed(size)
        if self.machines < 1 or self.trainer_accelerators < 1:
            raise ValueError(
                f"{self.machines} machines and {self.trainer_accelerators} trainer accelerators; 1 or more of each"
            )

    @property
    def _slots(self) -> EngineSlots:
        return EngineSlots(self.accelerators_per_machine, self.tensor_parallel)

    @property
    def weight_bytes(self) -> float:
        """Bytes of one complete version."""
        return self.model.parameters * self.model.dtype_bytes

    def engine(self, tensor_parallel: int | None = None) -> EngineKind:
        """Return the engine of each replica, in the first layout or in another.

        It delivers complete responses: at this size no reader needs them token by token. A machine that may be loaned
        reports its progress, because what it holds continues elsewhere.
        """
        size = tensor_parallel or self.tensor_parallel
        speed = self._speed(size)
        return EngineKind(
            latency=speed.latency,
            kv_tokens=speed.kv_tokens,
            stream_seconds=STREAM_SECONDS if self.lendable else float("inf"),
            load_seconds=self.weight_bytes / size / self.assumptions.load_bandwidth.value,
        )

    def _speed(self, size: int) -> ProfiledEngine:
        if self.engines is not None:
            return self.engines.at(size)
        latency = roofline(self.model, self.accelerator, size, self.achieved)
        return ProfiledEngine(latency, memory(self.model, self.accelerator, size).kv_tokens)

    def site(self) -> ClusterSpec:
        """Return the machines and the links between them."""
        assumed = self.assumptions
        link = assumed.relay_bandwidth.value
        chunks = max(1.0, self.weight_bytes / assumed.relay_chunk.value)
        return ClusterSpec(
            replicas=self._slots.count,
            lendable=self.lendable,
            engine=self.engine(),
            tensor_parallel=self.tensor_parallel,
            wider=tuple((size, self.engine(size)) for size in self.wider),
            layout_seconds=assumed.layout_seconds.value,
            latency=assumed.message_seconds.value,
            hop_seconds=assumed.relay_chunk.value / link + assumed.relay_start_seconds.value,
            transfer_seconds=self.weight_bytes / link + (chunks - 1) * assumed.relay_start_seconds.value,
            bounds=CallTimeouts(),
        )

    def costs(self) -> TrainerCosts:
        """Return the costs of the trainer.

        A token trained on takes 6 flops a parameter, recomputation more. Attention's own flops, some per cent at these
        lengths, are left out.
        """
        assumed = self.assumptions
        flops = self.accelerator.flops * assumed.model_flops_use.value
        token = 6 * self.model.parameters * assumed.recompute_factor.value / flops
        load = assumed.load_bandwidth.value
        return TrainerCosts(
            step=assumed.step_fixed_seconds.value,
            token=token / self.trainer_accelerators,
            loan_start=assumed.layout_seconds.value
            + assumed.unit_start_seconds.value
            + self.weight_bytes / self.accelerators_per_machine / load,
            loaned_token=token / self.accelerators_per_machine,
            bring=self.model.parameters * SUM_BYTES / assumed.relay_bandwidth.value,
            publish=self.weight_bytes / assumed.copy_bandwidth.value,
            checkpoint=self.model.parameters * assumed.optimizer_bytes.value / assumed.checkpoint_bandwidth.value,
        )

    def scenario(self, workload: str, rounds: int, prompts: int, responses: int, cap: int, seed: int = 0) -> Scenario:
        """Return a job of `prompts` x `responses` on it; responses are cut at `cap` tokens.

        Rare polls and heartbeats change no time of a run in which nothing fails: a poll returns when there is an event.
        """
        assumed = self.assumptions
        return Scenario(
            seed=seed,
            machines=self.machines,
            rounds=rounds,
            prompts=prompts,
            responses=responses,
            prompts_an_epoch=rounds * prompts,
            checkpoint_every=rounds,
            site=self.site(),
            costs=self.costs(),
            workload=workload,
            reward_seconds=assumed.reward_seconds.value,
            max_prompt_tokens=MAX_PROMPT_TOKENS,
            max_response_tokens=cap,
            heartbeat_seconds=BEAT_SECONDS,
            poll_seconds=POLL_SECONDS,
            store_seconds=assumed.store_seconds.value,
            patience_seconds=rounds * ROUND_SECONDS,
        )
