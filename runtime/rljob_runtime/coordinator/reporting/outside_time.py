"""Outside time: what the reports of rounds say of the time that their episodes spent outside of the engines."""

from __future__ import annotations

from collections.abc import Iterable

from rljob_api.status import RoundReport
from rljob_runtime.perf_model.outside_time import INSIDE, OutsideTime


def outside_time(reports: Iterable[RoundReport]) -> OutsideTime:
    """Return the mean over the episodes of these rounds; nothing outside where responses had one turn.

    Episodes are those that were trained on. Time in an engine's queue counts as inside."""
    outside = inside = by_tokens = 0.0
    responses = tokens = 0
    for report in reports:
        episodes, count = report.episodes, report.responses or 0
        if episodes is None or episodes.model_seconds is None or episodes.outside_seconds is None:
            continue
        sampled = episodes.sampled_tokens or 0
        outside += count * episodes.outside_seconds
        inside += count * episodes.model_seconds
        by_tokens += sampled * (episodes.outside_token_seconds or 0.0)
        responses, tokens = responses + count, tokens + sampled
    if not tokens or not responses or inside <= 0:
        return INSIDE
    return OutsideTime(by_tokens / tokens, inside / (outside + inside), max(0.0, outside - by_tokens) / responses)
