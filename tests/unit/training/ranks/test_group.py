"""One command at a time for all ranks, whatever becomes of those who asked."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from rljob_runtime.protocols import PeerTimeout, Refused
from rljob_runtime.training.batch.delivery import Delivery, Progress, plan_train
from rljob_runtime.training.ranks.group import TrainerGroup
from rljob_runtime.training.row_rules import RowRules
from tests.support.training.toys import make_groups

RULES = RowRules(budget=40)


class StandInRank:
    """Takes so many turns of the loop for a command, and notes when each begins and ends."""

    host = "127.0.0.1"

    def __init__(self, turns: int, log: list[tuple[str, str]], error: Exception | None = None) -> None:
        self._turns = turns
        self._log = log
        self._error = error
        self.progress = Progress(0, {}, RULES)
        self.packed: list[Any] = []
        self.arguments: tuple[Any, ...] = ()

    async def put(self, value: Any) -> Any:
        self.packed.append(value)
        return value

    async def call(self, method: str, *arguments: Any) -> Any:
        if method == "progress":
            return self.progress
        self._log.append(("begins", method))
        self.arguments = arguments
        work = asyncio.ensure_future(self._work(method))  # goes on without its caller, as a far end does
        return await asyncio.shield(work)

    async def _work(self, method: str) -> str:
        for _ in range(self._turns):
            await asyncio.sleep(0)
        self._log.append(("ends", method))
        if self._error is not None:
            raise self._error
        return method


async def begun(log: list[tuple[str, str]], method: str) -> None:
    while ("begins", method) not in log:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def test_the_next_command_waits_for_one_whose_caller_gave_up() -> None:
    log: list[tuple[str, str]] = []
    group = TrainerGroup([StandInRank(1, log), StandInRank(20, log)])
    asked = asyncio.create_task(group.contribute(1, 1, make_groups(1, 2)))
    await begun(log, "contribute")
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert await group.checkpoint(1, 1, "{}") == "checkpoint"
    assert log.index(("begins", "checkpoint")) > max(i for i, one in enumerate(log) if one == ("ends", "contribute"))
    assert log.count(("ends", "contribute")) == log.count(("ends", "checkpoint")) == 2


async def test_an_error_whose_caller_gave_up_prints_no_traceback() -> None:
    """An interrupted run ends the ranks after their caller."""
    log: list[tuple[str, str]] = []
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    group = TrainerGroup([StandInRank(5, log, Refused("its process has ended"))])
    asked = asyncio.create_task(group.export(1))
    await begun(log, "export")
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    with pytest.raises(Refused):
        await group.export(1)
    del group, asked
    gc.collect()
    await asyncio.sleep(0)
    assert log.count(("ends", "export")) == 2
    assert told == []


async def test_a_command_whose_caller_gave_up_before_its_turn_is_never_sent() -> None:
    log: list[tuple[str, str]] = []
    group = TrainerGroup([StandInRank(5, log), StandInRank(20, log)])
    first = asyncio.create_task(group.export(1))
    await begun(log, "export")
    second = asyncio.create_task(group.contribute(1, 1, make_groups(1, 2)))
    await asyncio.sleep(0)
    second.cancel()
    assert await first == "export"
    assert await group.checkpoint(1, 1, "{}") == "checkpoint"
    assert ("begins", "contribute") not in log


async def test_a_rank_that_refuses_ends_the_command_immediately_and_for_all() -> None:
    log: list[tuple[str, str]] = []
    group = TrainerGroup([StandInRank(1, log, Refused("no")), StandInRank(10**9, log)])
    for _ in range(2):
        with pytest.raises(Refused, match="no"):
            await asyncio.wait_for(group.export(1), 30)


async def test_every_rank_gets_its_own_rows_and_one_packs_what_is_for_all() -> None:
    ranks = [StandInRank(1, []) for _ in range(3)]
    groups = make_groups(1, 6)
    await TrainerGroup(ranks).train(7, 1, groups)
    delivery, shares = plan_train(ranks[0].progress, 1, groups, 3)
    (told, first), (second,), (third,) = (rank.packed for rank in ranks)
    assert told == delivery
    for rank, own, wanted in zip(ranks, (first, second, third), shares, strict=True):
        assert (rank.arguments[:2], rank.arguments[2] is told, rank.arguments[3] is own) == ((7, 1), True, True)
        assert own[0].joined.token_ids.tolist() == wanted[0].joined.token_ids.tolist()


async def test_what_another_machine_summed_comes_without_tokens() -> None:
    ranks = [StandInRank(1, []) for _ in range(2)]

    class Receipt:
        step = 1

    await TrainerGroup(ranks).accept(7, Receipt(), make_groups(1, 3))  # type: ignore[arg-type]
    assert [len(rank.packed) for rank in ranks] == [1, 0]
    assert all(isinstance(rank.arguments[-1], Delivery) for rank in ranks)


async def test_groups_that_cannot_be_packed_end_the_command_and_no_other() -> None:
    log: list[tuple[str, str]] = []
    ranks = [StandInRank(1, log), StandInRank(1, log)]

    async def refuse(value: Any) -> Any:
        raise PeerTimeout("the store is full")

    ranks[1].put = refuse  # type: ignore[method-assign]
    group = TrainerGroup(ranks)
    with pytest.raises(PeerTimeout, match="the store is full"):
        await group.train(7, 1, make_groups(1, 2))
    with pytest.raises(Refused, match=r"step 1 cannot be trained: group 0\.0 occurs twice"):
        await group.train(7, 1, [*make_groups(1, 1), *make_groups(1, 1)])
    assert log == []
    assert await group.export(1) == "export"
