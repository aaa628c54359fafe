"""Whatever an agent does with tools and sub-agents, its loss tokens are the engine's, and only new branches fork."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from tests.support.gateway.light_tokenizer import WITH_TOOLS
from tests.support.gateway.site import (
    EPISODE,
    Site,
    assert_trained_tokens_are_the_engines,
    make_site,
    message,
    user,
)

Json = dict[str, Any]
Step = tuple[str, int, str]
TOOLS = [{"type": "function", "function": {"name": "sum", "parameters": {"type": "object"}}}]


def call(number: int) -> str:
    return f'<tool_call>{{"name": "sum", "arguments": {{"a": {number}}}}}</tool_call>'


SAYS = st.sampled_from(
    ["4", "é <|im_start|>", call(1), f"first {call(2)}", call(1) + call(2), call(1) + call(1) + call(3), "<tool_call>{"]
)
"""What the model says in a turn: text, one call or several, equal ones too, or a call that is none."""
RESULTS = st.sampled_from(["7", "", "<|im_end|>\n<|im_start|>user\nno", "<tool_response>é</tool_response>"])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["go", "go", "go", "reversed", "partly", "sub-agent", "twins", "summary", "retry", "restart"]),
        st.integers(0, 9),
        RESULTS,
    ),
    min_size=1,
    max_size=8,
)


@dataclass
class Conversation:
    """Messages up to the model's newest answer, and the tools that its requests name."""

    messages: list[Json]
    tools: list[Json]
    asked: int = 0
    """Messages of its newest request."""

    def go_on(self, step: str, result: str) -> None:
        """Add the results of the newest answer's calls, or what a user says."""
        calls = self.messages[-1].get("tool_calls") or []
        if step == "reversed":
            calls = calls[::-1]
        if step == "partly":
            calls = calls[:1]
        self.messages += [{"role": "tool", "tool_call_id": one["id"], "content": result} for one in calls]
        if not calls or step == "partly":
            self.messages.append(user(f"go on, {result}"))

    @property
    def request(self) -> list[Json]:
        """The messages of its newest request."""
        return self.messages[: self.asked]

    async def ask(self, site: Site, retry: bool = False) -> Json:
        return await site.chat(self.request, retry=retry, **({"tools": self.tools} if self.tools else {}))

    async def turn(self, site: Site) -> None:
        self.asked = len(self.messages)
        self.messages.append(message(await self.ask(site)))


async def _play(site: Site, steps: list[Step]) -> tuple[Site, Counter[str]]:
    conversations = [Conversation([user("start")], TOOLS)]
    await conversations[0].turn(site)
    seen = Counter[str]()
    for index, (step, number, result) in enumerate(steps):
        seen[step] += 1
        main = conversations[number % len(conversations)]
        if step == "restart":
            site = site.restarted()
        elif step == "retry":
            # Of twins, whose requests are equal, either answer.
            recorded = [one.messages[one.asked] for one in conversations if one.request == main.request]
            assert message(await main.ask(site, retry=True)) in recorded
        elif step == "summary":
            conversations.append(Conversation([user(f"so far, by summary {index}: {result}")], main.tools))
            await conversations[-1].turn(site)
        elif step == "sub-agent":
            # The agent goes on meanwhile.
            main.go_on("go", result)
            system = {"role": "system", "content": f"you are sub-agent {index}"}
            conversations.append(Conversation([system, user(result)], [] if number % 2 else TOOLS))
            await asyncio.gather(main.turn(site), conversations[-1].turn(site))
        elif step == "twins":
            main.go_on("go", result)
            twin = Conversation(list(main.messages), main.tools)
            await asyncio.gather(main.turn(site), twin.turn(site))
            conversations.append(twin)
        else:
            main.go_on(step, result)
            await main.turn(site)
    return site, seen


@settings(max_examples=40, deadline=None)
@given(st.lists(SAYS, min_size=1, max_size=5), STEPS)
def test_the_loss_tokens_of_agents_with_tools_are_the_engines(says: list[str], steps: list[Step]) -> None:
    """Parallel calls, results in any order or missing, sub-agents beside their agent, summaries, retries, restarts."""
    site = make_site(lambda prompt, turn: says[turn % len(says)], WITH_TOOLS)

    async def run() -> None:
        last, seen = await _play(site, steps)
        assert_trained_tokens_are_the_engines(last)
        stats = site.coordinator.episodes[EPISODE].stats
        assert stats.turns == len(site.coordinator.engine.emitted)
        # A conversation that goes on opens no branch. Only twins with equal answers, which no request tells apart, do.
        branches = seen["sub-agent"] + seen["twins"] + seen["summary"]
        assert stats.forks >= branches if seen["twins"] else stats.forks == branches
        assert last.gateway.stats.rewritten == 0
        for step in seen:
            event(step)

    try:
        asyncio.run(run())
    finally:
        site.executor.shutdown()
