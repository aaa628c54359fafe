"""Assumptions: everything that a simulated cluster assumes without a measurement, with sources.

Engine latencies come from a profile (`engines.profiled_engines`), or from `perf_model.hardware` and its calibration.
Lengths come from a workload; recorded reward times and filters of a trace are not replayed. Simulated metrics depend
on these assumptions: benchmarks print them, and vary those that matter.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from rljob_runtime.perf_model.hardware import H800, Accelerator
from rljob_runtime.perf_model.model_shape import QWEN2_5_7B, QWEN2_5_14B, QWEN2_5_32B, QWEN2_5_72B, ModelShape
from rljob_runtime.simulator.peers.engines.profiled_engines import ProfiledEngines

MEGA, GIGA = 1e6, 1e9


@dataclass(frozen=True)
class Assumption:
    """A number with its unit and source."""

    value: float
    unit: str
    source: str


@dataclass(frozen=True)
class Assumptions:
    """The standard assumptions; `dataclasses.replace` makes others."""

    # Training.
    model_flops_use: Assumption = Assumption(
        0.30, "share of peak flops", "assumed: usual for FSDP and Megatron on long sequences"
    )
    recompute_factor: Assumption = Assumption(
        4 / 3,
        "of the flops of forward and backward",
        "assumed: activations are computed twice, the forward pass is a third",
    )
    step_fixed_seconds: Assumption = Assumption(
        8.0,
        "s an update",
        "assumed: optimizer, collectives, log-probabilities, bookkeeping",
    )
    delivery_seconds: Assumption = Assumption(
        0.22e-6,
        "s a token, from the coordinator to its rank, however many there are",
        "measured: `rljob bench trainer-data`, eight ranks through Ray on two cores; Laminar's cluster model alone",
    )
    optimizer_bytes: Assumption = Assumption(
        14.0, "bytes a parameter in a checkpoint", "assumed: bf16 weights, fp32 master copy and two moments"
    )
    checkpoint_bandwidth: Assumption = Assumption(2 * GIGA, "bytes/s", "assumed: a network volume")

    # Weights.
    copy_bandwidth: Assumption = Assumption(
        100 * GIGA, "bytes/s", "Laminar §8.3: the actor stalls 0.64 s for 32B and 1.40 s for 72B"
    )
    relay_bandwidth: Assumption = Assumption(
        91 * GIGA, "bytes/s a link", "Laminar §4.2, Fig. 19: 72B from the master to 127 relays in less than 1.6 s"
    )
    relay_chunk: Assumption = Assumption(32 * MEGA, "bytes", "Laminar §7: chunks of 32 MB; `relay.chunkBytes`")
    relay_start_seconds: Assumption = Assumption(10e-6, "s a chunk and hop", "assumed: an RDMA message")
    load_bandwidth: Assumption = Assumption(
        40 * GIGA,
        "bytes/s an accelerator",
        "assumed: host to device over PCIe 5.0 x16, 64 GB/s at most, less its overhead",
    )

    # Layouts.
    layout_seconds: Assumption = Assumption(
        0.6,
        "s a change of a machine's tensor parallel size, weights not counted",
        "measured: vLLM on CPUs, 0.41 to 0.61 s to drop an engine and build another in warm processes; a kept one is "
        "faster. GPUs assumed alike",
    )

    # Loans.
    unit_start_seconds: Assumption = Assumption(
        3.0,
        "s until the processes of a gradient unit have begun",
        "assumed: contexts and communicators of eight accelerators, in processes that have imported all",
    )

    # Repack.
    move_seconds: Assumption = Assumption(
        0.69,
        "s until what is repacked is at its new replica, its context not yet computed again",
        "Laminar Table 1: what a repack costs",
    )

    # Rewards.
    reward_seconds: Assumption = Assumption(1.0, "s a response", "PolyTrace's DeepCoder trace: 0.58 to 1.95 s a sample")

    # Rewards that run programs.
    right_share: Assumption = Assumption(
        0.55, "of the programs", "assumed: the mix of `rljob bench reward-timeout`; the rest is wrong or endless"
    )
    endless_share: Assumption = Assumption(0.05, "of the programs", "RollPacker §4.3: 5 % run into a timeout of 30 s")

    # Control.
    message_seconds: Assumption = Assumption(
        1e-3, "s a message", "assumed: a Ray actor call inside a cluster takes about that"
    )
    store_seconds: Assumption = Assumption(1e-3, "s a transaction", "assumed: SQLite in WAL mode with a sync to an SSD")

    def table(self) -> list[tuple[str, Assumption]]:
        """Return names and values for printing."""
        return [(field.name, getattr(self, field.name)) for field in fields(self)]


STANDARD = Assumptions()


@dataclass(frozen=True)
class Setting:
    """A job on a number of accelerators, as benchmarks arrange it.

    Colocated: all generate, then all train. Disaggregated: `trainer_accelerators` only train, the rest only generate.
    """

    name: str
    model: ModelShape
    workload: str
    longest: int
    """Token limit of a response."""
    tensor_parallel: int
    accelerators: int
    trainer_accelerators: int
    source: str
    accelerator: Accelerator = H800
    accelerators_per_machine: int = 8
    prompts: int = 128
    responses: int = 8
    engines: ProfiledEngines | None = None
    """None: the roofline's."""

    def __post_init__(self) -> None:
        machine = self.accelerators_per_machine
        if not 0 < self.trainer_accelerators < self.accelerators:
            raise ValueError(
                f"{self.name}: {self.trainer_accelerators} of {self.accelerators} accelerators are the trainer's; "
                f"from {machine} to {self.accelerators - machine} would be right"
            )
        if self.accelerators % machine or self.trainer_accelerators % machine:
            raise ValueError(
                f"{self.name}: {self.accelerators} accelerators, {self.trainer_accelerators} of them the trainer's; "
                f"multiples of {machine} would be right, machines are whole"
            )


SETTINGS = tuple(
    Setting(
        name,
        model,
        f"rollpacker-{name}",
        longest,
        tensor_parallel,
        accelerators,
        trainers,
        source,
        accelerators_per_machine=machine,
    )
    for name, model, longest, tensor_parallel, accelerators, trainers, machine, source in (
        (
            *("7b-8k", QWEN2_5_7B, 8_000, 1, 16, 8, 4),
            "RollPacker §6.1: 16 H800, TP 1; assumed: the split, half; pods of half a host, so that one can be loaned",
        ),
        ("14b-16k", QWEN2_5_14B, 16_000, 2, 32, 16, 8, "RollPacker §6.1: 32 H800, TP 2; the split: assumed, half"),
        ("32b-32k", QWEN2_5_32B, 32_000, 2, 64, 32, 8, "RollPacker §6.1: 64 H800, TP 2; the split: assumed, half"),
    )
)
"""P0 = 128, R0 = 8: RollPacker §6.1."""


@dataclass(frozen=True)
class LaminarModel:
    """A model of Laminar's throughput experiments, by kind of system.

    Fields give numbers of H800, and how many train (its Table 2). Batch-wise systems are one-step staleness and stream
    generation; the synchronous one is colocated. `batch_tensor_parallel`: of these three; `tensor_parallel`: of partial
    rollout and of Laminar (its A.3)."""

    name: str
    model: ModelShape
    accelerators: tuple[int, ...]
    batch_trainers: tuple[int, ...]
    partial_trainers: tuple[int, ...]
    trainers: tuple[int, ...]
    batch_tensor_parallel: int
    tensor_parallel: int


LAMINAR_MODELS = (
    LaminarModel(
        "7b", QWEN2_5_7B, (16, 32, 64, 128, 256),
        (8, 8, 16, 32, 40), (8, 16, 32, 64, 128), (8, 24, 40, 80, 192), 2, 1,
    ),
    LaminarModel(
        "32b", QWEN2_5_32B, (32, 64, 128, 256, 512),
        (16, 32, 48, 64, 80), (16, 32, 64, 128, 256), (16, 32, 64, 128, 256), 4, 4,
    ),
    LaminarModel(
        "72b", QWEN2_5_72B, (64, 128, 256, 512, 1024),
        (32, 64, 96, 192, 256), (32, 64, 128, 320, 640), (32, 64, 128, 320, 768), 8, 8,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class LaminarJob:
    """The job of all of them: Laminar §8, Settings, and A.3."""

    prompts: int = 512
    responses: int = 16
    minibatches: int = 16
    longest_prompt: int = 2048
    longest_response: int = 16384
    concurrency: int = 1024
    """Maximum of responses per replica in partial rollout and in Laminar."""
    capacity_rounds: float | None = None
    """Open groups in rounds; None for as many as the trainer needs: RLJob's default."""


LAMINAR_JOB = LaminarJob()
SEARCH_JOB = LaminarJob(prompts=256, responses=8)
"""The job of PolyTrace's search trace: its steps have 256 prompts x 8. The rest is Laminar's."""


@dataclass(frozen=True)
class LaminarLengths:
    """Response lengths of Laminar's job.

    They are a generator's, scaled so that `longest` becomes the job's limit; with `generator` None, lognormal ones.
    `correlation`: within a prompt, of lognormal ones."""

    name: str
    source: str
    generator: str | None = None
    longest: int | None = None
    median: float = 0.0
    sigma: float = 0.0
    correlation: float = 0.5


DAPO_LENGTHS = LaminarLengths(
    "dapo",
    "PolyTrace's run on the data set that Laminar trains on, at its start, its longest response stretched from 10,112 "
    "tokens to 16,384; Laminar's own lengths (its Fig. 17) are not public",
    generator="dapo-32b",
    longest=10_112,
)
TABLE_1_LENGTHS = LaminarLengths(
    "table-1",
    "lognormal, chosen by hand so that 16 replicas of 32B without repack come near Laminar's Table 1: 71.6 % of the KV "
    "cache, responses of 296 s on average and 826 s at most; similarity within a prompt assumed",
    median=4000,
    sigma=0.7,
)
MATH_LENGTHS = LaminarLengths(
    "math-235b", "PolyTrace's statistics of a reasoning model, cut at 16,384 tokens", generator="math-235b"
)
