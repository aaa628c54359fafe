"""Repack monitor: collects the input of `scheduling.asynchronous.repack` from replicas (Laminar §5)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rljob_runtime.coordinator.core.settings import Settings
from rljob_runtime.coordinator.episodes.episodes import Episodes
from rljob_runtime.coordinator.generation.replica_pool import ReplicaPool
from rljob_runtime.coordinator.reporting.policy_failures import OptionalPolicy, PolicyFailures, attempt
from rljob_runtime.protocols import EngineStats, PromptSource
from rljob_runtime.protocols.trajectory import Response, TrajectoryKey
from rljob_runtime.scheduling.asynchronous.repack import REMEMBERED_LENGTHS, Merge, ReplicaLoad
from rljob_runtime.scheduling.asynchronous.repack_gain import Tails, merges_that_pay
from rljob_runtime.scheduling.lending.policy import ExpectedLengths, Unfinished, peak_kv_tokens
from rljob_runtime.scheduling.partial_responses import Partials
from rljob_runtime.scheduling.round_plan import Launch
from rljob_runtime.scheduling.round_planner.survival import LengthObservation, Survival


@dataclass(frozen=True)
class BusyReplica:
    """A replica at a check: its version, its running responses, and whether a move to it or from it is in progress."""

    version: int
    running: Sequence[Launch]
    moving: bool


class RepackMonitor:
    """Repack input of one coordinator."""

    def __init__(
        self,
        settings: Settings,
        pool: ReplicaPool,
        partials: Partials,
        prompts: PromptSource,
        failures: PolicyFailures,
        episodes: Episodes,
    ) -> None:
        self._rules = settings.repack
        self._plan = settings.repack_plan
        self._most_tokens = settings.longest_response
        self._episodes = episodes
        self._pool = pool
        self._partials = partials
        self._prompts = prompts
        self._failures = failures
        self._lengths: deque[int] = deque(maxlen=REMEMBERED_LENGTHS)
        self._stats: dict[str, EngineStats] = {}
        self._before: dict[str, tuple[int, dict[TrajectoryKey, int]]] = {}
        """At the last check, by replica: tokens held, and the length of each of its responses."""

    def record_stats(self, replica: str, stats: EngineStats) -> None:
        """Record the engine statistics of a replica's last poll."""
        self._stats[replica] = stats

    def record_end(self, response: Response) -> None:
        """Record the length of a complete response."""
        tokens = self._tokens_after_prompt(response.key)
        self._lengths.append(len(response.token_ids) if tokens is None else tokens)

    def merges(self, replicas: Mapping[str, BusyReplica]) -> tuple[Merge, ...]:
        """Return the merges to make now; none if the policy fails by an error, which is recorded."""
        if not self._failures.is_asked(OptionalPolicy.REPACK):
            return ()
        planned = attempt(lambda: self.plan(replicas))
        if isinstance(planned, Exception):
            self._failures.failed(OptionalPolicy.REPACK, planned)
            return ()
        self._failures.decided(OptionalPolicy.REPACK)
        return planned

    def plan(self, replicas: Mapping[str, BusyReplica]) -> tuple[Merge, ...]:
        """Return the merges that pay; none before the engines' speed is known."""
        if self._rules is None:
            return ()
        expected = self._expected(launch for held in replicas.values() for launch in held.running)
        unfinished = {name: [self._unfinished(launch) for launch in held.running] for name, held in replicas.items()}
        loads = [self._load(name, held, unfinished[name], expected) for name, held in replicas.items()]
        self._before = {load.name: (load.tokens, self._lengths_of(replicas[load.name].running)) for load in loads}
        speed = self._pool.engine_speed()
        if speed is None:
            return ()
        plan = self._plan or merges_that_pay
        return plan(loads, self._rules, Tails(speed, expected, unfinished))

    def _expected(self, running: Iterable[Launch]) -> ExpectedLengths:
        seen = [LengthObservation(tokens) for tokens in self._lengths]
        seen += [LengthObservation(self._length_of(launch.key), ended=False) for launch in running]
        return ExpectedLengths(Survival.of(seen), self._most_tokens)

    def _unfinished(self, launch: Launch) -> Unfinished:
        return Unfinished(self._prompt_tokens(launch.key), self._length_of(launch.key))

    def _prompt_tokens(self, key: TrajectoryKey) -> int:
        return len(self._prompts.prompt(key.prompt).token_ids)

    def _length_of(self, key: TrajectoryKey) -> int:
        tokens = self._tokens_after_prompt(key)
        return self._partials.length_of(key) if tokens is None else tokens

    def _tokens_after_prompt(self, key: TrajectoryKey) -> int | None:
        """Return the tokens of an episode after its prompt; None for a response of one turn.

        What tools answer is in the KV cache like what the model says, and is computed again after a move."""
        tokens = self._episodes.tokens(key)
        return None if tokens is None else max(0, tokens - self._prompt_tokens(key))

    def _load(self, name: str, held: BusyReplica, its: Sequence[Unfinished], expected: ExpectedLengths) -> ReplicaLoad:
        running = held.running
        stats, before = self._stats.get(name), self._before.get(name)
        kv_tokens = self._pool.kv_tokens(name)
        return ReplicaLoad(
            name=name,
            version=held.version,
            trajectories=len(running),
            # A replica without statistics may not have admitted any request.
            waiting=stats.waiting if stats is not None else len(running),
            tokens=sum(one.prompt_tokens + one.generated for one in its),
            expected_tokens=round(peak_kv_tokens(its, expected)),
            kv_tokens=kv_tokens,
            kv_before=before[0] if before is not None else None,
            generated=self._grown(running, before[1]) if before is not None else 0,
            receives=kv_tokens > 0,
            moving=held.moving,
        )

    def _lengths_of(self, running: Sequence[Launch]) -> dict[TrajectoryKey, int]:
        return {launch.key: self._length_of(launch.key) for launch in running}

    def _grown(self, running: Sequence[Launch], before: Mapping[TrajectoryKey, int]) -> int:
        """Return the tokens generated since the last check by responses that it held then."""
        return sum(length - before[key] for key, length in self._lengths_of(running).items() if key in before)
