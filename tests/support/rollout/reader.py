"""Requests to a replica, and a reader that polls it as a coordinator does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from rljob_runtime.protocols import Delta, GenerateRequest, ReplicaReport
from rljob_runtime.protocols.trajectory import PromptKey, Sampling, TrajectoryKey
from rljob_runtime.rollout.replica import RolloutReplica
from tests.support.rollout.engines import prompts

PATIENCE = 60.0


def key(prompt: int, sample: int = 0) -> TrajectoryKey:
    return TrajectoryKey(PromptKey(0, prompt), sample)


def ask(prompt: int, version: int, attempt: int = 1, tokens: int = 20, **sampling: object) -> GenerateRequest:
    settings = {"temperature": 0.0, "ignore_eos": True} | sampling
    return GenerateRequest(
        key=key(prompt),
        attempt=attempt,
        prompt_token_ids=prompts(16)[prompt],
        sampling=Sampling(max_tokens=tokens, **settings),  # type: ignore[arg-type]
        weight_version=version,
    )


@dataclass
class Reader:
    """Polls as a coordinator does, acknowledging what it has seen."""

    replica: RolloutReplica
    cursor: int = 0
    deltas: list[Delta] = field(default_factory=list)

    async def poll(self, wait: float = 1.0) -> ReplicaReport:
        report = await self.replica.poll(1, self.cursor, wait)
        self.cursor = report.cursor
        self.deltas += report.deltas
        return report

    async def until_finished(self, count: int) -> dict[TrajectoryKey, list[int]]:
        async with asyncio.timeout(PATIENCE):
            while sum(d.finish_reason is not None for d in self.deltas) < count:
                await self.poll()
        return self.tokens()

    def tokens(self) -> dict[TrajectoryKey, list[int]]:
        """Joined tokens of each trajectory; fails on a gap or an overlap."""
        joined: dict[tuple[TrajectoryKey, int], list[int]] = {}
        for delta in self.deltas:
            known = joined.setdefault((delta.key, delta.attempt), [])
            start = joined.setdefault((delta.key, -delta.attempt), [delta.offset])[0]
            assert delta.offset == start + len(known)
            assert len(delta.token_ids) == len(delta.logprobs)
            known += delta.token_ids
        return {k: tokens for (k, attempt), tokens in joined.items() if attempt > 0}
