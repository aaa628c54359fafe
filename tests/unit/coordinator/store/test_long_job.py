"""A job of 10^5 rounds, of which the store's part is played: the last rounds cost what the first ones did.

Rounds are small and made up, the store is the real one. What a whole job adds in memory is in
`test_coordinator_pruning`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rljob_api.status import RoundKind, RoundReport
from rljob_runtime.audit import audit
from rljob_runtime.coordinator.store.records import Boundary, Pool, Tokens
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.protocols.trajectory import Cursor, FinishReason, Lease, PromptKey, Response, TrajectoryKey
from rljob_runtime.scheduling.round_plan import PromptOutcome, RoundOutcome, RoundPlan, RoundShape
from tests.support.rows import slow

KEPT = 40
WINDOW = 500
"""Rounds that are measured at the beginning, once the store is as full as it gets, and at the end."""
EPOCH = 50_000
"""Prompts of an epoch; each round draws one."""
SUMS_BYTES = 160
"""What stays of a round for good: its sums, its version, its reward."""
SHAPE = RoundShape(RoundKind.LONG, 1, 2, 1, 2)


def prompt_of(step: int) -> PromptKey:
    return PromptKey(*divmod(step - 1, EPOCH))


def cursor_after(step: int) -> Cursor:
    return Cursor(*divmod(step, EPOCH))


def boundary_of(step: int) -> Boundary:
    return Boundary(step, cursor_after(step), report=RoundReport(round=step, reward=0.5))


def responses(step: int, version: int) -> tuple[list[Tokens], list[Response]]:
    keys = [TrajectoryKey(prompt_of(step), sample) for sample in range(2)]
    tokens = [Tokens(key, 0, (5, 6), (-1.0, -2.0)) for key in keys]
    return tokens, [Response(key, 1, version, (5, 6), (-1.0, -2.0), FinishReason.STOP, "rollout-0") for key in keys]


def on_policy(store: Store, step: int) -> None:
    """A round from its draw to its boundary, as the coordinator has the store write it."""
    plan = RoundPlan(step, step, SHAPE, (prompt_of(step),))
    keys = plan.trajectories()
    store.remembered(64)
    store.rounds.open(plan, cursor_after(step))
    store.trajectories.launched(step, step, [(key, Lease("rollout-0", 1)) for key in keys])
    store.trajectories.finish(step, *responses(step, step))
    for key in keys:
        store.trajectories.score(step, key, 1.0)
    store.trajectories.assign(step, keys)
    store.rounds.close(
        RoundOutcome(plan.prompts, {plan.prompts[0]: PromptOutcome.TRAINED}, {}, keys), boundary_of(step)
    )


def asynchronous(store: Store, step: int) -> None:
    """An update from the draw of its prompt to the checkpoint that makes its tokens superfluous."""
    prompt, pool = prompt_of(step), store.experience
    keys = [TrajectoryKey(prompt, sample) for sample in range(2)]
    pool.draw([prompt], cursor_after(step), step, "rollout-0", 2)
    pool.launched([(key, Lease("rollout-0", 1)) for key in keys])
    pool.finish(*responses(step, step))
    pool.score([(key, 1.0) for key in keys])
    assert len(pool.responses(prompt)) == 2
    pool.assign(step, [prompt])
    pool.close_update(boundary_of(step))
    while pool.forget(step):
        pass
    assert pool.requeued() == ()
    assert pool.unsettled() == ()


class Cost:
    """Instructions of SQLite's virtual machine: they do not depend on who else uses the processor."""

    def __init__(self, store: Store) -> None:
        self._store, self._instructions = store, 0

    def _count(self) -> int:
        self._instructions += 1
        return 0

    def of(self, rounds: int, play: Callable[[], None]) -> int:
        """Play so many rounds, and count."""
        self._instructions = 0
        self._store._db.set_progress_handler(self._count, 1)
        for _ in range(rounds):
            play()
        self._store._db.set_progress_handler(None, 0)
        return self._instructions


def memory() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: a million commits would wait for the disk."""
    shared = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(dir=shared if os.access(shared, os.W_OK) else tmp_path))
    yield made
    shutil.rmtree(made)


@pytest.mark.parametrize("play", [*slow(on_policy), asynchronous])
@pytest.mark.parametrize("rounds", [3_000, *slow(100_000)])
@pytest.mark.timeout(3600)
def test_the_last_round_of_a_long_job_costs_what_the_first_did(
    folder: Path, play: Callable[[Store, int], None], rounds: int
) -> None:
    path = folder / "state.db"
    store = Store(path, "uid-1")
    store.start_at(Boundary(0, Cursor()), pool=Pool() if play is asynchronous else None)
    done = 0

    def one() -> None:
        nonlocal done
        done += 1
        store.versions.publish(done, done - 1)
        play(store, done)
        store.prune(KEPT)
        store.tidy()
        assert store.versions.used().next_version() == done + 1
        assert store.boundaries.reward_ends() == (0.5, 0.5)

    def pages() -> int:
        size: int = store._db.execute("PRAGMA page_count").fetchone()[0] * 4096
        return size

    while done < 2 * KEPT:
        one()
    cost = Cost(store)
    begin, bytes_, held, at = cost.of(WINDOW, one), pages(), memory(), done
    while done < rounds - WINDOW:
        one()
    end, grown = cost.of(WINDOW, one), pages() - bytes_
    assert done == rounds
    assert end <= 1.1 * begin
    assert grown <= SUMS_BYTES * (done - at) + 2**20, "a pruned round leaves its sums"
    assert memory() - held <= grown + 2**24, "SQLite keeps the file in memory, and Python nothing"
    store.close()

    verdict = audit(folder)
    assert verdict.findings == ()
    assert (verdict.began, verdict.kept, verdict.ended) == (0, rounds - KEPT, rounds)
    assert verdict.trajectories == 2 * rounds
