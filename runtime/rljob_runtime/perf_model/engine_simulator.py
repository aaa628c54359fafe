"""Engine simulator: the event model of one replica with continuous batching.

It is exact between events and simulates no single steps.

The engine works in iterations, as vLLM's scheduler does. At each boundary between iterations it

1. accepts pending submits and aborts, in order; 2. preempts the youngest sequences until the KV cache has room for one
token each. A preempted sequence goes to the head of the queue, and its complete context is computed again; 3. admits
from the head of the queue while there is room, if no sequence was preempted; 4. runs one prefill pass for admitted
sequences, or one decode step for all.

With a budget of prefill tokens, a pass takes as many sequences from the queue as fit it, at least one, and a decode
step follows it. So the responses of a long queue have their first tokens one after the other.

The queue is ordered by priority, and requests of equal priority by arrival. Of running sequences, those of the highest
value count as the youngest.

Between two boundaries with changes the batch is constant, so all decode steps between them are one jump
(`LatencyModel.decode`). A request that arrives during a step waits for its end. Observing the engine changes nothing.
Counts are integers and times come from the same sums at any observation, so runs repeat exactly.

Not modelled: prefill is a separate pass, while vLLM splits it into chunks that share steps with decoding. The total
work is equal; the pause of decoding is not. Prefixes are shared only according to `cached_tokens`.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from itertools import takewhile

from rljob_runtime.perf_model.engine_records import EngineLoad, Finish, Request
from rljob_runtime.perf_model.latency_model import LatencyModel
from rljob_runtime.perf_model.step_totals import NO_STEPS, StepTotals


@dataclass(slots=True, eq=False)
class _Sequence:
    request: Request
    generated: int
    """At its last admission; while it runs, `finishes_at` determines its tokens."""
    cached: int
    finishes_at: int = 0
    """The engine's step count at its end."""
    admission: int = 0
    preempted: bool = False
    aborted: bool = False

    @property
    def context(self) -> int:
        return self.request.prompt_tokens + self.generated

    @property
    def priority(self) -> int:
        return self.request.priority


@dataclass(slots=True)
class _Iteration:
    """The iteration in progress: `steps` decode steps, or a prefill pass if 0."""

    start: float
    end: float
    steps: int


class EngineSimulator:
    """One replica. Times are seconds on a clock of the caller, which never goes back.

    `kv_tokens`: capacity of the KV cache. `max_sequences`: maximum that run simultaneously. `watermark`: share of the
    cache kept free when a sequence is admitted next to others, so that it is not preempted immediately.
    `prefill_budget`: the most tokens of a prefill pass with several sequences; None: no limit."""

    def __init__(
        self,
        latency: LatencyModel,
        kv_tokens: int,
        max_sequences: int = 1024,
        watermark: float = 0.02,
        now: float = 0.0,
        prefill_budget: int | None = None,
    ) -> None:
        if kv_tokens < 2 or max_sequences < 1 or not 0 <= watermark < 1:
            raise ValueError(
                f"kv_tokens {kv_tokens}, max_sequences {max_sequences}, watermark {watermark}: at least 2, at least 1, "
                "and a share below 1 would be right"
            )
        self.latency = latency
        self.kv_tokens = kv_tokens
        self._max_sequences = max_sequences
        self._prefill_budget = math.inf if prefill_budget is None else prefill_budget
        self._owes_step = False
        """Whether a decode step comes next even if sequences wait: the last iteration was a limited prefill pass."""
        self._admissible = math.floor((1 - watermark) * kv_tokens)
        self._now = now
        self._boundary = now
        self._iteration: _Iteration | None = None
        self._live: dict[Hashable, _Sequence] = {}
        self._inbox: list[_Sequence] = []
        """Submits and aborts since the last boundary; a request may be in both."""
        self._waiting: OrderedDict[_Sequence, None] = OrderedDict()
        """By priority, then by arrival."""
        self._running: dict[_Sequence, None] = {}
        """Oldest first."""
        self._ends: list[tuple[int, int, _Sequence]] = []
        """Heap of (finishes_at, admission, sequence); stale if the admission is not the sequence's last."""
        self._finished: list[Finish] = []
        self._steps = 0
        self._context = 0
        self._admissions = 0
        self._generated = self._prefilled = self._recomputed = self._preemptions = self._passed = 0
        self._has_priorities = False
        """Whether a request had another priority than 0."""
        self._busy = 0.0
        self._decode = self._prefills = NO_STEPS

    # --- what is asked of it ---

    def submit(self, now: float, requests: Iterable[Request]) -> None:
        """Queue requests. Raises `ValueError` and queues none if one cannot be served."""
        self._run_to(now)
        requests = list(requests)
        ids = set(self._live)
        for request in requests:
            self._check(request)
            if request.id in ids:
                raise ValueError(f"request {request.id!r} is here already")
            ids.add(request.id)
        sequences = [_Sequence(one, one.generated_tokens, one.cached_tokens) for one in requests]
        self._live.update((one.request.id, one) for one in sequences)
        self._arrive(now, sequences)

    def abort(self, now: float, ids: Iterable[Hashable]) -> list[Request]:
        """Remove requests and return them with their tokens, ready for another engine.

        Unknown (finished) ones are ignored."""
        self._run_to(now)
        done = self._steps + self._steps_done(now)
        leaving = [self._live.pop(one) for one in ids if one in self._live]
        for sequence in leaving:
            sequence.aborted = True
        self._arrive(now, leaving)
        return [replace(one.request, generated_tokens=self._made(one, done), cached_tokens=0) for one in leaving]

    def advance(self, now: float) -> list[Finish]:
        """Return responses that ended up to `now`, in order, each once."""
        self._run_to(now)
        finished, self._finished = self._finished, []
        return finished

    def drain(self) -> list[Finish]:
        """Run until all requests end; the clock stops at the last end."""
        while self._iteration is not None:
            self._run_to(self._iteration.end)
        return self.advance(self._now)

    @property
    def next_event(self) -> float:
        """When `advance` may next return something: infinity for an idle engine."""
        return self._iteration.end if self._iteration is not None else math.inf

    # --- what it shows ---

    def progress(self, now: float) -> dict[Hashable, int]:
        """Return the tokens of every response at `now`."""
        self._run_to(now)
        done = self._steps + self._steps_done(now)
        return {one: self._made(sequence, done) for one, sequence in self._live.items()}

    def load(self, now: float) -> EngineLoad:
        """Return the metrics at `now`."""
        self._run_to(now)
        steps = self._steps_done(now)
        context = self._context + steps * len(self._running)
        busy = self._busy + (now - self._iteration.start if self._iteration is not None else 0.0)
        arriving = sum(not one.aborted for one in self._inbox)
        return EngineLoad(
            running=len(self._running),
            waiting=len(self._waiting) + arriving,
            kv_tokens=context,
            kv_use=context / self.kv_tokens,
            generated_tokens=self._generated + steps * len(self._running),
            prefill_tokens=self._prefilled,
            recomputed_tokens=self._recomputed,
            preemptions=self._preemptions,
            busy_seconds=busy,
            passed=self._passed,
            decode=self._decode + self._decoded(steps),
            prefill=self._prefills,
        )

    # --- iterations ---

    def _run_to(self, now: float) -> None:
        if now < self._now:
            raise ValueError(f"the clock went back from {self._now} to {now}")
        while self._iteration is not None and self._iteration.end <= now:
            self._complete(self._iteration)
            self._schedule()
        self._now = now

    def _arrive(self, now: float, sequences: list[_Sequence]) -> None:
        """Accept pending changes at the end of the step in progress at `now`, or immediately without one."""
        if not sequences:
            return
        self._inbox += sequences
        iteration = self._iteration
        if iteration is None:
            self._boundary = now
            self._schedule()
        elif iteration.steps:
            steps = self._steps_done(now) + 1
            if steps < iteration.steps:
                iteration.steps = steps
                iteration.end = iteration.start + self.latency.decode(len(self._running), self._context, steps)

    def _steps_done(self, now: float) -> int:
        """Count the complete decode steps of the iteration."""
        iteration = self._iteration
        if iteration is None or not iteration.steps:
            return 0
        done = self.latency.steps_within(len(self._running), self._context, now - iteration.start)
        return min(done, iteration.steps - 1)

    def _decoded(self, steps: int) -> StepTotals:
        """Return what these decode steps of the iteration compute."""
        if not steps:
            return NO_STEPS
        running, context = len(self._running), self._context
        seconds = self.latency.decode(running, context, steps)
        return StepTotals(steps, steps * running, steps * context + running * steps * (steps + 1) // 2, 0, seconds)

    def _complete(self, iteration: _Iteration) -> None:
        self._boundary = iteration.end
        self._busy += iteration.end - iteration.start
        self._decode += self._decoded(iteration.steps)
        self._steps += iteration.steps
        made = iteration.steps * len(self._running)
        self._context += made
        self._generated += made
        while (end := self._next_end()) is not None and end.finishes_at <= self._steps:
            self._take_off(end)
            if not end.aborted:
                del self._live[end.request.id]
                self._finished.append(Finish(end.request.id, iteration.end))

    def _schedule(self) -> None:
        """Decide the next iteration at a boundary."""
        self._open_inbox()
        preempted = self._preempt()
        owes_step, self._owes_step = self._owes_step and bool(self._running and self._waiting), False
        admitted = [] if preempted or owes_step else self._admit()
        seconds, steps = 0.0, 0
        if admitted:
            seconds = self._prefill(admitted)
            self._owes_step = self._prefill_budget < math.inf
        elif (end := self._next_end()) is not None:
            room = (self.kv_tokens - self._context) // len(self._running)
            # A preempted sequence does not fit until another ends. Behind a smaller one of a lower value, it need not.
            one_step = owes_step or (preempted and self._has_priorities)
            steps = min(end.finishes_at - self._steps, 1 if one_step else room)
            seconds = self.latency.decode(len(self._running), self._context, steps)
        else:
            self._iteration = None
            return
        self._iteration = _Iteration(self._boundary, self._boundary + seconds, steps)

    def _open_inbox(self) -> None:
        for sequence in self._inbox:
            if not sequence.aborted:
                self._queue(sequence)
            elif sequence in self._running:
                self._take_off(sequence)
            else:
                self._waiting.pop(sequence, None)
        self._inbox = []

    def _queue(self, sequence: _Sequence) -> None:
        """Queue a request that has arrived, before all of a higher value."""
        behind = list(takewhile(lambda one: one.priority > sequence.priority, reversed(self._waiting)))
        self._waiting[sequence] = None
        for one in reversed(behind):
            self._waiting.move_to_end(one)
        self._passed += bool(behind)
        self._has_priorities |= sequence.priority != 0

    def _queue_again(self, sequence: _Sequence) -> None:
        """Queue a preempted sequence, behind all of a lower value only."""
        ahead = list(takewhile(lambda one: one.priority < sequence.priority, self._waiting))
        self._waiting[sequence] = None
        for one in (sequence, *reversed(ahead)):
            self._waiting.move_to_end(one, last=False)

    def _youngest(self) -> _Sequence:
        """Return the running sequence that was admitted last, of those of the highest value."""
        latest = reversed(self._running)
        return max(latest, key=lambda one: one.priority) if self._has_priorities else next(latest)

    def _preempt(self) -> bool:
        """Preempt the youngest sequences until every running one has room for a token."""
        before = self._preemptions
        while self._context + len(self._running) > self.kv_tokens:
            youngest = self._youngest()
            self._take_off(youngest)
            youngest.preempted = True
            youngest.cached = 0
            self._queue_again(youngest)
            self._preemptions += 1
        return self._preemptions > before

    def _admit(self) -> list[_Sequence]:
        """Admit from the head of the queue what fits with one spare token each, and into a prefill pass."""
        admitted: list[_Sequence] = []
        budget = self._prefill_budget
        while self._waiting and len(self._running) < self._max_sequences:
            head = next(iter(self._waiting))
            needed = self._context + head.context + len(self._running) + 1
            if self._running and needed > self._admissible:
                break
            if admitted and head.context - head.cached > budget:
                break
            budget -= head.context - head.cached
            del self._waiting[head]
            self._admissions += 1
            head.admission = self._admissions
            head.finishes_at = self._steps + head.request.response_tokens - head.generated
            heapq.heappush(self._ends, (head.finishes_at, head.admission, head))
            self._running[head] = None
            self._context += head.context
            admitted.append(head)
        return admitted

    def _prefill(self, admitted: list[_Sequence]) -> float:
        tokens = sum(one.context - one.cached for one in admitted)
        squares = sum(one.context**2 - one.cached**2 for one in admitted)
        if not tokens:
            return 0.0
        seconds = self.latency.prefill(tokens, squares)
        self._prefilled += tokens
        self._prefills += StepTotals(1, 0, 0, tokens, seconds, squares)
        self._recomputed += sum(one.context for one in admitted if one.preempted)
        return seconds

    def _take_off(self, sequence: _Sequence) -> None:
        """Remove a sequence from the running batch, with its tokens."""
        sequence.generated = self._made(sequence, self._steps)
        sequence.admission = 0
        del self._running[sequence]
        self._context -= sequence.context

    def _next_end(self) -> _Sequence | None:
        """Return the running sequence that ends first."""
        while self._ends and self._ends[0][2].admission != self._ends[0][1]:
            heapq.heappop(self._ends)
        return self._ends[0][2] if self._ends else None

    def _made(self, sequence: _Sequence, steps: int) -> int:
        """Return the tokens of a response after `steps` steps of the engine."""
        if not sequence.admission:
            return sequence.generated
        return sequence.request.response_tokens - (sequence.finishes_at - steps)

    def _check(self, request: Request) -> None:
        prompt, response = request.prompt_tokens, request.response_tokens
        if prompt < 1 or not 0 <= request.generated_tokens < response:
            raise ValueError(
                f"request {request.id!r}: a prompt of {prompt} tokens and {request.generated_tokens} of {response} "
                "generated; at least 1, and fewer than the response has, would be right"
            )
        if not 0 <= request.cached_tokens <= request.context_tokens:
            raise ValueError(
                f"request {request.id!r}: {request.cached_tokens} cached tokens of a context of "
                f"{request.context_tokens}; no more than that would be right"
            )
        if prompt + response > self.kv_tokens:
            raise ValueError(
                f"request {request.id!r}: {prompt} prompt and {response} response tokens do not fit a KV cache of "
                f"{self.kv_tokens}; a shorter response or a larger tensor parallel size would"
            )
