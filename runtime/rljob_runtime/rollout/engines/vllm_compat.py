"""vLLM compatibility: everything that depends on internals of vLLM 0.32 and not on its documented interface.

A new vLLM release is checked against this file and the contract suite in tests/unit/rollout/engines only. Each entry
says what is wrong or missing upstream and how it was observed.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo

ENVIRONMENT = {
    # Step the engine core in our own process. By default, three processes import vLLM one after the other, and
    # requests cannot be controlled step by step.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Model code comes from our folder; a replica never asks a hub.
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
CPU_ENVIRONMENT = {
    # One thread an engine, one engine a core: two OpenMP threads become very slow when anything else runs there.
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # The sampler is compiled on the first request with logprobs otherwise, for 3 to 16 s.
    "TORCHDYNAMO_DISABLE": "1",
}


def prepare_environment() -> None:
    """Set the variables that vLLM reads at import; values of the pod win. Call before the first `import vllm`."""
    chosen = ENVIRONMENT if torch.cuda.is_available() else ENVIRONMENT | CPU_ENVIRONMENT
    for name, value in chosen.items():
        os.environ.setdefault(name, value)
    if not torch.cuda.is_available():
        # torch is imported already and has read these two.
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        torch._dynamo.config.disable = os.environ["TORCHDYNAMO_DISABLE"] == "1"


def cpu_engine_args(max_model_len: int) -> dict[str, Any]:
    """Return engine arguments that only the CPU build needs.

    A prompt must not be split over two steps. The runner would rewind the seeded generator of the unfinished request,
    which a CPU generator cannot do ("does not use offset"), and the engine dies. Any seeded request can fail like this
    when the prompts of a step exceed the token budget.
    """
    return {
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(4096, max_model_len),
        # Compilation and graphs help on GPUs only; on CPUs they delay the start.
        "enforce_eager": True,
    }


def rank_executor(rank: int, rendezvous: Path) -> type:
    """Return the executor class of one rank among several that are driven alike.

    It is vLLM's external launcher with another rendezvous: a file of this engine instead of a port that another process
    may use. The file's name is also part of the names of the shared memory of CPU ranks, so two engines never share
    one.
    """
    from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

    class RankExecutor(ExecutorWithExternalLauncher):
        def _distributed_args(self) -> tuple[str, int, int]:
            return f"file://{rendezvous}", rank, rank

    executor: type = RankExecutor
    return executor


def unlink_message_queue() -> None:
    """Unlink the queue that vLLM keeps in shared memory for each group of ranks, after all ranks have mapped it.

    vLLM unlinks it only when its creator ends cleanly; a killed rank leaves 16 MB behind.
    """
    from vllm.distributed.parallel_state import get_tp_group

    queue = get_tp_group().mq_broadcaster
    if queue is not None and queue.buffer is not None and queue.buffer.is_creator:
        queue.buffer.shared_memory.unlink()
        queue.buffer.is_creator = False


def warm_up() -> None:
    """Import what an engine needs, for processes forked from this one. No accelerator is touched.

    Binding the CPU's kernels scans all modules for each kernel (a third of the time to build an engine). Bindings stay
    in forked processes, so they are made here, once.
    """
    # The usual device query initialises CUDA, and then forked processes cannot use it.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    prepare_environment()
    from vllm.platforms import current_platform

    worker = "cpu_worker" if current_platform.is_cpu() else "gpu_worker"
    for module in ("v1.engine.llm_engine", f"v1.worker.{worker}", "model_executor.models.llama"):
        importlib.import_module(f"vllm.{module}")
    if current_platform.is_cpu():
        current_platform.register_triton_kernel_overrides()
        platform: Any = type(current_platform)
        platform.register_triton_kernel_overrides = classmethod(lambda cls: None)


def repair_tied_head(model: torch.nn.Module) -> None:
    """Pack the tied output head again after a reload.

    On CPU, a head that shares the embedding keeps the packed copy of its *old* weight after `reload_weights`: the
    layerwise reload finds no parameter of the head itself. Logprobs are then off by 0.3 to 0.6, without any error.
    """
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    for module in model.modules():
        if isinstance(module, ParallelLMHead) and hasattr(module, "cpu_linear"):
            dispatch_cpu_unquantized_gemm(module, remove_weight=False)


def report_all_tokens(sampler: Any) -> None:
    """Make vLLM's sampler report log-probabilities of the tempered distribution before top k, top p and min p.

    vLLM knows two kinds. Raw ones ignore the temperature. Processed ones are renormalised over the tokens that are
    left, so they are higher than the trainer's by the logarithm of the probability of those. Its two model runners have
    a sampler each. The first, of CPUs, returns log-probabilities beside the tokens, the second logits.
    """
    draw = sampler.sample

    def sample(logits: torch.Tensor, metadata: Any, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
        tempered = logits.clone()
        if metadata.temperature is not None:  # None: all requests are greedy
            tempered = sampler.apply_temperature(tempered, metadata.temperature, metadata.all_random)
        tokens, _ = draw(logits, metadata, *rest)
        return tokens, sampler.compute_logprobs(tempered)

    def sample_logits(
        logits: torch.Tensor, rows: Any, requests: Any, requests_host: Any, *rest: Any, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tempered = torch.empty_like(logits, dtype=torch.float32).copy_(logits)
        sampler.sampling_states.apply_temperature(tempered, rows, requests_host)
        tokens, _ = draw(logits, rows, requests, requests_host, *rest, **options)
        return tokens, tempered

    of_first_runner = isinstance(sampler, torch.nn.Module)
    sampler.sample = sample if of_first_runner else sample_logits
    if of_first_runner:
        # The sampler's own log-probabilities are not read.
        sampler.topk_topp_sampler.logprobs_mode = "raw_logprobs"


class SchedulerView:
    """Gauges and the preemption count, read from the in-process scheduler after each step (about 1 µs).

    vLLM's own statistics need a Prometheus registry that all engines of a process share; they overwrite each other's
    gauges.
    """

    def __init__(self, engine: Any) -> None:
        self._scheduler = engine.engine_core.engine_core.scheduler
        self._seen: dict[str, int] = {}
        self.preemptions = 0
        self.kv_tokens = self._scheduler.kv_cache_manager.block_pool.num_gpu_blocks * self._scheduler.block_size
        """Capacity of the KV cache in tokens."""

    def observe(self) -> None:
        """Count new preemptions.

        A request preempted in a step waits at its end, because such a step admits no request.
        """
        for request in self._waiting():
            before = self._seen.get(request.request_id, 0)
            if request.num_preemptions > before:
                self.preemptions += request.num_preemptions - before
                self._seen[request.request_id] = request.num_preemptions

    def passes(self, priority: int) -> bool:
        """Return whether a request of this priority is queued before one that waits."""
        return any(request.priority > priority for request in self._waiting())

    def _waiting(self) -> Iterable[Any]:
        """Return the waiting requests, in any order. vLLM's queue by priority sorts itself for each iteration."""
        waiting: Iterable[Any] = self._scheduler.waiting
        heap: Iterable[Any] | None = getattr(waiting, "_heap", None)
        return waiting if heap is None else heap

    def forget(self) -> None:
        """Drop the per-request state; called when no request is left."""
        self._seen.clear()

    def gauges(self) -> tuple[int, int, float]:
        """Return (running, waiting, used share of the KV blocks)."""
        running, waiting = self._scheduler.get_request_counts()
        return running, waiting, self._scheduler.kv_cache_manager.usage
