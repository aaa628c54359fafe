"""One synchronous on-policy round: P0 prompts × R0 responses, all of one weight version.

    draw → launch → collect → score → groups → update → publish → load → next

This is the part up to `groups`, as a state machine over events. It owns no tokens and calls nobody: it is told what
happened and answers what to launch, what to abort and when the round is complete. Every response drawn is, at the
end, trained or discarded with a reason; every prompt is trained, filtered with a reason, or requeued.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from rljob_api.status import RoundKind
from rljob_runtime.scheduling.placement import spread
from rljob_runtime.scheduling.trajectory import Lease, PromptKey, TrajectoryKey


class SampleState(StrEnum):
    """Where a response of the round is."""

    WAITING = "waiting"
    """Nobody generates it."""
    RUNNING = "running"
    """A replica holds its lease."""
    GENERATED = "generated"
    """Whole; its reward is awaited."""
    SCORED = "scored"
    """Has its reward."""
    DROPPED = "dropped"
    """Its group was filtered."""


class PromptFate(StrEnum):
    """What becomes of a prompt that was drawn."""

    TRAINED = "trained"
    FILTERED = "filtered"
    REQUEUED = "requeued"


REWARD_FAILED = "RewardFailed"
"""Reason of a group that was filtered because a reward kept failing (a failure of ours, not of the response)."""


@dataclass(frozen=True)
class RoundPlan:
    """What a round is to bring. `version`: the weights that generate it. `max_failures`: how many times one response is
    generated anew because its reward failed, before its group is given up."""

    step: int
    kind: RoundKind
    version: int
    prompts: tuple[PromptKey, ...]
    responses: int
    max_failures: int = 2

    def trajectories(self) -> tuple[TrajectoryKey, ...]:
        """All responses, prompt by prompt."""
        return tuple(TrajectoryKey(prompt, sample) for prompt in self.prompts for sample in range(self.responses))


@dataclass
class _Sample:
    state: SampleState = SampleState.WAITING
    lease: Lease | None = None
    attempt: int = 0
    failures: int = 0
    reward: float | None = None


@dataclass(frozen=True)
class Launch:
    """Give this response to this replica; everything under an older lease is void."""

    key: TrajectoryKey
    lease: Lease


@dataclass(frozen=True)
class Failure:
    """What to do after a failure of ours: launch again (the key waits) or, with the group filtered, abort these."""

    filtered: PromptKey | None = None
    abort: tuple[Launch, ...] = ()
    """The responses of the filtered group that still run, with the lease each had."""


@dataclass(frozen=True)
class Saved:
    """How the store remembers a response of a round under way."""

    attempt: int
    failures: int = 0
    generated: bool = False
    reward: float | None = None


@dataclass(frozen=True)
class Settlement:
    """The end of a round: fates of all its prompts, and the prompts that make groups, in the order they were drawn."""

    groups: tuple[PromptKey, ...]
    fates: dict[PromptKey, PromptFate] = field(default_factory=dict)
    reasons: dict[PromptKey, str] = field(default_factory=dict)


class Round:
    """The state machine. `saved` takes up a round where a former coordinator left it: what ran there waits here."""

    def __init__(self, plan: RoundPlan, saved: Mapping[TrajectoryKey, Saved] | None = None) -> None:
        self.plan = plan
        self._samples = {key: _Sample() for key in plan.trajectories()}
        self._filtered: dict[PromptKey, str] = {}
        for key, kept in (saved or {}).items():
            sample = self._samples[key]
            sample.attempt, sample.failures, sample.reward = kept.attempt, kept.failures, kept.reward
            if kept.reward is not None:
                sample.state = SampleState.SCORED
            elif kept.generated:
                sample.state = SampleState.GENERATED
        for key, kept in (saved or {}).items():
            if kept.failures > plan.max_failures:
                self.filter(key.prompt, REWARD_FAILED)

    # --- questions ---

    def state(self, key: TrajectoryKey) -> SampleState:
        """Where a response is. Raises `KeyError` for one that is not of this round."""
        return self._samples[key].state

    def lease(self, key: TrajectoryKey) -> Lease | None:
        """Who generates it now."""
        sample = self._samples.get(key)
        return sample.lease if sample is not None else None

    def failures(self, key: TrajectoryKey) -> int:
        """How often it was generated in vain."""
        return self._samples[key].failures

    def in_state(self, *states: SampleState) -> tuple[TrajectoryKey, ...]:
        """The responses in any of these states, in launch order."""
        return tuple(key for key, sample in self._samples.items() if sample.state in states)

    @property
    def progress(self) -> float:
        """Share of the responses that are settled: 0 to 1."""
        done = len(self.in_state(SampleState.SCORED, SampleState.DROPPED))
        return done / len(self._samples) if self._samples else 1.0

    @property
    def complete(self) -> bool:
        """Every response is scored or dropped."""
        return not self.in_state(SampleState.WAITING, SampleState.RUNNING, SampleState.GENERATED)

    # --- events ---

    def launch(self, replicas: Sequence[str]) -> tuple[Launch, ...]:
        """Give all waiting responses to replicas; each launch raises the attempt."""
        running = {key: s.lease.replica for key, s in self._samples.items() if s.lease is not None}
        launches = []
        for key, replica in spread(self.in_state(SampleState.WAITING), replicas, running).items():
            sample = self._samples[key]
            sample.attempt += 1
            sample.lease = Lease(replica, sample.attempt)
            sample.state = SampleState.RUNNING
            launches.append(Launch(key, sample.lease))
        return tuple(launches)

    def take_back(self, keys: Iterable[TrajectoryKey]) -> tuple[TrajectoryKey, ...]:
        """These are generated by nobody any more (refused, a gap, wrong weights): those that ran wait again."""
        taken = []
        for key in keys:
            sample = self._samples[key]
            if sample.state is SampleState.RUNNING:
                sample.state, sample.lease = SampleState.WAITING, None
                taken.append(key)
        return tuple(taken)

    def lose(self, replica: str) -> tuple[TrajectoryKey, ...]:
        """A replica is gone: what ran there waits again, at the same version, without blame."""
        return self.take_back(
            [key for key, s in self._samples.items() if s.lease is not None and s.lease.replica == replica]
        )

    def generated(self, key: TrajectoryKey, lease: Lease) -> bool:
        """The response is whole. False (and nothing changes) unless `lease` is its current one."""
        sample = self._samples.get(key)
        if sample is None or sample.state is not SampleState.RUNNING or sample.lease != lease:
            return False
        sample.state, sample.lease = SampleState.GENERATED, None
        return True

    def scored(self, key: TrajectoryKey, attempt: int, reward: float) -> bool:
        """Its reward came. False if another attempt is awaited or the group was filtered meanwhile."""
        sample = self._samples[key]
        if sample.state is not SampleState.GENERATED or sample.attempt != attempt:
            return False
        sample.state, sample.reward = SampleState.SCORED, reward
        return True

    def reward_failed(self, key: TrajectoryKey, attempt: int) -> Failure:
        """Its reward failed for a reason of ours: the sample is aborted, never a zero. It is generated anew, or, past
        `max_failures`, its group is filtered."""
        sample = self._samples[key]
        if sample.state is not SampleState.GENERATED or sample.attempt != attempt:
            return Failure()
        sample.failures += 1
        if sample.failures <= self.plan.max_failures:
            sample.state = SampleState.WAITING
            return Failure()
        return self.filter(key.prompt, REWARD_FAILED)

    def filter(self, prompt: PromptKey, reason: str) -> Failure:
        """Give a group up: its responses are dropped; those that still run are to be aborted."""
        if prompt in self._filtered:
            return Failure()
        self._filtered[prompt] = reason
        running = []
        for sample_index in range(self.plan.responses):
            key = TrajectoryKey(prompt, sample_index)
            sample = self._samples[key]
            if sample.lease is not None:
                running.append(Launch(key, sample.lease))
            sample.state, sample.lease = SampleState.DROPPED, None
        return Failure(filtered=prompt, abort=tuple(running))

    def settle(self) -> Settlement:
        """Fates of all prompts. Raises `RuntimeError` before the round is complete."""
        if not self.complete:
            raise RuntimeError(
                f"round {self.plan.step} is not complete: {self.progress:.0%} of its responses are settled"
            )
        groups = tuple(prompt for prompt in self.plan.prompts if prompt not in self._filtered)
        fates = {
            prompt: PromptFate.FILTERED if prompt in self._filtered else PromptFate.TRAINED
            for prompt in self.plan.prompts
        }
        return Settlement(groups, fates, dict(self._filtered))

    def reward(self, key: TrajectoryKey) -> float:
        """The reward of a scored response."""
        reward = self._samples[key].reward
        if reward is None:
            raise KeyError(f"{key} has no reward yet")
        return reward
