"""Responses: episodes in the form in which groups are trained on.

An episode is one response of its prompt's group, with one reward. Its sampled tokens are the response's tokens, and its
sequences say what was given between them. An episode of one turn is the response that it would be without turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os.path import commonprefix

from rljob_runtime.protocols.trajectory import (
    FinishReason,
    Group,
    PromptKey,
    Response,
    ScoredResponse,
    Span,
    TrajectoryKey,
)
from rljob_runtime.scheduling.episodes.ends import EndState
from rljob_runtime.scheduling.episodes.episode import Episode
from rljob_runtime.scheduling.episodes.node import last_answer
from rljob_runtime.scheduling.episodes.sequences import TrainingSequence, training_sequences


@dataclass(frozen=True)
class ScoredEpisode:
    """A completed or truncated attempt with its reward. `holder`: who had its lease."""

    key: TrajectoryKey
    attempt: int
    holder: str
    episode: Episode
    reward: float


def group_of(prompt: PromptKey, episodes: Sequence[ScoredEpisode]) -> Group:
    """Return the group of these episodes; its prompt is what all of their sequences begin with.

    Raises `ValueError` for an episode that has not ended, or was aborted: a failure of ours is no answer.
    """
    for one in episodes:
        if one.episode.end is None or one.episode.end.state is EndState.ABORTED:
            raise ValueError(f"episode {one.key} was not completed, so it cannot be trained on")
    sequences = [training_sequences(one.episode.tree) for one in episodes]
    shared = _shared_beginning(one for found in sequences for one in found)
    scored = (
        ScoredResponse(_response_of(one, found, len(shared)), one.reward)
        for one, found in zip(episodes, sequences, strict=True)
    )
    return Group(prompt, shared, tuple(scored))


def _shared_beginning(sequences: Iterable[TrainingSequence]) -> tuple[int, ...]:
    """Return the longest given tokens that all sequences begin with."""
    return tuple(commonprefix([tuple(one.spans[0].given) for one in sequences]))


def _response_of(scored: ScoredEpisode, sequences: Sequence[TrainingSequence], shared: int) -> Response:
    nodes = [span.node for one in sequences for span in one.spans]
    episode = scored.episode
    is_cut = episode.truncated_by is not None or last_answer(episode.nodes).is_cut
    return Response(
        key=scored.key,
        attempt=scored.attempt,
        weight_version=min(node.version for node in nodes if node.version is not None),
        token_ids=tuple(token for node in nodes for token in node.token_ids),
        logprobs=tuple(logprob for node in nodes for logprob in node.logprobs),
        finish_reason=FinishReason.LENGTH if is_cut else FinishReason.STOP,
        replica=scored.holder,
        sequences=_places(sequences, shared),
    )


def _places(sequences: Sequence[TrainingSequence], shared: int) -> tuple[tuple[Span, ...], ...]:
    """Return where the tokens stand after the shared ones; nothing for one span directly after them."""
    places = []
    for one in sequences:
        first, *others = (Span(tuple(span.given), len(span.node.token_ids)) for span in one.spans)
        places.append((Span(first.given[shared:], first.sampled), *others))
    plain = len(places) == 1 and len(places[0]) == 1 and not places[0][0].given
    return () if plain else tuple(places)
