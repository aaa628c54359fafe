"""Jobs with several prompt sources: each keeps its share, and the store tells them apart."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.training import Mode
from rljob_api.status import FinishedOutcome, RoundKind
from rljob_runtime.audit.findings import Rule
from rljob_runtime.audit.open_store import audit
from rljob_runtime.audit.shares import share_findings
from rljob_runtime.coordinator.store.async_store import AsyncStore
from rljob_runtime.coordinator.store.snapshot import CoordinatorSnapshot
from rljob_runtime.protocols import RewardFailed
from rljob_runtime.protocols.trajectory import Cursor, PromptKey, SourceCursor, TrajectoryKey
from rljob_runtime.scheduling.shares import Shares, allot
from rljob_runtime.simulator.peers.inputs import SimulatedPrompts, SimulatedRewards
from tests.support.rows import slow
from tests.support.simulated_job import Stage, job

GYM = {"reasoningGym": {"task": "basic_arithmetic"}}
RACE = {"enabled": True, "promptFactor": 1.5, "responseFactor": 1.5}


def sources(**weights: float) -> dict[str, Any]:
    """Few tokens, since each one costs a poll."""
    named = [{"name": n, "weight": w, "prompts": GYM} for n, w in weights.items()]
    return {"prompts": None, "sources": named, "maxResponseTokens": 8}


def trained(stage: Stage) -> Counter[str]:
    return Counter(TrajectoryKey.parse(text).prompt.source for text in stage.trained_ids())


@pytest.mark.parametrize("tail", [{}, RACE], ids=["plain", "race"])
def test_each_round_trains_on_the_shares(tmp_path: Path, tail: dict[str, Any]) -> None:
    mixed = job(rounds=12, prompts=4, responses=2, tail=tail, data=sources(words=3, sums=1))
    stage = Stage(tmp_path / "state.db", mixed, prompts=SimulatedPrompts(10))
    stage.play()
    for report in stage.closed:
        assert [(one.name, one.prompts) for one in report.sources or ()] == [("sums", 1), ("words", 3)]
    assert trained(stage) == {"words": 72, "sums": 24}
    assert any(report.kind is RoundKind.LONG for report in stage.closed) == bool(tail)
    found = audit(tmp_path / "state.db")
    assert (found.findings, found.prompts) == ((), {"trained": 48})


def test_filtered_groups_are_replaced_from_their_source(tmp_path: Path) -> None:
    dynamic = {"enabled": True, "maxPromptFactor": 8}
    mixed = job(rounds=8, prompts=4, responses=2, dynamic=dynamic, data=sources(words=1, sums=1))
    stage = Stage(tmp_path / "state.db", mixed, reward_levels=3)
    stage.play()
    assert sum(report.filtered_groups or 0 for report in stage.closed) > 0
    assert trained(stage) == {"words": 32, "sums": 32}


def test_asynchronous_draws_have_the_shares(tmp_path: Path) -> None:
    mixed = job(rounds=10, prompts=4, responses=2, mode=Mode.ASYNCHRONOUS, data=sources(words=2, sums=1, code=1))
    stage = Stage(tmp_path / "state.db", mixed)
    stage.play()
    with sqlite3.connect(tmp_path / "state.db") as db:
        query = "SELECT s.name, COUNT(*) FROM groups AS g JOIN sources AS s ON s.number = g.epoch >> 32 GROUP BY 1"
        drawn = dict(db.execute(query).fetchall())
    total = sum(drawn.values())
    assert abs(drawn["words"] - total / 2) < 1
    assert abs(drawn["sums"] - total / 4) < 1
    assert audit(tmp_path / "state.db").findings == ()


class RewardsOf(SimulatedRewards):
    """Rewards that score by `score(key)` where it gives a number, and fail where it gives `nan`."""

    def __init__(self, score: Callable[[PromptKey], float | None]) -> None:
        super().__init__()
        self._score = score

    async def score(self, prompt: object, response_text: str) -> float:
        usual = await super().score(prompt, response_text)
        found = self._score(prompt.key)  # type: ignore[attr-defined]
        if found is not None and math.isnan(found):
            raise RewardFailed("no reward for this source")
        return usual if found is None else found


def ends(path: Path) -> Counter[tuple[str, str | None]]:
    """Count the groups of the store by source and outcome."""
    with sqlite3.connect(path) as db:
        query = "SELECT s.name, g.fate, COUNT(*) FROM groups AS g JOIN sources AS s ON s.number = g.epoch >> 32"
        return Counter({(name, outcome): count for name, outcome, count in db.execute(f"{query} GROUP BY 1, 2")})


@pytest.mark.parametrize("dynamic", [{"enabled": True, "maxPromptFactor": 3}, {}], ids=["equal", "failing"])
@pytest.mark.parametrize("weights", [{"a": 1, "b": 1}, *slow({"b": 3, "a": 1}, {"a": 2, "b": 1, "c": 1})], ids=str)
def test_a_source_whose_groups_are_all_filtered_starves_no_other(
    tmp_path: Path, dynamic: dict[str, Any], weights: dict[str, float]
) -> None:
    mixed = job(rounds=8, prompts=4, responses=2, mode=Mode.ASYNCHRONOUS, dynamic=dynamic, data=sources(**weights))
    bad = 0.0 if dynamic else math.nan
    stage = Stage(tmp_path / "state.db", mixed, rewards=RewardsOf(lambda key: bad if key.source == "b" else None))
    finished = stage.play()
    assert finished is not None
    assert finished.outcome is FinishedOutcome.COMPLETE, finished.message
    assert trained(stage)["b"] == 0
    assert trained(stage).total() == 8 * 4 * 2
    assert audit(tmp_path / "state.db").findings == ()
    counted = ends(tmp_path / "state.db")
    # Beyond its replacements, the source has its share of the draws and no more.
    others = sum(count for (name, _), count in counted.items() if name != "b")
    share = weights["b"] / sum(weights.values())
    replaced = math.ceil(dynamic.get("maxPromptFactor", 1) * 4 * share)
    assert counted["b", "filtered"] - replaced <= share / (1 - share) * others + 1


def test_a_source_with_few_filtered_groups_in_a_row_keeps_its_share(tmp_path: Path) -> None:
    dynamic = {"enabled": True, "maxPromptFactor": 2}
    mixed = job(rounds=20, prompts=4, responses=2, mode=Mode.ASYNCHRONOUS, dynamic=dynamic, data=sources(a=1, b=1))
    third = lambda key: 0.0 if key.source == "b" and key.index % 3 == 0 else None  # noqa: E731
    stage = Stage(tmp_path / "state.db", mixed, rewards=RewardsOf(third))
    stage.play()
    counted = ends(tmp_path / "state.db")
    assert counted["b", "filtered"] > 8, "more than would be replaced in one row"
    kept = {name: sum(n for (of, end), n in counted.items() if of == name and end != "filtered") for name in "ab"}
    assert abs(kept["a"] - kept["b"]) <= 2


def test_asynchronous_draws_take_from_each_source_once_in_share_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []
    draw = AsyncStore.draw

    def recorded(store: AsyncStore, prompts: Sequence[PromptKey], *more: Any) -> Any:
        drawn.extend(prompt.source for prompt in prompts)
        return draw(store, prompts, *more)

    monkeypatch.setattr(AsyncStore, "draw", recorded)

    class Counted(SimulatedPrompts):
        takes: ClassVar[list[tuple[int, str]]] = []

        async def take(self, cursor: Cursor, count: int, source: str = "") -> tuple[tuple[PromptKey, ...], Cursor]:
            self.takes.append((count, source))
            return await super().take(cursor, count, source)

    mixed = job(rounds=6, prompts=8, responses=2, mode=Mode.ASYNCHRONOUS, data=sources(a=1, b=1))
    stage = Stage(tmp_path / "state.db", mixed, prompts=Counted())
    stage.play()
    assert max(count for count, _ in Counted.takes) >= 2, "each draw takes its prompts of a source together"
    assert drawn == ["a", "b"] * 24


def test_other_weights_count_from_the_change(tmp_path: Path) -> None:
    first = Stage(tmp_path / "state.db", job(rounds=4, prompts=4, data=sources(words=3, sums=1)))
    first.play()
    second = Stage(tmp_path / "state.db", job(rounds=8, prompts=4, data=sources(words=1, sums=3)))
    second.world, second.invariants = first.world, first.invariants
    second.watchers = []
    second.play()
    assert [(one.name, one.prompts) for one in second.closed[-1].sources or ()] == [("sums", 3), ("words", 1)]
    assert trained(second) == {"words": 2 * (4 * 3 + 4), "sums": 2 * (4 + 4 * 3)}


def test_audit_finds_a_round_out_of_its_shares(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "state.db", job(rounds=3, prompts=4, data=sources(words=3, sums=1)))
    stage.play()
    with sqlite3.connect(tmp_path / "state.db") as db:
        db.execute("""UPDATE rounds SET races = '[["words", 2, 2], ["sums", 2, 2]]' WHERE step = 2""")
    found = sorted(str(one) for one in audit(tmp_path / "state.db").findings)
    assert found == [
        f"{Rule.SHARE}: update 2: trained on 1 groups of sums; its share is 2",
        f"{Rule.SHARE}: update 2: trained on 3 groups of words; its share is 2",
    ]


def test_snapshot_keeps_the_cursor_of_each_source() -> None:
    cursor = Cursor(0, 9, (SourceCursor("words", 1, 2, 6, "7/10"), SourceCursor("sums", 0, 2, 2, "3/10")))
    snapshot = CoordinatorSnapshot(3, cursor, (PromptKey(1, 0, "words"), PromptKey(0, 1, "sums")))
    assert CoordinatorSnapshot.from_json(snapshot.to_json(), 3) == snapshot


@pytest.mark.parametrize("moved", [0, 3])
def test_audit_finds_asynchronous_draws_that_are_not_counted(tmp_path: Path, moved: int) -> None:
    """The cursor counts some prompts more of one source, and as many less of another, than were drawn."""
    mixed = job(rounds=4, prompts=4, responses=2, mode=Mode.ASYNCHRONOUS, data=sources(words=2, sums=1))
    stage = Stage(tmp_path / "state.db", mixed)
    stage.play()
    with sqlite3.connect(tmp_path / "state.db") as db:
        found = json.loads(db.execute("SELECT sources FROM pool").fetchone()[0])
        by_name = {one[0]: one for one in found}
        by_name["words"][3] += moved
        by_name["sums"][3] -= moved
        db.execute("UPDATE pool SET sources = ?", (json.dumps(found),))
    told = [str(one) for one in audit(tmp_path / "state.db").findings]
    assert all(one.startswith(f"{Rule.SHARE}: shares: ") for one in told)
    assert bool(told) is bool(moved)


def cursor(weights: str = "2 1", **counts: int) -> Cursor:
    rows = zip(counts.items(), weights.split(), strict=True)
    return Cursor(0, 0, tuple(SourceCursor(name, 0, 0, count, weight) for (name, count), weight in rows))


@pytest.mark.parametrize(
    ("name", "first", "now", "drawn", "filtered", "wrong"),
    [
        ("what was drawn is counted", Cursor(), cursor(a=4, b=2), (4, 2), (0, 0), []),
        ("a filtered prompt is replaced", Cursor(), cursor(a=4, b=2), (5, 2), (1, 0), []),
        ("a filtered prompt is not replaced", Cursor(), cursor(a=4, b=2), (4, 2), (1, 0), []),
        ("more is counted than was drawn", Cursor(), cursor(a=4, b=2), (3, 2), (0, 0), ["4 prompts of a are counted"]),
        ("a draw is not counted", Cursor(), cursor(a=4, b=2), (4, 3), (0, 1), []),
        (
            "a draw of another source",
            Cursor(),
            cursor(a=4, b=2),
            (3, 3),
            (0, 0),
            ["4 prompts of a are counted; 3 were"],
        ),
        ("out of the shares", Cursor(), cursor(a=3, b=3), (3, 3), (0, 0), ["3 of 6 prompts are of a", "3 of 6"]),
        ("the history began later", cursor(a=2, b=1), cursor(a=4, b=2), (2, 1), (0, 0), []),
        ("other weights since then", cursor("1 1", a=9, b=9), cursor(a=4, b=2), (4, 2), (0, 0), []),
        ("other weights in between", Cursor(), cursor(a=4, b=2), (9, 9), (0, 0), []),
        ("and most were filtered", Cursor(), cursor(a=4, b=2), (9, 9), (9, 5), []),
        ("and more is counted", Cursor(), cursor(a=4, b=2), (3, 9), (0, 0), ["4 prompts of a are counted"]),
    ],
)
def test_counts_of_asynchronous_draws(name, first, now, drawn, filtered, wrong: list[str]) -> None:
    found = share_findings(first, now, dict(zip("ab", drawn, strict=True)), dict(zip("ab", filtered, strict=True)))
    told = [one.what for one in found]
    assert len(told) == len(wrong), (name, told)
    assert all(one.startswith(start) for one, start in zip(told, wrong, strict=True)), (name, told)


@given(
    st.lists(st.lists(st.integers(1, 9), min_size=3, max_size=3), min_size=1, max_size=3),
    st.lists(st.sampled_from(["kept", "kept", "filtered", "filtered", "edited"]), max_size=60),
    st.integers(0, 3),
)
def test_the_audit_accepts_what_the_shares_allot(weights: list[list[int]], steps: list[str], skip: int) -> None:
    """Draws one by one, of which some are filtered, some of these replaced, and between which weights are edited."""
    settings = [Shares.of(dict(zip("abc", map(float, one), strict=True))) for one in weights]
    now, drawn, filtered, edits = Cursor(), Counter[str](), Counter[str](), 0
    for number, step in enumerate(steps):
        if step == "edited":
            edits += 1
            continue
        shares = settings[edits % len(settings)]
        (source,), now = allot(shares, now, 1)
        drawn[source] += 1
        if step == "filtered":
            filtered[source] += 1
            now = now if skip and number % skip == 0 else shares.given_back(now, source)
        assert list(share_findings(Cursor(), now, drawn, filtered)) == []
