"""Episodes view: the last round's episodes in a few lines of a status."""

from __future__ import annotations

from rljob_api.status import EpisodesReport

_LIMITS = ("turns", "tokens", "seconds", "forks")
_TOLD_IDLE = 0.05
"""Share of the replicas' time above which their wait for environments is shown."""
_TOLD_WAIT = 0.5
"""Mean seconds above which the wait for a runner is shown."""


def episode_rows(report: EpisodesReport, idle: float | None = None) -> list[tuple[str, object]]:
    """Return rows of a status: turns and seconds always, what went wrong if something did.

    `idle`: the share of the replicas' time in which they waited for environments."""
    rows: list[tuple[str, object]] = []
    if report.turns_mean is not None:
        rows.append(("turns", f"{report.turns_mean:.3g}, at most {report.turns_p99} in 99 %"))
    if report.outside_seconds is not None and report.model_seconds is not None:
        text = f"{report.model_seconds:.3g} s in the model, {report.outside_seconds:.3g} s outside"
        rows.append(("episode", text))
    if told_idle(idle):
        rows.append(("engines", f"{idle:.0%} of their time wait for environments"))
    if report.prefix_hit_share is not None:
        rows.append(("prefix hits", f"{report.prefix_hit_share:.0%} of the prompts of later turns"))
    cut = {limit: getattr(report, f"truncated_by_{limit}") for limit in _LIMITS}
    if any(cut.values()):
        rows.append(("cut at", ", ".join(f"{limit} {share:.0%}" for limit, share in cut.items() if share)))
    waited = [one for one in report.environments or () if (one.wait_seconds or 0) > _TOLD_WAIT]
    if waited:
        text = ", ".join(f"{one.name} {one.wait_seconds:.3g} s (most open: {one.most_open})" for one in waited)
        rows.append(("for a runner", text))
    if report.failed_attempts:
        rows.append(("failed", ", ".join(f"{one.part} {one.attempts}" for one in report.failed_attempts)))
    if report.reencoded_tokens:
        rows.append(("re-encoded", f"{report.reencoded_tokens} tokens; 0 would be right"))
    if report.fake_zeros:
        rows.append(("fake zeros", f"{report.fake_zeros} responses; 0 would be right"))
    if report.differing_traces:
        text = f"{report.differing_traces} attempts differ from the stored turns; the coordinator's log says how"
        rows.append(("traces", text))
    return rows


def told_idle(idle: float | None) -> bool:
    """Whether replicas waited so long for environments that it is shown. `idle`: the share of their time."""
    return idle is not None and idle > _TOLD_IDLE
