"""Runners without a free place: what waits for them is no sign that they are gone."""

from __future__ import annotations

from dataclasses import replace

from rljob_runtime.coordinator.episodes.runner_service import RunnerRules
from tests.support.episode_book import KEY, bench
from tests.support.episode_job import ENVIRONMENT

UNSERVED = RunnerRules().unserved


async def test_what_waits_for_a_full_runner_does_not_miss_one(tmp_path):
    async with bench(tmp_path) as made:
        for sample in range(3):
            await made.launch(key=replace(KEY, sample=sample))
        episode = (await made.leased()).episode
        runners, began = made.book.runners, made.now[0]
        for since in range(0, int(2 * UNSERVED), 5):
            made.now[0] = began + since
            await runners.heartbeat(ENVIRONMENT, "r", [episode])
            assert runners.look(made.now[0]) == [], f"its runner sent a heartbeat {since} s after it became full"
        made.now[0] += UNSERVED + 1
        assert runners.look(made.now[0]) == [ENVIRONMENT]
        assert not await runners.lease("another", "s", 0.0)
        assert runners.look(made.now[0]) == [ENVIRONMENT]
        assert len(await runners.lease(ENVIRONMENT, "s", 0.0)) == 1
        assert runners.look(made.now[0]) == []
