"""Episodes for tests of the store: nodes, and rounds and updates that were trained on their responses."""

from __future__ import annotations

from collections.abc import Mapping

from rljob_api.status import RoundKind
from rljob_runtime.coordinator.store.records import Boundary, Pool, Tokens
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.coordinator.store.tables.turns import KeptEpisode
from rljob_runtime.coordinator.store.trained_digests import trained_digests
from rljob_runtime.protocols.trajectory import Cursor, FinishReason, Lease, PromptKey, Response, TrajectoryKey
from rljob_runtime.scheduling.episodes.ends import AbortCause, EndState, EpisodeEnd
from rljob_runtime.scheduling.episodes.episode import Episode, EpisodeRules
from rljob_runtime.scheduling.episodes.node import Node, NodeKind
from rljob_runtime.scheduling.episodes.responses import ScoredEpisode, group_of
from rljob_runtime.scheduling.round_plan import PromptOutcome, RoundOutcome, RoundPlan, RoundRules, RoundShape
from tests.support.episodes import STOP

COMPLETED = EpisodeEnd(EndState.COMPLETED)
ABORTED = EpisodeEnd(EndState.ABORTED, cause=AbortCause.TOOL_SERVER, detail="it is gone")
CURSOR = Cursor(0, 9)


def given(number: int, parent: int, *tokens: int) -> Node:
    """Return a given node."""
    return Node(number, parent, NodeKind.GIVEN, tokens)


def sampled(number: int, parent: int, *tokens: int, version: int = 1, finish: FinishReason = STOP) -> Node:
    """Return a sampled node, whose log-probabilities no float32 has exactly."""
    logprobs = tuple(-0.1 * token for token in tokens)
    return Node(number, parent, NodeKind.SAMPLED, tokens, logprobs, version, f"digest-{number}", finish)


def two_turns(version: int) -> list[list[Node]]:
    """Return the nodes of an episode's two commits: tokens 3, and 5 and 6, are sampled."""
    return [
        [given(1, 0, 1), sampled(2, 1, 3, version=version)],
        [given(3, 2, 4), sampled(4, 3, 5, 6, version=version)],
    ]


def open_round(
    store: Store, step: int, *prompts: PromptKey, version: int | None = None, cursor: Cursor = CURSOR
) -> RoundPlan:
    """Open a round of one response a prompt."""
    version = version or step
    store.versions.publish(version, step - 1)
    shape = RoundShape(RoundKind.PLAIN, len(prompts), 1, len(prompts), 1)
    plan = RoundPlan(step, version, shape, prompts, RoundRules())
    store.rounds.open(plan, cursor)
    return plan


def generate(store: Store, plan: RoundPlan, key: TrajectoryKey, end: EpisodeEnd = COMPLETED) -> int:
    """Play an attempt of two turns; the response has the sampled tokens in the order of their commits."""
    number = store.turns.begin(key, plan.version, 0.0, "calc")
    start = 0
    for nodes in two_turns(plan.version):
        store.turns.commit(number, nodes, b"{}", 1.0)
        store.trajectories.append(plan.step, [Tokens(key, start, nodes[1].token_ids, nodes[1].logprobs)])
        start += len(nodes[1].token_ids)
    store.turns.end(number, end, 2.0, None if end is ABORTED else 1.0)
    return number


def settle(store: Store, plan: RoundPlan, requeued: tuple[PromptKey, ...] = (), cursor: Cursor = CURSOR) -> None:
    """Train on the responses of a round, but for those of `requeued`, and close it."""
    keys = tuple(key for key in plan.trajectories() if key.prompt not in requeued)
    store.trajectories.launched(plan.step, plan.version, [(key, Lease("rollout-0", 1)) for key in keys])
    done = [Response(key, 1, plan.version, (), (), STOP, "rollout-0") for key in keys]
    store.trajectories.finish(plan.step, [], done)
    for key in keys:
        store.trajectories.score(plan.step, key, 1.0)
    store.trajectories.assign(plan.step, keys)
    outcomes = {one: PromptOutcome.REQUEUED if one in requeued else PromptOutcome.TRAINED for one in plan.prompts}
    outcome = RoundOutcome(plan.prompts, outcomes, dict.fromkeys(requeued, "LongPrompt"), keys)
    store.rounds.close(outcome, Boundary(plan.step, cursor, queue=requeued), trained=digests(store, *keys))


def digests(store: Store, *keys: TrajectoryKey) -> Mapping[TrajectoryKey, bytes]:
    """Return what the trainer got of these responses: their newest attempts as groups, with a reward of 1.

    An attempt without a good end has a digest too, of nothing.
    """
    kept = [one for one in store.turns.newest(keys).values() if one.end is not None and one.end != ABORTED]
    trained = trained_digests([group_of(one.key.prompt, [_scored(one)]) for one in kept])
    return dict.fromkeys(keys, b"") | dict(trained)


def _scored(kept: KeptEpisode) -> ScoredEpisode:
    episode = Episode(EpisodeRules(), kept.started, kept.nodes, kept.last_node_id)
    episode.end = kept.end
    return ScoredEpisode(kept.key, 1, "rollout-0", episode, 1.0)


def play_round(store: Store, step: int, *prompts: PromptKey) -> None:
    """Play a round whose responses are episodes."""
    plan = open_round(store, step, *prompts)
    for key in plan.trajectories():
        generate(store, plan, key)
    settle(store, plan)


def begin_asynchronous(store: Store, *prompts: PromptKey) -> None:
    """Begin a job of mode Asynchronous that has drawn these prompts, with one response each."""
    store.start_at(Boundary(0, Cursor()), pool=Pool())
    store.versions.publish(1, 0)
    store.experience.draw(prompts, Cursor(0, len(prompts)), 1, "rollout-0", 1)


def collect(store: Store, key: TrajectoryKey) -> int:
    """Play an attempt of two turns, and score it."""
    number = store.turns.begin(key, 1, 0.0, "calc")
    start = 0
    for nodes in two_turns(1):
        store.turns.commit(number, nodes, b"{}", 1.0)
        store.experience.append([Tokens(key, start, nodes[1].token_ids, nodes[1].logprobs)])
        start += len(nodes[1].token_ids)
    store.turns.end(number, COMPLETED, 2.0, 1.0)
    store.experience.finish([], [Response(key, 1, 1, (), (), STOP, "rollout-0")])
    store.experience.score([(key, 1.0)])
    return number


def update(store: Store, step: int, *prompts: PromptKey) -> None:
    """Train on the groups of these prompts."""
    store.experience.assign(step, prompts)
    newest = store.experience.cursor()
    keys = [TrajectoryKey(prompt, 0) for prompt in prompts]
    store.experience.close_update(Boundary(step, newest), trained=digests(store, *keys))
