"""Asynchronous groups: the state machine of groups in flight in `mode: Asynchronous` (Laminar §3).

    drawn by a replica → launched → generated → scored → ready for training, or filtered, or dropped

Each group has one weight version: the one that its replica held when it drew the prompt. Responses of a group progress
independently. Where versions are mixed, newer weights may generate later turns of its responses: the version is the
oldest one then, from which staleness counts.

`GroupTracker` is a state machine over events, as `round.Round` is. It owns no tokens and makes no calls. It receives
events and answers three questions: what to launch where, what to abort, which groups are done. A response without a
replica waits for a replica that holds its version, or with mixed versions also a newer one. If no replica can provide
that, the group is orphaned, and the caller drops it.

A move (repack) is a second lease beside the first. The source keeps generating; the destination's first token is the
commit. Until then only the attempt number is used up. An episode may have no open turn whose token could be that
commit, and its stored turns do not depend on a replica: it is handed over immediately, as after a loss.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from rljob_runtime.protocols.trajectory import Lease, PromptKey, TrajectoryKey
from rljob_runtime.scheduling.reward_failure import RewardFailure
from rljob_runtime.scheduling.round_plan import REWARD_FAILED, Launch, RestoredSample
from rljob_runtime.scheduling.round_samples import SampleState
from rljob_runtime.scheduling.trainability import untrainable_reason

VERSION_GONE = "VersionGone"
"""Reason of a prompt that is requeued because no replica can provide the weights of its group."""
JOB_ENDED = "JobEnded"
"""Reason of a prompt whose group is not needed: the job has ended."""


@dataclass(frozen=True)
class GroupDone:
    """A group that is ready for training, or filtered for `reason`. `rewards`: those received so far."""

    prompt: PromptKey
    version: int
    rewards: tuple[float, ...]
    reason: str | None = None


@dataclass
class _Sample:
    state: SampleState = SampleState.WAITING
    lease: Lease | None = None
    move: Lease | None = None
    attempt: int = 0
    """The newest attempt given out."""
    completed_attempt: int = 0
    """The attempt that completed the response."""
    failures: int = 0
    failure: str = REWARD_FAILED
    """The reason of the newest failure."""
    reward: float | None = None


@dataclass(frozen=True)
class _Group:
    version: int
    home: str
    keys: tuple[TrajectoryKey, ...]


class GroupTracker:
    """State machine of all groups in flight.

    `max_failures`: how often one response is generated again after a reward failure; one more failure filters its
    group. `drop_equal`: whether groups of equal rewards are filtered (DAPO). `mixed`: whether newer weights may go on
    with a response."""

    def __init__(self, group_size: int, max_failures: int = 2, drop_equal: bool = False, mixed: bool = False) -> None:
        self._group_size = group_size
        self._max_failures = max_failures
        self._drop_equal = drop_equal
        self._mixed = mixed
        self._groups: dict[PromptKey, _Group] = {}
        self._samples: dict[TrajectoryKey, _Sample] = {}
        self._waiting: dict[TrajectoryKey, None] = {}
        self._held: dict[str, dict[TrajectoryKey, None]] = {}
        """Responses by replica: those that it generates, and those that are moving to it."""
        self._aborts: list[Launch] = []
        self._done: list[GroupDone] = []

    # --- questions ---

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, prompt: PromptKey) -> bool:
        return prompt in self._groups

    def __iter__(self) -> Iterator[PromptKey]:
        return iter(self._groups)

    def version(self, prompt: PromptKey) -> int:
        """Return the oldest weight version that may generate the group."""
        return self._groups[prompt].version

    def lease(self, key: TrajectoryKey) -> Lease | None:
        """Return the response's current lease; None if it is not running or not in flight."""
        sample = self._samples.get(key)
        return sample.lease if sample is not None else None

    def moving_to(self, key: TrajectoryKey) -> Lease | None:
        """Return the lease of the move's destination; None without a move."""
        sample = self._samples.get(key)
        return sample.move if sample is not None else None

    def has_move(self, replica: str) -> bool:
        """Check whether a response is moving from this replica or to it."""
        return any(self._samples[key].move is not None for key in self._held.get(replica, ()))

    def failures(self, key: TrajectoryKey) -> int:
        """Return how often the response's reward failed."""
        return self._samples[key].failures

    def attempts(self) -> dict[TrajectoryKey, int]:
        """Return the newest attempt of every launched response."""
        return {key: sample.attempt for key, sample in self._samples.items() if sample.attempt}

    def running_on(self, replica: str) -> list[Launch]:
        """Return the replica's running responses with their leases."""
        held = ((key, self._samples[key].lease) for key in self._held.get(replica, ()))
        return [Launch(key, lease) for key, lease in held if lease is not None and lease.replica == replica]

    def load(self, replica: str) -> int:
        """Count the responses that the replica generates or is about to generate."""
        return len(self._held.get(replica, ()))

    def orphaned(self, held: Collection[int]) -> list[PromptKey]:
        """Return groups with a response that waits, and that no version of `held` can generate."""
        prompts = dict.fromkeys(key.prompt for key in self._waiting)
        return [prompt for prompt in prompts if not any(self._fits(one, self._groups[prompt]) for one in held)]

    # --- commands ---

    def add(
        self, prompt: PromptKey, version: int, home: str, saved: Mapping[TrajectoryKey, RestoredSample] | None = None
    ) -> None:
        """Add the group of a prompt that the replica `home` drew with `version`.

        `saved`: the store's records of its responses."""
        keys = tuple(TrajectoryKey(prompt, sample) for sample in range(self._group_size))
        self._groups[prompt] = _Group(version, home, keys)
        for key in keys:
            kept = (saved or {}).get(key, RestoredSample(0))
            sample = self._samples[key] = _Sample(
                attempt=kept.attempt,
                completed_attempt=kept.attempt,
                failures=kept.failures,
                failure=kept.failure,
                reward=kept.reward,
            )
            self._waiting[key] = None
            if kept.generated:
                self._move(key, SampleState.GENERATED if sample.reward is None else SampleState.SCORED)
        self._check_done(prompt)

    def launch(self, holders: Mapping[str, int]) -> list[Launch]:
        """Assign waiting responses to replicas whose version may generate them. `holders`: version by replica.

        A group stays together: on its home replica, else on the replica with the lowest load."""
        launches, chosen = [], dict[PromptKey, str]()
        loads = Counter({name: self.load(name) for name in holders})
        for key in list(self._waiting):
            group = self._groups[key.prompt]
            fitting = [one for one, version in holders.items() if self._fits(version, group)]
            name = chosen.get(key.prompt) or _choose(group, fitting, loads)
            if name is None:
                continue
            chosen[key.prompt] = name
            loads[name] += 1
            sample = self._samples[key]
            sample.attempt += 1
            self._move(key, SampleState.RUNNING)
            sample.lease = Lease(name, sample.attempt)
            self._held.setdefault(name, {})[key] = None
            launches.append(Launch(key, sample.lease))
        return launches

    def mark_replica_lost(self, replica: str) -> None:
        """Requeue what the replica generated. Responses that were moving to it stay at their source."""
        for key in list(self._held.get(replica, ())):
            sample = self._samples[key]
            if sample.lease is not None and sample.lease.replica == replica:
                self.requeue([key])
            else:
                self._end_move(key, abort=False)
        self._held.pop(replica, None)

    def requeue(self, keys: Iterable[TrajectoryKey]) -> None:
        """Take these running responses from their replicas; they wait for a launch."""
        for key in keys:
            if self._samples[key].state is SampleState.RUNNING:
                self._move(key, SampleState.WAITING)

    def begin_move(self, source: str, destination: str) -> list[Launch]:
        """Start to move all running responses of `source` to `destination`, which holds the same weights.

        Returns the launches to submit at the destination. The source keeps generating."""
        launches = []
        for launch in self.running_on(source):
            sample = self._samples[launch.key]
            if sample.move is None:
                sample.attempt += 1
                sample.move = Lease(destination, sample.attempt)
                self._held.setdefault(destination, {})[launch.key] = None
                launches.append(Launch(launch.key, sample.move))
        return launches

    def relaunch(self, source: str, destination: str) -> tuple[list[Launch], list[Launch]]:
        """Move all running responses of `source` to `destination`, which holds the same weights.

        Returns the former leases, which end, and the launches to submit at the destination."""
        ended, launches = self.running_on(source), []
        for key, lease in ((one.key, one.lease) for one in ended):
            sample = self._samples[key]
            self._end_move(key)
            self._release(key, lease)
            sample.attempt += 1
            sample.lease = Lease(destination, sample.attempt)
            self._held.setdefault(destination, {})[key] = None
            launches.append(Launch(key, sample.lease))
        return ended, launches

    def commit_move(self, key: TrajectoryKey, lease: Lease) -> bool:
        """Commit a move at the destination's first token: only the destination generates the response from here on.

        Returns False if the response is not moving there."""
        sample = self._samples.get(key)
        if sample is None or sample.move != lease or sample.lease is None:
            return False
        self._aborts.append(Launch(key, sample.lease))
        self._release(key, sample.lease)
        sample.lease, sample.move = lease, None
        return True

    def generated(self, key: TrajectoryKey, lease: Lease) -> bool:
        """Mark the response complete. Returns False unless `lease` is its current lease."""
        sample = self._samples.get(key)
        if sample is None or sample.lease != lease:
            return False
        sample.completed_attempt = lease.attempt
        self._move(key, SampleState.GENERATED)
        return True

    def scored(self, key: TrajectoryKey, attempt: int, reward: float) -> bool:
        """Record a reward. Returns False if this attempt's reward is not expected."""
        sample = self._awaiting(key, attempt)
        if sample is None:
            return False
        sample.reward = reward
        self._move(key, SampleState.SCORED)
        self._check_done(key.prompt)
        return True

    def reward_failed(self, key: TrajectoryKey, attempt: int, failure: RewardFailure) -> bool:
        """Record a failed reward: generate the response again, or filter its group once it has no try left.

        Returns False if this attempt's reward is not expected.
        """
        sample = self._awaiting(key, attempt)
        if sample is None:
            return False
        sample.failures += failure.failures(self._max_failures)
        sample.failure = failure.reason
        self._move(key, SampleState.WAITING)
        self._check_done(key.prompt)
        return True

    def drop(self, prompt: PromptKey) -> None:
        """Drop the group; its prompt is to be requeued."""
        for key in self._groups.pop(prompt).keys:
            sample = self._samples[key]
            if sample.lease is not None:
                self._aborts.append(Launch(key, sample.lease))
            self._move(key, SampleState.DROPPED)
            del self._samples[key]

    def drain_done(self) -> tuple[GroupDone, ...]:
        """Return groups that are done, in order, each once. They are no longer in flight."""
        over, self._done = tuple(self._done), []
        return over

    def drain_aborts(self) -> tuple[Launch, ...]:
        """Return running responses that no longer count, with their leases, each once."""
        aborts, self._aborts = tuple(self._aborts), []
        return aborts

    # --- details ---

    def _fits(self, version: int, group: _Group) -> bool:
        return version >= group.version if self._mixed else version == group.version

    def _awaiting(self, key: TrajectoryKey, attempt: int) -> _Sample | None:
        sample = self._samples.get(key)
        awaited = sample is not None and sample.state is SampleState.GENERATED and sample.completed_attempt == attempt
        return sample if awaited else None

    def _check_done(self, prompt: PromptKey) -> None:
        samples = [self._samples[key] for key in self._groups[prompt].keys]
        reason = untrainable_reason(samples, self._max_failures, self._drop_equal)
        if reason is None and any(sample.state is not SampleState.SCORED for sample in samples):
            return
        rewards = tuple(sample.reward for sample in samples if sample.reward is not None)
        self._done.append(GroupDone(prompt, self._groups[prompt].version, rewards, reason))
        self.drop(prompt)

    def _move(self, key: TrajectoryKey, state: SampleState) -> None:
        sample = self._samples[key]
        self._end_move(key)
        if sample.lease is not None:
            self._release(key, sample.lease)
        sample.state, sample.lease = state, None
        if state is SampleState.WAITING:
            self._waiting[key] = None
        else:
            self._waiting.pop(key, None)

    def _end_move(self, key: TrajectoryKey, abort: bool = True) -> None:
        sample = self._samples[key]
        if sample.move is not None:
            if abort:
                self._aborts.append(Launch(key, sample.move))
            self._release(key, sample.move)
            sample.move = None

    def _release(self, key: TrajectoryKey, lease: Lease) -> None:
        self._held.get(lease.replica, {}).pop(key, None)


def _choose(group: _Group, fitting: Collection[str], loads: Counter[str]) -> str | None:
    if group.home in fitting:
        return group.home
    return min(fitting, key=lambda name: (loads[name], name), default=None)
