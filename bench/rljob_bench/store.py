"""`rljob bench store`: the memory of an asynchronous job at scale, on this machine's disk.

8,192 responses grow side by side to 16k tokens each. As in a coordinator, what replicas tell is judged by `Partials`,
which hold all of it, and what is new goes to the store once a second: here as fast as it will, in flushes of the tokens
that a second brings at the rate that is the goal. Then all end, are scored, trained on and forgotten. Everything runs
in a process of its own, whose memory is counted. Figures:

- `tokens_per_second`: judged, held and committed. The limit is the disk: the same bytes in the same pieces appended to
  a file, each with its fsync.
- `over_plain_sqlite`: the time of a table without keys, checks or triggers that is given the same rows, with the same
  journal, over the store's. It is what the constraints and the order on disk cost.
- `flush_p50_seconds`, `flush_worst_seconds`: of one flush, partials and store.
- `late_flushes`: those that took more than a second, together with the tidying after them: the store fell behind.
- `forget_piece_worst_seconds`: what a flush may have to wait for while a checkpoint's tokens are dropped.
- `memory_mb`: the most that the process ever had.
- `restart_seconds`: until a coordinator that comes back holds all of it again.

Store, table and file are written in turns, flush by flush, so that they meet the same load.
"""

from __future__ import annotations

import os
import random
import sqlite3
import statistics
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rljob_runtime.cli.bench_result import figure
from rljob_runtime.coordinator.store.connection import journal_for
from rljob_runtime.coordinator.store.records import Boundary, Pool, Tokens
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.protocols.trajectory import Cursor, FinishReason, Lease, PromptKey, Response, TrajectoryKey
from rljob_runtime.scheduling.partial_responses import DeltaStatus, Partials

Row = dict[str, Any]
SERIES = ("flushes", "tidied", "pieces")
"""What is measured again and again in a run, in seconds."""

GOAL_RATE = 400_000
GOAL_MEMORY_MB = 2048
VOCABULARY = 150_000
REPLICA, VERSION = "rollout-0", 1
BOOK = 1 << 16
"""Tokens and log-probabilities that are handed out again and again, from another place for each response."""


@dataclass(frozen=True)
class Plan:
    """What is streamed. `rate`: tokens of one flush, a second's worth."""

    responses: int = 8192
    tokens: int = 16_384
    group: int = 8
    rate: int = GOAL_RATE

    @property
    def step(self) -> int:
        """Tokens of one response in a flush."""
        return max(1, self.rate // self.responses)


QUICK = Plan(responses=1024, tokens=2048)


def store(*, quick: bool, seed: int) -> dict[str, Any]:
    """Needs about 30 bytes of free disk a token under the temporary folder, 4 GB in all; `--quick` 60 MB."""
    plan = QUICK if quick else Plan()
    # Spawned: its memory is its own.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        measured = pool.submit(measure, plan, seed).result()
    tokens, ours = plan.responses * plan.tokens, sum(measured["flushes"]) + sum(measured["tidied"])
    flushes = measured["flushes"]
    late = sum(flush + tidy > 1.0 for flush, tidy in zip(flushes, measured["tidied"], strict=True))
    figures = [
        figure(
            "tokens_per_second",
            tokens / ours,
            GOAL_RATE,
            f"{plan.responses} responses of {plan.tokens} tokens side by side",
            tokens / measured["file_seconds"],
            unit="tokens/s",
        ),
        figure(
            "over_plain_sqlite",
            measured["plain_seconds"] / measured["store_seconds"],
            anchor="the same rows without keys, checks and triggers",
            limit=1.0,
        ),
        figure("flush_p50_seconds", statistics.median(flushes), unit="s", better="lower"),
        figure("flush_worst_seconds", max(flushes), 1.0, "flushes are a second apart", unit="s", better="lower"),
        figure("late_flushes", late, 0, f"of {len(flushes)}", unit="flushes", better="lower"),
        figure(
            "forget_piece_worst_seconds",
            max(measured["pieces"]),
            1.0,
            f"{len(measured['pieces'])} pieces for all of it",
            unit="s",
            better="lower",
        ),
        figure(
            "memory_mb",
            measured["memory_mb"],
            GOAL_MEMORY_MB,
            "the tokens and log-probabilities alone, 8 bytes each",
            tokens * 8 / 1e6,
            unit="MB",
            better="lower",
        ),
        figure("restart_seconds", measured["restart_seconds"], unit="s", better="lower"),
    ]
    run = {name: value for name, value in measured.items() if name not in SERIES}
    rows = [{"measured": "run", **run, "flushes": len(flushes), "pieces": len(measured["pieces"])}]
    settings = {**asdict(plan), "journal": measured["journal"], "quick": quick}
    return {"bench": "store", "seed": seed, "settings": settings, "figures": figures, "rows": rows}


def measure(plan: Plan, seed: int) -> Row:
    """Run all of it, in a folder that is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="rljob-bench-") as folder:
        stream = _Stream(plan, Path(folder), seed)
        try:
            return stream.run()
        finally:
            stream.close()


class _Stream:
    def __init__(self, plan: Plan, folder: Path, seed: int) -> None:
        self._plan, self._folder = plan, folder
        self._prompts = [PromptKey(0, index) for index in range(plan.responses // plan.group)]
        self._keys = [TrajectoryKey(prompt, sample) for prompt in self._prompts for sample in range(plan.group)]
        self._tokens, self._logprobs = _book(seed)
        self._partials = Partials()
        self._store = Store(folder / "state.db", "bench")
        self._plain = _plain_sqlite(folder / "plain.db")
        self._file = os.open(folder / "plain", os.O_CREAT | os.O_WRONLY)

    def close(self) -> None:
        self._store.close()
        self._plain.close()
        os.close(self._file)

    def run(self) -> Row:
        self._begin()
        judged, stored, tidied, plain, raw = [], [], [], [], []
        for start in range(0, self._plan.tokens, self._plan.step):
            length = min(self._plan.step, self._plan.tokens - start)
            deltas = list(self._deltas(start, length))
            judged.append(_timed(self._judge, deltas))
            stored.append(_timed(self._store.experience.append, deltas))
            tidied.append(_timed(self._store.tidy))
            plain.append(_timed(self._insert_plainly, deltas))
            raw.append(_timed(self._write_file, deltas))
        return {
            "journal": self._plain.execute("PRAGMA journal_mode").fetchone()[0],
            "judge_seconds": sum(judged),
            "store_seconds": sum(stored) + sum(tidied),
            "plain_seconds": sum(plain),
            "file_seconds": sum(raw),
            "flushes": [one + other for one, other in zip(judged, stored, strict=True)],
            "tidied": tidied,
            "tidy_worst_seconds": max(tidied),
            "store_mb": sum(file.stat().st_size for file in self._folder.glob("state.db*")) / 1e6,
            "restart_seconds": self._restart(),
            "memory_mb": _peak_memory_mb(),
            **self._end(),
        }

    def _begin(self) -> None:
        experience, lease = self._store.experience, Lease(REPLICA, 1)
        self._store.start_at(Boundary(0, Cursor()), pool=Pool())
        self._store.versions.publish(VERSION, 0)
        experience.draw(self._prompts, Cursor(0, len(self._prompts)), VERSION, REPLICA, self._plan.group)
        experience.launched((key, lease) for key in self._keys)
        for key in self._keys:
            self._partials.open(key, lease, VERSION)

    def _deltas(self, start: int, length: int) -> Iterator[Tokens]:
        for number, key in enumerate(self._keys):
            place = (number * 1009 + start) % (BOOK - length)
            yield Tokens(key, start, self._tokens[place : place + length], self._logprobs[place : place + length])

    def _judge(self, deltas: list[Tokens]) -> None:
        lease = Lease(REPLICA, 1)
        for one in deltas:
            verdict = self._partials.accept(
                one.key, lease, one.start, one.token_ids, one.logprobs, VERSION, finished=False
            )
            assert verdict is DeltaStatus.ACCEPTED, verdict

    def _insert_plainly(self, deltas: list[Tokens]) -> None:
        self._plain.execute("BEGIN")
        self._plain.executemany(
            "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?)",
            ((one.key.prompt.epoch, one.key.prompt.index, one.key.sample, one.start, *_packed(one)) for one in deltas),
        )
        self._plain.execute("COMMIT")

    def _write_file(self, deltas: list[Tokens]) -> None:
        os.write(self._file, b"".join(bytes(part) for one in deltas for part in _packed(one)))
        os.fsync(self._file)

    def _restart(self) -> float:
        """Restart the coordinator: it reads all that it held from the store."""
        lengths = [self._partials.length_of(key) for key in self._keys]
        some = self._partials.tokens_of(self._keys[-1])
        self._partials = Partials()
        self._store.close()

        def restore() -> None:
            self._store = Store(self._folder / "state.db", "bench")
            for group in self._store.experience.open_groups():
                for sample in group.samples:
                    self._partials.restore(sample.key, self._store.experience.partial(sample.key))

        seconds = _timed(restore)
        assert lengths == [self._partials.length_of(key) for key in self._keys] == [self._plan.tokens] * len(lengths)
        assert some == self._partials.tokens_of(self._keys[-1])
        return seconds

    def _end(self) -> Row:
        """All responses end; one update trains on all of them, and its checkpoint is written."""
        experience = self._store.experience
        ended = [Response(key, 1, VERSION, (), (), FinishReason.LENGTH, REPLICA) for key in self._keys]
        finish = _timed(lambda: experience.finish((), ended))
        score = _timed(lambda: experience.score([(key, 1.0) for key in self._keys]))
        experience.assign(1, self._prompts)
        read = _timed(lambda: experience.responses(self._prompts[0]))
        close = _timed(lambda: experience.close_update(Boundary(1, Cursor(0, len(self._prompts)))))
        pieces, more = [], True
        while more:
            began = time.perf_counter()
            more = experience.forget(1)
            pieces.append(time.perf_counter() - began)
            self._store.tidy()
        assert experience.outcomes() == {"trained": len(self._prompts)}
        return {
            "finish_seconds": finish,
            "score_seconds": score,
            "read_group_seconds": read,
            "close_seconds": close,
            "forget_seconds": sum(pieces),
            "pieces": pieces,
        }


def _book(seed: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    drawn = random.Random(seed)
    tokens = tuple(drawn.randrange(VOCABULARY) for _ in range(BOOK))
    return tokens, tuple(-token / VOCABULARY for token in tokens)


def _packed(one: Tokens) -> tuple[array[int], array[float]]:
    return array("i", one.token_ids), array("f", one.logprobs)


def _plain_sqlite(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute(f"PRAGMA journal_mode = {journal_for(path)}")
    db.execute("PRAGMA synchronous = FULL")
    db.execute(
        "CREATE TABLE chunks (epoch INTEGER, idx INTEGER, sample INTEGER, start INTEGER, tokens BLOB, logprobs BLOB)"
    )
    return db


def _timed(work: Callable[..., object], *arguments: object) -> float:
    began = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - began


def _peak_memory_mb() -> float:
    """Return the peak of this process since it began, in MB, as Linux counts it."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6
