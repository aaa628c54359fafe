"""A gateway with its stand-in coordinator, under a clock of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rljob_runtime.gateway.capability import Capability
from rljob_runtime.gateway.gateway import Gateway, GatewaySettings
from rljob_runtime.gateway.text.suffix_text import SuffixText
from rljob_runtime.gateway.text.turn_text import TurnText
from rljob_runtime.scheduling.episodes.episode import EpisodeRules
from rljob_runtime.scheduling.episodes.limits import Limits
from tests.support.gateway.light_tokenizer import CHATML, light_tokenizer, render_of
from tests.support.gateway.stand_in_coordinator import RecordingEngine, StandInCoordinator, attempt_of

TOKENIZER = light_tokenizer()
EPISODE = attempt_of()
CAPABILITY = Capability(EPISODE, 1_000)
SETTINGS = GatewaySettings(model="policy", context=4096, vocabulary=TOKENIZER.size, max_tokens=512)


@dataclass
class Site:
    """A gateway with its coordinator, under a clock of its own."""

    gateway: Gateway
    coordinator: StandInCoordinator
    text: TurnText
    clock: list[float]
    executor: ThreadPoolExecutor

    async def chat(self, messages: list[Any], retry: bool = False, **more: Any) -> dict[str, Any]:
        body = json.dumps({"model": "policy", "messages": messages, **more}).encode()
        found: dict[str, Any] = json.loads((await self.gateway.chat(CAPABILITY, body, retry)).body)
        return found

    def restarted(self, bounds: GatewaySettings = SETTINGS) -> Site:
        return _site(self.coordinator, self.text, self.clock, self.executor, bounds)


def _site(
    coordinator: StandInCoordinator,
    text: TurnText,
    clock: list[float],
    executor: ThreadPoolExecutor,
    bounds: GatewaySettings,
) -> Site:
    async def sleep(seconds: float) -> None:
        clock[0] += seconds
        await asyncio.sleep(0)

    gateway = Gateway(coordinator, text, bounds, executor, now=lambda: clock[0], sleep=sleep)
    return Site(gateway, coordinator, text, clock, executor)


def make_site(
    script: Callable[[str, int], str] = lambda prompt, turn: f"answer {turn}",
    template: str = CHATML,
    limits: Limits = Limits(),  # noqa: B008, a frozen value
    bounds: GatewaySettings = SETTINGS,
    text: TurnText | None = None,
) -> Site:
    """Return a site with one open episode. `text`: by default that of the template, by the suffix rule."""
    engine = RecordingEngine(TOKENIZER, script)
    coordinator = StandInCoordinator(engine, EpisodeRules(limits))
    coordinator.start(EPISODE)
    if text is None:
        text = SuffixText(TOKENIZER, render_of(template), [TOKENIZER.end])  # type: ignore[arg-type]
    return _site(coordinator, text, [0.0], ThreadPoolExecutor(2), bounds)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def message(answer: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = answer["choices"][0]["message"]
    return found


def assert_trained_tokens_are_the_engines(site: Site) -> None:
    trained = site.coordinator.loss_tokens(EPISODE)
    assert sorted(trained) == sorted(site.coordinator.engine.emitted)
    assert site.gateway.stats.reencoded_tokens == 0
