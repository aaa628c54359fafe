"""Status cadence: decides when the coordinator writes `status.runtime`.

Events are written immediately, changes at most every few seconds, equal values never. Every write costs the API server,
and a raised `event` costs a reconcile of the operator; 1,000 jobs report continuously.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rljob_api.status import RuntimeStatus

CHANGE_SECONDS = 5.0
PROGRESS_SECONDS = 30.0

# These change continuously, and no decision depends on them.
PROGRESS_FIELDS = ("progress", "kv_cache_use", "tokens_per_second", "preemptions", "buffer", "in_flight")


@dataclass(frozen=True)
class Reported:
    """The API server's copy: the last status written, and when (seconds of any monotonic clock)."""

    status: RuntimeStatus | None = None
    at: float = float("-inf")


# Fields that stay valid when the coordinator is replaced. The others belong to the coordinator that observed them.
LASTING_FIELDS = frozenset(
    {
        "event",
        "round",
        "rounds",
        "reward",
        "reward_first",
        "reward_last",
        "weight_version",
        "deferred_prompts",
        "relay",
        "last_round",
        "totals",
        "checkpoint",
        "model_path",
        "best_model",
        "evaluations",
        "finished",
    }
)


def resumed_status(before: RuntimeStatus, term: int) -> RuntimeStatus:
    """Return the first status of a coordinator that replaces the one that reported `before`."""
    lasting = before.model_dump(include=set(LASTING_FIELDS))
    return RuntimeStatus.model_validate({**lasting, "term": term, "stage": "Starting"})


def seconds_until_report(reported: Reported, draft: RuntimeStatus, now: float) -> float | None:
    """Return the seconds until `draft` should be written: 0 for immediately, None for never (nothing new).

    A draft with a raised `event` is an event. The caller raises it at boundaries, failures and acknowledgements."""
    last = reported.status
    if last is None or draft.event != last.event or draft.term != last.term:
        return 0.0
    if draft == last:
        return None
    only_progress = _without_progress(draft) == _without_progress(last)
    interval = PROGRESS_SECONDS if only_progress else CHANGE_SECONDS
    return max(0.0, reported.at + interval - now)


def _without_progress(status: RuntimeStatus) -> RuntimeStatus:
    return status.model_copy(update=dict.fromkeys(PROGRESS_FIELDS))


def reward_ends(count: int, total: Callable[[int], float]) -> tuple[float | None, float | None]:
    """Return the mean reward of the first and of the last fifth of `count` rounds, at least one round each.

    `total(n)`: the sum of the first n rounds' rewards."""
    if count == 0:
        return None, None
    fifth = max(1, count // 5)
    return rounded(total(fifth) / fifth), rounded((total(count) - total(count - fifth)) / fifth)


def rounded(mean: float) -> float:
    """Round to four significant digits, for display.

    >>> rounded(1 / 3), rounded(0.00012345678)
    (0.3333, 0.0001235)
    """
    return float(f"{mean:.4g}")
