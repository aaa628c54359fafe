"""Staged systems: jobs that generate batch by batch and change weights everywhere simultaneously.

They are synchronous, one-step staleness and stream generation (Laminar §2.3, Fig. 3a to c).

A batch begins on empty engines, so its duration does not depend on when it begins. Each batch is generated once, and
the systems differ in how they overlap batches and updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rljob_bench.async_systems.groups import Drawn, Prompts, number_of
from rljob_bench.async_systems.hardware import Hardware
from rljob_bench.async_systems.outcome import Outcome, TrainedGroup, Update
from rljob_bench.async_systems.rollouts import Rollouts


@dataclass(frozen=True)
class Generation:
    """A batch on empty engines. Seconds from its launch."""

    ready: tuple[tuple[float, Drawn], ...]
    """When each group was complete, in this order."""
    latencies: tuple[float, ...]
    generated_tokens: int
    busy_seconds: float
    """Summed over the replicas."""
    preemptions: int

    @property
    def seconds(self) -> float:
        return self.ready[-1][0]

    @property
    def tokens(self) -> int:
        """To train on."""
        return sum(group.tokens for _, group in self.ready)


def generate(hardware: Hardware, groups: Sequence[Drawn]) -> Generation:
    """Generate: a prompt's responses go round-robin over the replicas, which spreads long prompts evenly."""
    rollouts = Rollouts(hardware)
    requests = [request for group in groups for request in group.requests()]
    for replica in range(len(rollouts)):
        rollouts.submit(replica, 0.0, requests[replica :: len(rollouts)])
    left = {group.number: len(group.response_tokens) for group in groups}
    drawn = {group.number: group for group in groups}
    ready: list[tuple[float, Drawn]] = []
    latencies: list[float] = []
    end = 0.0
    while left:
        for finish in rollouts.finished()[1]:
            number, end = number_of(finish.id), finish.time
            latencies.append(end)
            left[number] -= 1
            if not left[number]:
                del left[number]
                ready.append((end, drawn[number]))
    loads = rollouts.loads(end)
    return Generation(
        tuple(ready),
        tuple(latencies),
        sum(load.generated_tokens for load in loads),
        sum(load.busy_seconds for load in loads),
        sum(load.preemptions for load in loads),
    )


class Batches:
    """Generations by batch, each made once."""

    def __init__(self, hardware: Hardware, prompts: Prompts) -> None:
        self.hardware = hardware
        self._prompts = prompts
        self._made: list[Generation] = []

    def __getitem__(self, number: int) -> Generation:
        while len(self._made) <= number:
            self._made.append(generate(self.hardware, self._prompts.batch(len(self._made))))
        return self._made[number]


def synchronous(batches: Batches, rounds: int) -> Outcome:
    """Colocated: a batch, then its update, then the next batch with what it brought."""
    hardware, time = batches.hardware, 0.0
    updates: list[Update] = []
    for number in range(rounds):
        batch = batches[number]
        time += batch.seconds + hardware.training(batch.tokens)
        updates.append(_update(time, batch, number, number, waited=batch.seconds))
    return _outcome(batches, 0.0, updates, range(rounds))


def one_step(batches: Batches, rounds: int, warm_up: int = 1) -> Outcome:
    """Train on a batch while the next one is generated with the weights from before it.

    Then everything stops, and the replicas take the new weights.
    """
    hardware, time = batches.hardware, batches[0].seconds
    updates: list[Update] = []
    for number in range(warm_up + rounds):
        batch = batches[number]
        training = hardware.training(batch.tokens) + hardware.stall_seconds
        beside = max(training, batches[number + 1].seconds)
        time += beside + hardware.load_seconds
        made_with = max(0, number - 1)
        updates.append(_update(time, batch, made_with, number, waited=beside - training))
    return _outcome(batches, updates[warm_up - 1].end, updates[warm_up:], range(warm_up, warm_up + rounds))


def stream(batches: Batches, rounds: int, minibatches: int, warm_up: int = 2) -> Outcome:
    """Train on a batch's minibatches as its groups become complete.

    The next batch begins when this one is complete, with the newest weights there are, which are at most one update
    behind.
    """
    hardware, trained, generated = batches.hardware, 0.0, 0.0
    updates: list[Update] = []
    ends = [0.0]
    for number in range(warm_up + rounds):
        batch = batches[number]
        # The bound: weights of the update before the last one.
        begin = max(generated, ends[max(0, number - 1)])
        version = sum(end <= begin for end in ends[1:])
        changed = number > 0 and version > updates[-1].groups[0].version
        begin += hardware.load_seconds if changed else 0.0
        generated = begin + batch.seconds
        waited = 0.0
        for part in _parts(batch.ready, minibatches):
            whole = begin + part[-1][0]
            waited += max(0.0, whole - trained)
            tokens = sum(group.tokens for _, group in part)
            trained = max(trained, whole) + hardware.update_seconds / minibatches + hardware.summing(tokens)
        trained += hardware.stall_seconds
        ends.append(trained)
        updates.append(_update(trained, batch, version, number, waited=waited))
    return _outcome(batches, updates[warm_up - 1].end, updates[warm_up:], range(warm_up, warm_up + rounds))


def _parts(ready: Sequence[tuple[float, Drawn]], parts: int) -> list[Sequence[tuple[float, Drawn]]]:
    """Split as evenly as possible, in order."""
    cuts = [len(ready) * part // parts for part in range(parts + 1)]
    return [ready[begin:end] for begin, end in pairwise(cuts) if begin < end]


def _update(end: float, batch: Generation, version: int, step: int, waited: float) -> Update:
    groups = tuple(TrainedGroup(group.number, version, step - version, step - version) for _, group in batch.ready)
    return Update(end, batch.tokens, groups, waited)


def _outcome(batches: Batches, begin: float, updates: Sequence[Update], measured: range) -> Outcome:
    generations = [batches[number] for number in measured]
    seconds = updates[-1].end - begin
    return Outcome(
        begin,
        tuple(updates),
        generated_tokens=sum(one.generated_tokens for one in generations),
        busy_share=sum(one.busy_seconds for one in generations) / seconds / batches.hardware.replicas,
        latencies=[latency for one in generations for latency in one.latencies],
        preemptions=sum(one.preemptions for one in generations),
    )
