"""vLLM engine: driven step by step in this process, as a complete engine or as one rank of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from rljob_runtime.models.product_dtype import product_dtype
from rljob_runtime.perf_model.model_shape import square_tokens
from rljob_runtime.protocols import EngineStats, KvStats
from rljob_runtime.protocols.trajectory import FinishReason
from rljob_runtime.rollout.engines import vllm_compat
from rljob_runtime.rollout.engines.base import (
    DEFAULT_KV_BYTES,
    MAX_SEED,
    Counters,
    EngineRequest,
    EngineSettings,
    KvTicket,
    StepOutput,
    check_length,
    seed_of,
)
from rljob_runtime.rollout.engines.weights import open_version
from rljob_runtime.rollout.kv.kv_file import Held, Index
from rljob_runtime.rollout.kv.layout import KvShape

if TYPE_CHECKING:
    from rljob_runtime.rollout.engines.vllm_kv import KvPort

WORKER_EXTENSION = "rljob_runtime.rollout.engines.vllm_worker.RelayWeights"

SLEEP_LEVEL = 2
"""Weights are dropped and not copied to the host: `load` brings newer ones."""


class VllmEngine:
    """vLLM behind `base.SleepableEngine`. Starts with dummy weights in 9 to 20 s (1 s if vLLM is imported)."""

    def __init__(self, settings: EngineSettings) -> None:
        vllm_compat.prepare_environment()
        from vllm.v1.engine.llm_engine import LLMEngine

        self.weight_version: int | None = None
        self._settings = settings
        self._kv = _open_port(settings)
        self._engine = LLMEngine.from_engine_args(engine_args(settings))
        self._engine.collective_rpc("report_all_tokens")
        self._view = vllm_compat.SchedulerView(self._engine)
        self._vocabulary = self._engine.model_config.get_vocab_size()
        self._counters = Counters(square_tokens=square_tokens(settings.folder))
        self._arrivals = 0

    @property
    def busy(self) -> bool:
        return self._engine.has_unfinished_requests()

    def check(self, request: EngineRequest) -> None:
        check_length(request, self._settings.max_model_len, self._vocabulary)

    def add(self, request: EngineRequest) -> None:
        prompt: Any = {"prompt_token_ids": list(request.token_ids)}
        sampling = sampling_params(request)
        if self._kv is not None:
            from rljob_runtime.rollout.engines.vllm_kv import transfer_params

            self._kv.admit(request)
            sampling.extra_args = transfer_params(request)
        self._engine.add_request(request.id, prompt, sampling, **self._place(request))
        self._counters.prompt_tokens += len(request.token_ids)

    def _place(self, request: EngineRequest) -> dict[str, Any]:
        """Return what orders a request among others; nothing if only their arrival does.

        vLLM orders requests of equal priority by the clock. The clocks of ranks differ, so each counts arrivals."""
        if not self._settings.has_priorities:
            return {}
        self._arrivals += 1
        self._counters.passed += self._view.passes(request.priority)
        return {"priority": request.priority, "arrival_time": float(self._arrivals)}

    def step(self) -> list[StepOutput]:
        if self._kv is not None:
            self._kv.release()
        outputs = [_output(o) for o in self._engine.step()]
        self._view.observe()
        if not self.busy:
            self._view.forget()
        self._counters.generated_tokens += sum(len(o.token_ids) for o in outputs)
        return outputs

    def abort(self, ids: list[str]) -> None:
        before = self._engine.get_num_unfinished_requests()
        self._engine.abort_request(ids)
        self._counters.aborted += before - self._engine.get_num_unfinished_requests()

    def load(self, version: int) -> None:
        path = self._settings.weights
        open_version(path, version)  # Refuse a missing version while the old weights are still complete.
        self.weight_version = None
        self._engine.collective_rpc("load_from_relay", args=(str(path), version))
        # Blocks filled by older weights would be reused for equal prefixes: logprobs would be off by 0.1.
        if not self._engine.reset_prefix_cache():
            raise RuntimeError("vLLM refused to reset its prefix cache: blocks are still in use after the load")
        self._counters.prefix_resets += 1
        self._counters.weight_loads += 1
        self.weight_version = version

    def sleep(self) -> None:
        self.weight_version = None
        if torch.cuda.is_available():
            self._engine.sleep(level=SLEEP_LEVEL)

    def wake(self) -> None:
        """Wake vLLM on accelerators; on CPUs there is no sleep mode, so memory was never released."""
        if torch.cuda.is_available():
            self._engine.wake_up()

    def kv_shape(self) -> KvShape | None:
        return None if self._kv is None or self._kv.copier is None else self._kv.copier.shape

    def kv_held(self, ids: Sequence[str]) -> dict[str, Held]:
        return {} if self._kv is None else self._kv.held(ids)

    def kv_write(self, path: Path, index: Index, names: Mapping[str, str]) -> dict[str, dict[int, int]]:
        assert self._kv is not None
        return self._kv.write(path, index, names)

    def kv_open(self, tickets: Sequence[KvTicket]) -> list[bool]:
        return [False] * len(tickets) if self._kv is None else self._kv.open(tickets)

    def kv_read(self, tickets: Mapping[str, KvTicket]) -> KvStats:
        assert self._kv is not None
        return self._kv.read(tickets)

    def stats(self) -> EngineStats:
        if self._kv is not None:
            self._counters.kv = self._kv.stats
        self._counters.preemptions = self._view.preemptions
        return self._counters.stats(*self._view.gauges(), self._view.kv_tokens, self._settings.max_running)

    def close(self) -> None:
        self._engine.engine_core.shutdown()
        if self._kv is not None:
            from rljob_runtime.rollout.engines.vllm_kv import close_port

            close_port()


def _open_port(settings: EngineSettings) -> KvPort | None:
    """Return what the engine shares with its KV connector; None if it transfers no KV."""
    if not settings.transfers_kv:
        return None
    from rljob_runtime.rollout.engines.vllm_kv import open_port

    return open_port(settings)


def engine_args(settings: EngineSettings) -> Any:
    """Return vLLM's `EngineArgs` for these settings."""
    if settings.tensor_parallel > 1 and settings.rendezvous is None:
        raise ValueError(
            f"{settings.tensor_parallel} ranks do not run in one process; "
            "use `multi_process.MultiProcessEngine`, which makes a process for each"
        )
    from vllm.engine.arg_utils import EngineArgs

    transfer = None
    if settings.transfers_kv:
        from rljob_runtime.rollout.engines.vllm_kv import transfer_config

        transfer = transfer_config()
    on_cpu = not torch.cuda.is_available()
    return EngineArgs(
        model=str(settings.folder),
        dtype=cast(Any, product_dtype(settings.dtype, "cpu" if on_cpu else "cuda")),
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_running,
        block_size=settings.block_size if on_cpu else None,
        num_gpu_blocks_override=settings.kv_blocks,
        kv_cache_memory_bytes=settings.kv_cache_bytes or (DEFAULT_KV_BYTES if on_cpu else None),
        gpu_memory_utilization=settings.memory_fraction,
        tensor_parallel_size=settings.tensor_parallel,
        distributed_executor_backend=vllm_compat.rank_executor(settings.rank, settings.rendezvous)
        if settings.rendezvous is not None
        else "uni",
        # On accelerators, a sleeping engine releases its weights and its KV cache.
        enable_sleep_mode=not on_cpu,
        worker_extension_cls=WORKER_EXTENSION,
        load_format="dummy",
        # Those that `report_all_tokens` puts in place. The default, raw_logprobs, ignores the temperature on
        # accelerators, and is computed for nothing on processors.
        logprobs_mode="processed_logprobs",
        # Tokens in, tokens out: the coordinator owns the tokenizer.
        skip_tokenizer_init=True,
        enable_prefix_caching=True,
        kv_transfer_config=transfer,
        disable_log_stats=True,
        scheduling_policy="priority" if settings.has_priorities else "fcfs",
        **(vllm_compat.cpu_engine_args(settings.max_model_len) if on_cpu else {}),
    )


def sampling_params(request: EngineRequest) -> Any:
    """Return vLLM's `SamplingParams` for this request: each token as it is made, with its logprob."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=request.max_new_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        seed=_seed_from_here_on(request),
        stop_token_ids=sorted(request.stop_token_ids),
        # End-of-sequence tokens are among the stop tokens, or the caller ignores them.
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )


def _seed_from_here_on(request: EngineRequest) -> int:
    """Mix the position into the seed by an odd constant (that of splitmix64).

    vLLM's generator restarts with every request. Without the position, a continuation would draw the numbers of the
    first tokens again.
    """
    return (seed_of(request) + request.generated * 0x9E3779B97F4A7C15) & MAX_SEED


def _output(output: Any) -> StepOutput:
    completion = output.outputs[0]
    tokens = tuple(completion.token_ids)
    logprobs = tuple(entry[token].logprob for token, entry in zip(tokens, completion.logprobs, strict=True))
    reason = FinishReason(completion.finish_reason) if completion.finish_reason else None
    return StepOutput(output.request_id, tokens, logprobs, reason, output.num_cached_tokens)
