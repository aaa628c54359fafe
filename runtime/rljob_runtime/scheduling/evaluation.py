"""Evaluation: when a job is evaluated, and which replica generates which response.

An evaluation scores the weights of one boundary on prompts that are never trained on. Its responses are generated with
those weights only. They use replicas that are idle, until an update waits for them.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from rljob_runtime.protocols.trajectory import EVALUATION_SOURCE, Lease, PromptKey, TrajectoryKey
from rljob_runtime.scheduling.reward_failure import RewardFailure
from rljob_runtime.scheduling.round_plan import Launch

MOST_RESPONSES = 64
"""Most responses of evaluations that one replica holds."""


def is_due(every_rounds: int, step: int, rounds: int) -> bool:
    """Return whether the weights after `step` of `rounds` updates are evaluated.

    The weights before the first update, after every `every_rounds`, and after the last one.

    >>> [step for step in range(8) if is_due(3, step, 7)]
    [0, 3, 6, 7]
    """
    return step % every_rounds == 0 or step == rounds


def evaluation_key(name: str, step: int, index: int) -> PromptKey:
    """Return the key of a prompt of an evaluation of the weights after `step`. `index`: its record.

    >>> str(evaluation_key("gsm8k", 10, 3))
    'evaluation:gsm8k/10.3'
    """
    return PromptKey(step, index, EVALUATION_SOURCE + name)


def evaluation_seed(run_seed: int, key: TrajectoryKey) -> int:
    """Return the sampling seed of a response.

    It is the same for all steps, so that two evaluations differ by their weights and not by their random numbers. It is
    the same for all attempts, so that a response which is generated again is the same.
    """
    text = f"{run_seed}/{key.prompt.source}/{key.prompt.index}/{key.sample}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=4).digest(), "big") & 0x7FFFFFFF


@dataclass(frozen=True)
class ReplicaLoad:
    """Unfinished responses of a replica that holds the weights: of training, and of evaluations."""

    training: int
    evaluation: int


def spare_room(loads: Mapping[str, ReplicaLoad], waiting: int, urgent: bool) -> dict[str, int]:
    """Return how many of the `waiting` responses each replica starts now.

    Only idle replicas start any, unless it is `urgent`. None holds more than its equal share of all unfinished
    responses, so that replicas which become idle later have work too, nor more than `MOST_RESPONSES`.

    >>> spare_room({"a": ReplicaLoad(0, 0), "b": ReplicaLoad(3, 0), "c": ReplicaLoad(0, 1)}, 5, urgent=False)
    {'a': 2, 'c': 1}
    """
    able = {name: load.evaluation for name, load in loads.items() if urgent or not load.training}
    running = sum(load.evaluation for load in loads.values())
    share = min(MOST_RESPONSES, ceil((waiting + running) / len(loads))) if loads else 0
    room: dict[str, int] = {}
    for name in sorted(able, key=lambda name: (able[name], name)):
        count = min(waiting, share - able[name])
        if count > 0:
            room[name] = count
            waiting -= count
    return room


class EvaluationProgress:
    """The responses of all evaluations of one step. Each is waiting, running, generated or settled.

    `first_attempt` exceeds the attempts of every earlier coordinator. `failures`: how often a reward may fail before
    its response counts as missing.
    """

    def __init__(self, keys: Iterable[TrajectoryKey], first_attempt: int, failures: int) -> None:
        self.highest_attempt = first_attempt - 1
        """The highest attempt of any response."""
        self._waiting = deque(keys)
        self._attempts = dict.fromkeys(self._waiting, first_attempt - 1)
        self._running: dict[TrajectoryKey, Lease] = {}
        self._loads: Counter[str] = Counter()
        self._generated: set[TrajectoryKey] = set()
        self._failures: Counter[TrajectoryKey] = Counter()
        self._most_failures = failures

    @property
    def waiting(self) -> int:
        """Number of responses that no replica generates."""
        return len(self._waiting)

    def void(self) -> dict[TrajectoryKey, int]:
        """Return the attempts that no replica shall generate: those of waiting responses, up to the last one."""
        return {key: self._attempts[key] for key in self._waiting}

    def running(self) -> list[Launch]:
        """Return the running responses with their leases."""
        return [Launch(key, lease) for key, lease in self._running.items()]

    def load(self, replica: str) -> int:
        """Return the number of running responses of a replica."""
        return self._loads[replica]

    def lease(self, key: TrajectoryKey) -> Lease | None:
        """Return the lease of a running response."""
        return self._running.get(key)

    def launch(self, room: Mapping[str, int]) -> list[Launch]:
        """Start up to `room` waiting responses on each replica."""
        launches = []
        for replica, count in room.items():
            for _ in range(min(count, len(self._waiting))):
                key = self._waiting.popleft()
                self._attempts[key] += 1
                self.highest_attempt = max(self.highest_attempt, self._attempts[key])
                self._running[key] = Lease(replica, self._attempts[key])
                self._loads[replica] += 1
                launches.append(Launch(key, self._running[key]))
        return launches

    def generated(self, key: TrajectoryKey, lease: Lease) -> bool:
        """Record the end of a response; False if another lease has replaced this one."""
        if self._running.get(key) != lease:
            return False
        self._stop(key)
        self._generated.add(key)
        return True

    def settle(self, key: TrajectoryKey) -> bool:
        """Record the reward of a generated response; False if it has one."""
        if key not in self._generated:
            return False
        self._generated.remove(key)
        del self._attempts[key]
        return True

    def reward_failed(self, key: TrajectoryKey, failure: RewardFailure) -> bool:
        """Record a failed reward. Return whether the response has another try; if not, call `settle`.

        The reward of the same text is requested again. An aborted response is generated again: call `restart`.
        """
        self._failures[key] += failure.failures(self._most_failures)
        return self._failures[key] <= self._most_failures

    def restart(self, key: TrajectoryKey) -> None:
        """Return a generated response to the queue: it was aborted."""
        self._generated.remove(key)
        self._waiting.append(key)

    def requeue(self, keys: Collection[TrajectoryKey]) -> list[Launch]:
        """Return these running responses to the queue. They start from their beginning again."""
        named = set(keys)
        stopped = [launch for launch in self.running() if launch.key in named]
        for launch in stopped:
            self._stop(launch.key)
        self._waiting.extendleft(launch.key for launch in reversed(stopped))
        return stopped

    def _stop(self, key: TrajectoryKey) -> None:
        self._loads[self._running.pop(key).replica] -= 1


def responses(name: str, step: int, prompts: Sequence[int], per_prompt: int) -> list[TrajectoryKey]:
    """Return the keys of all responses of an evaluation, sample by sample, so that every prompt has one early."""
    keys = [evaluation_key(name, step, index) for index in prompts]
    return [TrajectoryKey(key, sample) for sample in range(per_prompt) for key in keys]
