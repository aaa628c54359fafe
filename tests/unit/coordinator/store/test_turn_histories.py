"""Any order of turns, retries, lost processes and ends: the store returns what the engine emitted, bit by bit."""

from __future__ import annotations

import shutil
import tempfile
from array import array
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rljob_runtime.coordinator.store.records import Boundary
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.protocols.trajectory import Cursor, PromptKey, TrajectoryKey
from rljob_runtime.scheduling.episodes.ends import AbortCause
from rljob_runtime.scheduling.episodes.episode import Episode, EpisodeRules
from rljob_runtime.scheduling.episodes.node import Node
from rljob_runtime.scheduling.episodes.turns import Generate, TurnRequest
from tests.support.episodes import LENGTH, STOP, Emission, RecordingEngine, packed
from tests.support.examples import examples

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)
PICK = st.integers(0, 1 << 16)
KEYS = [TrajectoryKey(PromptKey(0, 0), 0), TrajectoryKey(PromptKey(3, 1, "math"), 2)]


class Attempts(RuleBasedStateMachine):
    """`emitted`: what was committed of the newest attempt of each key, in the order of the commits."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.store = Store(self.folder / "state.db", "uid-1")

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.folder)

    @initialize()
    def start(self) -> None:
        self.store.start_at(Boundary(0, Cursor()))
        self.engine = RecordingEngine()
        self.numbers: dict[TrajectoryKey, int] = {}
        self.used: list[int] = []
        self.episodes: dict[TrajectoryKey, Episode] = {}
        self.emitted: dict[TrajectoryKey, list[tuple[Emission, bytes]]] = {}
        self.asked: dict[tuple[TrajectoryKey, int], tuple[int, ...]] = {}
        self.histories: list[tuple[int, ...]] = [(1,)]
        self.last: tuple[int, tuple[Node, ...]] | None = None
        self.now = 0.0

    def live(self) -> list[TrajectoryKey]:
        return [key for key, episode in self.episodes.items() if episode.end is None]

    @rule(key=st.sampled_from(KEYS))
    def begins(self, key: TrajectoryKey) -> None:
        if key in self.live():
            return
        number = self.store.turns.begin(key, 1, self.now, "calc")
        assert number not in self.used
        self.used.append(number)
        self.numbers[key], self.episodes[key], self.emitted[key] = number, Episode(EpisodeRules(), self.now), []

    @precondition(lambda self: self.live())
    @rule(pick=PICK, more=st.just(()) | TOKENS)
    def asks(self, pick: int, more: tuple[int, ...]) -> None:
        key = self.live()[pick % len(self.live())]
        prompt = self.histories[pick % len(self.histories)] + more
        decision = self.episodes[key].open(TurnRequest(prompt, str(prompt)), self.now)
        assert isinstance(decision, Generate)
        self.asked[key, decision.turn.id] = prompt

    @precondition(lambda self: self.asked)
    @rule(pick=PICK, tokens=TOKENS, cut=st.booleans())
    def is_answered(self, pick: int, tokens: tuple[int, ...], cut: bool) -> None:
        key, turn = list(self.asked)[pick % len(self.asked)]
        prompt = self.asked.pop((key, turn))
        episode = self.episodes[key]
        opened = next(one for one in episode.open_turns if one.id == turn)
        nodes = self.engine.answer(episode, opened, prompt, tokens, 1 + pick % 3, LENGTH if cut else STOP)
        body = str((pick, prompt)).encode()
        self.store.turns.commit(self.numbers[key], nodes, body, self.now)
        self.last = self.numbers[key], nodes
        self.emitted[key].append((self.engine.emitted[-1], body))
        self.histories.append(prompt + tokens)

    @precondition(lambda self: self.last)
    @rule()
    def commits_again(self) -> None:
        assert self.last is not None
        self.store.turns.commit(*self.last, b"again", self.now)

    @precondition(lambda self: self.asked)
    @rule(pick=PICK)
    def drops(self, pick: int) -> None:
        key, turn = list(self.asked)[pick % len(self.asked)]
        del self.asked[key, turn]
        self.episodes[key].drop(turn)

    @precondition(lambda self: self.live())
    @rule(pick=PICK, aborted=st.booleans())
    def ends(self, pick: int, aborted: bool) -> None:
        key = self.live()[pick % len(self.live())]
        episode = self.episodes[key]
        end = episode.abort(AbortCause.GATEWAY) if aborted else episode.complete()
        assert self.store.turns.end(self.numbers[key], end, self.now)
        assert not self.store.turns.end(self.numbers[key], end, self.now + 1)
        self.asked = {place: prompt for place, prompt in self.asked.items() if place[0] != key}

    @rule()
    def process_restarts(self) -> None:
        """Open turns are lost; the episodes go on from what was stored."""
        self.store.close()
        self.store = Store(self.folder / "state.db", "uid-1")
        self.asked = {}
        for key, kept in self.store.turns.newest(KEYS).items():
            if kept.end is None:
                highest = self.episodes[key]._last_id
                self.episodes[key] = Episode(EpisodeRules(), kept.started, kept.nodes, highest)

    @rule(seconds=st.floats(0.1, 5.0))
    def waits(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def the_store_has_what_was_emitted(self) -> None:
        kept = self.store.turns.newest(KEYS)
        assert {key: one.number for key, one in kept.items()} == self.numbers
        assert [one.number for one in self.store.turns.open_attempts()] == sorted(
            self.numbers[one] for one in self.live()
        )
        for key, one in kept.items():
            assert one.end == self.episodes[key].end
            sampled = [node for node in one.nodes if node.is_sampled]
            assert [
                (packed(node.token_ids), array("f", node.logprobs).tobytes(), node.version) for node in sampled
            ] == [
                (emission.token_ids, array("f", array("d", emission.logprobs)).tobytes(), emission.version)
                for emission, _ in self.emitted[key]
            ]
            told = {
                turn.turn.node: (packed(turn.token_ids), turn.body, packed(turn.turn.token_ids))
                for turn in self.store.turns.history(one.number)
            }
            assert list(told) == sorted(told)
            assert [told[node.id] for node in sampled] == [
                (emission.prompt, body, emission.token_ids) for emission, body in self.emitted[key]
            ]


TestAttempts = Attempts.TestCase
TestAttempts.settings = settings(
    max_examples=examples(40), stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
