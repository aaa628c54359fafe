"""Kept run: the folder of a run that trained on an episode of three turns, and on one without a sample."""

from __future__ import annotations

from pathlib import Path

from rljob_runtime.coordinator.store.records import Boundary, Tokens
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.tables.kept_samples import SampleRules
from rljob_runtime.protocols.trajectory import Cursor, PromptKey, TrajectoryKey
from rljob_runtime.samples import SampleFolder
from rljob_runtime.samples.episode import SampleCall, SampleEpisode, SampleMessage, SampleTurn
from rljob_runtime.scheduling.episodes.ends import EndState, EpisodeEnd
from rljob_runtime.scheduling.episodes.limits import Limit
from tests.support.sample_episodes import episode_sample
from tests.support.stored_episodes import given, open_round, sampled, settle

PROMPT = PromptKey(0, 0)
KEY = TrajectoryKey(PROMPT, 0)
TRUNCATED = EpisodeEnd(EndState.TRUNCATED, limit=Limit.TURNS)

CALL = SampleCall("add", '{"a": 1}', "call_2_0")
TEXTS = SampleEpisode(
    "calc",
    attempt=1,
    tools=("add", "subtract"),
    turns=(
        SampleTurn(
            2, messages=(SampleMessage("system", "S"), SampleMessage("user", "Q")), sampled="I add.", calls=(CALL,)
        ),
        SampleTurn(4, after=2, messages=(SampleMessage("tool", "3", "call_2_0"),), sampled="It is 3."),
        SampleTurn(6, after=2, messages=(SampleMessage("user", "again"),), sampled="Four."),
    ),
)


def write_run(folder: Path) -> None:
    """Write the store and the samples. The third turn is a branch. The second episode has no sample."""
    store = Store(folder / "state.db", "uid-1")
    store.samples.rules = SampleRules(0, seed=7, advantages=lambda rewards: rewards)
    store.start_at(Boundary(0, Cursor()))
    other = PromptKey(0, 1)
    plan = open_round(store, 1, PROMPT, other)
    number = store.turns.begin(KEY, 1, 10.0, "calc")
    store.turns.commit(number, [given(1, 0, 1, 1, 1), sampled(2, 1, 3)], b"{}", 12.5, 11.0)
    store.turns.commit(number, [given(3, 2, 4, 4), sampled(4, 3, 5, 6)], b"{}", 15.0, 14.5)
    store.turns.commit(number, [given(5, 2, 7), sampled(6, 5, 8, version=2)], b"{}", 16.0, 15.5)
    store.turns.end(number, TRUNCATED, 17.0, 0.5, {"calls": 1})
    store.trajectories.append(1, [Tokens(KEY, 0, (3, 5, 6, 8), (-1.0,) * 4)])
    second = TrajectoryKey(other, 0)
    number = store.turns.begin(second, 1, 20.0, "calc")
    store.turns.commit(number, [given(1, 0, 1), sampled(2, 1, 9)], b"{}", 21.0)
    store.turns.end(number, EpisodeEnd(EndState.COMPLETED), 22.0, 1.0)
    store.trajectories.append(1, [Tokens(second, 0, (9,), (-1.0,))])
    settle(store, plan)
    store.close()
    SampleFolder(folder).write(1, [episode_sample(TEXTS)], keep=9)
