"""No text that a model, a judge or a program writes holds the event loop: the longest turn with the worst of them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Self

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rljob_api.spec.rewards import CodeReward, JudgeReward
from rljob_api.spec.training import DataSpec
from rljob_runtime.coordinator.inputs import ObservedPrompts
from rljob_runtime.data import DataError, JobPrompts, Prompt, PromptSet
from rljob_runtime.data.prompts import PromptRules, open_source
from rljob_runtime.models.toy import toy_tokenizer
from rljob_runtime.protocols import RewardFailed
from rljob_runtime.protocols.trajectory import Cursor
from rljob_runtime.rewards import CodeRule, JudgeRule, RewardPool, Rule, pool
from rljob_runtime.sandbox.program import End, Program, Run
from tests.support.rows import slow

LONGEST_TURN = 0.5
"""Seconds of processor time: a Lease lasts 15 s and is renewed by the same loop."""
TEXTS, FEW = 24, 6
"""In `make test-all`, and of those the first, in `make test`."""
LENGTH = 300_000
PIECES = [
    *(
        "```python\n",
        "```",
        "```py\nx=1\n",
        "`",
        "\n",
        " ",
        "\t",
        "\x00",
        "\ud800",
        "é",
        "中",
        "1",
        "9",
        "1,",
        "1e9",
        "-",
    ),
    *("<answer>", "</answer>", "\\boxed{", "\\frac{", "#### ", "answer is ", "$", "{response}", "{", "[", '"', "\\"),
    *("Score: ", "Score: 1\n", "a", "ab ", "\u2028", "\r"),
]


def worst_text(chance: random.Random) -> str:
    """One piece, or a few, over and over: what a model degenerates to."""
    pattern = "".join(chance.choices(PIECES, k=chance.choice((1, 1, 2, 3, 8))))
    text = pattern * (LENGTH // len(pattern))
    ends = ["", "\n", "```\n", "\nScore: 5", "}"]
    return chance.choice(ends) + text + chance.choice(ends)


async def longest_turn(work: Callable[[], Awaitable[None]]) -> float:
    """Processor seconds of this process between two turns of a task that is always ready: whichever thread had them."""
    longest, ended = 0.0, False

    async def watch() -> None:
        nonlocal longest
        before = time.process_time()
        while not ended:
            await asyncio.sleep(0.002)
            now = time.process_time()
            longest, before = max(longest, now - before), now

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0.01)
    try:
        await work()
    finally:
        ended = True
        await watching
    return longest


async def test_the_watch_sees_a_turn_that_is_too_long() -> None:
    async def work() -> None:
        until = time.process_time() + LONGEST_TURN
        while time.process_time() < until:
            pass

    assert await longest_turn(work) >= LONGEST_TURN


class Printing:
    """A sandbox whose programs print a given text."""

    processes_started = 0

    def __init__(self, text: str) -> None:
        self._text = text

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return

    async def run(self, program: Program) -> Run:
        return Run(End.EXITED, 0, self._text[: program.output_bytes], "", 0.1, 0.1)


@pytest.mark.parametrize("number", [FEW, *slow(TEXTS)])
async def test_no_text_holds_the_loop(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    chance = random.Random(26)
    texts = [worst_text(chance) for _ in range(number)]
    printed, said = Printing(""), ""
    monkeypatch.setattr(pool, "Sandbox", lambda processes: printed)

    async def judge(request: web.Request) -> web.Response:
        await request.read()
        if said.startswith("["):
            return web.Response(text=said)
        return web.json_response({"choices": [{"message": {"content": said}}]})

    app = web.Application(client_max_size=1 << 24)
    app.router.add_post("/v1/chat/completions", judge)
    tests = [{"stdin": "", "stdout": "9 " * 50_000}, {"function": "f", "arguments": [], "returns": [1.5] * 20_000}]
    prompt = Prompt(0, "Q", (1,), "5", {"tests": tests * 2})
    async with TestServer(app) as server:
        settings = JudgeReward(url=str(server.make_url("/v1")), model="m", attempts=1)
        rules = [
            Rule("last", "rljob_runtime.rewards.builtin:last_number"),
            Rule("some", "rljob_runtime.rewards.builtin:has_number"),
        ]
        whole = CodeReward(program="{question}{response}", parallelism=2)
        scored: list[float | None] = []

        async def work() -> None:
            nonlocal said
            for text in texts:
                said, printed._text = text, text
                for scorer in scorers:
                    try:
                        scored.append(await scorer.score(prompt, text))
                    except RewardFailed:
                        scored.append(None)

        async with (
            RewardPool(rules) as functions,
            RewardPool([CodeRule("code")]) as code,
            RewardPool([CodeRule("whole", settings=whole)]) as completed,
            RewardPool([JudgeRule("taste", settings)]) as judges,
        ):
            scorers = [functions, code, completed, judges]
            assert await longest_turn(work) <= LONGEST_TURN
    assert len(scored) == number * len(scorers)
    assert any(scored), "some of them are worth something"
    assert None in scored, "some replies of the judge are none"


async def test_no_response_holds_the_loop_while_it_becomes_text(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "1 + 1 = ", "answer": "2"}\n')
    data = DataSpec.model_validate({"prompts": {"file": {"path": str(path)}}, "chat_template": False})
    tokenizer = toy_tokenizer()
    training = PromptSet(open_source(data.prompts, data.seed, tmp_path), PromptRules(data, tokenizer))
    prompts = ObservedPrompts(JobPrompts(training, {}, {}), DataError)
    chance = random.Random(26)
    responses = [tuple(chance.choices(range(len(tokenizer)), k=100_000)) for _ in range(4)]
    responses += [(token,) * 100_000 for token in range(0, len(tokenizer), 7)]
    found: list[str] = []

    async def work() -> None:
        found.extend(await asyncio.gather(*map(prompts.decode, responses)))

    assert await longest_turn(work) <= LONGEST_TURN
    assert len(found) == len(responses)


@pytest.mark.parametrize("each", [100, 1], ids=["one draw", "many draws"])
async def test_drawing_prompts_that_take_long_to_make_gives_others_their_turns(each: int) -> None:
    class Slow:
        """Makes a prompt in 10 ms of processor time."""

        stop_token_ids: tuple[int, ...] = ()
        skipped = 0

        def draw(self, cursor: Cursor, count: int, source: str) -> tuple[tuple[int, ...], Cursor]:
            until = time.process_time() + 0.01 * count
            while time.process_time() < until:
                pass
            return tuple(range(cursor.position, cursor.position + count)), Cursor(0, cursor.position + count)

    async def work() -> None:
        prompts = ObservedPrompts(Slow(), DataError)  # type: ignore[arg-type]
        cursor, drawn = Cursor(), []
        while len(drawn) < 100:
            keys, cursor = await prompts.take(cursor, each)
            drawn += keys
        assert (drawn, cursor) == ([*range(100)], Cursor(0, 100))

    assert await longest_turn(work) <= LONGEST_TURN
