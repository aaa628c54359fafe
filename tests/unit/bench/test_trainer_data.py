"""The way of tokens to the trainer's ranks: more ranks cost no more, and the benchmark's figures."""

from __future__ import annotations

import dataclasses
import json
import pickle
import time
from typing import Any

import pytest

from rljob_bench import trainer_data as trainer_data_bench
from rljob_bench.trainer_data import Cost, DataRank, Plan, figures, groups_of, sizes, tokens_of, trainer_data
from rljob_runtime.training.ranks.group import TrainerGroup

STEP = Plan(prompts=64, responses=8, longest=800, row=4096)


class PickledRank:
    """A rank whose arguments travel as bytes, in this process."""

    host = "127.0.0.1"

    def __init__(self, rank: DataRank) -> None:
        self._rank = rank
        self.tokens = 0

    async def put(self, value: Any) -> bytes:
        return pickle.dumps(value, protocol=5)

    async def call(self, method: str, *arguments: Any) -> Any:
        sent = [pickle.loads(one) if isinstance(one, bytes) else one for one in arguments]
        answer = await getattr(self._rank, method)(*sent)
        self.tokens = answer if method == "train" else self.tokens
        return answer


async def test_the_way_to_eight_ranks_takes_the_work_of_the_way_to_one() -> None:
    """Processor seconds, the least of some tries: where each rank gets everything, eight take 8 times as much."""
    groups = groups_of(STEP, seed=1)
    least = {1: float("inf"), 8: float("inf")}
    for _ in range(6):
        for count in least:
            ranks = [PickledRank(DataRank(STEP.row)) for _ in range(count)]
            began = time.process_time()
            await TrainerGroup(ranks).train(1, 1, groups)
            least[count] = min(least[count], time.process_time() - began)
            assert sum(rank.tokens for rank in ranks) == tokens_of(groups)
            assert max(rank.tokens for rank in ranks) < 1.2 * tokens_of(groups) / count
    assert least[8] < 1.6 * least[1], least


@pytest.mark.parametrize("ranks", [1, 8])
def test_what_is_sent_is_four_bytes_a_token_and_four_a_log_probability(ranks: int) -> None:
    groups = groups_of(STEP, seed=1)
    sent = sizes(dataclasses.replace(STEP, ranks=ranks), groups)["many"]
    assert 1 < sent / (8 * tokens_of(groups) + 4 * STEP.prompts * STEP.prompt) < 1.03


def test_figures_are_ratios_of_the_same_run() -> None:
    costs = {
        "once": [Cost(0.1, 0.1)] * 3,
        "everything": [Cost(0.9, 1.0)] * 3,
        "one": [Cost(0.2, 0.2), Cost(0.2, 0.2), Cost(9.0, 9.0)],
        "many": [Cost(0.22, 0.3)] * 3,
    }
    found = {one["name"]: one for one in figures(costs, {"once": 900, "many": 990}, 100, Plan())}
    values = {name: pytest.approx(one["value"]) for name, one in found.items()}
    assert values == {
        "over_one_rank": 1.1,
        "work_over_one_rank": 1.5,
        "bytes_over_pickling_once": 1.1,
        "over_pickling_once": 2.2,
        "everything_over_pickling_once": 9.0,
        "microseconds_a_token": 2200.0,
    }
    assert {name for name, one in found.items() if one["goal"] == 1.2} == {"over_one_rank", "work_over_one_rank"}


@pytest.mark.engine
def test_a_small_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_data_bench, "QUICK", Plan(prompts=4, responses=2, longest=50, ranks=2, times=1))
    result = json.loads(json.dumps(trainer_data(quick=True, seed=1)))
    assert [row["way"] for row in result["rows"]] == ["once", "everything", "one", "many"]
    assert all(row["seconds"] > 0 for row in result["rows"])
    assert len(result["figures"]) == 6
