"""Hardware: data sheets of accelerators, and the share that an engine's kernels achieve.

The two are separate because of their sources: the sheet is the maker's, the shares are fitted to printed latencies
(`calibration`), per engine and interconnect.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

TERA = 1e12
GIGA = 1e9


@dataclass(frozen=True)
class Accelerator:
    """One accelerator, by NVIDIA's data sheet: dense bf16 without sparsity.

    The link is NVLink, or PCIe without it, in one direction (NVLink sheets count both)."""

    name: str
    memory_bytes: float
    memory_bandwidth: float
    """Bytes per second."""
    flops: float
    """A multiply-add counts twice."""
    link_bandwidth: float
    """Bytes per second to the other accelerators of the machine."""


H100 = Accelerator("H100", 80 * GIGA, 3.35 * TERA, 989 * TERA, 450 * GIGA)
H800 = Accelerator("H800", 80 * GIGA, 3.35 * TERA, 989 * TERA, 200 * GIGA)
H200 = Accelerator("H200", 141 * GIGA, 4.8 * TERA, 989 * TERA, 450 * GIGA)
H20 = Accelerator("H20", 96 * GIGA, 4.0 * TERA, 148 * TERA, 450 * GIGA)
A100 = Accelerator("A100", 80 * GIGA, 2.039 * TERA, 312 * TERA, 300 * GIGA)
A800 = Accelerator("A800", 80 * GIGA, 2.039 * TERA, 312 * TERA, 200 * GIGA)
A40 = Accelerator("A40", 48 * GIGA, 0.696 * TERA, 149.7 * TERA, 31.5 * GIGA)

ACCELERATORS = {one.name: one for one in (H100, H800, H200, H20, A100, A800, A40)}


@dataclass(frozen=True)
class Achieved:
    """Shares of an accelerator that an engine achieves."""

    memory_share: float
    """Of the memory bandwidth, when reading weights and KV."""
    compute_share: float
    """Of the peak flops in large matrix products. Assumed: no printed latency determines it."""
    step_seconds: float
    """Per step: scheduling, launches, sampling."""
    sequence_seconds: float
    """Per step and sequence: sampling, detokenisation, bookkeeping."""
    allreduce_seconds: float
    """Latency of an all-reduce over two accelerators."""
    allreduce_growth: float
    """Exponent of (TP/2) by which that latency grows."""
    link_share: float
    """Of the link's bandwidth, in an all-reduce."""

    def allreduce_latency(self, tensor_parallel: int) -> float:
        """Return the seconds of an empty all-reduce."""
        if tensor_parallel == 1:
            return 0.0
        return self.allreduce_seconds * math.pow(tensor_parallel / 2, self.allreduce_growth)


VLLM_NVLINK = Achieved(0.75, 0.5, 4e-3, 15e-6, 18e-6, 0.3, 0.75)
"""vLLM 0.8 on Hopper with NVLink, from latencies of RollPacker and Laminar; the default for all accelerators."""
SGLANG_NVLINK = Achieved(0.85, 0.5, 1.2e-3, 15e-6, 9e-6, 0.55, 0.67)
"""SGLang 0.4.8 on Hopper with NVLink, from PAT's latencies."""
SGLANG_PCIE = Achieved(0.92, 0.5, 0.6e-3, 50e-6, 35e-6, 0.7, 0.32)
"""SGLang 0.4.8 on A40 over PCIe, from PAT's latencies."""
