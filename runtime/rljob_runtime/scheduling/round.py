"""Round: the state machine of one synchronous on-policy round, P0 groups of R0 responses of one weight version.

    draw → launch → collect → score → groups → update → publish → load → next

This module covers the part up to `groups`. A round may launch more than it keeps (`tail_batching`): the first R0
responses of a prompt win, and the first P0 prompts with R0 responses. The state machine owns no tokens and makes no
calls. It receives events and answers what to launch, what to abort, how many prompts to draw in place of filtered ones,
and when the round is complete. At the end every response is trained or discarded with a reason, and every prompt is
trained, filtered with a reason, or requeued.

Places are assigned when responses are generated, before their rewards arrive. The duration of a reward must not select
the training data: a wrong program that runs into its timeout would always lose. A failed reward or a filtered group
frees the place. The responses that lost it then race again, with the tokens and rewards that they have. A prompt is
complete when it has a place and all its rewards.

Prompts of several sources race within their source: each source keeps its places, and a filtered group is replaced from
its source.

The state of a round follows from the store's records of its responses (`RestoredSample`) alone, in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from rljob_runtime.protocols.trajectory import Lease, PromptKey, TrajectoryKey
from rljob_runtime.scheduling.response_placement import spread
from rljob_runtime.scheduling.reward_failure import RewardFailure
from rljob_runtime.scheduling.round_plan import (
    EQUAL_REWARDS,
    RACE_LOST,
    Launch,
    PromptOutcome,
    RestoredSample,
    RoundOutcome,
    RoundPlan,
)
from rljob_runtime.scheduling.round_samples import Race, Sample, SampleState
from rljob_runtime.scheduling.trainability import untrainable_reason

_UNSETTLED = (SampleState.WAITING, SampleState.RUNNING, SampleState.GENERATED)


class Round:
    """State machine of a round. `saved` restores a round of a former coordinator: its running responses wait."""

    def __init__(self, plan: RoundPlan, saved: Mapping[TrajectoryKey, RestoredSample] | None = None) -> None:
        self.plan = replace(plan, prompts=())
        self._samples: dict[TrajectoryKey, Sample] = {}
        self._keys: dict[PromptKey, tuple[TrajectoryKey, ...]] = {}
        self._counts: Counter[SampleState] = Counter()
        self._waiting: dict[TrajectoryKey, None] = {}
        self._filtered: dict[PromptKey, str] = {}
        most, groups = plan.rules.max_prompts, plan.shape.groups
        self._races = {
            one.name: Race(one.prompts, one.groups, most=-(-most * one.groups // groups)) for one in plan.shape.races
        }
        self._complete_prompts: set[PromptKey] = set()
        self._newly_complete: list[PromptKey] = []
        self._aborts: list[Launch] = []
        self.extend(plan.prompts, saved)

    def extend(self, prompts: Sequence[PromptKey], saved: Mapping[TrajectoryKey, RestoredSample] | None = None) -> None:
        """Add drawn prompts."""
        self.plan = replace(self.plan, prompts=(*self.plan.prompts, *prompts))
        for prompt in prompts:
            self._races[prompt.source].drawn.append(prompt)
            self._keys[prompt] = self.plan.responses_of(prompt)
            for key in self._keys[prompt]:
                kept = (saved or {}).get(key, RestoredSample(0))
                sample = Sample(
                    attempt=kept.attempt,
                    failures=kept.failures,
                    failure=kept.failure,
                    generated=kept.generated,
                    reward=kept.reward,
                )
                self._samples[key] = sample
                self._counts[sample.state] += 1
                self._waiting[key] = None
                if kept.generated:
                    self._move(key, sample.racing_state)
        for prompt in prompts:
            samples = [self._samples[key] for key in self._keys[prompt]]
            failure = untrainable_reason(samples, self.plan.rules.max_failures)
            if failure is not None:
                self._drop(prompt, failure)
            else:
                self._judge(prompt)
        for source in dict.fromkeys(prompt.source for prompt in prompts):
            self._decide_race(source)

    # --- questions ---

    def state(self, key: TrajectoryKey) -> SampleState:
        """Return a response's state. Raises `KeyError` for one of another round."""
        return self._samples[key].state

    def lease(self, key: TrajectoryKey) -> Lease | None:
        """Return the response's current lease; None if it is not running."""
        sample = self._samples.get(key)
        return sample.lease if sample is not None else None

    def failures(self, key: TrajectoryKey) -> int:
        """Return how often the response's reward failed."""
        return self._samples[key].failures

    def attempts(self) -> dict[TrajectoryKey, int]:
        """Return the newest attempt of every launched response."""
        return {key: sample.attempt for key, sample in self._samples.items() if sample.attempt}

    def reward(self, key: TrajectoryKey) -> float | None:
        """Return the response's reward, if any; also after it lost."""
        return self._samples[key].reward

    def awaits_reward(self, key: TrajectoryKey) -> bool:
        """Check whether the response's reward counts, now or if its prompt races again."""
        sample = self._samples[key]
        return sample.awaits(sample.attempt)

    def places(self, prompt: PromptKey) -> list[TrajectoryKey]:
        """Return the responses that have a place in the prompt's group."""
        held = (SampleState.GENERATED, SampleState.SCORED)
        return [key for key in self._keys[prompt] if self._samples[key].state in held]

    def in_state(self, *states: SampleState) -> tuple[TrajectoryKey, ...]:
        """Return the responses in any of these states, in launch order."""
        return tuple(key for key, sample in self._samples.items() if sample.state in states)

    @property
    def complete_prompts(self) -> frozenset[PromptKey]:
        """Prompts whose groups will be trained on."""
        return frozenset(self._complete_prompts)

    @property
    def filtered(self) -> Mapping[PromptKey, str]:
        """Filtered prompts with their reasons."""
        return self._filtered

    @property
    def progress(self) -> float:
        """Share of settled responses, 0 to 1."""
        done = len(self._samples) - sum(self._counts[state] for state in _UNSETTLED)
        return done / len(self._samples) if self._samples else 1.0

    @property
    def complete(self) -> bool:
        """Whether no response is expected: the race is won, or everything drawn is settled."""
        return not any(self._counts[state] for state in _UNSETTLED)

    @property
    def missing(self) -> int:
        """Number of prompts to draw now."""
        return sum(self.missing_by_source().values())

    def missing_by_source(self) -> dict[str, int]:
        """Return the number of prompts to draw now from each source that lacks some.

        One for each group of equal rewards, and a complete new draw if no group is left. None while all places are
        taken, and when the source has drawn its maximum."""
        from_scratch = self.complete and not self._complete_prompts
        missing = {name: race.missing(from_scratch) for name, race in self._races.items()}
        return {name: count for name, count in missing.items() if count}

    # --- events ---

    def launch(
        self, replicas: Sequence[str], placed: Mapping[TrajectoryKey, str | None] = MappingProxyType({})
    ) -> tuple[Launch, ...]:
        """Assign all waiting responses to replicas; each launch raises the attempt.

        `placed`: responses with a replica of their own; None: not now. The others are spread over `replicas`."""
        if not self._waiting:
            return ()
        own = {key: replica for key in self._waiting if (replica := placed.get(key)) is not None}
        running = {key: s.lease.replica for key, s in self._samples.items() if s.lease is not None} | own
        others = [key for key in self._waiting if key not in placed]
        launches = []
        for key, replica in (own | spread(others, replicas, running)).items():
            sample = self._samples[key]
            sample.attempt += 1
            self._move(key, SampleState.RUNNING)
            sample.lease = Lease(replica, sample.attempt)
            launches.append(Launch(key, sample.lease))
        return tuple(launches)

    def requeue(self, keys: Iterable[TrajectoryKey]) -> tuple[TrajectoryKey, ...]:
        """Take these responses from their replicas; running ones wait for a launch.

        The caller requeues after a refusal, a gap or wrong weights."""
        taken = tuple(key for key in keys if self._samples[key].state is SampleState.RUNNING)
        for key in taken:
            self._move(key, SampleState.WAITING)
        return taken

    def mark_replica_lost(self, replica: str) -> tuple[TrajectoryKey, ...]:
        """Requeue what ran on a lost replica, at the same version. It does not count as a failure."""
        return self.requeue(
            [key for key, s in self._samples.items() if s.lease is not None and s.lease.replica == replica]
        )

    def generated(self, key: TrajectoryKey, lease: Lease) -> bool:
        """Mark the response complete; it takes a place of its group.

        Returns False, without effect, unless `lease` is current."""
        if self.lease(key) != lease:
            return False
        self._samples[key].generated = True
        self._move(key, SampleState.GENERATED)
        self._judge(key.prompt)
        self._decide_race(key.prompt.source)
        return True

    def scored(self, key: TrajectoryKey, attempt: int, reward: float) -> bool:
        """Record a reward. Returns False if another attempt is expected or the response was dropped.

        The reward of a response whose prompt lost counts if that prompt races again."""
        sample = self._samples[key]
        if not sample.awaits(attempt):
            return False
        sample.reward = reward
        if sample.state is not SampleState.LOST:
            self._move(key, SampleState.SCORED)
            self._judge(key.prompt)
            self._decide_race(key.prompt.source)
        return True

    def reward_failed(self, key: TrajectoryKey, attempt: int, failure: RewardFailure) -> bool:
        """Record a failed reward.

        The response is generated again, and those that lost to it or to its group race again. After more than
        `max_failures` its group is filtered. A response that lost keeps its other tries, also if its text failed: it
        has another text if it races again. Returns False as `scored` does."""
        sample = self._samples[key]
        if not sample.awaits(attempt):
            return False
        most = self.plan.rules.max_failures
        sample.failures += int(failure.counts) if sample.state is SampleState.LOST else failure.failures(most)
        sample.failure = failure.reason
        sample.generated = False
        if (reason := untrainable_reason((sample,), most)) is not None:
            self.filter(key.prompt, reason)
        elif sample.state is not SampleState.LOST:
            self._races[key.prompt.source].full.discard(key.prompt)
            self._race_again(key.prompt)
            self._move(key, SampleState.WAITING)
            self._decide_race(key.prompt.source)
        return True

    def filter(self, prompt: PromptKey, reason: str) -> None:
        """Filter a group: its responses are dropped, running ones are aborted, and its place is free."""
        if prompt not in self._filtered:
            self._drop(prompt, reason)
            self._decide_race(prompt.source)

    def drain_aborts(self) -> tuple[Launch, ...]:
        """Return running responses that no longer count, with their leases, each once."""
        aborts, self._aborts = tuple(self._aborts), []
        return aborts

    def drain_complete(self) -> tuple[PromptKey, ...]:
        """Return prompts that became complete, in order, each once.

        They will be trained on, with the responses that `places` returns now."""
        whole, self._newly_complete = tuple(self._newly_complete), []
        return whole

    def settle(self) -> RoundOutcome:
        """Return the outcome of all prompts. Raises `RuntimeError` before the round is complete."""
        if not self.complete:
            raise RuntimeError(
                f"round {self.plan.step} is not complete: {self.progress:.0%} of its responses are settled"
            )
        groups = tuple(prompt for prompt in self.plan.prompts if prompt in self._complete_prompts)
        fates = {
            prompt: PromptOutcome.FILTERED
            if prompt in self._filtered
            else PromptOutcome.TRAINED
            if prompt in self._complete_prompts
            else PromptOutcome.REQUEUED
            for prompt in self.plan.prompts
        }
        reasons = {
            prompt: self._filtered.get(prompt, RACE_LOST)
            for prompt in self.plan.prompts
            if prompt not in self._complete_prompts
        }
        return RoundOutcome(groups, fates, reasons, tuple(key for prompt in groups for key in self.places(prompt)))

    # --- the race ---

    def _judge(self, prompt: PromptKey) -> None:
        """Update the group of a response that took a place or received its reward.

        `_decide_race` updates the other groups."""
        places, rules = self.places(prompt), self.plan.rules
        if len(places) < self.plan.shape.group_size:
            return
        kept = [self._samples[key] for key in places]
        if (reason := untrainable_reason(kept, rules.max_failures, rules.drop_equal)) is not None:
            self._drop(prompt, reason)
            return
        race = self._races[prompt.source]
        if prompt not in race.full and race.is_won:
            return
        race.full.add(prompt)
        self._end([key for key in self._keys[prompt] if key not in places], SampleState.LOST)
        if prompt not in self._complete_prompts and all(one.reward is not None for one in kept):
            self._complete_prompts.add(prompt)
            self._newly_complete.append(prompt)

    def _drop(self, prompt: PromptKey, reason: str) -> None:
        self._filtered[prompt] = reason
        race = self._races[prompt.source]
        race.full.discard(prompt)
        race.lost.discard(prompt)
        race.filtered += 1
        race.equal += reason == EQUAL_REWARDS
        self._end(self._keys[prompt], SampleState.DROPPED)

    def _decide_race(self, source: str) -> None:
        """Mark the source's other prompts lost while all its places are taken; let them race when one is free."""
        race = self._races[source]
        settled = len(race.full) + len(race.lost) + race.filtered
        if race.is_won:
            for prompt in race.drawn if settled < len(race.drawn) else ():
                if prompt not in race.full and prompt not in race.lost and prompt not in self._filtered:
                    race.lost.add(prompt)
                    self._end(self._keys[prompt], SampleState.LOST)
        elif race.lost:
            again, race.lost = [prompt for prompt in race.drawn if prompt in race.lost], set()
            for prompt in again:
                self._race_again(prompt)
            for prompt in again:
                self._judge(prompt)
            self._decide_race(source)

    def _race_again(self, prompt: PromptKey) -> None:
        """Restore the lost responses of a prompt to their states before."""
        for key in self._keys[prompt]:
            if self._samples[key].state is SampleState.LOST:
                self._move(key, self._samples[key].racing_state)

    def _end(self, keys: Iterable[TrajectoryKey], state: SampleState) -> None:
        """End these responses: they no longer count."""
        for key in keys:
            sample = self._samples[key]
            if sample.lease is not None:
                self._aborts.append(Launch(key, sample.lease))
            self._move(key, state)

    def _move(self, key: TrajectoryKey, state: SampleState) -> None:
        sample = self._samples[key]
        self._counts[sample.state] -= 1
        self._counts[state] += 1
        sample.state, sample.lease = state, None
        if state is SampleState.WAITING:
            self._waiting[key] = None
        else:
            self._waiting.pop(key, None)
