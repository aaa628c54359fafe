"""Restore: an attempt as a former coordinator stored it."""

from __future__ import annotations

from collections.abc import Sequence

from rljob_runtime.coordinator.episodes.attempt import Attempt
from rljob_runtime.coordinator.store.tables.turns import KeptEpisode
from rljob_runtime.protocols.environments import EpisodeReport
from rljob_runtime.protocols.trajectory import PromptKey
from rljob_runtime.protocols.turns import EpisodeAttempt, RecordedTurn
from rljob_runtime.scheduling.episodes.ends import AbortCause
from rljob_runtime.scheduling.episodes.episode import Episode, EpisodeRules
from rljob_runtime.scheduling.episodes.resumption import ToolJournal


def rules_of(prompt: PromptKey, rules: EpisodeRules) -> EpisodeRules:
    """Return the rules of a prompt's attempts. `rules`: those of its environment."""
    return rules if prompt.evaluation is None else rules.of_evaluation


def restored(kept: KeptEpisode, recorded: Sequence[RecordedTurn], rules: EpisodeRules, now: float) -> Attempt:
    """Return the attempt at a moment. It has no holder, and no turn of it is open."""
    episode = Episode(rules_of(kept.key.prompt, rules), kept.started, kept.nodes, kept.last_node_id)
    number = EpisodeAttempt(kept.key, kept.number, kept.resumption or 0)
    attempt = Attempt(number, kept.environment, kept.version, episode, journals=kept.resumption is not None)
    attempt.calls = ToolJournal(rules.recovery, kept.calls)
    attempt.tools = [one.span for one in kept.calls if one.span is not None]
    attempt.pauses = list(kept.pauses)
    if kept.end is None:
        # How long after its last stored event the former coordinator still answered is not known.
        last = max([kept.started, *(one.until for one in kept.pauses), *(one.stored_at for one in recorded)])
        attempt.outage = max(0.0, now - last)
    attempt.count_limit()
    if attempt.reruns and number.resumption:
        # What ended its former runner is not stored.
        repeated = [node for node, resumption in kept.asked_by.items() if resumption == number.resumption]
        episode.run_again(AbortCause.ENVIRONMENT, repeated)
    # The limit that a harness states is stored with the end alone.
    episode.truncated_by = kept.refusing or (kept.end.limit if kept.end is not None else None)
    turns = {one.node: one for one in recorded}
    for node in kept.nodes:
        if node.is_sampled:
            attempt.record(turns[node.id], kept.spans.get(node.id))
    if kept.end is not None:
        episode.end, attempt.ended_at = kept.end, kept.ended
        attempt.report = EpisodeReport(reward=kept.reward, metrics=kept.metrics, answer=kept.answer)
        attempt.stored.set()
    return attempt
