"""Episodes under any history of messages: what is trained on is what the engine emitted, byte for byte, each once.

A harness asks, rewrites its history, forks it, starts sub-agents, asks concurrently, sends requests again, and goes on
after turns that were cut. Turns are dropped, and processes restart from the journal. The tokens are of a small
vocabulary, so that equal paths and prefixes are frequent.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rljob_runtime.protocols.trajectory import FinishReason
from rljob_runtime.scheduling.episodes.ends import EndState
from rljob_runtime.scheduling.episodes.episode import Episode, EpisodeRules, Versions
from rljob_runtime.scheduling.episodes.limits import Limits
from rljob_runtime.scheduling.episodes.node import ROOT, Node
from rljob_runtime.scheduling.episodes.sequences import training_sequences
from rljob_runtime.scheduling.episodes.turns import Generate, InProgress, Recorded, Refused, TurnRequest
from tests.support.episodes import LENGTH, STOP, Emission, RecordingEngine, packed, packed_logprobs
from tests.support.examples import examples

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)
PICK = st.integers(0, 1 << 16)
LIMITS = st.builds(
    Limits,
    turns=st.none() | st.integers(1, 12),
    tokens=st.none() | st.integers(4, 60),
    seconds=st.none() | st.just(40.0),
    forks=st.none() | st.integers(0, 6),
)


class Histories(RuleBasedStateMachine):
    """`histories`: token sequences that the harness knows. `asked`: tokens of each open turn."""

    @initialize(limits=LIMITS, versions=st.sampled_from(Versions), beginning=TOKENS)
    def start(self, limits: Limits, versions: Versions, beginning: tuple[int, ...]) -> None:
        self.rules = EpisodeRules(limits, versions)
        self.episode = Episode(self.rules, 0.0)
        self.engine = RecordingEngine()
        self.now, self.version = 0.0, 3
        self.histories = [beginning]
        self.requests: list[TurnRequest] = []
        self.asked: dict[int, TurnRequest] = {}
        self.lost: dict[int, TurnRequest] = {}
        self.answered: dict[str, list[bytes]] = {}
        self.journal: list[Node] = []
        self.seen: dict[int, Node] = {}
        self.requested_tokens = 0

    # --- the harness ---

    @rule(pick=PICK, more=TOKENS)
    def goes_on(self, pick: int, more: tuple[int, ...]) -> None:
        """Ask with a known history and new messages: the next turn, a fork, or one of several concurrent requests."""
        self.ask(self.histories[pick % len(self.histories)] + more)

    @rule(pick=PICK, more=TOKENS, tokens=TOKENS)
    def goes_on_and_is_answered(self, pick: int, more: tuple[int, ...], tokens: tuple[int, ...]) -> None:
        """Take one turn after one of the last histories, so that turns have turns below them, and often several."""
        known = len(self.asked)
        self.ask(self.histories[-1 - pick % min(3, len(self.histories))] + more)
        if len(self.asked) > known:
            self.answer(list(self.asked)[-1], tokens, STOP)

    @rule(pick=PICK)
    def asks_the_same_again(self, pick: int) -> None:
        """Ask exactly with a known history, as for several samples of one prompt, or to go on after a turn."""
        self.ask(self.histories[pick % len(self.histories)])

    @rule(pick=PICK, place=PICK, token=st.integers(0, 2), rest=st.booleans())
    def rewrites_its_history(self, pick: int, place: int, token: int, rest: bool) -> None:
        history = list(self.histories[pick % len(self.histories)])
        history[place % len(history)] = token
        self.ask(tuple(history if rest else history[: place % len(history) + 1]))

    @rule(beginning=TOKENS)
    def starts_a_sub_agent(self, beginning: tuple[int, ...]) -> None:
        self.ask(beginning)

    @precondition(lambda self: self.requests)
    @rule(pick=PICK)
    def sends_a_request_again(self, pick: int) -> None:
        former = self.requests[pick % len(self.requests)]
        is_open = [turn for turn, request in self.asked.items() if request.digest == former.digest]
        decision = self.decide(TurnRequest(former.token_ids, former.digest, retry=True))
        if isinstance(decision, InProgress):
            assert decision.turn.id in is_open
        elif isinstance(decision, Recorded):
            assert decision.node.digest == former.digest
            assert packed_logprobs(decision.node.logprobs) in self.answered[former.digest]
        else:
            assert not is_open
            assert former.digest not in self.answered, "a request that was answered is not sampled again"

    @rule(seconds=st.floats(0.0, 5.0))
    def waits(self, seconds: float) -> None:
        self.now += seconds

    # --- the engine, and what fails ---

    @precondition(lambda self: self.asked)
    @rule(pick=PICK, tokens=TOKENS, cut=st.booleans())
    def engine_answers(self, pick: int, tokens: tuple[int, ...], cut: bool) -> None:
        self.answer(list(self.asked)[pick % len(self.asked)], tokens, LENGTH if cut else STOP)

    def answer(self, turn: int, tokens: tuple[int, ...], finish: FinishReason) -> None:
        request = self.asked.pop(turn)
        found = next(one for one in self.episode.open_turns if one.id == turn)
        tokens = tokens[: found.most_tokens]
        version = self.version if found.version is None else found.version
        stored = self.engine.answer(self.episode, found, request.token_ids, tokens, version, finish)
        assert stored
        self.journal += stored
        self.answered.setdefault(request.digest, []).append(packed_logprobs(stored[-1].logprobs))
        self.histories.append((*request.token_ids, *tokens))
        self.lost[turn] = request

    @precondition(lambda self: self.asked)
    @rule(pick=PICK)
    def turn_is_dropped(self, pick: int) -> None:
        turn = list(self.asked)[pick % len(self.asked)]
        self.lost[turn] = self.asked.pop(turn)
        self.episode.drop(turn)

    @precondition(lambda self: self.lost)
    @rule(pick=PICK, tokens=TOKENS)
    def late_result_comes(self, pick: int, tokens: tuple[int, ...]) -> None:
        turn = list(self.lost)[pick % len(self.lost)]
        assert self.episode.commit(turn, tokens, (-0.5,) * len(tokens), self.version, STOP) == ()

    @rule()
    def process_restarts(self) -> None:
        last = max((*self.seen, *self.asked, *self.lost), default=ROOT)
        self.lost |= self.asked
        self.asked = {}
        self.requested_tokens = 0
        self.episode = Episode(self.rules, 0.0, self.journal, last)
        self.seen = {id: node for id, node in self.seen.items() if id in self.episode.nodes}

    @rule()
    def weights_change(self) -> None:
        self.version += 1

    # --- what holds ---

    @invariant()
    def what_is_trained_on_was_emitted_and_is_trained_on_once(self) -> None:
        found = []
        for one in training_sequences(self.episode.tree):
            tokens, place = one.token_ids, 0
            assert sum(one.loss_mask) == sum(len(span.node.token_ids) for span in one.spans)
            for span in one.spans:
                place += len(span.given)
                node, end = span.node, place + len(span.node.token_ids)
                assert node.version is not None
                assert one.loss_mask[place - len(span.given) : end] == [False] * len(span.given) + [True] * (
                    end - place
                )
                prompt, sampled = packed(tokens[:place]), packed(tokens[place:end])
                found.append(Emission(prompt, sampled, packed_logprobs(node.logprobs), node.version))
                place = end
        assert sorted(found, key=str) == sorted(self.engine.committed, key=str)

    @invariant()
    def no_node_ever_changes(self) -> None:
        for id, node in self.seen.items():
            assert self.episode.nodes[id] == node
        self.seen = dict(self.episode.nodes)

    @invariant()
    def limits_hold(self) -> None:
        limits, stats = self.rules.limits, self.episode.stats
        assert limits.turns is None or stats.turns <= limits.turns
        assert limits.forks is None or stats.forks <= limits.forks
        assert stats.turns == len(self.episode.sampled) + len(self.episode.open_turns)
        assert stats.tokens == sum(len(node.token_ids) for node in self.episode.nodes.values())
        versions = {node.version for node in self.episode.sampled}
        assert self.rules.versions is Versions.MIXED or len(versions) <= 1
        if limits.tokens is not None:
            assert all(len(self.path_of(node)) <= limits.tokens for node in self.episode.nodes)
        assert all(not self.episode.tree.children(node.id) for node in self.episode.sampled if node.is_cut)

    @invariant()
    def requests_cost_their_own_tokens(self) -> None:
        work = self.episode.tree.work
        assert work.tokens == self.requested_tokens
        assert work.lookups <= work.tokens

    def teardown(self) -> None:
        if not hasattr(self, "episode"):
            return
        reached, sampled = self.episode.truncated_by, self.episode.sampled
        end = self.episode.complete()
        state = EndState.COMPLETED if reached is None else EndState.TRUNCATED
        assert end.state is (state if sampled else EndState.ABORTED)
        assert end.limit == (reached if sampled else None)
        for turn in (*self.asked, *self.lost):
            assert self.episode.commit(turn, (1,), (-0.5,), self.version, STOP) == ()
        assert self.episode.sampled == sampled

    # --- parts ---

    def ask(self, tokens: tuple[int, ...]) -> None:
        request = TurnRequest(tokens, str(tokens))
        assert not isinstance(self.decide(request), Recorded | InProgress), "only a retry gets a former turn"

    def decide(self, request: TurnRequest) -> Generate | InProgress | Recorded | Refused:
        """Open the request; check its place against a search of all paths."""
        paths = {id: self.path_of(id) for id, node in self.episode.nodes.items() if not node.is_cut}
        fits = [id for id, path in paths.items() if path == request.token_ids[: len(path)]]
        deepest = max(fits, key=lambda id: (len(paths[id]), -id), default=ROOT)
        attached = self.episode.tree.work.tokens
        decision = self.episode.open(request, self.now, self.version)
        self.requested_tokens += self.episode.tree.work.tokens - attached
        assert self.episode.tree.work.tokens - attached in (0, len(request.token_ids))
        if isinstance(decision, Generate):
            turn = decision.turn
            assert self.path_of(turn.parent) == request.token_ids
            added = self.episode.nodes[turn.parent].parent if turn.parent not in paths else turn.parent
            assert added == deepest
            self.asked[turn.id] = request
            self.requests.append(request)
        return decision

    def path_of(self, node: int) -> tuple[int, ...]:
        return tuple(token for one in self.episode.tree.path(node) for token in one.token_ids)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=examples(60), stateful_step_count=30)
