"""Partial rollout: a job as AReaL plays it (Laminar §2.3, Fig. 3d).

Responses are begun one by one where there is room. When new weights come, every replica stops, takes them, computes the
context of everything it holds again, and continues.

A response then has several versions. Its group counts as old as the first of them.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass

from rljob_bench.async_systems.admission import Admission
from rljob_bench.async_systems.clock import Clock
from rljob_bench.async_systems.groups import Drawn, Prompts, number_of
from rljob_bench.async_systems.hardware import Hardware
from rljob_bench.async_systems.outcome import Outcome, TrainedGroup, Update
from rljob_bench.async_systems.rollouts import Rollouts
from rljob_bench.async_systems.watch import Watch
from rljob_runtime.perf_model.engine_records import Finish, Request

LOOK_SECONDS = 5.0
MOST_ROUNDS = 1e6
"""More than replicas ever take."""


@dataclass(slots=True)
class _Group:
    drawn: Drawn
    version: int
    launched: float
    left: int
    inherent: int = 0


class PartialJob:
    """One job, simulated until the requested number of updates is made.

    `capacity`: groups that may be open, in rounds' worth. Infinite: as many as replicas take, which is
    `hardware.max_sequences` responses each. None: as many as the trainer needs, by RLJob's own rule.
    """

    def __init__(self, hardware: Hardware, prompts: Prompts, capacity: float | None = math.inf) -> None:
        self.hardware, self._prompts = hardware, prompts
        self.size = prompts.round_prompts
        self.updates: list[Update] = []
        self._rollouts = Rollouts(hardware)
        self._admission = Admission(self._rollouts, self.size, None if capacity is None else min(capacity, MOST_ROUNDS))
        self._live = [0] * hardware.replicas
        self._loading: dict[int, list[Request]] = {}
        """What waits at a replica that takes weights."""
        self._cursor = 0
        self._flying: dict[int, _Group] = {}
        self._ready: deque[_Group] = deque()
        self._newest = 0
        self._free_since: float | None = 0.0
        self._watch = Watch(self._rollouts)
        self._clock = Clock(self._rollouts, self._finished)

    def play(self, warm_up: int, updates: int) -> Outcome:
        """All updates after the warm-up."""
        self._refill(0.0)
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

    def _look(self, now: float) -> None:
        self._watch.look(now)
        self._admission.look(now)
        self._clock.at(now + LOOK_SECONDS, self._look)

    # --- replicas ---

    def _refill(self, now: float) -> None:
        """Begin groups while there is room; each response goes where the fewest are."""
        room = self.hardware.max_sequences * self.hardware.replicas - sum(self._live)
        begun: dict[int, list[Request]] = {}
        places = [(live, replica) for replica, live in enumerate(self._live)]
        heapq.heapify(places)
        while len(self._flying) + len(self._ready) < self._admission.capacity and room >= self._prompts.responses:
            drawn = self._prompts[self._cursor]
            self._cursor += 1
            self._flying[drawn.number] = _Group(drawn, self._newest, now, len(drawn.response_tokens))
            room -= len(drawn.response_tokens)
            for request in drawn.requests():
                live, replica = places[0]
                heapq.heapreplace(places, (live + 1, replica))
                begun.setdefault(replica, []).append(request)
        for replica, requests in begun.items():
            self._live[replica] += len(requests)
            if replica in self._loading:
                self._loading[replica] += requests
            else:
                self._rollouts.submit(replica, now, requests)

    def _finished(self, replica: int, finish: Finish) -> None:
        group = self._flying[number_of(finish.id)]
        self._watch.finished(finish.time - group.launched)
        self._live[replica] -= 1
        group.left -= 1
        if not group.left:
            group.inherent = len(self.updates) - group.version
            self._ready.append(self._flying.pop(group.drawn.number))
            self._train(finish.time)
        self._refill(finish.time)

    def _interrupt(self, now: float, version: int) -> None:
        """Interrupt every replica: new weights are on every machine."""
        self._newest = version
        for replica in range(len(self._live)):
            taken = self._rollouts.take(replica, now)
            self._watch.moved([one for one in taken if one.generated_tokens], released=False)
            self._loading[replica] = [*taken, *self._loading.get(replica, ())]

        def resume(then: float) -> None:
            for replica, requests in self._loading.items():
                self._rollouts.submit(replica, then, requests)
            self._loading = {}

        self._clock.at(now + self.hardware.load_seconds, resume)

    # --- the trainer ---

    def _train(self, now: float) -> None:
        if self._free_since is None or len(self._ready) < self.size:
            return
        batch = [self._ready.popleft() for _ in range(self.size)]
        tokens, step = sum(one.drawn.tokens for one in batch), len(self.updates)
        update = Update(
            now + self.hardware.training(tokens) + self.hardware.stall_seconds,
            tokens,
            tuple(TrainedGroup(one.drawn.number, one.version, step - one.version, one.inherent) for one in batch),
            waited=now - self._free_since,
        )
        self._free_since = None
        self._admission.took(left=len(self._ready))
        self._clock.at(update.end, lambda _: self._trained(update))
        self._refill(now)

    def _trained(self, update: Update) -> None:
        self._admission.trained(update.end, update.waited)
        self._refill(update.end)
        self.updates.append(update)
        self._free_since = update.end
        version = len(self.updates)
        self._clock.at(update.end + self.hardware.broadcast_seconds, lambda now: self._interrupt(now, version))
        self._train(update.end)
