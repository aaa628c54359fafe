"""Groups in flight in `mode: Asynchronous`: each is of one weight version, the one that the replica held which drew it,
and every response goes its own way (Laminar, section 3).

    drawn by a replica → launched → generated → scored → ready for training, or filtered, or given up

A state machine over events, as `round.Round` is: it owns no tokens and calls nobody. It is told what happened and
answers what to launch where, what to abort, and which groups are over. A response without a replica waits for one that
holds its version; where nobody does any more, its group is stranded, and whoever knows that gives it up.

A move (repack) is a second lease beside the first: the source goes on, and the destination's first token is the commit
(DESIGN §8, Move). Until then nothing has changed but the attempt that was given out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from rljob_runtime.protocols.trajectory import Lease, PromptKey, TrajectoryKey
from rljob_runtime.scheduling.round import EQUAL_REWARDS, REWARD_FAILED, Launch, RestoredSample, SampleState

VERSION_GONE = "VersionGone"
"""Reason of a prompt that is drawn again because nobody holds the weights of its group any more."""
JOB_ENDED = "JobEnded"
"""Reason of a prompt whose group was not needed any more."""


@dataclass(frozen=True)
class GroupDone:
    """A group that is over: to be trained on, or filtered for this reason. `rewards`: those that had come."""

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
    """The newest that was given out."""
    completed_attempt: int = 0
    """The one under which it became whole."""
    failures: int = 0
    reward: float | None = None


@dataclass(frozen=True)
class _Group:
    version: int
    home: str
    keys: tuple[TrajectoryKey, ...]


class GroupTracker:
    """`max_failures`: how often one response is generated anew because its reward failed; one more gives its group up.
    `drop_equal`: groups of equal rewards are filtered (DAPO)."""

    def __init__(self, group_size: int, max_failures: int = 2, drop_equal: bool = False) -> None:
        self._group_size = group_size
        self._max_failures = max_failures
        self._drop_equal = drop_equal
        self._groups: dict[PromptKey, _Group] = {}
        self._samples: dict[TrajectoryKey, _Sample] = {}
        self._waiting: dict[TrajectoryKey, None] = {}
        self._held: dict[str, dict[TrajectoryKey, None]] = {}
        """By replica: what it generates, or is about to by a move."""
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
        """The weights that generate its group."""
        return self._groups[prompt].version

    def lease(self, key: TrajectoryKey) -> Lease | None:
        """Who generates it now; None where nobody does, and of what is not in flight."""
        sample = self._samples.get(key)
        return sample.lease if sample is not None else None

    def moving_to(self, key: TrajectoryKey) -> Lease | None:
        """Who is to go on with it."""
        sample = self._samples.get(key)
        return sample.move if sample is not None else None

    def has_move(self, replica: str) -> bool:
        """Whether a response of it is to go on elsewhere, or one from elsewhere here."""
        return any(self._samples[key].move is not None for key in self._held.get(replica, ()))

    def failures(self, key: TrajectoryKey) -> int:
        """How often it was generated in vain."""
        return self._samples[key].failures

    def attempts(self) -> dict[TrajectoryKey, int]:
        """The newest attempt of every response that was ever launched."""
        return {key: sample.attempt for key, sample in self._samples.items() if sample.attempt}

    def running_on(self, replica: str) -> list[Launch]:
        """What it generates, with the leases."""
        held = ((key, self._samples[key].lease) for key in self._held.get(replica, ()))
        return [Launch(key, lease) for key, lease in held if lease is not None and lease.replica == replica]

    def load(self, replica: str) -> int:
        """Responses that it generates or is about to."""
        return len(self._held.get(replica, ()))

    def orphaned(self, held: Collection[int]) -> list[PromptKey]:
        """Groups with a response that waits for weights which are not among those `held`."""
        prompts = dict.fromkeys(key.prompt for key in self._waiting)
        return [prompt for prompt in prompts if self._groups[prompt].version not in held]

    # --- commands ---

    def add(
        self, prompt: PromptKey, version: int, home: str, saved: Mapping[TrajectoryKey, RestoredSample] | None = None
    ) -> None:
        """This prompt's group is drawn by the replica `home`, which holds `version`. `saved`: what the store knows of
        its responses."""
        keys = tuple(TrajectoryKey(prompt, sample) for sample in range(self._group_size))
        self._groups[prompt] = _Group(version, home, keys)
        for key in keys:
            kept = (saved or {}).get(key, RestoredSample(0))
            sample = self._samples[key] = _Sample(
                attempt=kept.attempt, completed_attempt=kept.attempt, failures=kept.failures, reward=kept.reward
            )
            self._waiting[key] = None
            if kept.generated:
                self._move(key, SampleState.GENERATED if sample.reward is None else SampleState.SCORED)
        self._check_done(prompt)

    def launch(self, holders: Mapping[str, int]) -> list[Launch]:
        """Give what waits to replicas that hold its version (`holders`: version by name): to the one that drew it, else
        to the one with the least to do, a group together."""
        launches, chosen = [], dict[PromptKey, str]()
        loads = Counter({name: self.load(name) for name in holders})
        for key in list(self._waiting):
            group = self._groups[key.prompt]
            name = chosen.get(key.prompt) or _choose(group, holders, loads)
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
        """A replica is gone: what it generated waits again, what was to move there stays where it is."""
        for key in list(self._held.get(replica, ())):
            sample = self._samples[key]
            if sample.lease is not None and sample.lease.replica == replica:
                self.requeue([key])
            else:
                self._end_move(key, abort=False)
        self._held.pop(replica, None)

    def requeue(self, keys: Iterable[TrajectoryKey]) -> None:
        """These are generated by nobody now."""
        for key in keys:
            if self._samples[key].state is SampleState.RUNNING:
                self._move(key, SampleState.WAITING)

    def begin_move(self, source: str, destination: str) -> list[Launch]:
        """All that the source generates is to go on at the destination, which holds the same weights: what to submit
        there. The source goes on."""
        launches = []
        for launch in self.running_on(source):
            sample = self._samples[launch.key]
            if sample.move is None:
                sample.attempt += 1
                sample.move = Lease(destination, sample.attempt)
                self._held.setdefault(destination, {})[launch.key] = None
                launches.append(Launch(launch.key, sample.move))
        return launches

    def commit_move(self, key: TrajectoryKey, lease: Lease) -> bool:
        """The destination's first token came: from now on it alone generates this response. False where it does not
        move there."""
        sample = self._samples.get(key)
        if sample is None or sample.move != lease or sample.lease is None:
            return False
        self._aborts.append(Launch(key, sample.lease))
        self._release(key, sample.lease)
        sample.lease, sample.move = lease, None
        return True

    def generated(self, key: TrajectoryKey, lease: Lease) -> bool:
        """The response is whole. False under any other lease than the current one."""
        sample = self._samples.get(key)
        if sample is None or sample.lease != lease:
            return False
        sample.completed_attempt = lease.attempt
        self._move(key, SampleState.GENERATED)
        return True

    def scored(self, key: TrajectoryKey, attempt: int, reward: float) -> bool:
        """A reward came. False when it is not awaited any more."""
        sample = self._awaiting(key, attempt)
        if sample is None:
            return False
        sample.reward = reward
        self._move(key, SampleState.SCORED)
        self._check_done(key.prompt)
        return True

    def reward_failed(self, key: TrajectoryKey, attempt: int, by_response: bool = False) -> bool:
        """No reward could be had: the response is aborted and generated anew, or its group given up: at once where
        the failure is `by_response`. False when it is not awaited any more."""
        sample = self._awaiting(key, attempt)
        if sample is None:
            return False
        sample.failures += self._max_failures + 1 if by_response else 1
        self._move(key, SampleState.WAITING)
        self._check_done(key.prompt)
        return True

    def drop(self, prompt: PromptKey) -> None:
        """The group is given up: its prompt is to be drawn again."""
        for key in self._groups.pop(prompt).keys:
            sample = self._samples[key]
            if sample.lease is not None:
                self._aborts.append(Launch(key, sample.lease))
            self._move(key, SampleState.DROPPED)
            del self._samples[key]

    def drain_done(self) -> tuple[GroupDone, ...]:
        """Groups that are over, in the order they became so; told once, and in flight no more."""
        over, self._done = tuple(self._done), []
        return over

    def drain_aborts(self) -> tuple[Launch, ...]:
        """What ran and does not count any more, with the lease each had; told once."""
        aborts, self._aborts = tuple(self._aborts), []
        return aborts

    # --- details ---

    def _awaiting(self, key: TrajectoryKey, attempt: int) -> _Sample | None:
        sample = self._samples.get(key)
        awaited = sample is not None and sample.state is SampleState.GENERATED and sample.completed_attempt == attempt
        return sample if awaited else None

    def _check_done(self, prompt: PromptKey) -> None:
        samples = [self._samples[key] for key in self._groups[prompt].keys]
        reason = None
        if any(sample.failures > self._max_failures for sample in samples):
            reason = REWARD_FAILED
        elif any(sample.state is not SampleState.SCORED for sample in samples):
            return
        elif self._drop_equal and len({sample.reward for sample in samples}) == 1:
            reason = EQUAL_REWARDS
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


def _choose(group: _Group, holders: Mapping[str, int], loads: Counter[str]) -> str | None:
    if holders.get(group.home) == group.version:
        return group.home
    fitting = [name for name, version in holders.items() if version == group.version]
    return min(fitting, key=lambda name: (loads[name], name), default=None)
