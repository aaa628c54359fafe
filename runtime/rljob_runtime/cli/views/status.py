"""Status view: a job's status in a terminal, for `rljob run` and `rljob status`."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rljob_api.status import RLJobStatus, RoundKind, RuntimeStatus
from rljob_runtime.cli.views.episodes import episode_rows
from rljob_runtime.cli.views.evaluations import evaluation_summary
from rljob_runtime.cli.views.switches import switch_lines, switches_summary, why_not
from rljob_runtime.cli.views.training import training_summary

_STATE_STYLES = {"True": "green", "False": "yellow", "Unknown": "dim"}


def job_view(name: str, status: RLJobStatus, rounds: int) -> RenderableType:
    """Draw the complete status: phase, conditions by type, and the runtime's part."""
    head = Text.assemble((name, "bold"), "  ", (status.phase or "Pending", "cyan"))
    conditions = Table(box=None, show_header=False, padding=(0, 1))
    for condition in status.conditions:
        conditions.add_row(
            condition.type,
            Text(condition.status, style=_STATE_STYLES.get(condition.status, "")),
            condition.reason or "",
            condition.message or "",
        )
    parts: list[RenderableType] = [head, conditions]
    if status.runtime is not None:
        parts.append(runtime_view(status.runtime, rounds))
    return Group(*parts)


def runtime_view(runtime: RuntimeStatus, rounds: int) -> RenderableType:
    """Draw the coordinator's report: round, stage, reward, speed, weights."""
    done = runtime.round or 0
    bar = Table.grid(padding=(0, 1))
    bar.add_row("round", ProgressBar(total=max(rounds, 1), completed=done, width=40), f"{done}/{rounds}")
    facts = Table(box=None, show_header=False, padding=(0, 1))
    rows: list[tuple[str, object]] = [
        ("stage", runtime.stage),
        ("kind", runtime.kind if runtime.kind is not RoundKind.PLAIN else None),
        ("deferred prompts", runtime.deferred_prompts or None),
        ("reward", _number(runtime.reward)),
        ("update", training_summary(runtime.last_round) if runtime.last_round is not None else None),
        ("tokens/s", _number(runtime.tokens_per_second)),
        ("KV use", _number(runtime.kv_cache_use)),
        ("preemptions", runtime.preemptions),
        ("sizes", switches_summary(runtime.last_round) if runtime.last_round is not None else None),
        ("weights", runtime.weight_version),
    ]
    if runtime.last_round is not None and runtime.last_round.episodes is not None:
        rows += episode_rows(runtime.last_round.episodes, runtime.last_round.idle_environments)
    rows += [(f"evaluation {report.name}", evaluation_summary(report)) for report in runtime.evaluations]
    if (last := runtime.last_round) is not None:
        rows += [("switch", line) for line in switch_lines(last)]
        rows += [("no switch", why_not(last))]
    rows += [(warning.reason, warning.message) for warning in runtime.warnings]
    for label, value in rows:
        if value is not None:
            facts.add_row(label, str(value))
    return Group(bar, facts)


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.3g}"
