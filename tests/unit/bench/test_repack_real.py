"""What is made of the traffic between a coordinator and its replicas, and moves by hand: tables, without an engine."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from rljob_api.status import RoundReport
from rljob_bench.lib.move_probe import LEAD, ManualMover, Measured, MoveBenchmark
from rljob_bench.lib.recorded_peers import Aborted, Event, RecordedReplica, Submitted, Told, moves
from rljob_bench.repack_real import (
    QUICK,
    Plan,
    RepackExperiment,
    figures,
    first_token_seconds,
    job_of,
    next_token_seconds,
    repack_real,
)
from rljob_runtime.protocols import Delta, EngineStats, GenerateRequest, ReplicaReport
from rljob_runtime.protocols.trajectory import FinishReason, Lease, PromptKey, Sampling, TrajectoryKey

A, B = "rollout-0/replica-0", "rollout-1/replica-0"


def key(index: int, sample: int = 0) -> TrajectoryKey:
    return TrajectoryKey(PromptKey(0, index), sample)


def request(index: int, attempt: int = 1, prefix: tuple[int, ...] = ()) -> GenerateRequest:
    return GenerateRequest(key(index), attempt, (1, 2, 3), Sampling(100), 7, prefix)


def stats(kv_use: float = 0.0) -> EngineStats:
    return EngineStats(0, 0, kv_use, 0, 0, 0, 0, 0)


def told(replica: str, at: float, *deltas: Delta, kv_use: float = 0.0) -> Told:
    return Told(replica, at, ReplicaReport("boot", 0, deltas, 7, stats(kv_use)))


def delta(index: int, attempt: int, offset: int, count: int = 1, finish: FinishReason | None = None) -> Delta:
    return Delta(key(index), attempt, offset, (5,) * count, (-1.0,) * count, 7, finish)


HISTORY: list[Event] = [
    Submitted(A, 0.0, [request(1), request(2)], 0.1),
    Submitted(B, 0.0, [request(3)], 0.1),
    told(A, 1.0, delta(1, 1, 0, 4), delta(2, 1, 0, 4)),
    # Both of A's are to go over; one of them ends before.
    Submitted(B, 2.0, [request(1, 2, (5,) * 4), request(2, 2, (5,) * 4)], 2.1),
    told(A, 2.2, delta(1, 1, 4), delta(2, 1, 4, 1, FinishReason.STOP)),
    # The second one's first token comes too late.
    told(B, 2.5, delta(1, 2, 4), delta(2, 2, 4), delta(3, 1, 0, 9)),
    Aborted(A, 2.6, {key(1): 1}, 2.7),
    Aborted(B, 2.6, {key(2): 2}, 2.8),
    Submitted(A, 3.0, [request(4)], 3.1),
    told(A, 3.6, delta(4, 1, 0)),
    # Begun again where it is, with another attempt: no move.
    Submitted(B, 4.0, [request(3, 2)], 4.1),
]


def test_moves_are_read_off_the_traffic():
    (move,) = moves(HISTORY)
    assert (move.source, move.destination, move.version, move.asked) == (A, B, 7, 2.0)
    assert [(hop.key, hop.source, hop.destination, hop.offset, hop.context) for hop in move.hops] == [
        (key(1), Lease(A, 1), Lease(B, 2), 4, 7),
        (key(2), Lease(A, 1), Lease(B, 2), 4, 7),
    ]
    assert [hop.first for hop in move.hops] == [2.5, None], "the source had ended the second"
    assert [hop.key for hop in move.made] == [key(1)]
    assert move.released == 2.7
    assert move.context == 14
    assert first_token_seconds(move) == 0.5
    assert next_token_seconds(HISTORY, move) == pytest.approx(1.6)
    assert next_token_seconds(HISTORY[:-3], move) is None


def test_a_response_may_move_again():
    again: list[Event] = [*HISTORY, Submitted(A, 5.0, [request(1, 3, (5,) * 8)], 5.1), told(A, 5.2, delta(1, 3, 8))]
    first, then = moves(again)
    assert (then.source, then.destination) == (B, A)
    assert then.hops[0].source == first.hops[0].destination
    assert then.hops[0].first == 5.2
    assert then.released is None


def experiment(technique: str, seconds: float, history: list[Event]) -> RepackExperiment:
    report = RoundReport(round=1, responses=10, mean_response_tokens=20.0)
    return RepackExperiment(technique, history, [report], closed=seconds)


def test_the_figures_of_two_jobs_and_of_moves_by_hand():
    events = [Submitted(A, 0.0, [], 0.0), told(A, 0.0, kv_use=0.2), told(A, 8.0, kv_use=0.9)]
    without = experiment("without", 10.0, events)
    packed = experiment("repack", 5.0, HISTORY)
    measured = [Measured(64, 2, 0.3, 0.4, 0.2), Measured(64, 2, 0.5, 0.6, 0.4), Measured(128, 2, 1.0, 1.1, 0.8)]
    found = {one["name"]: one for one in figures([without, packed], measured)}
    assert found["without.tokens_per_second"]["value"] == 20.0
    assert found["repack.tokens_per_second"]["value"] == 40.0
    assert found["tokens_over_without"]["value"] == 2.0
    assert found["without.kv_use"]["value"] == pytest.approx(0.2), "what it held lasted until the next poll"
    assert found["moves"]["value"] == 1
    assert found["job.first_token_seconds"]["value"] == 0.5
    assert found["job.released_seconds"]["value"] == pytest.approx(0.7)
    assert found["context_64.first_token"]["value"] == pytest.approx(0.4)
    assert found["context_64.first_token"]["limit"] == pytest.approx(0.3)
    assert found["context_128.released"]["value"] == 1.1


def test_both_jobs_are_accepted_and_differ_in_repack_alone():
    without, packed = job_of(Plan(), False, 3, 9), job_of(Plan(), True, 3, 9)
    assert (without.spec.repack.enabled, packed.spec.repack.enabled) == (False, True)
    assert packed.spec.model_copy(update={"repack": without.spec.repack}) == without.spec
    assert without.status.runtime is not None
    assert without.status.runtime.weight_version == 9


class Machine:
    """A replica that makes a token of each response at every poll; all that is done takes a second."""

    def __init__(self, name: str, journal: list[Any]) -> None:
        self.name = name
        self._journal = journal
        self._held: dict[TrajectoryKey, list[Any]] = {}

    async def submit(self, term: int, requests: Any) -> None:
        self._journal.append((self.name, "submit", tuple(requests)))
        for one in requests:
            self._held[one.key] = [one, len(one.prefix_token_ids)]

    async def abort(self, term: int, attempts: Any) -> None:
        self._journal.append((self.name, "abort", dict(attempts)))
        for one in attempts:
            self._held.pop(one, None)

    async def poll(self, term: int, after: int, wait_seconds: float) -> ReplicaReport:
        self._journal.append((self.name, "poll", None))
        deltas = []
        for one, offset in self._held.values():
            deltas.append(Delta(one.key, one.attempt, offset, (40 + offset,), (-1.0,), one.weight_version))
            self._held[one.key][1] += 1
        return ReplicaReport("boot", after + 1, tuple(deltas), 7, stats())


def test_a_move_by_hand_is_made_as_the_coordinator_makes_it():
    async def run() -> tuple[Measured, list[Any]]:
        journal: list[Any] = []
        clock = lambda: float(len(journal))  # noqa: E731
        hands = [ManualMover(Machine(name, journal), 1, 7, clock) for name in "sr"]  # type: ignore[arg-type]
        prober = MoveBenchmark(hands[0], hands[1], 100, 512, clock, seed=0)
        return await prober.move(64, 2), journal

    measured, journal = asyncio.run(run())
    assert (measured.context, measured.responses) == (64, 2)
    # Request and one poll; and the source's abort; a prefill is a request and a poll.
    assert (measured.first, measured.released, measured.prefill) == (2.0, 3.0, 2.0)
    submits = [(name, requests) for name, what, requests in journal if what == "submit"]
    (_, own), (_, moving), (onto, onward), (_, fresh) = submits
    assert onto == "r"
    assert {len(one.prompt_token_ids) for one in own} == {64}
    for one, before in zip(onward, moving, strict=True):
        assert one == replace(before, attempt=2, prefix_token_ids=tuple(range(40, 40 + LEAD)))
        assert len(one.prompt_token_ids) + LEAD == 64
    assert [one.sampling.max_tokens for one in fresh] == [1, 1]
    prompts = [one.prompt_token_ids for _, requests in submits if requests is not onward for one in requests]
    assert len(set(prompts)) == len(prompts), "no prefix cache helps"
    assert ("s", "abort", {one.key: 1 for one in moving}) in journal


def test_a_watched_replica_passes_everything_on_and_notes_it():
    async def run() -> None:
        journal: list[Any] = []
        history: list[Event] = []
        replica = RecordedReplica(Machine(A, journal), history, lambda: float(len(journal)))  # type: ignore[arg-type]
        await replica.submit(1, [request(1)])
        report = await replica.poll(1, 0, 0.5)
        await replica.abort(1, {key(1): 1})
        assert [what for _, what, _ in journal] == ["submit", "poll", "abort"]
        assert history == [
            Submitted(A, 0.0, (request(1),), 1.0),
            Told(A, 2.0, report),
            Aborted(A, 2.0, {key(1): 1}, 3.0),
        ]

    asyncio.run(run())


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_benchmark_runs_on_real_engines() -> None:
    result = repack_real(quick=True, seed=0)
    found = {one["name"]: one["value"] for one in result["figures"]}
    assert found["tokens_over_without"] > 0
    assert {row["technique"] for row in result["rows"] if "technique" in row} <= {"repack"}, "without it nothing moves"
    by_hand = [row for row in result["rows"] if "prefill" in row]
    assert len(by_hand) == QUICK.repeats * len(QUICK.contexts)
    for row in by_hand:
        assert row["released"] > row["first"] > 0
