"""Rewards of kind Judge, against a small server of our own that has every fault a judge can have."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rljob_api.spec.rewards import JudgeReward
from rljob_runtime.data.prompt import Prompt
from rljob_runtime.protocols import RewardFailed
from rljob_runtime.rewards import InvalidReward, JudgeRule, RewardPool
from rljob_runtime.rewards.errors import ScoreFailed
from rljob_runtime.rewards.judge_scorer import SHOWN, JudgeScorer, parse_score
from rljob_runtime.rewards.rules import fill_template
from rljob_runtime.scheduling.backoff import Backoff

PROMPT = Prompt(0, "What is 2 + 2?", (1,), "4")
QUICK = Backoff(initial=0.01, maximum=0.01)
KEY = "sk-very-secret"
LONG_KEY = "sk-proj-AB/CD+EFGH'IJ\\KL\"MNOPQRSTUVWXYZ0123456789"

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def completion(text: Any) -> web.Response:
    return web.json_response({"choices": [{"message": {"content": text}}]})


class Judge:
    """Answers each request with the next of its answers, the last one for ever."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[tuple[dict[str, Any], str | None]] = []
        self.running = self.most = 0

    def says(self, *texts: Any) -> None:
        async def say(request: web.Request, text: Any) -> web.StreamResponse:
            return completion(text)

        self.answers = [lambda request, text=text: say(request, text) for text in texts]

    def does(self, *answers: Answer) -> None:
        self.answers = list(answers)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((await request.json(), request.headers.get("Authorization")))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
            return await answer(request)
        finally:
            self.running -= 1


@pytest.fixture
async def judge() -> AsyncIterator[tuple[Judge, str]]:
    judge, app = Judge(), web.Application()
    app.router.add_post("/v1/chat/completions", judge.handle)
    async with TestServer(app) as server:
        yield judge, str(server.make_url("/v1"))


def rule(url: str, timeout: float = 20.0, weight: float = 1.0, **settings: Any) -> JudgeRule:
    return JudgeRule("taste", JudgeReward(url=url, model="judge-7b", **settings), weight, timeout)


async def test_the_judge_is_asked_and_its_score_is_a_share(judge: tuple[Judge, str]) -> None:
    server, url = judge
    server.says("It is right.\n\nScore: 7.5\n")
    async with JudgeScorer(rule(url, weight=2.0)) as scorer:
        assert await scorer.score(PROMPT, "four {answer}") == 1.5
    ((body, authorization),) = server.requests
    assert (body["model"], body["temperature"], authorization) == ("judge-7b", 0, None)
    text = body["messages"][0]["content"]
    assert "What is 2 + 2?" in text
    assert "four {answer}" in text, "a response is filled in as it stands"
    assert "to 10 (perfect)" in text


async def test_a_prompt_of_ones_own(judge: tuple[Judge, str]) -> None:
    server, url = judge
    server.says("Score: 1")
    async with JudgeScorer(rule(url, scale=1, prompt="Is {response} better than {answer}? {other}")) as scorer:
        assert await scorer.score(PROMPT, "5") == 1.0
    assert server.requests[0][0]["messages"][0]["content"] == "Is 5 better than 4? {other}"


@pytest.mark.parametrize(
    ("reply", "score"),
    [("Score: 0", 0.0), ("fine\nScore: 10", 1.0), ("Score: 3\nno:\nScore: 2.50", 0.25), ("  Score: 4  \n\n", 0.4)],
)
def test_scores(reply: str, score: float) -> None:
    assert parse_score(reply, 10) == score


@pytest.mark.parametrize(
    "reply",
    ["", "\n", "10", "Score: ten", "Score: -1", "Score: 11", "Score: 10/10", "Score: 1e3", "Score: nan", "score: 5",
     "Score: 5.", "Score: 5\nThat is all.", "**Score: 5**", "Score: 5 Score: 6", "Score: 99999", "Score: ٣"],
)  # fmt: skip
def test_what_is_no_score(reply: str) -> None:
    with pytest.raises(ValueError, match="would be right"):
        parse_score(reply, 10)


def test_filling_in_happens_once() -> None:
    values = {"question": "{response}", "answer": "{question}", "response": "{answer}", "scale": "1"}
    assert fill_template("{question}{answer}{response}{}{x}", values) == "{response}{question}{answer}{}{x}"


async def slow(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return completion("Score: 1")


async def cut(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b"x" * (1 << 16))


def status(code: int, text: str = "", **headers: str) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=code, text=text or request.headers.get("Authorization", ""), headers=headers)

    return answer


def body(text: str) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text=text, content_type="application/json")

    return answer


FAULTS: list[tuple[Answer, str, int]] = [
    (slow, "no answer within 1 s", 3),
    (cut, "cannot be reached", 3),
    (endless, "longer than", 3),
    (status(500), "answered 500", 3),
    (status(503, "loading"), "answered 503: loading", 3),
    (status(429, "slow down"), "answered 429: slow down", 3),
    (status(401), r"answered 401: Bearer \*\*\*", 1),
    (status(404, "no such model"), "answered 404: no such model", 1),
    (status(307, "there", Location="http://elsewhere.invalid/"), "answered 307: there", 1),
    (body("no JSON"), "is no chat completion", 3),
    (body("[]"), "is no chat completion", 3),
    (body("[" * 100_000), "is no chat completion: RecursionError", 3),
    (body(json.dumps({"choices": []})), "is no chat completion", 3),
    (body(json.dumps({"choices": [{"message": {"content": None}}]})), "has no text", 3),
    (body(json.dumps({"choices": [{"message": {"content": "good"}}]})), r"its last line is 'good'", 3),
    (body(json.dumps({"choices": [{"message": {"content": "Score: 100"}}]})), r"its score is 100", 3),
]


async def test_every_fault_aborts_and_the_key_is_in_no_message(
    judge: tuple[Judge, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("JUDGE_KEY", f"{KEY}\n")
    server, url = judge
    for answer, message, requests in FAULTS:
        server.does(answer)
        server.requests.clear()
        seconds = 1.0 if answer is slow else 60.0
        async with JudgeScorer(rule(url, seconds, api_key_variable="JUDGE_KEY"), QUICK) as scorer:
            with pytest.raises(ScoreFailed, match=message) as caught:
                await scorer.score(PROMPT, "4")
        assert caught.value.failure == "JudgeFailed"
        assert KEY not in str(caught.value)
        assert len(server.requests) == requests, message
        assert {key for _, key in server.requests} == {f"Bearer {KEY}"}
    assert KEY not in caplog.text


OFFSETS = range(SHOWN + 20)
LEAKED = 4
"""Characters of the key in a row that are too many."""


def broken_header(text: str) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.write(b"HTTP/1.1 200 OK\r\n" + text.encode() + b"\r\n\r\n")
        request.transport.close()
        return web.Response()

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        lambda text: status(401, text),
        lambda text: body(text),
        lambda text: body(json.dumps({"choices": [{"message": {"content": text}}]})),
        lambda text: body(json.dumps({"choices": [{"message": {"content": [{"text": text}]}}]})),
        lambda text: body(json.dumps({text: []})),
        broken_header,
    ],
    ids=["an error", "no JSON", "a reply", "parts", "no completion", "a broken header"],
)
async def test_no_part_of_the_key_is_shown_wherever_it_is_repeated(
    judge: tuple[Judge, str], monkeypatch: pytest.MonkeyPatch, answer: Callable[[str], Answer]
) -> None:
    monkeypatch.setenv("JUDGE_KEY", LONG_KEY)
    server, url = judge
    async with JudgeScorer(rule(url, attempts=1, api_key_variable="JUDGE_KEY"), QUICK) as scorer:
        for offset in OFFSETS:
            server.does(answer(f"{'.' * offset}{LONG_KEY}{LONG_KEY} {LONG_KEY}{'.' * (len(OFFSETS) - offset)}"))
            with pytest.raises(ScoreFailed) as caught:
                await scorer.score(PROMPT, "4")
            parts = [LONG_KEY[at : at + LEAKED] for at in range(len(LONG_KEY) - LEAKED + 1)]
            assert not [part for part in parts if part in str(caught.value)], (offset, str(caught.value))
            assert caught.value.__cause__ is None, "a log shows causes"


async def test_a_key_of_one_character_changes_no_score(
    judge: tuple[Judge, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "5")
    server, url = judge
    server.says("Score: 5")
    async with JudgeScorer(rule(url, api_key_variable="JUDGE_KEY"), QUICK) as scorer:
        assert await scorer.score(PROMPT, "4") == 0.5


async def test_a_judge_that_recovers_is_used_again(judge: tuple[Judge, str]) -> None:
    server, url = judge
    server.does(status(503), body("{"), body(json.dumps({"choices": [{"message": {"content": "Score: 9"}}]})))
    async with JudgeScorer(rule(url), QUICK) as scorer:
        assert await scorer.score(PROMPT, "4") == 0.9
    assert len(server.requests) == 3


async def test_no_more_requests_at_a_time_than_asked_for(judge: tuple[Judge, str]) -> None:
    server, url = judge

    async def think(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.02)
        return completion("Score: 1")

    server.does(think)
    async with JudgeScorer(rule(url, parallelism=2)) as scorer:
        await asyncio.gather(*(scorer.score(PROMPT, str(number)) for number in range(8)))
    assert server.most == 2


async def test_a_judge_that_is_gone_is_our_failure() -> None:
    unused = TestServer(web.Application())
    await unused.start_server()
    url = str(unused.make_url("/v1"))
    await unused.close()
    async with RewardPool([rule(url, attempts=1)]) as pool:
        with pytest.raises(RewardFailed, match=r"reward taste \(JudgeFailed\): the judge cannot be reached"):
            await pool.score(PROMPT, "4")


@pytest.mark.parametrize("value", [None, "", "  "])
async def test_a_key_that_is_missing_is_named_at_the_start(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is None:
        monkeypatch.delenv("JUDGE_KEY", raising=False)
    else:
        monkeypatch.setenv("JUDGE_KEY", value)
    with pytest.raises(InvalidReward, match=r"reward taste \(kind Judge\): the environment variable JUDGE_KEY is not"):
        async with RewardPool([rule("http://judge/v1", api_key_variable="JUDGE_KEY")]):
            pass
