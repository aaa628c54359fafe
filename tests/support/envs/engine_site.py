"""Episodes on a real engine: gateway, episode book, store, runner and rollout replica are those of a job.

Each request of the gateway's turns and each token of the engine is noted where the replica has it, so that what would
be trained on can be compared with it. The responses are then trained on as far as the store knows, for its audit.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from rljob_api import RLJob, load
from rljob_api.keys.runner_key import mint_runner_key, runners_key
from rljob_api.spec.environments import Environment
from rljob_runtime.audit import AuditResult, audit
from rljob_runtime.coordinator.core.settings import recovery_of
from rljob_runtime.coordinator.episodes.attempt import Attempt, turn_of
from rljob_runtime.coordinator.episodes.book import BookRules, EpisodeBook
from rljob_runtime.coordinator.episodes.replica import EpisodeReplica
from rljob_runtime.coordinator.episodes.totals import BookTotals
from rljob_runtime.coordinator.store.connection import Opening
from rljob_runtime.coordinator.store.records import Boundary, Tokens
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.store_thread import StoreThread
from rljob_runtime.entrypoints.gateway import open_model
from rljob_runtime.gateway.capability import gateway_key
from rljob_runtime.gateway.config import GatewayConfig
from rljob_runtime.gateway.environment_routes import EnvironmentRoutes, RunnerAccess
from rljob_runtime.gateway.gateway import Gateway, GatewaySettings, GatewayStats
from rljob_runtime.gateway.server import serve
from rljob_runtime.models.source import cache_folder, resolve
from rljob_runtime.protocols import Delta, GenerateRequest, Replica, ReplicaReport
from rljob_runtime.protocols.environments import EpisodeReport
from rljob_runtime.protocols.trajectory import Cursor, FinishReason, PromptKey, Sampling, TrajectoryKey
from rljob_runtime.rollout.factory import make_replica
from rljob_runtime.scheduling.episodes.episode import EpisodeRules, Versions
from rljob_runtime.scheduling.episodes.limits import Limits
from rljob_runtime.scheduling.episodes.sequences import TrainingSequence, training_sequences
from tests.support.paths import ROOT
from tests.support.rollout.engines import Publisher
from tests.support.stored_episodes import open_round, settle

TERM, VERSION = 1, 1
SECRET = b"the job's secret"
INHERITED = ("PATH", "HOME", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR")
POLL_SECONDS = 2.0
DEADLINE_SECONDS = 400.0
MOST_TOKENS = 48
"""Of a turn: a short answer ends long before it, and one that goes on for ever costs little."""


@dataclass(frozen=True)
class Question:
    """An episode: its environment as a manifest has it without a name, and what the runner gets of its prompt."""

    environment: Mapping[str, Any]
    messages: Sequence[Mapping[str, str]]
    record: Mapping[str, Any] = field(default_factory=dict)
    python: Path = Path(sys.executable)
    """Of the runner: packages of environments have pins of their own."""
    lost_at: str | None = None
    """A file that its program writes when its runner is to end. Another one goes on."""

    def of_environment(self, name: str) -> Environment:
        """Return its environment."""
        return Environment.model_validate({"name": name, "episodesPerRunner": 1, **self.environment})


@dataclass
class EmittedTurn:
    """A turn as the engine had it: the tokens that it was given, and what it emitted."""

    prompt: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: FinishReason | None = None


@dataclass(frozen=True)
class PlayedEpisode:
    """An episode that has ended. `turns`: the engine's, in the order in which they were asked for."""

    attempt: Attempt
    turns: Sequence[EmittedTurn]
    sequences: Sequence[TrainingSequence]

    def trained(self) -> list[tuple[tuple[int, ...], list[int], list[float]]]:
        """Return what is trained on: the context, tokens and logprobs of each span with a loss."""
        found: list[tuple[tuple[int, ...], list[int], list[float]]] = []
        for sequence in self.sequences:
            before: list[int] = []
            for span in sequence.spans:
                before += span.given
                found.append((tuple(before), list(span.node.token_ids), list(span.node.logprobs)))
                before += span.node.token_ids
        return found


@dataclass(frozen=True)
class Played:
    """All episodes of a run, by the names of their questions, and what was counted and found meanwhile."""

    episodes: Mapping[str, PlayedEpisode]
    gateway: GatewayStats
    totals: BookTotals
    verdict: AuditResult
    model: Path

    def reports(self) -> Mapping[str, EpisodeReport]:
        """Return what the runners said of each episode."""
        return {name: one.attempt.report or EpisodeReport() for name, one in self.episodes.items()}

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the model's tokenizer, with its chat template."""
        from transformers import AutoTokenizer

        found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(self.model)
        return found


def assert_trained_tokens_are_the_engines(played: Played) -> None:
    """Compare contexts, ids and logprobs of each turn with what the engine had, and ask the audit."""
    turns = 0
    assert all(report.failed is None for report in played.reports().values()), played.reports()
    for episode in played.episodes.values():
        assert episode.trained() == [(turn.prompt, turn.tokens, turn.logprobs) for turn in episode.turns]
        turns += len(episode.turns)
    stats = played.gateway
    assert (stats.turns, stats.rewritten, stats.rerendered, stats.reencoded_tokens) == (turns, 0, 0, 0)
    assert played.verdict.findings == ()
    counts = played.verdict.episodes
    assert counts is not None
    emitted = sum(len(turn.tokens) for one in played.episodes.values() for turn in one.turns)
    assert (counts.proved, counts.turns, counts.tokens, counts.unproved) == (len(played.episodes), turns, emitted, 0)


class _Recorder:
    """A replica that notes the requests of turns, and what it emits for them."""

    def __init__(self, replica: Any) -> None:
        self.name = replica.name
        self.turns: dict[TrajectoryKey, EmittedTurn] = {}
        self._replica = replica
        self._seen = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replica, name)

    async def submit(self, term: int, requests: Sequence[GenerateRequest]) -> None:
        for one in requests:
            assert not one.prefix_token_ids, "no turn moves between replicas here"
            self.turns[one.key] = EmittedTurn(one.prompt_token_ids)
        await self._replica.submit(term, requests)

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        report: ReplicaReport = await self._replica.poll(term, after, wait_seconds)
        if report.cursor > self._seen:
            for delta in report.deltas:
                self._note(delta)
            self._seen = report.cursor
        return report

    def _note(self, delta: Delta) -> None:
        turn = self.turns[delta.key]
        if delta.offset == len(turn.tokens):
            turn.tokens += delta.token_ids
            turn.logprobs += delta.logprobs
            turn.finish = delta.finish_reason


class _Prompts:
    """A question for each prompt, in an environment of its own."""

    def __init__(self, questions: Mapping[str, Question]) -> None:
        self.keys = {name: PromptKey(0, index) for index, name in enumerate(questions)}
        self.drawn = Cursor(0, len(questions))
        self._names = {key: name for name, key in self.keys.items()}
        self._questions = questions

    def environment(self, key: PromptKey) -> str:
        return self._names[key]

    async def record(self, key: PromptKey) -> Mapping[str, Any]:
        return self._questions[self._names[key]].record

    async def messages(self, key: PromptKey) -> Sequence[Mapping[str, str]]:
        return self._questions[self._names[key]].messages


def play(engine: str, source: str, folder: Path, questions: Mapping[str, Question], temperature: float = 0.0) -> Played:
    """Play an episode for each question with the model of this source, all at a time."""
    return asyncio.run(_play(engine, source, folder, questions, temperature))


async def _play(
    engine: str, source: str, folder: Path, questions: Mapping[str, Question], temperature: float
) -> Played:
    job, prompts = _job(engine, source), _Prompts(questions)
    async with contextlib.AsyncExitStack() as stack:
        model, recorder = await stack.enter_async_context(_engine(job, folder))
        store = await StoreThread.open(lambda _: Store(folder / "state.db", "job"), Opening())
        stack.push_async_callback(store.aclose)
        await store.do(lambda opened: opened.adopt_term(TERM))
        await store.do(lambda opened: opened.start_at(Boundary(0, Cursor())))
        plan = await store.do(
            lambda opened: open_round(opened, VERSION, *prompts.keys.values(), cursor=prompts.drawn)
        )  # fmt: skip
        limits = Limits(seconds=DEADLINE_SECONDS)
        rules = {
            name: EpisodeRules(limits, Versions.SINGLE, recovery_of(one.of_environment(name)))
            for name, one in questions.items()
        }
        book = EpisodeBook(store, BookRules(rules, seed=1), time.time)
        book.use_prompts(prompts)
        await stack.enter_async_context(_running(book.run(lambda reason, message: None)))
        gateway = await stack.enter_async_context(_agents(job, book, model, folder, questions))
        replica: Replica = EpisodeReplica(recorder, book)
        await _generate(replica, prompts, store, temperature)
        await store.do(lambda opened: settle(opened, plan, cursor=prompts.drawn))
        episodes = {name: _played(book, recorder, key) for name, key in prompts.keys.items()}
    return Played(episodes, gateway.stats, book.totals, audit(folder), model)


def _job(engine: str, source: str) -> RLJob:
    """Return a job whose settings the gateway and the engine take. In float32 an engine's logprobs are a trainer's."""
    data = {"prompts": {"file": {"path": "/unused"}}, "maxPromptTokens": 512, "maxResponseTokens": 512}
    spec = {
        "rounds": 1,
        "model": {"source": source, "dtype": "float32"},
        "data": data,
        "rewards": [{"name": "right", "kind": "Math"}],
        "rollout": {"machines": 1, "engine": engine, "engineOptions": {"kvCacheBytes": "128Mi"}},
    }
    return load(
        {"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": {"name": "policy"}, "spec": spec}
    )  # fmt: skip


@contextlib.asynccontextmanager
async def _engine(job: RLJob, folder: Path) -> AsyncIterator[tuple[Path, _Recorder]]:
    """Yield the folder of the model, and a replica with its weights."""
    found = await asyncio.to_thread(resolve, job.spec.model.source, cache_folder())
    publisher = Publisher(folder / "segment")
    weights = AutoModelForCausalLM.from_pretrained(found.path, dtype="float32")
    version = await asyncio.to_thread(publisher.publish, weights)
    assert version == VERSION
    files = found.model_files()
    replica = make_replica("rollout-0/replica-0", job.spec, files, folder / "engine", folder / "segment")
    try:
        await replica.switch_layout(TERM, 1)
        await replica.load(TERM, VERSION)
        yield found.path, _Recorder(replica)
    finally:
        await replica.close()
        publisher.close()


@contextlib.asynccontextmanager
async def _agents(
    job: RLJob, book: EpisodeBook, model: Path, folder: Path, questions: Mapping[str, Question]
) -> AsyncIterator[Gateway]:
    """Serve the gateway, and run a runner for each question."""
    config = GatewayConfig.of(job, folder / "link", folder / "key", folder / "runners-key", model)
    text, vocabulary = await asyncio.to_thread(open_model, config)
    settings = GatewaySettings(config.model, config.context_tokens, vocabulary, MOST_TOKENS)
    async with contextlib.AsyncExitStack() as stack:
        executor = stack.enter_context(ThreadPoolExecutor(2))
        gateway = Gateway(book.turns, text, settings, executor, time.time)
        access = RunnerAccess(runners_key(SECRET), gateway_key(SECRET), config.model)
        routes = EnvironmentRoutes(book.runners, access, time.time)
        served = serve(gateway, gateway_key(SECRET), time.time, "127.0.0.1", 0, environments=routes)
        url = f"http://127.0.0.1:{await stack.enter_async_context(served)}"
        for name, one in questions.items():
            await stack.enter_async_context(_runner(name, one, folder, url))
        yield gateway


@contextlib.asynccontextmanager
async def _runner(name: str, question: Question, folder: Path, url: str) -> AsyncIterator[None]:
    """Run a runner of the question's environment, as `rljob run` starts them. Programs begin in the folder."""
    environment = question.of_environment(name)
    key, config = folder / f"{name}.key", folder / f"{name}.json"
    key.write_text(mint_runner_key(runners_key(SECRET), name))
    settings = {"url": url, "keyFile": str(key), "root": str(folder), "environment": environment.runner_options()}
    config.write_text(json.dumps(settings))
    variables = {one: os.environ[one] for one in INHERITED if one in os.environ}
    variables |= {"PYTHONPATH": str(ROOT / "envs"), "UV_CACHE_DIR": str(folder / "uv")}
    begin = partial(
        asyncio.create_subprocess_exec, question.python, "-m", "rljob_env", config, cwd=folder, env=variables
    )  # fmt: skip
    async with _running(_runners(begin, folder / question.lost_at if question.lost_at else None)):
        yield


async def _runners(begin: Callable[[], Awaitable[Process]], lost_at: Path | None) -> None:
    """Run a runner until cancelled; if this file is written, end it and run another one."""
    process = await begin()
    try:
        if lost_at is not None:
            while not lost_at.exists():  # noqa: ASYNC110, a program writes it
                await asyncio.sleep(0.05)
            await _end(process)
            process = await begin()
        await process.wait()
    finally:
        await _end(process)


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.terminate()
    async with asyncio.timeout(60.0):
        await process.wait()


@contextlib.asynccontextmanager
async def _running(work: Any) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _generate(replica: Replica, prompts: _Prompts, store: StoreThread, temperature: float) -> None:
    """Launch a response for each prompt, and store what the replica reports until all have ended."""
    keys = {TrajectoryKey(key, 0) for key in prompts.keys.values()}
    sampling = Sampling(512, temperature=temperature, seed=1)
    await replica.submit(TERM, [GenerateRequest(key, 1, (1,), sampling, VERSION) for key in sorted(keys)])
    cursor = 0
    async with asyncio.timeout(DEADLINE_SECONDS):
        while keys:
            report = await replica.poll(TERM, cursor, POLL_SECONDS)
            cursor = report.cursor
            tokens = [Tokens(one.key, one.offset, one.token_ids, one.logprobs) for one in report.deltas]
            await store.do(partial(_append, tokens=tokens))
            keys -= {one.key for one in report.deltas if one.finish_reason is not None}


def _append(store: Store, tokens: list[Tokens]) -> None:
    store.trajectories.append(VERSION, tokens)


def _played(book: EpisodeBook, recorder: _Recorder, key: PromptKey) -> PlayedEpisode:
    attempt = book.finished(TrajectoryKey(key, 0))
    assert attempt is not None
    turns = [
        turn for one, turn in recorder.turns.items() if (place := turn_of(one)) and place[0] == attempt.id.attempt
    ]  # fmt: skip
    return PlayedEpisode(attempt, turns, training_sequences(attempt.episode.tree))
