"""Roofline: latency and memory of a model on a layout from shapes and data sheets, used before anything is measured.

    base(B) = o + s·B + A·(α + β·B) + max(weights / bandwidth, B · flops of a token / flops)

on each of TP accelerators, with A = 2 · layers all-reduces if TP > 1. Decoding is bound by memory up to the ridge, the
batch where both sides of the maximum are equal.
"""

from __future__ import annotations

from dataclasses import dataclass

from rljob_runtime.perf_model.hardware import VLLM_NVLINK, Accelerator, Achieved
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.model_shape import ModelShape


def roofline(
    model: ModelShape, accelerator: Accelerator, tensor_parallel: int = 1, achieved: Achieved = VLLM_NVLINK
) -> LatencyModel:
    """Return the latency model of one replica.

    Raises `ValueError` if the heads cannot be split over `tensor_parallel`."""
    model.check_layout(tensor_parallel)
    bandwidth = achieved.memory_share * accelerator.memory_bandwidth
    flops = achieved.compute_share * accelerator.flops
    allreduces = 2 * model.layers if tensor_parallel > 1 else 0
    latency = allreduces * achieved.allreduce_latency(tensor_parallel)
    # A ring sends each byte 2·(TP − 1)/TP times.
    sent = model.hidden * model.dtype_bytes * 2 * (tensor_parallel - 1) / tensor_parallel
    transfer = allreduces * sent / (achieved.link_share * accelerator.link_bandwidth)
    weights = model.matrix_parameters * model.dtype_bytes / tensor_parallel / bandwidth
    matrices = 2 * model.matrix_parameters / tensor_parallel / flops
    fixed = achieved.step_seconds + latency
    ridge = weights / matrices

    def base(batch: float) -> float:
        return fixed + (achieved.sequence_seconds + transfer) * batch + max(weights, matrices * batch)

    return LatencyModel(
        knots=tuple((batch, base(batch)) for batch in (0.0, ridge, 2 * ridge)),
        context_token_seconds=model.kv_token_bytes(tensor_parallel) / bandwidth,
        prefill_seconds=fixed + weights,
        prefill_token_seconds=matrices + transfer,
        prefill_square_seconds=2 * model.layers * model.heads * model.head_size / tensor_parallel / flops,
    )


@dataclass(frozen=True)
class Memory:
    """Bytes on each accelerator of a replica."""

    weights: int
    activations: int
    kv_token: int
    """KV of one token."""
    kv_tokens: int
    """Tokens in the KV cache of the replica."""


def memory(
    model: ModelShape,
    accelerator: Accelerator,
    tensor_parallel: int = 1,
    use: float = 0.9,
    prefill_tokens: int = 8192,
    sequences: int = 1024,
) -> Memory:
    """Return what the share `use` of the memory (vLLM's `gpu_memory_utilization`) leaves for KV.

    Weights are subtracted, and the activations of a pass over `prefill_tokens` with logits of `sequences`. Activations
    are an estimate: residual, normed input, queries and keys, gate and up projections, and fp32 logits with the
    sampler's copy. Raises `ValueError` if nothing is left."""
    model.check_layout(tensor_parallel)
    weights = model.parameters * model.dtype_bytes // tensor_parallel
    row = 2 * model.hidden + (2 * model.intermediate + 2 * model.heads * model.head_size) // tensor_parallel
    activations = prefill_tokens * row * model.dtype_bytes + 2 * 4 * sequences * model.vocabulary
    left = int(use * accelerator.memory_bytes) - weights - activations
    kv_token = model.kv_token_bytes(tensor_parallel)
    if left < kv_token:
        raise ValueError(
            f"{model.name} does not fit {accelerator.name} with tensor parallel size {tensor_parallel}: "
            f"{weights / 1e9:.1f} GB of weights and {activations / 1e9:.1f} GB of activations on each of "
            f"{accelerator.memory_bytes / 1e9:.0f} GB, of which {use:.0%} may be used; a larger size would help"
        )
    return Memory(weights, activations, kv_token, left // kv_token)
