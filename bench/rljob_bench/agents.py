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
- `generation_idle`: share of the responses' lives in which the engine generated nothing for them: gateway, runner, tool
  and store worked, or waited.
- `gateway_cost`: tokens a second of clients that ask the engine directly, over those of as many clients that ask
  through the gateway, with nothing else between. Blocks of both follow each other, and turns take the same times.
- `gateway_own_p99_seconds`: bound of the gateway's own share of 99 of 100 of these turns, of its histogram
  `rljob_gateway_own_seconds`: without the wait for the engine and for the client.
- `turn_added_p99_seconds`: what clients wait beyond the engine's time: HTTP, gateway, link and this process.
- `failed_episodes`: attempts that a failure of ours ended.
- `differing_responses`: responses whose tokens are not those that the engine emitted.

Where `KUBECONFIG` names a cluster (`hack/bench agents` makes one without kubelets), a coordinator's reporter and Lease
write to its API server while episodes are played: `writes_per_episode`, of which `lease_writes_per_episode` are
renewals of the Lease. The server must serve RLJobs; an operator's writes are not in the figure. And the same number of
episodes is also played as a Job each, whose pods live for as long as the turns take: `job_episodes_per_minute`,
`job_acquire_…_seconds`, `job_generation_idle`, and the API server's writes, `job_writes_per_episode`.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rljob_api import RLJob, load
from rljob_bench.lib.episodes.episode_jobs import EpisodeJobs, JobFigures, NotPlayed, episode_jobs, job_figures
from rljob_bench.lib.episodes.episode_peers import (
    ENVIRONMENT,
    RESULT,
    VERSION,
    Launching,
    PacedEngine,
    Prompts,
    Watch,
    Words,
)
from rljob_bench.lib.episodes.gateway_cost import Buckets, Clients, PacedTurns, Routed, free_port, total
from rljob_bench.lib.episodes.own_writes import OwnWrites, WriteFigures, own_writes, write_figures
from rljob_bench.lib.percentile import percentile
from rljob_kube import kubeconfig
from rljob_kube.connection import Connection, NoCredentials
from rljob_runtime.cli.bench_result import OptionError, figure
from rljob_runtime.coordinator.core.async_utils import alongside
from rljob_runtime.coordinator.episodes.book import BookRules, EpisodeBook
from rljob_runtime.coordinator.episodes.replica import EpisodeReplica
from rljob_runtime.coordinator.store.connection import Opening
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.store_thread import StoreThread
from rljob_runtime.gateway.own_share import BOUNDS, least_bound
from rljob_runtime.local.environments import EnvironmentFolders, LocalEnvironments
from rljob_runtime.models.source import package_config
from rljob_runtime.models.toy_calculator import TOOL
from rljob_runtime.protocols import GenerateRequest, Replica
from rljob_runtime.protocols.trajectory import PromptKey, Sampling, TrajectoryKey
from rljob_runtime.scheduling.episodes.episode import EpisodeRules, Versions
from rljob_runtime.scheduling.episodes.limits import Limits

GOAL_EPISODES_PER_MINUTE = 1000.0
GOAL_ACQUIRE_SECONDS = 0.1
GOAL_GATEWAY_COST = 1.05
GOAL_GATEWAY_SECONDS = 0.02
MODEL = "rljob/toy-calculator"
TURNS = 2
TERM = 1
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
    """Needs the runner of environments (`pip install ./envs`) and about two minutes; `--quick` 30 s.

    A cluster of `KUBECONFIG` adds the Jobs, and a minute.
    """
    plan = QUICK if quick else Plan()
    try:
        measured = asyncio.run(measure(plan, seed))
    except NotPlayed as error:
        raise OptionError(f"{error}; without KUBECONFIG the Jobs are left out") from error
    return {
        "bench": "agents",
        "seed": seed,
        "settings": {**asdict(plan), "turns": TURNS, "quick": quick, "jobs": measured.jobs is not None},
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
    idle: float = 0.0
    added: list[float] = field(default_factory=list)
    own: list[Buckets] = field(default_factory=list)
    """The gateway's own share of the turns of each block through it."""
    writes: WriteFigures | None = None
    """None without a cluster."""
    jobs: JobFigures | None = None
    """None without a cluster."""

    def rate(self, kind: str) -> float:
        """Return the episodes a minute of the blocks of a kind."""
        blocks = [row for row in self.rows if row["block"] == kind]
        return 60.0 * sum(row["episodes"] for row in blocks) / sum(row["seconds"] for row in blocks)

    def tokens_rate(self, kind: str) -> float:
        """Return the tokens a second of the blocks of a kind. 0.0 without such blocks."""
        blocks = [row for row in self.rows if row["block"] == kind]
        return sum(row["tokens"] for row in blocks) / sum(row["seconds"] for row in blocks) if blocks else 0.0


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
        figure(
            "generation_idle",
            measured.idle,
            anchor="share of the responses' lives without generation",
            limit=0.0,
            better="lower",
        ),
        *_gateway_figures(measured),
        figure("failed_episodes", measured.failed, 0, unit="episodes", better="lower"),
        figure("differing_responses", measured.differing, 0, unit="responses", better="lower"),
        *(write_figures(measured.writes) if measured.writes is not None else []),
        *(job_figures(measured.jobs, episodes) if measured.jobs is not None else []),
    ]


def _gateway_figures(measured: Measured) -> list[dict[str, Any]]:
    """Return what the gateway alone costs."""
    through, direct = measured.tokens_rate("gateway"), measured.tokens_rate("direct")
    if not through:
        return []
    anchor = "the same turns asked directly of the engine"
    return [
        figure("gateway_tokens_per_second", through, anchor=anchor, limit=direct, unit="tokens/s"),
        figure("gateway_cost", direct / through, GOAL_GATEWAY_COST, anchor, 1.0, better="lower"),
        figure(
            "gateway_own_p99_seconds",
            min(least_bound(total(measured.own), 0.99), BOUNDS[-1]),
            GOAL_GATEWAY_SECONDS,
            "bound of the bucket, without waits for engine and client",
            unit="s",
            better="lower",
        ),
        figure("turn_added_p99_seconds", percentile(measured.added, 0.99), unit="s", better="lower"),
    ]


async def measure(plan: Plan, seed: int) -> Measured:
    """Play all blocks, in a folder that is removed afterwards. Raises `ProcessFailed` if a process cannot work."""
    with tempfile.TemporaryDirectory(prefix="rljob-bench-") as folder:
        async with AsyncExitStack() as stack:
            site = await stack.enter_async_context(_site(Path(folder), plan, seed))
            jobs: EpisodeJobs | None = None
            writes: OwnWrites | None = None
            if (connection := _connection()) is not None:
                jobs = await stack.enter_async_context(episode_jobs(connection, TURNS * plan.turn_seconds))
                writes = await stack.enter_async_context(own_writes(connection, _job(plan)))
            book = site.book.run(lambda reason, warning: None)
            return await alongside(_blocks(site, plan, jobs, writes), book, site.environments.failed())


def _connection() -> Connection | None:
    """Return the connection to the cluster that `KUBECONFIG` names; None without it."""
    if not os.environ.get("KUBECONFIG"):
        return None
    try:
        # Also in a pod: not the cluster that it runs in.
        return kubeconfig.load(kubeconfig.files(os.environ))
    except NoCredentials as error:
        raise OptionError(str(error)) from None


async def _blocks(site: _Site, plan: Plan, jobs: EpisodeJobs | None, writes: OwnWrites | None = None) -> Measured:
    measured = Measured()
    for block in range(plan.blocks):
        prompts = [PromptKey(block, index) for index in range(plan.episodes)]
        began = time.monotonic()
        requests = [_request(site.words, key) for key in prompts]
        if writes is not None:
            writes.begin()
        responses = await _play(site.replica, requests, plan.concurrent, writes.played if writes is not None else _pass)
        between = time.monotonic()
        if writes is not None:
            await writes.end()
        plain_began = time.monotonic()
        await _generate_plainly(site, plan)
        seconds = {"episodes": between - began, "plain": time.monotonic() - plain_began}
        through, direct = await site.clients.play(block, plan.concurrent, plan.episodes // plan.concurrent)
        if jobs is not None:
            seconds["jobs"] = await jobs.play(plan.episodes, plan.concurrent)
        measured.differing += sum(site.engine.emitted_for(site.watch, key) != responses[key] for key in prompts)
        site.book.drop(prompts)
        if block == 0:
            site.watch.forget()
            if jobs is not None:
                jobs.forget()
            if writes is not None:
                writes.forget()
            continue
        for kind, took in seconds.items():
            measured.rows.append({"block": kind, "episodes": plan.episodes, "seconds": took})
        for kind, played in (("gateway", through), ("direct", direct)):
            measured.rows.append({"block": kind, "tokens": played.tokens, "seconds": played.seconds})
        measured.added += through.added
        measured.own.append(through.own)
    measured.acquired, measured.first_turns = list(site.watch.acquired), list(site.watch.first_turns)
    generated = len(measured.acquired) * TURNS * plan.turn_seconds
    measured.idle = 1.0 - generated / site.watch.lived_seconds
    measured.jobs = jobs.figures if jobs is not None else None
    measured.writes = writes.figures if writes is not None else None
    measured.failed = sum(site.book.totals.aborts.values())
    return measured


# --- the site --------------------------------------------------------------------------------------------------------


@dataclass
class _Site:
    words: Words
    engine: PacedEngine
    book: EpisodeBook
    watch: Watch
    replica: Launching
    environments: LocalEnvironments
    clients: Clients


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
        rules = BookRules({ENVIRONMENT: EpisodeRules(Limits(seconds=EPISODE_SECONDS), Versions.SINGLE)}, seed)
        book = EpisodeBook(store, rules, time.time)
        book.use_prompts(Prompts())
        engine, watch = PacedEngine(words, plan.turn_seconds), Watch(book)
        places, port = EnvironmentFolders(folder / "run", model, folder), free_port()
        environments = LocalEnvironments(_job(plan), places, metrics_port=port)
        paced = PacedTurns(words, plan.turn_seconds, seed)
        await stack.enter_async_context(environments.serve(Routed(paced, watch), watch))
        key = bytes.fromhex((places.run / "environments" / "capability-key").read_text(encoding="ascii"))
        metrics = f"http://127.0.0.1:{port}/metrics"
        clients = Clients(paced, words, _job(plan).name, environments.url, key, metrics)
        replica: Replica = engine  # type: ignore[assignment]  # it generates, and does nothing else
        launching = Launching(EpisodeReplica(replica, book), watch)
        yield _Site(words, engine, book, watch, launching, environments, clients)


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


def _pass(ended: int) -> None:
    """Do nothing."""


async def _play(
    replica: Launching | PacedEngine,
    requests: Sequence[GenerateRequest],
    concurrent: int,
    ended_now: Callable[[int], None],
) -> dict[PromptKey, list[int]]:
    """Generate responses, so many at a time; return their tokens. `ended_now`: receives how many have ended."""
    waiting, tokens = list(reversed(requests)), {request.key.prompt: list[int]() for request in requests}
    left, cursor = len(requests), 0
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
        ended_now(ended)
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
