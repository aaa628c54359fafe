"""`rljob bench agents`: episodes of two turns and a tool, through the gateway, its runners and the store.

The gateway and the runners are processes of their own, as `rljob run` starts them, and the book and its store are the
coordinator's. The engine is a stand-in that answers each turn after a fixed time and records what it emitted. Blocks of
episodes and blocks of plain generation (the same turns, asked of the engine alone) follow each other, so that both meet
the same load. Figures:

- `episodes_per_minute`: of the episode blocks. The limit is the rate of the plain ones.
- `over_plain`: the rate of episodes over that of plain generation: what gateway, runners, tool and store cost.
- `acquire_p50_seconds`, `acquire_p99_seconds`: from an episode's launch until a runner has it. Runners have free
  places.
- `first_turn_p99_seconds`: until the runner's first request has reached the coordinator.
- `failed_episodes`: attempts that a failure of ours ended.
- `differing_responses`: responses whose tokens are not those that the engine emitted.
"""

from __future__ import annotations

import asyncio
import json
import math
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rljob_api import RLJob, load
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.coordinator.core.async_utils import alongside
from rljob_runtime.coordinator.episodes.attempt import turn_of
from rljob_runtime.coordinator.episodes.book import BookRules, EpisodeBook
from rljob_runtime.coordinator.episodes.replica import EpisodeReplica
from rljob_runtime.coordinator.store.connection import Opening
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.store_thread import StoreThread
from rljob_runtime.local.environments import EnvironmentFolders, LocalEnvironments
from rljob_runtime.models.source import package_config
from rljob_runtime.models.toy_calculator import CALL, CALL_END, PHRASING, TOOL, calculator_tokenizer
from rljob_runtime.protocols import Delta, EngineStats, GenerateRequest, Replica, ReplicaReport
from rljob_runtime.protocols.environments import Assignment, EpisodeReport
from rljob_runtime.protocols.trajectory import FinishReason, PromptKey, Sampling, TrajectoryKey
from rljob_runtime.protocols.turns import EpisodeAttempt, RecordedTurn, StoredTurn, TurnCall
from rljob_runtime.scheduling.episodes.episode import EpisodeRules
from rljob_runtime.scheduling.episodes.limits import Limits

GOAL_EPISODES_PER_MINUTE = 1000.0
GOAL_ACQUIRE_SECONDS = 0.1
ENVIRONMENT, MODEL = "calc", "rljob/toy-calculator"
TURNS = 2
TERM, VERSION = 1, 1
QUESTION, RESULT = "47 * 68", "3196"
EPISODE_SECONDS = 600.0
POLL_SECONDS = 5.0
TOOLS = f'''
def {TOOL}(expression: str) -> str:
    """Calculate."""
    return "{RESULT}"
'''


@dataclass(frozen=True)
class Plan:
    """What is played. `blocks`: of episodes, each followed by one of plain generation; the first of each only warms."""

    episodes: int = 400
    """In a block."""
    blocks: int = 5
    concurrent: int = 64
    turn_seconds: float = 0.5
    """Time of the stand-in engine for a turn."""
    runners: int = 2
    places: int = 64
    """Episodes that a runner has at a time. All runners have twice as many places as there are episodes."""


QUICK = Plan(episodes=64, blocks=3, concurrent=16, turn_seconds=0.2, places=16)


def agents(*, quick: bool, seed: int) -> dict[str, Any]:
    """Needs the runner of environments (`pip install ./envs`) and about a minute; `--quick` 20 s."""
    plan = QUICK if quick else Plan()
    measured = asyncio.run(measure(plan, seed))
    return {
        "bench": "agents",
        "seed": seed,
        "settings": {**asdict(plan), "turns": TURNS, "quick": quick},
        "figures": figures(measured),
        "rows": measured.rows,
    }


@dataclass
class Measured:
    """What a run measured. `rows`: a block each, the warm ones left out."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    acquired: list[float] = field(default_factory=list)
    first_turns: list[float] = field(default_factory=list)
    failed: int = 0
    differing: int = 0

    def rate(self, kind: str) -> float:
        """Return the episodes a minute of the blocks of a kind."""
        blocks = [row for row in self.rows if row["block"] == kind]
        return 60.0 * sum(row["episodes"] for row in blocks) / sum(row["seconds"] for row in blocks)


def figures(measured: Measured) -> list[dict[str, Any]]:
    """Return the figures of a run."""
    episodes, plain = measured.rate("episodes"), measured.rate("plain")
    return [
        figure(
            "episodes_per_minute",
            episodes,
            GOAL_EPISODES_PER_MINUTE,
            "plain generation of the same turns by the same engine",
            plain,
            unit="episodes/min",
        ),
        figure("over_plain", episodes / plain, anchor="the same turns without gateway, runners and store", limit=1.0),
        figure("acquire_p50_seconds", statistics.median(measured.acquired), unit="s", better="lower"),
        figure(
            "acquire_p99_seconds",
            percentile(measured.acquired, 0.99),
            GOAL_ACQUIRE_SECONDS,
            "from the launch until a runner has the episode",
            unit="s",
            better="lower",
        ),
        figure("first_turn_p99_seconds", percentile(measured.first_turns, 0.99), unit="s", better="lower"),
        figure("failed_episodes", measured.failed, 0, unit="episodes", better="lower"),
        figure("differing_responses", measured.differing, 0, unit="responses", better="lower"),
    ]


def percentile(values: Iterable[float], share: float) -> float:
    """Return the least value that at least this share of the values does not exceed.

    >>> percentile([3.0, 1.0, 2.0], 0.99), percentile(range(200), 0.99)
    (3.0, 197)
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


async def measure(plan: Plan, seed: int) -> Measured:
    """Play all blocks, in a folder that is removed afterwards. Raises `ProcessFailed` if a process cannot work."""
    with tempfile.TemporaryDirectory(prefix="rljob-bench-") as folder:
        async with _site(Path(folder), plan, seed) as site:
            book = site.book.run(lambda reason, warning: None)
            return await alongside(_blocks(site, plan), book, site.environments.failed())


async def _blocks(site: _Site, plan: Plan) -> Measured:
    measured = Measured()
    for block in range(plan.blocks):
        prompts = [PromptKey(block, index) for index in range(plan.episodes)]
        began = time.monotonic()
        responses = await _play(site.replica, [_request(site.words, key) for key in prompts], plan.concurrent)
        between = time.monotonic()
        await _generate_plainly(site, plan)
        ended = time.monotonic()
        measured.differing += sum(site.engine.emitted_for(site.watch, key) != responses[key] for key in prompts)
        site.book.drop(prompts)
        if block == 0:
            site.watch.forget()
            continue
        for kind, seconds in (("episodes", between - began), ("plain", ended - between)):
            measured.rows.append({"block": kind, "episodes": plan.episodes, "seconds": seconds})
    measured.acquired, measured.first_turns = list(site.watch.acquired), list(site.watch.first_turns)
    measured.failed = sum(site.book.totals.aborts.values())
    return measured


# --- the stand-in engine ---------------------------------------------------------------------------------------------


class Words:
    """The tokens that the model says and hears."""

    def __init__(self) -> None:
        self.tokenizer = calculator_tokenizer()
        end = self.tokenizer.eos_token
        self.call = tuple(self.tokenizer.encode(f"{CALL}{QUESTION}{CALL_END}{end}"))
        self.answer = tuple(self.tokenizer.encode(f"{RESULT}{end}"))
        self.prompt = tuple(self.tokenizer.encode(PHRASING.format(expression=QUESTION)))

    def said(self, prompt: Sequence[int]) -> tuple[int, ...]:
        """Return a turn: the call, and after a call the answer."""
        return self.answer if self.call[0] in prompt else self.call


class PacedEngine:
    """A stand-in for a replica: each turn is emitted complete after a fixed time, however many there are."""

    name = "rollout-0/replica-0"

    def __init__(self, words: Words, seconds: float) -> None:
        self._words = words
        self._seconds = seconds
        self._outbox: list[tuple[int, Delta]] = []
        self._sent = 0
        self._wake = asyncio.Event()
        self._emitted: dict[int, list[int]] = {}
        """The tokens of each attempt of an episode."""

    async def submit(self, term: int, requests: Sequence[GenerateRequest]) -> None:
        """Emit the turns of these requests when their time has passed."""
        for request in requests:
            asyncio.get_running_loop().call_later(self._seconds, self._emit, request)

    async def abort(self, term: int, attempts: Mapping[TrajectoryKey, int]) -> None:
        """Stop nothing: what is emitted for an aborted attempt is not taken."""

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        """See `protocols.Replica.poll`."""
        self._outbox = [entry for entry in self._outbox if entry[0] > after]
        if not self._outbox:
            self._wake.clear()
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._wake.wait()
            except TimeoutError:
                pass
        deltas = tuple(delta for _, delta in self._outbox)
        return ReplicaReport("boot", self._sent, deltas, VERSION, EngineStats(0, 0, 0.0, 0, 0, 0, 0, 0))

    def emitted_for(self, watch: Watch, prompt: PromptKey) -> list[int]:
        """Return the tokens of a response, in the order of its turns."""
        return self._emitted.pop(watch.number(prompt), [])

    def _emit(self, request: GenerateRequest) -> None:
        tokens = self._words.said(request.prompt_token_ids)
        place = turn_of(request.key)
        if place is not None:
            self._emitted.setdefault(place[0], []).extend(tokens)
        logprobs, finish = tuple(-0.5 for _ in tokens), FinishReason.STOP
        delta = Delta(request.key, request.attempt, 0, tokens, logprobs, request.weight_version, finish)
        self._sent += 1
        self._outbox.append((self._sent, delta))
        self._wake.set()


# --- what is measured ------------------------------------------------------------------------------------------------


class Watch:
    """Passes calls of the gateway on to the book, and notes when runners have episodes and ask for first turns."""

    def __init__(self, book: EpisodeBook) -> None:
        self.acquired: list[float] = []
        self.first_turns: list[float] = []
        self._book = book
        self._launched: dict[PromptKey, float] = {}
        self._numbers: dict[PromptKey, int] = {}
        self._asked: set[EpisodeAttempt] = set()

    def launch(self, requests: Iterable[GenerateRequest]) -> None:
        """Note that responses are launched now."""
        self._launched |= {request.key.prompt: time.monotonic() for request in requests}

    def number(self, prompt: PromptKey) -> int:
        """Return the number of a response's attempt."""
        return self._numbers.pop(prompt, 0)

    def forget(self) -> None:
        """Forget what was noted so far."""
        self.acquired.clear()
        self.first_turns.clear()
        self._asked.clear()

    async def lease(self, environment: str, runner: str, wait_seconds: float) -> Assignment | None:
        """See `protocols.environments.Environments.lease`."""
        found = await self._book.runners.lease(environment, runner, wait_seconds)
        if found is not None:
            prompt = found.episode.key.prompt
            self.acquired.append(time.monotonic() - self._launched[prompt])
            self._numbers[prompt] = found.episode.attempt
        return found

    async def heartbeat(self, runner: str, episodes: Sequence[EpisodeAttempt]) -> Sequence[EpisodeAttempt]:
        """See `protocols.environments.Environments.heartbeat`."""
        return await self._book.runners.heartbeat(runner, episodes)

    async def done(self, runner: str, episode: EpisodeAttempt, report: EpisodeReport) -> None:
        """See `protocols.environments.Environments.done`."""
        await self._book.runners.done(runner, episode, report)

    async def turn(self, call: TurnCall) -> RecordedTurn:
        """See `protocols.turns.Turns.turn`."""
        if call.episode not in self._asked:
            self._asked.add(call.episode)
            self.first_turns.append(time.monotonic() - self._launched[call.episode.key.prompt])
        return await self._book.turn(call)

    async def history(self, episode: EpisodeAttempt) -> Sequence[StoredTurn]:
        """See `protocols.turns.Turns.history`."""
        return await self._book.history(episode)


@dataclass(frozen=True)
class _Prompts:
    """One question, again and again."""

    def environment(self, key: PromptKey) -> str:
        return ENVIRONMENT

    async def record(self, key: PromptKey) -> Mapping[str, object]:
        return {"answer": RESULT}

    async def messages(self, key: PromptKey) -> Sequence[Mapping[str, str]]:
        return [{"role": "user", "content": PHRASING.format(expression=QUESTION)}]


@dataclass
class _Site:
    words: Words
    engine: PacedEngine
    book: EpisodeBook
    watch: Watch
    replica: _Launching
    environments: LocalEnvironments


class _Launching:
    """A replica of episodes whose launches are noted."""

    def __init__(self, replica: EpisodeReplica, watch: Watch) -> None:
        self._replica = replica
        self._watch = watch

    async def submit(self, term: int, requests: Sequence[GenerateRequest]) -> None:
        self._watch.launch(requests)
        await self._replica.submit(term, requests)

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        return await self._replica.poll(term, after, wait_seconds)


@asynccontextmanager
async def _site(folder: Path, plan: Plan, seed: int) -> AsyncIterator[_Site]:
    """Open the store and the book, and start the gateway and the runners."""
    words, opening = Words(), Opening()
    model = folder / "model"
    words.tokenizer.save_pretrained(model)
    (model / "config.json").write_text(json.dumps(package_config(MODEL)), encoding="utf-8")
    (folder / "tools.py").write_text(TOOLS, encoding="utf-8")
    async with AsyncExitStack() as stack:
        store = await StoreThread.open(lambda _: Store(folder / "state.db", "bench"), opening)
        stack.push_async_callback(store.aclose)
        await store.do(lambda opened: opened.adopt_term(TERM))
        rules = BookRules({ENVIRONMENT: EpisodeRules(Limits(seconds=EPISODE_SECONDS))}, seed)
        book = EpisodeBook(store, rules, time.time)
        book.use_prompts(_Prompts())
        engine, watch = PacedEngine(words, plan.turn_seconds), Watch(book)
        environments = LocalEnvironments(_job(plan), EnvironmentFolders(folder / "run", model, folder))
        await stack.enter_async_context(environments.serve(watch, watch))
        replica: Replica = engine  # type: ignore[assignment]  # it generates, and does nothing else
        yield _Site(words, engine, book, watch, _Launching(EpisodeReplica(replica, book), watch), environments)


def _job(plan: Plan) -> RLJob:
    environment = {
        "name": ENVIRONMENT,
        "kind": "Tools",
        "tools": [{"function": f"tools.py:{TOOL}"}],
        "runners": plan.runners,
        "episodesPerRunner": plan.places,
    }
    data = {"prompts": {"file": {"path": "/unused"}}, "maxPromptTokens": 128, "maxResponseTokens": 128}
    rewards = [{"name": "right", "kind": "Math"}]
    spec = {"rounds": 1, "model": {"source": f"package://{MODEL}"}, "data": {**data, "chatTemplate": True}}
    spec |= {"rewards": rewards, "environments": [environment], "rollout": {"machines": 1}}
    metadata = {"name": "bench", "namespace": "default"}
    return load({"apiVersion": "rljob.dev/v1alpha1", "kind": "RLJob", "metadata": metadata, "spec": spec})


# --- generation ------------------------------------------------------------------------------------------------------


def _request(words: Words, prompt: PromptKey) -> GenerateRequest:
    return GenerateRequest(TrajectoryKey(prompt, 0), 1, words.prompt, Sampling(64, seed=1), VERSION)


async def _play(
    replica: _Launching | PacedEngine, requests: Sequence[GenerateRequest], concurrent: int, after: int = 0
) -> dict[PromptKey, list[int]]:
    """Generate responses, so many at a time; return their tokens."""
    waiting, tokens = list(reversed(requests)), {request.key.prompt: list[int]() for request in requests}
    left, cursor = len(requests), after
    await replica.submit(TERM, [waiting.pop() for _ in range(min(concurrent, len(waiting)))])
    while left:
        report = await replica.poll(TERM, cursor, POLL_SECONDS)
        cursor, ended = report.cursor, 0
        for delta in report.deltas:
            known = tokens.get(delta.key.prompt)
            if known is not None:
                known += delta.token_ids
                ended += delta.finish_reason is not None
        left -= ended
        if ended and waiting:
            await replica.submit(TERM, [waiting.pop() for _ in range(min(ended, len(waiting)))])
    return tokens


async def _generate_plainly(site: _Site, plan: Plan) -> None:
    """Generate as many turns as the episodes of a block have, by the engine alone: one after the other in each."""
    second = (*site.words.prompt, *site.words.call, *site.words.answer)
    engine = PacedEngine(site.words, plan.turn_seconds)
    first = {PromptKey(0, index): _request(site.words, PromptKey(0, index)) for index in range(plan.episodes)}
    waiting, left, cursor = list(first), plan.episodes, 0
    await engine.submit(TERM, [first[waiting.pop()] for _ in range(min(plan.concurrent, len(waiting)))])
    while left:
        report = await engine.poll(TERM, cursor, POLL_SECONDS)
        cursor = report.cursor
        following = [first[delta.key.prompt] for delta in report.deltas if delta.token_ids == site.words.call]
        ended = len(report.deltas) - len(following)
        left -= ended
        begin = [first[waiting.pop()] for _ in range(min(ended, len(waiting)))]
        again = [GenerateRequest(one.key, 2, second, one.sampling, VERSION) for one in following]
        await engine.submit(TERM, [*begin, *again])
