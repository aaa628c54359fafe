"""RLJob's own way (`mode: Asynchronous`), by its own policies: every replica generates its own batch with one weight
version, takes the newest weights when it is done or released by repack, and the trainer takes groups as they are ready.

Nothing waits for everybody. What a replica may begin is bounded by admission: so many groups are open (in flight or
ready) at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from rljob_api.learning import Sampler
from rljob_runtime.enginemodel.engine import Finish, Request
from rljob_runtime.scheduling.experience import Experience, admitted, must_wait, sample
from rljob_runtime.scheduling.lending import Unfinished
from rljob_runtime.scheduling.repack import RepackRules, ReplicaLoad, plan_repack
from rljob_runtime.scheduling.trajectory import PromptKey
from rljob_runtime.simulation.laminar.clock import Clock
from rljob_runtime.simulation.laminar.groups import Drawn, Prompts, number_of
from rljob_runtime.simulation.laminar.outcome import Outcome, TrainedGroup, Update
from rljob_runtime.simulation.laminar.packing import Lengths, name_of, number_of_replica
from rljob_runtime.simulation.laminar.rig import Rig
from rljob_runtime.simulation.laminar.rollouts import Rollouts
from rljob_runtime.simulation.laminar.watch import Watch

RULES = RepackRules(kv_cache_threshold=0.99, max_batch=64)
"""The API's defaults."""


@dataclass(frozen=True)
class Policy:
    """`capacity`: groups that may be open, in rounds' worth; infinite for as many as replicas take. `batch`: what an
    idle replica takes, in its share of a round. `repack`: None for without it; `interval`: seconds between two looks.
    `max_staleness`: None for unbounded."""

    capacity: float = 2.0
    batch: float = 1.0
    repack: RepackRules | None = field(default=RULES)
    interval: float = 5.0
    move_seconds: float = 0.0
    max_staleness: int | None = None


@dataclass(slots=True)
class _Open:
    """A group that no update has taken. `left`: responses that are not whole; `ready`: its place among those that are,
    None while it is in flight."""

    drawn: Drawn
    version: int
    launched: float
    left: int
    ready: int | None = None
    inherent: int = 0


@dataclass(slots=True)
class _Replica:
    """`live`: responses it answers for. `coming`: of these, on their way: they wait for weights, or move here.
    `before`: tokens in its cache at the last look, None if it has taken a batch since; `generated`: by its engine up
    to then."""

    version: int = 0
    live: int = 0
    coming: int = 0
    before: int | None = None
    generated: int = 0


class Job:
    """One job, played until so many updates were made. `updates` has those made so far, `assigned` the groups of the
    one that is being made."""

    def __init__(self, rig: Rig, prompts: Prompts, policy: Policy) -> None:
        self.rig, self.policy, self._prompts = rig, policy, prompts
        self.size = prompts.round_prompts
        self.batch = max(1, math.ceil(policy.batch * self.size / rig.replicas))
        """Prompts that an idle replica takes."""
        rounds = policy.capacity if policy.capacity < math.inf else 1e6
        self.capacity = max(self.size, round(rounds * self.size))
        self.updates: list[Update] = []
        self.assigned: list[Drawn] = []
        self._rollouts = Rollouts(rig)
        self._replicas = [_Replica() for _ in range(rig.replicas)]
        self._standing: dict[int, None] = {}
        """Idle ones that admission holds, the longest first."""
        self._places = count()
        self._cursor = 0
        self._open: dict[int, _Open] = {}
        self._ready = 0
        """Of the open groups."""
        self._taken = 0
        """Updates that were begun."""
        self._newest = 0
        """The version that every machine has."""
        self._free_since: float | None = 0.0
        """When the trainer ended its last update; None while it trains."""
        self._lengths = Lengths(prompts.longest_response)
        self._watch = Watch(self._rollouts)
        self._clock = Clock(self._rollouts, self._finished)

    @property
    def drawn(self) -> int:
        """Prompts that were begun."""
        return self._cursor

    @property
    def open_groups(self) -> list[Drawn]:
        """What no update has taken."""
        return [one.drawn for one in self._open.values()]

    # --- the clock ---

    def play(self, warm_up: int, updates: int) -> Outcome:
        """All updates after the warm-up."""
        for replica in range(len(self._replicas)):
            self._fill(replica, 0.0)
        self._clock.at(0.0, self._look)
        begin = 0.0
        if not warm_up:
            self._watch.begin(begin)
        while len(self.updates) < warm_up + updates:
            done = len(self.updates)
            self._clock.tick()
            if done < warm_up == len(self.updates):
                begin = self.updates[-1].end
                self._watch.begin(begin)
        return self._watch.outcome(begin, self.updates[warm_up:])

    # --- replicas ---

    def _fill(self, number: int, now: float) -> None:
        """Give an idle replica a batch of the newest version, or have it stand until admission opens."""
        opened = (self._staleness(one) for one in self._open.values())
        weights = self._taken - self._newest
        room = admitted(opened, weights, self.capacity, self.size, self.policy.max_staleness)
        if room < 1:
            self._standing[number] = None
            return
        replica = self._replicas[number]
        loading = self.rig.load_seconds if replica.version != self._newest else 0.0
        replica.version, replica.before = self._newest, None
        requests: list[Request] = []
        for _ in range(min(self.batch, room)):
            drawn = self._prompts[self._cursor]
            self._cursor += 1
            self._open[drawn.number] = _Open(drawn, self._newest, now, len(drawn.response_tokens))
            requests += drawn.requests()
        self._send(number, now + loading, requests)

    def _send(self, number: int, time: float, requests: list[Request]) -> None:
        replica = self._replicas[number]
        replica.live += len(requests)
        replica.coming += len(requests)

        def arrive(now: float) -> None:
            replica.coming -= len(requests)
            self._rollouts.submit(number, now, requests)

        self._clock.at(time, arrive)

    def _admit(self, now: float) -> None:
        for number in list(self._standing):
            del self._standing[number]
            self._fill(number, now)

    def _finished(self, number: int, finish: Finish) -> None:
        replica, group = self._replicas[number], self._open[number_of(finish.id)]
        assert group.version == replica.version
        assert isinstance(finish.id, tuple)
        self._watch.finished(finish.time - group.launched)
        self._lengths.ended(group.drawn.response_tokens[finish.id[1]])
        replica.live -= 1
        group.left -= 1
        if not group.left:
            group.ready = next(self._places)
            group.inherent = len(self.updates) - group.version
            self._ready += 1
            self._train(finish.time)
        if not replica.live:
            self._fill(number, finish.time)

    # --- repack ---

    def _look(self, now: float) -> None:
        self._watch.look(now)
        self._repack(now)
        self._clock.at(now + self.policy.interval, self._look)

    def _repack(self, now: float) -> None:
        """What is released takes new weights and new prompts at once."""
        rules = self.policy.repack
        if rules is None:
            return
        loads = [self._load(number, now, rules) for number, one in enumerate(self._replicas) if one.live]
        for merge in plan_repack(loads, rules):
            source, destination = number_of_replica(merge.source), number_of_replica(merge.destination)
            requests = self._rollouts.take(source, now)
            assert len(requests) == self._replicas[source].live
            assert self._replicas[source].version == self._replicas[destination].version
            self._replicas[source].live = 0
            self._watch.moved(requests)
            self._send(destination, now + self.policy.move_seconds, requests)
            self._fill(source, now)

    def _load(self, number: int, now: float, rules: RepackRules) -> ReplicaLoad:
        """What the policy is told at this look. What is too much to be moved is not looked at closely."""
        replica, load = self._replicas[number], self._rollouts.load(number, now)
        close = replica.live < rules.max_batch and not replica.coming
        unfinished = [
            Unfinished(self._open[number_of(response)].drawn.prompt_tokens, tokens)
            for response, tokens in (self._rollouts.progress(number, now) if close else ())
        ]
        before, replica.before = replica.before, load.kv_tokens
        generated, replica.generated = load.generated_tokens - replica.generated, load.generated_tokens
        return ReplicaLoad(
            name_of(number),
            replica.version,
            trajectories=replica.live,
            waiting=load.waiting + replica.coming,
            tokens=load.kv_tokens,
            expected_tokens=self._lengths.peak(unfinished),
            kv_tokens=self.rig.kv_tokens,
            kv_before=before,
            generated=generated,
        )

    # --- the trainer ---

    def _staleness(self, group: _Open) -> int:
        """If the next update takes it."""
        return self._taken - group.version

    def _train(self, now: float) -> None:
        """Begin an update, if the trainer is free and may."""
        if self._free_since is None or self._ready < self.size:
            return
        batch = self._sampled()
        if not batch:
            return
        tokens = sum(one.drawn.tokens for one in batch)
        update = Update(
            now + self.rig.training(tokens) + self.rig.stall_seconds,
            tokens,
            tuple(TrainedGroup(one.drawn.number, one.version, self._staleness(one), one.inherent) for one in batch),
            waited=now - self._free_since,
        )
        for one in batch:
            del self._open[one.drawn.number]
        self._ready -= len(batch)
        self._taken += 1
        self._free_since = None
        self.assigned = [one.drawn for one in batch]
        self._clock.at(update.end, lambda _: self._trained(update))
        self._admit(now)

    def _sampled(self) -> list[_Open]:
        bound = self.policy.max_staleness
        flying = [self._staleness(one) for one in self._open.values() if one.ready is None]
        # `sample` asks that too, but while an update waits it would be told of all that is ready at every end.
        if must_wait(flying, bound, self.size):
            return []
        ready = [
            Experience(PromptKey(0, number), one.ready, self._staleness(one), spread=1.0)
            for number, one in self._open.items()
            if one.ready is not None
        ]
        chosen = sample(Sampler.FIFO, ready, self.size, 0, bound, flying)
        return [self._open[key.index] for key in chosen]

    def _trained(self, update: Update) -> None:
        self.updates.append(update)
        self.assigned = []
        self._free_since = update.end
        version = len(self.updates)
        self._lengths.learn(self._running(update.end))
        self._clock.at(update.end + self.rig.broadcast_seconds, lambda now: self._published(now, version))
        self._train(update.end)

    def _running(self, now: float) -> Iterable[int]:
        """Tokens of all that is on engines."""
        return (tokens for number in range(len(self._replicas)) for _, tokens in self._rollouts.progress(number, now))

    def _published(self, now: float, version: int) -> None:
        self._newest = version
        self._admit(now)
        self._repack(now)
