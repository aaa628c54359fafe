"""Responses of a round: their tokens, ends and rewards, as replicas and rewards return them, here and in the store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from rljob_runtime.coordinator.core.async_utils import Broken
from rljob_runtime.coordinator.generation.observed_engines import ObservedEngines
from rljob_runtime.coordinator.generation.replica_pool import ReplicaPool
from rljob_runtime.coordinator.generation.scoring import RewardReceived, RewardRequests
from rljob_runtime.coordinator.generation.stats import GenerationStats
from rljob_runtime.coordinator.generation.token_receiver import TokenReceiver
from rljob_runtime.coordinator.loop.context import CoordinatorContext
from rljob_runtime.coordinator.store.records import OpenRound
from rljob_runtime.coordinator.stream_training.round_snapshot import snapshot_round
from rljob_runtime.protocols import Delta, PromptSource, ReplicaReport
from rljob_runtime.protocols.reward_stats import RewardStats
from rljob_runtime.protocols.trajectory import Group, Lease, PromptKey, Response, ScoredResponse, TrajectoryKey
from rljob_runtime.scheduling.adaptive_tp.snapshot import Running
from rljob_runtime.scheduling.lending.gain import RoundSnapshot
from rljob_runtime.scheduling.lending.policy import ExpectedLengths
from rljob_runtime.scheduling.partial_responses import DeltaStatus
from rljob_runtime.scheduling.reward_failure import RewardFailure
from rljob_runtime.scheduling.round import Round
from rljob_runtime.scheduling.round_plan import Launch
from rljob_runtime.scheduling.round_planner.survival import LengthObservation, Survival
from rljob_runtime.scheduling.round_samples import SampleState

log = logging.getLogger(__name__)


class RoundResponses:
    """The responses of one generation stage.

    `opened`: the round as the store has it. `post` receives an event for each reward. `on_tokens` is called with a
    replica, and a response that has new tokens from it or has ended there."""

    def __init__(
        self,
        opened: OpenRound,
        context: CoordinatorContext,
        prompts: PromptSource,
        stats: GenerationStats,
        post: Callable[[RewardReceived | Broken], None],
        on_tokens: Callable[[str, TrajectoryKey], None],
    ) -> None:
        self.round = Round(opened.plan, opened.saved)
        self.ended: dict[TrajectoryKey, Response] = {}
        """All complete responses, kept or not."""
        # Failures before a restart are the round's too.
        stats.aborted_samples += sum(one.failures for one in opened.saved.values())
        self._stats = stats
        self._receiver = TokenReceiver(stats)
        self.partials = self._receiver.partials
        self._on_tokens = on_tokens
        self._opened = opened
        self._step = opened.plan.step
        self._prompts = prompts
        self._settings = context.settings
        self._store = context.store
        self._rewards = context.rewards
        self._rewards_before = context.rewards.figures()
        self._episodes = context.episodes
        scorer = context.episodes.scorer(prompts, context.rewards)
        self._scoring = RewardRequests(scorer, stats, post, context.reporter.timeline)

    async def restore(self) -> None:
        """Restore what the store has of the round."""
        for key, made in self._opened.partials.items():
            self.partials.restore(key, made)
        for key, reason in self._opened.finish_reasons.items():
            response = self.ended[key] = self.partials.close(key, reason)
            if self.round.awaits_reward(key):
                self._scoring.start(response)
        await self._episodes.load(self.ended)

    async def close(self) -> None:
        """Cancel the requests of rewards."""
        await self._scoring.close()

    # --- what they are ---

    @property
    def wanted(self) -> int:
        """Number of responses that the round keeps."""
        return self.round.plan.shape.groups * self.round.plan.shape.group_size

    def groups(self) -> tuple[Group, ...]:
        """Return the groups to train on, in draw order. Only when the round is complete."""
        return self.groups_of(self.round.settle().groups)

    def groups_of(self, prompts: Iterable[PromptKey]) -> tuple[Group, ...]:
        """Return the complete groups of these prompts."""
        return tuple(map(self._group, prompts))

    def _group(self, prompt: PromptKey) -> Group:
        scored = []
        for key in self.round.places(prompt):
            reward = self.round.reward(key)
            assert reward is not None
            scored.append(ScoredResponse(self.ended[key], float(reward)))
        return self._episodes.group(Group(prompt, tuple(self._prompts.prompt(prompt).token_ids), tuple(scored)))

    def reward_figures(self) -> RewardStats:
        """Return the reward statistics of this stage."""
        return self._rewards.figures().since(self._rewards_before)

    def lengths(self) -> list[LengthObservation]:
        """Return the lengths of all launched responses; of running or stopped ones the tokens so far."""
        ended = [LengthObservation(len(response.token_ids)) for response in self.ended.values()]
        return ended + [LengthObservation(tokens, ended=False) for tokens in self.cut_lengths()]

    def cut_lengths(self) -> list[int]:
        """Return the tokens of responses that were stopped before their end."""
        keys = self.round.plan.trajectories()
        return [self.partials.length_of(key) for key in keys if key not in self.ended]

    def running(self) -> list[Launch]:
        """Return the running responses with their leases."""
        keys = self.round.in_state(SampleState.RUNNING)
        return [Launch(key, lease) for key in keys if (lease := self.round.lease(key))]

    def held(self) -> list[tuple[Launch, int]]:
        """Return the running responses with their tokens so far."""
        return [(launch, self.partials.length_of(launch.key)) for launch in self.running()]

    def running_of(self, key: TrajectoryKey) -> Running:
        """Return a response with its tokens so far."""
        return Running(len(self._prompts.prompt(key.prompt).token_ids), self.partials.length_of(key))

    def waits(self, key: TrajectoryKey) -> bool:
        """Return whether a response waits for a launch."""
        return self.round.state(key) is SampleState.WAITING

    def replica_of(self, key: TrajectoryKey) -> str | None:
        """Return the replica that generates a response."""
        lease = self.round.lease(key)
        return lease.replica if lease is not None else None

    def snapshot(
        self,
        engines: ObservedEngines,
        computed_tokens: int,
        earlier: Iterable[LengthObservation],
        expected: Mapping[TrajectoryKey, str],
    ) -> RoundSnapshot:
        """Return the round as a look takes it. `earlier`: lengths of rounds before. See `snapshot_round`."""
        curve = Survival.of([*self.lengths(), *earlier])
        return snapshot_round(
            self.round,
            self.ended,
            self.running(),
            self.partials,
            self._prompts,
            engines,
            ExpectedLengths(curve, self._settings.max_response_tokens),
            computed_tokens,
            expected,
        )

    # --- what comes in ---

    async def collect(self, replica: str, report: ReplicaReport, pool: ReplicaPool) -> None:
        """Take the tokens and ends that a replica reports. `pool` aborts responses that have to begin again there."""
        finished, broken = [], []
        for delta in report.deltas:
            verdict = self._take(replica, delta)
            if verdict is DeltaStatus.FINISHED and delta.finish_reason is not None:
                finished.append(self.partials.close(delta.key, delta.finish_reason))
            elif verdict in (DeltaStatus.GAP, DeltaStatus.WRONG_VERSION):
                log.warning("%s from %s: %s; launching it again", delta.key, replica, verdict)
                broken.append(Launch(delta.key, Lease(replica, delta.attempt)))
        if broken:
            self.round.requeue(launch.key for launch in broken)
            await pool.abort(broken)
        if finished:
            await self._finish(finished)

    def _take(self, replica: str, delta: Delta) -> DeltaStatus:
        """Check one delta and keep its new tokens."""
        lease = Lease(replica, delta.attempt)
        verdict = self._receiver.accept(delta, lease, self.round.lease(delta.key))
        if verdict is DeltaStatus.FINISHED and not self.round.generated(delta.key, lease):
            return DeltaStatus.STALE
        if verdict in (DeltaStatus.ACCEPTED, DeltaStatus.FINISHED):
            self._on_tokens(replica, delta.key)
        return verdict

    async def _finish(self, finished: list[Response]) -> None:
        tokens = self._receiver.drain_unsaved()
        await self._store.do(lambda store: store.trajectories.finish(self._step, tokens, finished))
        for response in finished:
            self.ended[response.key] = response
            self._scoring.start(response)

    async def flush(self) -> None:
        """Store the tokens that are not stored yet."""
        tokens = self._receiver.drain_unsaved()
        if tokens:
            await self._store.do(lambda store: store.trajectories.append(self._step, tokens))

    async def receive_reward(self, received: RewardReceived) -> None:
        """Record a reward.

        A failed one aborts the sample, and never scores it 0: it is generated again, or its group is filtered."""
        response, key, reward = received.response, received.response.key, received.reward
        if isinstance(reward, RewardFailure):
            await self._reward_failed(response, reward)
        elif self.round.scored(key, response.attempt, reward):
            await self._store.do(lambda store: store.trajectories.score(self._step, key, reward))

    async def _reward_failed(self, response: Response, failure: RewardFailure) -> None:
        key = response.key
        if not self.round.reward_failed(key, response.attempt, failure):
            return
        self._stats.aborted_samples += 1
        self._stats.lost_tokens += len(self.ended.pop(key).token_ids)
        failures = self.round.failures(key)
        cause, reason = failure.cause, failure.reason
        await self._store.do(lambda store: store.trajectories.restart(self._step, key, failures, cause, reason))
        if key.prompt in self.round.filtered:
            log.warning("prompt %s is filtered: %s", key.prompt, self.round.filtered[key.prompt])
