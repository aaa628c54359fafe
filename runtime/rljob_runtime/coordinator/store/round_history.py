"""Round history: reads closed rounds for predictions of the next ones."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from rljob_api.status import RoundReport
from rljob_runtime.audit.stored_keys import prompt_of, prompt_sql
from rljob_runtime.perf_model.observed_speed import Speed
from rljob_runtime.protocols.trajectory import FinishReason, PromptKey
from rljob_runtime.scheduling.round_plan import EQUAL_REWARDS
from rljob_runtime.scheduling.round_planner.plans import SelectedPlan
from rljob_runtime.scheduling.round_planner.round_history import REACH, WINDOW, history_start, rounds_considered
from rljob_runtime.scheduling.round_planner.survival import LengthObservation


@dataclass(frozen=True)
class RememberedPrompt:
    """A prompt of a closed round. `queued`: it came from the long-prompt queue. `filtered`: its rewards were equal."""

    responses: tuple[LengthObservation, ...]
    queued: bool
    filtered: bool


@dataclass(frozen=True)
class RememberedRound:
    """A closed round. `speed`: of its first layout; None if its coordinator was replaced before a measurement."""

    report: RoundReport
    chosen: SelectedPlan
    speed: Speed | None
    prompts: dict[PromptKey, RememberedPrompt]


@dataclass(frozen=True)
class Remembered:
    """The history that a prediction uses.

    `rounds`: those considered (`rounds_considered`), oldest first. `updated`: those whose update ran without loaned
    machines, or the last such round: seconds with a loan do not measure the trainer. `alone` and `beside`: engine
    speeds in the present layout, of the last rounds without and with streaming. They may be older, because engines do
    not change as lengths do. `since`: the round that lengths could not explain, before which none count; 0 without one.
    `elsewhere`: speeds in other layouts, by TP size; a round in which machines switched has several."""

    rounds: tuple[RememberedRound, ...]
    updated: tuple[RememberedRound, ...] = ()
    alone: tuple[Speed, ...] = ()
    beside: tuple[Speed, ...] = ()
    since: int = 0
    elsewhere: Mapping[int, tuple[Speed, ...]] = field(default_factory=dict)


def remembered(db: sqlite3.Connection, last: int, max_response_tokens: int) -> Remembered:
    """Read the history up to round `last`, for responses of at most this many tokens."""
    whole = db.execute(
        "SELECT step FROM rounds AS r WHERE step > ? AND step <= ? AND kind <> 'Short' AND NOT EXISTS"
        f" (SELECT {prompt_sql()} FROM prompts WHERE step = r.step"
        " INTERSECT SELECT value FROM boundaries, json_each(long_queue) WHERE step = r.step - 1)",
        (last - REACH, last),
    )
    predicted = db.execute(
        "SELECT step, ifnull(json_extract(report, '$.seconds'), 0), json_extract(chosen, '$.explained')"
        " FROM boundaries JOIN decisions USING (step) WHERE step > ? AND step <= ?"
        " AND json_extract(report, '$.predictedSeconds') IS NOT NULL",
        (last - REACH, last),
    )
    since = history_start(predicted.fetchall())
    steps = rounds_considered(last, [step for (step,) in whole.fetchall()], since)
    rounds = tuple(one for one in (_round(db, step, max_response_tokens) for step in steps) if one is not None)
    if not rounds:
        return Remembered(())
    layout = rounds[-1].report.tensor_parallel_size
    updated = tuple(one for one in rounds if not one.report.loaned_machines) or _last_without_loan(
        db, last, max_response_tokens
    )
    alone, beside = (_speeds(db, last, layout, stream) for stream in (False, True))
    elsewhere = {size: _speeds(db, last, size, stream=False) for size in _layouts(db, last) if size != layout}
    seen = {size: speeds for size, speeds in elsewhere.items() if speeds}
    return Remembered(rounds, updated, alone, beside, since, seen)


def speeds_by_size(db: sqlite3.Connection, last: int, rounds: int) -> dict[int, tuple[Speed, ...]]:
    """Return the speeds of engines by tensor parallel size, each in the last `rounds` ones with one up to `last`."""
    found = {}
    for size in _layouts(db, last):
        rows = db.execute(
            "SELECT speed FROM speeds WHERE step <= ? AND tensor_parallel = ?"
            " AND json_array_length(speed, '$.stretches') > 0 ORDER BY step DESC LIMIT ?",
            (last, size, rounds),
        ).fetchall()
        found[size] = tuple(Speed.from_json(text) for (text,) in reversed(rows))
    return {size: speeds for size, speeds in found.items() if speeds}


def recent_lengths(db: sqlite3.Connection, last: int, least: int, max_response_tokens: int) -> list[LengthObservation]:
    """Return the lengths of all responses of the newest rounds up to `last`, as many rounds as have `least` of them.

    Rounds are complete: stopped responses without their completed siblings would make all lengths look long.
    `max_response_tokens`: the limit of a response."""
    found: list[list[LengthObservation]] = []
    steps = db.execute("SELECT step FROM rounds WHERE step <= ? ORDER BY step DESC", (last,))
    while sum(map(len, found)) < least and (row := steps.fetchone()) is not None:
        found.append([length for _, _, length in _lengths(db, row[0], max_response_tokens)])
    return list(chain.from_iterable(reversed(found)))


def _lengths(
    db: sqlite3.Connection, step: int, max_response_tokens: int
) -> Iterator[tuple[int, int, LengthObservation]]:
    """Yield epoch and index of the prompt, and the length, of each response of a closed round.

    A response that ended at a lower limit would continue under the present one. Rounds of a store before format 4 have
    no lengths."""
    rows = db.execute(
        "SELECT epoch, idx, tokens, finish IS NOT NULL AND (finish != ? OR tokens >= ?) FROM trajectories"
        " WHERE step = ? AND tokens IS NOT NULL ORDER BY epoch, idx, sample",
        (FinishReason.LENGTH, max_response_tokens, step),
    )
    for epoch, index, tokens, ended in rows:
        yield epoch, index, LengthObservation(tokens, bool(ended))


def _layouts(db: sqlite3.Connection, last: int) -> tuple[int, ...]:
    rows = db.execute(
        "SELECT DISTINCT tensor_parallel FROM speeds WHERE step <= ? AND tensor_parallel > 0 ORDER BY tensor_parallel",
        (last,),
    )
    return tuple(size for (size,) in rows.fetchall())


def _last_without_loan(db: sqlite3.Connection, last: int, max_response_tokens: int) -> tuple[RememberedRound, ...]:
    found = db.execute(
        "SELECT max(step) FROM boundaries JOIN decisions USING (step) WHERE step <= ? AND report IS NOT NULL"
        " AND ifnull(json_extract(report, '$.loanedMachines'), 0) = 0",
        (last,),
    ).fetchone()
    one = _round(db, found[0], max_response_tokens) if found[0] is not None else None
    return () if one is None else (one,)


def _speeds(db: sqlite3.Connection, last: int, layout: int | None, stream: bool) -> tuple[Speed, ...]:
    rows = db.execute(
        "SELECT speed FROM speeds JOIN decisions USING (step) WHERE step <= ? AND tensor_parallel = ?"
        " AND json_array_length(speed, '$.stretches') > 0 AND json_extract(chosen, '$.stream') = ?"
        " ORDER BY step DESC LIMIT ?",
        (last, layout or 0, stream, WINDOW),
    ).fetchall()
    return tuple(Speed.from_json(text) for (text,) in reversed(rows))


def _round(db: sqlite3.Connection, step: int, max_response_tokens: int) -> RememberedRound | None:
    row = db.execute(
        "SELECT report, chosen, speed FROM boundaries JOIN decisions USING (step) LEFT JOIN speeds ON"
        " speeds.step = boundaries.step AND tensor_parallel = ifnull(json_extract(report, '$.tensorParallelSize'), 0)"
        " WHERE boundaries.step = ? AND report IS NOT NULL",
        (step,),
    ).fetchone()
    if row is None:
        return None
    responses: dict[PromptKey, list[LengthObservation]] = {}
    for epoch, index, length in _lengths(db, step, max_response_tokens):
        responses.setdefault(prompt_of(db, epoch, index), []).append(length)
    waited = db.execute("SELECT value FROM boundaries, json_each(long_queue) WHERE step = ?", (step - 1,)).fetchall()
    queue = {PromptKey.parse(text) for (text,) in waited}
    prompts = {
        prompt: RememberedPrompt(tuple(responses[prompt]), prompt in queue, reason == EQUAL_REWARDS)
        for prompt, reason in (
            (prompt_of(db, epoch, index), reason)
            for epoch, index, reason in db.execute(
                "SELECT epoch, idx, reason FROM prompts WHERE step = ? ORDER BY ordinal", (step,)
            )
        )
    }
    speed = Speed.from_json(row[2]) if row[2] else None
    return RememberedRound(RoundReport.model_validate_json(row[0]), SelectedPlan.from_json(row[1]), speed, prompts)
