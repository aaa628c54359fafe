"""The event model of one replica: continuous batching, exact between events, no step taken one by one.

The engine works in iterations, as vLLM's scheduler does. At each boundary between two of them it

1. takes in what was asked meanwhile (submits, aborts), in the order asked;
2. preempts the youngest sequence while the KV cache has no room for one token each; the preempted goes to the head of
   the queue and has its whole context computed again;
3. if nobody was preempted, admits from the head of the queue while there is room;
4. does one prefill pass over what was admitted, or one decode step for all.

Between a boundary at which something changes and the next such one, the batch stands, so all decode steps up to there
are one jump (`LatencyModel.decode`). A request that arrives in the middle of a step waits for its end; looking at the
engine changes nothing. Counts are integers and times come from the same sums whoever asks when: runs repeat exactly.

Left out: prefill is a pass of its own, where vLLM cuts it in chunks that share a step with decoding (the sum of the
work is the same, the decoders' pause is not); prefixes are shared only where `cached_tokens` says so.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

from rljob_runtime.perf_model.latency_model import LatencyModel


@dataclass(frozen=True, slots=True)
class Request:
    """A response to generate, or to go on with: one that moved here brings its tokens, and its context is computed
    again except for `cached_tokens` whose KV is here already."""

    id: Hashable
    prompt_tokens: int
    response_tokens: int
    """At this length it ends."""
    generated_tokens: int = 0
    cached_tokens: int = 0

    @property
    def context_tokens(self) -> int:
        """Tokens that must be in the KV cache before the next one can be made."""
        return self.prompt_tokens + self.generated_tokens


@dataclass(frozen=True, slots=True)
class Finish:
    """A response is whole."""

    id: Hashable
    time: float


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine shows of itself, as the metrics of a real one do. Counters go on for life."""

    running: int
    waiting: int
    kv_tokens: int
    kv_use: float
    generated_tokens: int
    prefill_tokens: int
    recomputed_tokens: int
    """Of `prefill_tokens`: what had been computed here before a preemption."""
    preemptions: int
    busy_seconds: float


@dataclass(slots=True, eq=False)
class _Sequence:
    request: Request
    generated: int
    """At its last admission; while it runs, `finishes_at` tells."""
    cached: int
    finishes_at: int = 0
    """The engine's step count at which it is whole."""
    admission: int = 0
    preempted: bool = False
    aborted: bool = False

    @property
    def context(self) -> int:
        return self.request.prompt_tokens + self.generated


@dataclass(slots=True)
class _Iteration:
    """What the engine is in the middle of: `steps` decode steps, or with 0 a prefill pass."""

    start: float
    end: float
    steps: int


class EngineSimulator:
    """One replica. Times are seconds on a clock of the caller, which never goes back.

    `kv_tokens`: capacity of the KV cache. `max_sequences`: most that run at a time. `watermark`: share of the cache
    kept free when a sequence is admitted beside others, so that it is not preempted at once.
    """

    def __init__(
        self,
        latency: LatencyModel,
        kv_tokens: int,
        max_sequences: int = 1024,
        watermark: float = 0.02,
        now: float = 0.0,
    ) -> None:
        if kv_tokens < 2 or max_sequences < 1 or not 0 <= watermark < 1:
            raise ValueError(
                f"kv_tokens {kv_tokens}, max_sequences {max_sequences}, watermark {watermark}: at least 2, at least 1, "
                "and a share below 1 would be right"
            )
        self.law = latency
        self.kv_tokens = kv_tokens
        self._max_sequences = max_sequences
        self._admissible = math.floor((1 - watermark) * kv_tokens)
        self._now = now
        self._boundary = now
        self._iteration: _Iteration | None = None
        self._live: dict[Hashable, _Sequence] = {}
        self._inbox: list[_Sequence] = []
        """Submitted or aborted since the last boundary; an aborted one that was submitted here too stands twice."""
        self._waiting: OrderedDict[_Sequence, None] = OrderedDict()
        self._running: dict[_Sequence, None] = {}
        """The oldest first."""
        self._ends: list[tuple[int, int, _Sequence]] = []
        """Heap of (finishes_at, admission, sequence); stale where the admission is not the sequence's last."""
        self._finished: list[Finish] = []
        self._steps = 0
        self._context = 0
        self._admissions = 0
        self._generated = self._prefilled = self._recomputed = self._preemptions = 0
        self._busy = 0.0

    # --- what is asked of it ---

    def submit(self, now: float, requests: Iterable[Request]) -> None:
        """Queue these. Raises `ValueError`, and queues none, where one cannot be served."""
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
        """Drop these, and return them with the tokens they have, fit to be submitted to another engine. Those that are
        not here (they finished meanwhile) are passed over."""
        self._run_to(now)
        done = self._steps + self._steps_done(now)
        leaving = [self._live.pop(one) for one in ids if one in self._live]
        for sequence in leaving:
            sequence.aborted = True
        self._arrive(now, leaving)
        return [replace(one.request, generated_tokens=self._made(one, done), cached_tokens=0) for one in leaving]

    def advance(self, now: float) -> list[Finish]:
        """What became whole up to `now`, and was not told before; in order."""
        self._run_to(now)
        finished, self._finished = self._finished, []
        return finished

    def drain(self) -> list[Finish]:
        """Run until nothing is left to do; the clock stands at the last finish."""
        while self._iteration is not None:
            self._run_to(self._iteration.end)
        return self.advance(self._now)

    @property
    def next_event(self) -> float:
        """When `advance` may next bring something: infinity for an idle engine."""
        return self._iteration.end if self._iteration is not None else math.inf

    # --- what it shows ---

    def progress(self, now: float) -> dict[Hashable, int]:
        """Tokens of every response that is here, at `now`."""
        self._run_to(now)
        done = self._steps + self._steps_done(now)
        return {one: self._made(sequence, done) for one, sequence in self._live.items()}

    def load(self, now: float) -> EngineLoad:
        """Its metrics at `now`."""
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
        """Take these in at the end of the step that is running at `now`, or at once where none is."""
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
                iteration.end = iteration.start + self.law.decode(len(self._running), self._context, steps)

    def _steps_done(self, now: float) -> int:
        """Whole decode steps of the iteration that have ended."""
        iteration = self._iteration
        if iteration is None or not iteration.steps:
            return 0
        done = self.law.steps_within(len(self._running), self._context, now - iteration.start)
        return min(done, iteration.steps - 1)

    def _complete(self, iteration: _Iteration) -> None:
        self._boundary = iteration.end
        self._busy += iteration.end - iteration.start
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
        """Decide at a boundary what comes next."""
        self._open_inbox()
        preempted = self._preempt()
        admitted = [] if preempted else self._admit()
        seconds, steps = 0.0, 0
        if admitted:
            seconds = self._prefill(admitted)
        elif (end := self._next_end()) is not None:
            room = (self.kv_tokens - self._context) // len(self._running)
            steps = min(end.finishes_at - self._steps, room)
            seconds = self.law.decode(len(self._running), self._context, steps)
        else:
            self._iteration = None
            return
        self._iteration = _Iteration(self._boundary, self._boundary + seconds, steps)

    def _open_inbox(self) -> None:
        for sequence in self._inbox:
            if not sequence.aborted:
                self._waiting[sequence] = None
            elif sequence in self._running:
                self._take_off(sequence)
            else:
                self._waiting.pop(sequence, None)
        self._inbox = []

    def _preempt(self) -> bool:
        """Free KV until every running sequence has room for a token: the youngest first."""
        before = self._preemptions
        while self._context + len(self._running) > self.kv_tokens:
            youngest = next(reversed(self._running))
            self._take_off(youngest)
            youngest.preempted = True
            youngest.cached = 0
            self._waiting[youngest] = None
            self._waiting.move_to_end(youngest, last=False)
            self._preemptions += 1
        return self._preemptions > before

    def _admit(self) -> list[_Sequence]:
        """Take from the head of the queue what fits with a token to spare for each."""
        admitted = []
        while self._waiting and len(self._running) < self._max_sequences:
            head = next(iter(self._waiting))
            needed = self._context + head.context + len(self._running) + 1
            if self._running and needed > self._admissible:
                break
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
        self._prefilled += tokens
        self._recomputed += sum(one.context for one in admitted if one.preempted)
        return self.law.prefill(tokens, squares)

    def _take_off(self, sequence: _Sequence) -> None:
        """Off the running batch, with the tokens it has made."""
        sequence.generated = self._made(sequence, self._steps)
        sequence.admission = 0
        del self._running[sequence]
        self._context -= sequence.context

    def _next_end(self) -> _Sequence | None:
        """The running sequence that is whole first."""
        while self._ends and self._ends[0][2].admission != self._ends[0][1]:
            heapq.heappop(self._ends)
        return self._ends[0][2] if self._ends else None

    def _made(self, sequence: _Sequence, steps: int) -> int:
        """Tokens of a response when the engine has made `steps` steps."""
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
