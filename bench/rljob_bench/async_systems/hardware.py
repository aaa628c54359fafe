"""What a job runs on: replicas, trainer, links, as the seconds that the systems have to pay."""

from __future__ import annotations

from dataclasses import dataclass

from rljob_bench.lib.cluster import BenchmarkCluster
from rljob_runtime.perf_model.engine_simulator import EngineSimulator
from rljob_runtime.perf_model.hardware import H800
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.model_shape import ModelShape
from rljob_runtime.simulator.peers.assumptions import STANDARD

ACCELERATORS_PER_MACHINE = 8


@dataclass(frozen=True)
class Hardware:
    """All replicas alike. Seconds, and tokens in the KV cache of a replica."""

    replicas: int
    latency: LatencyModel
    kv_tokens: int
    token_seconds: float
    """Seconds of the complete trainer for each token trained on."""
    update_seconds: float
    """Seconds of every update, independent of its size."""
    load_seconds: float = 0.0
    """Until a replica has taken weights that are on its machine."""
    stall_seconds: float = 0.0
    """In which the trainer copies new weights out, after each update."""
    broadcast_seconds: float = 0.0
    """From there until every machine has them."""
    max_sequences: int = 1024
    delivery_seconds: float = 0.0
    """Seconds for each token trained on until the ranks have it. They wait, and more ranks wait no less."""

    def engine(self) -> EngineSimulator:
        """Return a new engine with nothing in it."""
        return EngineSimulator(self.latency, self.kv_tokens, self.max_sequences)

    def training(self, tokens: int) -> float:
        """Seconds of an update."""
        return self.update_seconds + self.summing(tokens)

    def summing(self, tokens: int) -> float:
        """Seconds for a part of an update: its tokens come to the ranks, and their gradient is summed."""
        return (self.delivery_seconds + self.token_seconds) * tokens


@dataclass(frozen=True)
class Layout:
    """Accelerators of a job.

    With `trainers` None it is colocated: all generate, then all train. Raises `ValueError` where the split leaves a
    part of a machine, or no accelerator for generation or training.
    """

    model: ModelShape
    accelerators: int
    trainers: int | None
    tensor_parallel: int

    def __post_init__(self) -> None:
        machine = ACCELERATORS_PER_MACHINE
        parts = (self.generating,) if self.trainers is None else (self.generating, self.trainers)
        if any(part < machine or part % machine for part in parts):
            raise ValueError(
                f"{self.accelerators} accelerators, {self.trainers} of them the trainer's; multiples of {machine} for "
                "both parts would be right"
            )

    @property
    def generating(self) -> int:
        """Accelerators that generate."""
        return self.accelerators - (self.trainers or 0)

    @property
    def replicas(self) -> int:
        """Engines."""
        return self.generating // self.tensor_parallel

    def hardware(self) -> Hardware:
        """By data sheets and assumptions. Colocated, the change between the stages costs nothing."""
        machines = self.generating // ACCELERATORS_PER_MACHINE
        cluster = BenchmarkCluster(
            self.model,
            H800,
            machines=machines,
            trainer_accelerators=self.trainers or self.accelerators,
            accelerators_per_machine=ACCELERATORS_PER_MACHINE,
            tensor_parallel=self.tensor_parallel,
        )
        engine, costs, site = cluster.engine(), cluster.costs(), cluster.site()
        apart = self.trainers is not None
        return Hardware(
            self.replicas,
            engine.latency,
            engine.kv_tokens,
            token_seconds=costs.token,
            update_seconds=costs.step,
            load_seconds=engine.load_seconds if apart else 0.0,
            stall_seconds=costs.publish if apart else 0.0,
            broadcast_seconds=site.transfer_seconds + machines * site.hop_seconds if apart else 0.0,
            max_sequences=engine.max_sequences,
            delivery_seconds=STANDARD.delivery_seconds.value,
        )
