"""RLJob's own way (`mode: Asynchronous`), by its own policies: every replica generates prompts of its own with one
weight version, draws more while there are no newer weights, takes those when it is done or released by repack, and the
trainer takes groups as they are ready.

Nothing waits for everybody. What a replica may begin is bounded by its share and by admission: so many groups are open
(in flight or ready) at most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count

from rljob_api.spec_training import Sampler
from rljob_bench.async_systems.admission import Admission
from rljob_bench.async_systems.clock import Clock
from rljob_bench.async_systems.groups import Drawn, Prompts, number_of
from rljob_bench.async_systems.outcome import Outcome, TrainedGroup, Update
from rljob_bench.async_systems.packing import Lengths, name_of, number_of_replica
from rljob_bench.async_systems.rig import Rig
from rljob_bench.async_systems.rollouts import Rollouts
from rljob_bench.async_systems.watch import Watch
from rljob_runtime.perf_model.engine_simulator import Finish, Request
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.scheduling.experience_buffer import Experience, inflight_limit, over_staleness_bound, sample
from rljob_runtime.scheduling.lending.gain import EngineSpeed
from rljob_runtime.scheduling.lending.policy import Unfinished
from rljob_runtime.scheduling.repack import RepackRules, ReplicaLoad
from rljob_runtime.scheduling.repack_gain import RepackPlan, Tails, merges_that_pay
from rljob_runtime.scheduling.replica_assignment import ReplicaLimits, split_quota

RULES = RepackRules(kv_cache_threshold=0.99, max_batch=64)
"""The API's defaults."""


@dataclass(frozen=True)
class Policy:
    """`capacity`: groups that may be open, in rounds' worth; None for as many as the trainer needs. `batchwise`: a
    replica draws its share of a round when it has nothing left, as Laminar's do, and never before. `repack`: None for
    without it; `interval`: seconds between two looks; `move_seconds`: for which a source goes on, until its receiver
    takes over; `plan`: which merges are made. `max_staleness`: None for unbounded."""

    capacity: float | None = None
    batchwise: bool = False
    repack: RepackRules | None = field(default=RULES)
    interval: float = 5.0
    move_seconds: float = 0.0
    max_staleness: int | None = None
    plan: RepackPlan = merges_that_pay


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
    """`live`: responses it answers for. `moves`: that are under way to it or from it. `loads`: whether it takes newer
    weights. `before`: tokens in its cache at the last look, None if it has drawn prompts since; `generated`: by its
    engine up to then."""

    version: int = 0
    live: int = 0
    moves: int = 0
    loads: bool = False
    before: int | None = None
    generated: int = 0


class Job:
    """One job, played until so many updates were made. `updates` has those made so far, `assigned` the groups of the
    one that is being made."""

    def __init__(self, rig: Rig, prompts: Prompts, policy: Policy) -> None:
        self.rig, self.policy, self._prompts = rig, policy, prompts
        self.size = prompts.round_prompts
        self.updates: list[Update] = []
        self.assigned: list[Drawn] = []
        self._rollouts = Rollouts(rig)
        self._admission = Admission(self._rollouts, self.size, policy.capacity)
        self._replicas = [_Replica() for _ in range(rig.replicas)]
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
        self._speed = EngineSpeed(rig.law, 1, rig.max_sequences)
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
        self._fill(range(len(self._replicas)), 0.0)
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

    def _fill(self, numbers: Iterable[int], now: float) -> None:
        """Those of these replicas with nothing to do take the newest weights; those that hold them draw prompts."""
        numbers = list(numbers)
        for number in numbers:
            self._renew(number, now)
        room = self._room()
        if room < 1:
            return
        loads = {
            name_of(number): self._replicas[number].live for number in numbers if self._draws(self._replicas[number])
        }
        capacity = self.size if self.policy.batchwise else self._admission.capacity
        quota = ReplicaLimits.of(self._prompts.responses, self.size, self.rig.replicas, capacity)
        for name, more in split_quota(room, loads, quota).items():
            self._draw(number_of_replica(name), more, now)

    def _renew(self, number: int, now: float) -> None:
        """Take the newest weights, if there is nothing left to do with those that it holds. What is newest is asked
        again when they are loaded: prompts are drawn then."""
        replica = self._replicas[number]
        if replica.version == self._newest or replica.live or replica.moves or replica.loads:
            return
        replica.loads, version = True, self._newest

        def loaded(now: float) -> None:
            replica.loads, replica.version = False, version
            self._fill([number], now)

        self._clock.at(now + self.rig.load_seconds, loaded)

    def _draws(self, replica: _Replica) -> bool:
        """Whether it may draw, with the newest weights."""
        able = replica.version == self._newest and not replica.loads and not replica.moves
        return able and not (self.policy.batchwise and replica.live)

    def _room(self) -> int:
        """How many groups may be begun with the newest weights."""
        bound, capacity = self.policy.max_staleness, self._admission.capacity
        # Without a bound only their number counts, and this is asked at every end of a response.
        none = [0] * len(self._open)
        opened = none if bound is None else [self._staleness(one) for one in self._open.values()]
        return inflight_limit(opened, self._taken - self._newest, capacity, self.size, bound)

    def _draw(self, number: int, count: int, now: float) -> None:
        self._replicas[number].before = None
        requests: list[Request] = []
        for _ in range(count):
            drawn = self._prompts[self._cursor]
            self._cursor += 1
            self._open[drawn.number] = _Open(drawn, self._newest, now, len(drawn.response_tokens))
            requests += drawn.requests()
        self._submit(number, now, requests)

    def _submit(self, number: int, now: float, requests: list[Request]) -> None:
        self._replicas[number].live += len(requests)
        self._rollouts.submit(number, now, requests)

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
        self._fill([number], finish.time)

    # --- repack ---

    def _look(self, now: float) -> None:
        self._watch.look(now)
        self._admission.look(now)
        self._repack(now)
        self._clock.at(now + self.policy.interval, self._look)

    def _repack(self, now: float) -> None:
        """What is released takes new weights and new prompts at once; where none may be begun, nothing is."""
        rules = self.policy.repack
        if rules is None or self._room() < 1:
            return
        looked = [number for number, one in enumerate(self._replicas) if one.live]
        unfinished = {name_of(number): self._unfinished(number, now, rules) for number in looked}
        loads = [self._load(number, now, unfinished[name_of(number)]) for number in looked]
        for merge in self.policy.plan(loads, rules, Tails(self._speed, self._lengths.expected, unfinished)):
            self._move(number_of_replica(merge.source), number_of_replica(merge.destination), now)

    def _move(self, source: int, destination: int, now: float) -> None:
        """The source goes on until the destination takes over all that it still has."""
        both = [self._replicas[source], self._replicas[destination]]
        for one in both:
            one.moves += 1

        def take_over(now: float) -> None:
            for one in both:
                one.moves -= 1
            requests = self._rollouts.take(source, now)
            assert len(requests) == both[0].live
            assert both[0].version == both[1].version
            both[0].live = 0
            self._watch.moved(requests)
            self._submit(destination, now, requests)
            self._fill([source, destination], now)

        self._clock.at(now + self.policy.move_seconds, take_over)

    def _unfinished(self, number: int, now: float, rules: RepackRules) -> list[Unfinished]:
        """What a replica generates. What is too much to be moved is not looked at closely."""
        replica = self._replicas[number]
        if replica.live >= rules.max_batch or replica.moves:
            return []
        return [
            Unfinished(self._open[number_of(response)].drawn.prompt_tokens, tokens)
            for response, tokens in self._rollouts.progress(number, now)
        ]

    def _load(self, number: int, now: float, its: list[Unfinished]) -> ReplicaLoad:
        """What the policy is told at this look."""
        replica, load = self._replicas[number], self._rollouts.load(number, now)
        before, replica.before = replica.before, load.kv_tokens
        generated, replica.generated = load.generated_tokens - replica.generated, load.generated_tokens
        return ReplicaLoad(
            name_of(number),
            replica.version,
            trajectories=replica.live,
            waiting=load.waiting,
            tokens=load.kv_tokens,
            expected_tokens=self._lengths.peak(its),
            kv_tokens=self.rig.kv_tokens,
            kv_before=before,
            generated=generated,
            moving=bool(replica.moves),
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
        self._admission.took(left=self._ready)
        self._taken += 1
        self._free_since = None
        self.assigned = [one.drawn for one in batch]
        self._clock.at(update.end, lambda _: self._trained(update))
        self._fill(range(len(self._replicas)), now)

    def _sampled(self) -> list[_Open]:
        bound = self.policy.max_staleness
        flying = [self._staleness(one) for one in self._open.values() if one.ready is None]
        # `sample` asks that too, but while an update waits it would be told of all that is ready at every end.
        if over_staleness_bound(flying, bound, self.size):
            return []
        ready = [
            Experience(PromptKey(0, number), one.ready, self._staleness(one), spread=1.0)
            for number, one in self._open.items()
            if one.ready is not None
        ]
        chosen = sample(Sampler.FIFO, ready, self.size, 0, bound, flying)
        return [self._open[key.index] for key in chosen]

    def _trained(self, update: Update) -> None:
        self._admission.trained(update.end, update.waited)
        self.updates.append(update)
        self.assigned = []
        self._free_since = update.end
        self._fill(range(len(self._replicas)), update.end)
        version = len(self.updates)
        self._lengths.learn(self._running(update.end))
        self._clock.at(update.end + self.rig.broadcast_seconds, lambda now: self._published(now, version))
        self._train(update.end)

    def _running(self, now: float) -> Iterable[int]:
        """Tokens of all that is on engines."""
        return (tokens for number in range(len(self._replicas)) for _, tokens in self._rollouts.progress(number, now))

    def _published(self, now: float, version: int) -> None:
        self._newest = version
        self._fill(range(len(self._replicas)), now)
        self._repack(now)
