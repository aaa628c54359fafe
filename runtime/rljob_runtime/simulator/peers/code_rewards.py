"""Code rewards: simulated rewards that run programs.

A program's duration is drawn; its timeout is decided by the real policy (`scheduling.reward_timeout`).
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from rljob_runtime.protocols import RewardFailed
from rljob_runtime.protocols.rewards import Anchors
from rljob_runtime.scheduling.reward_timeout import AdaptiveTimeout, TimeoutRule
from rljob_runtime.simulator.core.events import Learned, Observe, Scored, unobserved
from rljob_runtime.simulator.core.process_clock import loop_time
from rljob_runtime.simulator.peers.inputs import SimulatedRewards

RULE = "programs"
"""Name of the reward, under which the store keeps its anchors."""


@dataclass(frozen=True)
class Programs:
    """Programs of responses: each ends after about `seconds`, or never.

    One test case per prompt; all programs run simultaneously."""

    seconds: float
    right_share: float
    endless_share: float
    timeout: TimeoutRule = field(default_factory=TimeoutRule)

    def __post_init__(self) -> None:
        if not (self.seconds > 0 and min(self.right_share, self.endless_share) >= 0):
            raise ValueError(f"{self}: a program takes time, and shares are 0 or more")
        if self.right_share + self.endless_share > 1:
            raise ValueError(f"right_share {self.right_share} and endless_share {self.endless_share} are more than all")


class ProgramRewards(SimulatedRewards):
    """`protocols.Rewards`: 1 for a correct program in time, else 0.

    A program is a function of the seed, its prompt and its text."""

    def __init__(self, programs: Programs, seed: int, observe: Observe = unobserved) -> None:
        super().__init__(bound=math.inf, observe=observe)
        self.timeout = AdaptiveTimeout(programs.timeout)
        self._programs = programs
        self._seed = seed
        self._tests: set[str] = set()

    def take_anchors(self) -> Anchors:
        held = {test: self.timeout.anchor(test) for test in sorted(self._tests)}
        told = ((f"{RULE}/{test}", round(1000 * anchor)) for test, anchor in held.items() if anchor is not None)
        self._observe(Learned(tuple(told)))
        return {RULE: self.timeout.drain_raised()}

    def restore_anchors(self, anchors: Anchors) -> None:
        self._tests |= anchors.get(RULE, {}).keys()
        self.timeout.restore(anchors.get(RULE, {}))

    def forget(self) -> None:
        self.timeout = AdaptiveTimeout(self._programs.timeout)

    async def score(self, prompt: object, response_text: str, environment_reward: float | None = None) -> float:
        since, name = loop_time(), str(getattr(prompt, "key", prompt))
        chance = random.Random(f"{self._seed}/{name}/{response_text}")
        kind, drawn = chance.random(), self._programs.seconds * chance.uniform(0.5, 1.5)
        right = kind < self._programs.right_share
        endless = kind >= 1 - self._programs.endless_share
        self._tests.add(name)
        allowance = self.timeout.decide(name, response_text)
        taken = min(math.inf if endless else drawn, allowance.cpu_seconds)
        reward: float | None = None
        if await self._runs(taken):
            right = right and drawn <= allowance.cpu_seconds
            reward = float(self.timeout.record(allowance.without_shadow_run, taken, taken, right))
            if allowance.shadow_run and not allowance.in_time(taken, taken):
                self.timeout.record_shadow_run(allowance, taken, right)
        self._observe(Scored(name, reward, since))
        if reward is None:
            raise RewardFailed(f"the reward of {name} failed")
        return reward
