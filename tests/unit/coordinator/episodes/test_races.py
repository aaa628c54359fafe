"""The episode book, where two calls meet: each test forces the order in which they do."""

from __future__ import annotations

import asyncio

from tests.support.episode_book import KEY, bench, settled


async def test_two_calls_that_find_an_attempt_of_a_former_coordinator_find_the_same_one(tmp_path):
    """A runner's heartbeat and its client's turn arrive together, as soon as the coordinator answers."""
    async with bench(tmp_path) as made:
        episode = await made.begun()
        await made.answered(made.ask(episode, [1]), [5, 6])
    async with bench(tmp_path) as made:
        made.access.free.clear()
        beating = asyncio.ensure_future(made.book.runners.heartbeat("r", [episode]))
        asking = asyncio.ensure_future(made.book.turn(made.ask(episode, [1], retry=True)))
        await settled()
        made.access.free.set()
        assert list(await beating) == []
        assert list((await asking).token_ids) == [5, 6]
        await made.launch(attempt=2, prefix=(5,))
        await made.answered(made.ask(episode, [1, 5, 6, 2]), [7])
        assert made.store.turns.newest([KEY])[KEY].end is None
