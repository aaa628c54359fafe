"""Calibration: compares the roofline with the latencies that papers print.

How far to trust this table: a family (engine and interconnect, `hardware.Achieved`) has three or four rows, and its
step overhead, cost per sequence and all-reduce latency were fitted to them by hand. So the decode rows show that the
model can reproduce the printed latencies with one set of shares per family and data sheets for everything else. Only
the prefill row is a prediction. Papers seldom state batch and context: `batch` and `context` are then our reading,
explained in `reading`.
"""

from __future__ import annotations

from dataclasses import dataclass

from rljob_runtime.perf_model.hardware import (
    A40,
    H100,
    H800,
    SGLANG_NVLINK,
    SGLANG_PCIE,
    VLLM_NVLINK,
    Accelerator,
    Achieved,
)
from rljob_runtime.perf_model.model_shape import (
    LLAMA3_1_8B,
    QWEN2_5_7B,
    QWEN2_5_14B,
    QWEN2_5_32B,
    QWEN3_14B,
    ModelShape,
)
from rljob_runtime.perf_model.roofline import roofline

TOLERANCE = 0.15
"""Default bound on a row's error."""


@dataclass(frozen=True)
class Anchor:
    """A printed latency, and our reading of the load of one replica."""

    source: str
    reading: str
    """What the source leaves open, and our interpretation."""
    model: ModelShape
    accelerator: Accelerator
    achieved: Achieved
    tensor_parallel: int
    batch: int
    context: int
    """Tokens per sequence."""
    printed_seconds: float
    prefill: bool = False
    """Whether it is a prefill pass instead of a decode step."""
    within: float = TOLERANCE
    """Bound on the error."""

    @property
    def predicted_seconds(self) -> float:
        """Seconds predicted by the roofline."""
        latency = roofline(self.model, self.accelerator, self.tensor_parallel, self.achieved)
        tokens = self.batch * self.context
        return latency.prefill(tokens, tokens * self.context) if self.prefill else latency.step(self.batch, tokens)

    @property
    def error(self) -> float:
        """Error relative to the printed value; negative if the roofline is too fast."""
        return self.predicted_seconds / self.printed_seconds - 1


def _pat_a40(tensor_parallel: int, batch: int, of_eight: int, milliseconds: float) -> Anchor:
    return Anchor(
        f"PAT §3.1, Fig. 4: TP{tensor_parallel}, global batch {of_eight}",
        "context of 1,000; the batch is spread over eight A40",
        LLAMA3_1_8B, A40, SGLANG_PCIE, tensor_parallel, batch, 1000, milliseconds / 1e3,
    )  # fmt: skip


def _stage(
    source: str, model: ModelShape, accelerator: Accelerator, achieved: Achieved, tensor_parallel: int,
    context: int, seconds: float, longest: int, within: float = TOLERANCE,
) -> Anchor:  # fmt: skip
    return Anchor(
        source,
        "seconds of the stage over its longest response: the mean step, as if two sequences were left all the time",
        model, accelerator, achieved, tensor_parallel, 2, context, seconds / longest, within=within,
    )  # fmt: skip


ANCHORS = (
    _pat_a40(2, 1, 1, 15.37),
    _pat_a40(8, 1, 1, 9.64),
    _pat_a40(2, 32, 128, 24.41),
    _pat_a40(8, 128, 128, 30.87),
    Anchor(
        "PAT §5.4: KV of nine sequences of 12k tokens computed again at TP8, 19.01 s",
        "one pass; what else went into the 19 s is not said",
        LLAMA3_1_8B, A40, SGLANG_PCIE, 8, 9, 12 * 1024, 19.01, prefill=True, within=0.35,
    ),
    _stage("PAT §5.3: 8B/24k static, 134.3 s, read as TP2", LLAMA3_1_8B, H100, SGLANG_NVLINK, 2, 20000, 134.3, 24576),
    _stage("PAT §5.3: 8B/24k with PAT, 87.9 s, read as TP8", LLAMA3_1_8B, H100, SGLANG_NVLINK, 8, 20000, 87.9, 24576),
    _stage("PAT §5.3: 14B/16k static, 133.9 s, read as TP2", QWEN3_14B, H100, SGLANG_NVLINK, 2, 15000, 133.9, 16384),
    # Read as TP8 throughout, although its first part ran at a smaller size.
    _stage(
        "PAT §5.3: 14B/16k with PAT, 91.1 s, read as TP8", QWEN3_14B, H100, SGLANG_NVLINK, 8, 15000, 91.1, 16384, 0.3
    ),
    _stage("RollPacker Fig. 11: 7B/8k, TP1, 82 s", QWEN2_5_7B, H800, VLLM_NVLINK, 1, 4000, 82, 8192),
    # Three points of one engine that are not linear: 14B prints 16.9 ms where 7B has 10.0 and 32B 20.5.
    _stage("RollPacker Fig. 11: 14B/16k, TP2, 277 s", QWEN2_5_14B, H800, VLLM_NVLINK, 2, 8000, 277, 16384, 0.35),
    _stage("RollPacker Fig. 11: 32B/32k, TP2, 673 s", QWEN2_5_32B, H800, VLLM_NVLINK, 2, 20000, 673, 32768),
    Anchor(
        "Laminar Table 1: longest trajectory, 828 s of 16k tokens, 32B at TP4",
        "a batch of 512 in 600k tokens of KV all the time",
        QWEN2_5_32B, H800, VLLM_NVLINK, 4, 512, 1172, 828 / 16384,
    ),
)  # fmt: skip
"""All latencies of a step or pass that the papers print. Seconds of weight transfer, switching and repair belong to
other parts of the system."""
