"""Replica factory: builds a replica from the spec. vLLM is imported only for kind VLLM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rljob_api.spec import RLJobSpec
from rljob_runtime.models.response_text import TokenizerText
from rljob_runtime.models.stop_tokens import eos_token_ids
from rljob_runtime.rollout.engines.base import EngineSettings, SleepableEngine
from rljob_runtime.rollout.engines.factory import make_engine
from rljob_runtime.rollout.engines.multi_process import PEERS, MultiProcessEngine
from rljob_runtime.rollout.engines.rank_processes import ForkServer
from rljob_runtime.rollout.kv_exchange import KvExchange
from rljob_runtime.rollout.replica import RolloutReplica


def make_replica(
    name: str,
    spec: RLJobSpec,
    model_files: dict[str, bytes],
    workdir: Path,
    segment: Path,
    kv: KvExchange | None = None,
) -> RolloutReplica:
    """Make a replica as the spec describes it. No engine is in use until the first layout.

    If the job only has layouts of one accelerator, engines run in the replica's process. Otherwise every engine
    consists of rank processes, forked from a fork server that starts importing vLLM now. `model_files` are the
    trainer's (`TrainerState.model_files`), written below `workdir`. `segment` is the folder of this machine's relay
    segment. With `kv`, its engines can transfer KV; vLLM's only in rank processes, which a job of several sizes has.
    """
    options = spec.rollout.engine_options
    settings = EngineSettings(
        folder=write_model_files(model_files, workdir / name),
        weights=segment,
        dtype=str(spec.model.dtype),
        max_model_len=spec.data.max_prompt_tokens + spec.data.max_response_tokens,
        max_running=options.max_concurrent_requests,
        kv_cache_bytes=options.kv_cache_bytes,
        memory_fraction=options.accelerator_memory_fraction,
        transfers_kv=kv is not None,
        has_priorities=bool(spec.environments),
    )

    kind, eos = str(spec.rollout.engine), eos_token_ids(model_files)
    make, close = engine_maker(kind, settings, spec.rollout.tensor_parallel_sizes)
    return RolloutReplica(name, make, eos, close, lambda: TokenizerText.open(settings.folder), kv)


def engine_maker(
    kind: str, settings: EngineSettings, tensor_parallel_sizes: Sequence[int]
) -> tuple[Callable[[int, Sequence[str]], SleepableEngine], Callable[[], None]]:
    """Return the function with which `RolloutReplica` makes its engines, and one that releases what it needs."""
    if kind != "VLLM" or tuple(tensor_parallel_sizes) == (1,):
        return lambda size, devices: make_engine(kind, replace(settings, tensor_parallel=size)), lambda: None
    fork_server = ForkServer(PEERS[kind])
    return lambda size, devices: MultiProcessEngine(
        fork_server, replace(settings, tensor_parallel=size), devices[:size]
    ), fork_server.close


def write_model_files(model_files: dict[str, bytes], folder: Path) -> Path:
    """Write config and tokenizer files where an engine reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in model_files.items():
        if Path(name).name != name:
            raise ValueError(f"model file {name!r} has a path; a plain file name is required")
        (folder / name).write_bytes(content)
    return folder
