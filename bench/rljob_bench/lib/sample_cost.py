"""Cost of samples: processor seconds that the coordinator spends more because a job keeps samples and lengths.

The same responses go through two stores, by turns: one of a job that keeps samples and one of a job that does not.
Store, choice, texts and files are the product's. Each pair differs by what samples add, so other load on the machine
plays no part. Which store is first changes from pair to pair.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rljob_api import load
from rljob_api.constants import API_VERSION, KIND
from rljob_api.spec.resources import Samples
from rljob_api.status import RoundKind, RoundReport
from rljob_runtime.coordinator.inputs import ObservedPrompts, open_prompts
from rljob_runtime.coordinator.samples.writer import SampleWriter
from rljob_runtime.coordinator.store.connection import Opening
from rljob_runtime.coordinator.store.evaluations import EvaluatedSample
from rljob_runtime.coordinator.store.records import Boundary, Tokens
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.store_thread import StoreThread
from rljob_runtime.evaluation import EvaluationResult
from rljob_runtime.models.folder import ModelFolder
from rljob_runtime.protocols import TrainReport
from rljob_runtime.protocols.rewards import Reward
from rljob_runtime.protocols.trajectory import Cursor, FinishReason, Lease, PromptKey, Response, TrajectoryKey
from rljob_runtime.scheduling.evaluation import evaluation_key
from rljob_runtime.scheduling.round_plan import PromptOutcome, RoundOutcome, RoundPlan, RoundShape

PerRound = int | Literal["All"]

EVALUATION = "check"
VERSION, REPLICA, RULE = 1, "rollout-0", "right"
_TRAINED = TrainReport(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1, 0.0)


@dataclass(frozen=True)
class Added:
    """Processor seconds of samples of the same responses, in a round of training and in an evaluation."""

    training: float
    evaluation: float


class SampleCost:
    """Two jobs with the same responses: one keeps samples, the other does not. Created by `open`."""

    def __init__(self, keeping: _Job, plain: _Job) -> None:
        self._keeping, self._plain = keeping, plain
        self._step = 0

    @classmethod
    async def open(cls, folder: Path, prompts: ObservedPrompts, kept: PerRound, seed: int) -> SampleCost:
        """Open both stores below `folder`. `kept`: samples of a round."""
        keeping = await _Job.open(folder / f"samples-{kept}", prompts, Samples(per_round=kept), seed)
        return cls(keeping, await _Job.open(folder / f"plain-{kept}", prompts, None, seed))

    async def measure(self, responses: Sequence[Sequence[int]], group: int) -> Added:
        """Return what samples of these responses add. `group`: responses to a prompt."""
        self._step += 1
        if self._step % 2:
            kept = await self._keeping.spent(self._step, responses, group)
            plain = await self._plain.spent(self._step, responses, group)
        else:
            plain = await self._plain.spent(self._step, responses, group)
            kept = await self._keeping.spent(self._step, responses, group)
        return Added(kept.training - plain.training, kept.evaluation - plain.evaluation)

    async def close(self) -> None:
        """Close both stores."""
        for job in (self._keeping, self._plain):
            await job.store.aclose()


class _Job:
    """One store and, with `samples`, a writer of their files."""

    def __init__(self, store: StoreThread, prompts: ObservedPrompts, writer: SampleWriter | None) -> None:
        self.store = store
        self.writer = writer
        self._prompts = prompts
        self._cursor = Cursor()

    @classmethod
    async def open(cls, folder: Path, prompts: ObservedPrompts, samples: Samples | None, seed: int) -> _Job:
        """Open the store of a job that has not begun."""
        folder.mkdir()
        store = await StoreThread.open(lambda opening: Store(folder / "state.db", "bench", opening), Opening())
        await store.do(_begin)
        if samples is None:
            return cls(store, prompts, None)
        kept = samples

        async def spec() -> Samples:
            return kept

        writer = SampleWriter(folder, store, seed, lambda rewards: [*rewards], spec)
        await writer.use(samples)
        writer.use_prompts(prompts)
        return cls(store, prompts, writer)

    async def spent(self, step: int, responses: Sequence[Sequence[int]], group: int) -> Added:
        """Return the processor seconds of a round and of an evaluation with these responses."""
        keys, self._cursor = await self._prompts.take(self._cursor, len(responses) // group)
        round_, cursor = _Round(step, keys, group, responses), self._cursor
        with _processor_seconds() as training:
            await self.store.do(lambda store: round_.play(store, cursor))
            await self._written(RoundReport(round=step))
            await self._tidied()
        records = self._prompts.evaluation_prompts(EVALUATION)
        with _processor_seconds() as evaluation:
            await self.store.do(lambda store: _evaluate(store, step, records, group, responses))
            await self._written(None)
            await self._tidied()
        return Added(training[0], evaluation[0])

    async def _tidied(self) -> None:
        """Wait for what the store's thread does after a call."""
        await self.store.do(lambda store: None)

    async def _written(self, report: RoundReport | None) -> None:
        """Write the files of what has ended, if this job keeps samples. `report`: of a round of training."""
        if self.writer is None:
            return
        if report is not None:
            self.writer.round_closed(report, _TRAINED)
        await self.writer.close()
        if (problem := self.writer.problem()) is not None:
            raise RuntimeError(problem.message)


def _begin(store: Store) -> None:
    store.start_at(Boundary(0, Cursor()))
    store.versions.publish(VERSION, 0)


@dataclass(frozen=True)
class _Round:
    """A round of training with these responses: all are scored and trained on."""

    step: int
    prompts: tuple[PromptKey, ...]
    group: int
    responses: Sequence[Sequence[int]]

    def play(self, store: Store, cursor: Cursor) -> None:
        """Record it in a store."""
        shape = RoundShape(RoundKind.PLAIN, len(self.prompts), self.group, len(self.prompts), self.group)
        plan = RoundPlan(self.step, VERSION, shape, self.prompts)
        places = plan.trajectories()
        store.rounds.open(plan, cursor)
        store.trajectories.launched(self.step, VERSION, [(key, Lease(REPLICA, 1)) for key in places])
        ended = [_response(key, tokens) for key, tokens in zip(places, self.responses, strict=True)]
        tokens = [Tokens(one.key, 0, one.token_ids, one.logprobs) for one in ended]
        store.trajectories.finish(self.step, tokens, ended)
        for key in places:
            store.trajectories.score(self.step, key, Reward(float(key.sample), {RULE: float(key.sample)}))
        store.trajectories.assign(self.step, places)
        outcome = RoundOutcome(self.prompts, dict.fromkeys(self.prompts, PromptOutcome.TRAINED), {}, places)
        store.rounds.close(outcome, Boundary(self.step, cursor, report=RoundReport(round=self.step)))


def _evaluate(store: Store, step: int, records: Sequence[int], group: int, responses: Sequence[Sequence[int]]) -> None:
    """Record an evaluation with these responses: all are scored."""
    store.evaluations.open(step, {EVALUATION: "settings"})
    for number, tokens in enumerate(responses):
        record, sample = records[number // group], number % group
        response = _response(TrajectoryKey(evaluation_key(EVALUATION, step, record), sample), tokens)
        value = float(sample)
        row = EvaluatedSample(record, sample, len(tokens), FinishReason.LENGTH.value, value, {RULE: value})
        store.evaluations.record(step, EVALUATION, row, response)
    result = EvaluationResult(EVALUATION, step, VERSION, len(responses) // group, group)
    assert store.evaluations.close(step, EVALUATION, result.to_json())


def _response(key: TrajectoryKey, tokens: Sequence[int]) -> Response:
    logprobs = (-1.0,) * len(tokens)
    return Response(key, 1, VERSION, tuple(tokens), logprobs, FinishReason.LENGTH, REPLICA)


@contextlib.contextmanager
def _processor_seconds() -> Iterator[list[float]]:
    """Yield a list that has the processor seconds of all threads of this process afterwards."""
    found: list[float] = []
    began = time.process_time()
    yield found
    found.append(time.process_time() - began)


def sums_of(folder: ModelFolder, source: str, scratch: Path, evaluated: int, seed: int) -> ObservedPrompts:
    """Return generated sums as prompts of a job with this model, and `evaluated` others of its evaluation."""
    prompts = {"reasoningGym": {"task": "basic_arithmetic", "size": 2000, "config": {"max_terms": 2}}}
    spec: Mapping[str, object] = {
        "rounds": 1,
        "model": {"source": source},
        "data": {"prompts": prompts, "maxPromptTokens": 128, "maxResponseTokens": 128, "seed": seed},
        "rewards": [{"name": RULE, "kind": "ReasoningGym"}],
        "rollout": {"machines": 1, "engine": "Reference"},
        "evaluation": [{"name": EVALUATION, "prompts": prompts, "everyRounds": 1, "maxPrompts": evaluated}],
    }
    job = load({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "bench"}, "spec": spec})
    return open_prompts(job.spec, folder.model_files(), scratch)
