"""Runner pools: the number of an environment's runners, within its bounds.

A round needs as many runners as its open episodes of training fill: the most that were open at a time, divided by the
episodes that a runner runs concurrently. More runners are added after one such round, because episodes wait meanwhile.
Some are removed after four rounds that needed fewer: their episodes would be handed back. All memory is in the status,
so a restarted operator decides the same. It is in episodes, because an edit may change how many a runner runs.

Evaluations do not count. One fills far more runners than a round, and has ended when its round is reported: runners
for it would stand idle in the rounds that follow. Its episodes wait for the runners of training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from rljob_api.spec import RLJob
from rljob_api.spec.environments import Environment
from rljob_api.status import EnvironmentLoad, RoundReport, RunnerPool

ROUNDS = 4
"""Rounds whose greatest need a smaller number must meet."""


def pool_sizes(job: RLJob) -> Mapping[str, RunnerPool]:
    """Return the pools of a running job by environment, with the number of runners of each."""
    before = {one.name: one.pool for one in job.status.environments}
    last = job.status.runtime.last_round if job.status.runtime is not None else None
    return {one.name: pool_size(one, before.get(one.name), last) for one in job.spec.environments}


def is_elastic(environment: Environment) -> bool:
    """Tell whether the operator may change the number of runners."""
    return environment.fewest_runners < environment.most_runners


def pool_size(environment: Environment, before: RunnerPool | None, last: RoundReport | None) -> RunnerPool:
    """Return the pool after the `last` reported round."""
    if not is_elastic(environment):
        return RunnerPool(runners=environment.runners, start=environment.runners)
    pool = before
    if pool is None or pool.start != environment.runners:
        pool = RunnerPool(
            runners=environment.runners,
            start=environment.runners,
            round=0 if before is None else before.round,
        )
    pool = _learned(environment, pool, last)
    return pool.model_copy(update={"runners": _within(environment, _wanted(environment, pool))})


def _learned(environment: Environment, pool: RunnerPool, last: RoundReport | None) -> RunnerPool:
    """Add a round to the memory. Going back to a checkpoint clears it."""
    if last is None or last.round == pool.round:
        return pool
    loads = last.episodes.environments if last.episodes is not None else None
    most = next((_of_training(one) for one in loads or () if one.name == environment.name), 0)
    kept = pool.open if last.round > pool.round else ()
    return pool.model_copy(update={"round": last.round, "open": (*kept, most)[-ROUNDS:]})


def _of_training(load: EnvironmentLoad) -> int:
    """Return the most open episodes of training. An earlier coordinator reports those of evaluations among them."""
    return load.most_open if load.most_training is None else load.most_training


def _wanted(environment: Environment, pool: RunnerPool) -> int:
    needed = [math.ceil(most / environment.episodes_per_runner) for most in pool.open]
    if not needed:
        return pool.runners
    if len(needed) < ROUNDS:
        return max(pool.runners, needed[-1])
    return max(needed)


def _within(environment: Environment, runners: int) -> int:
    return max(environment.fewest_runners, min(runners, environment.most_runners))
