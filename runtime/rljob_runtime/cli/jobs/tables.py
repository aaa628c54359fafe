"""Job tables: objects of a cluster, as plain rows of text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from rljob_api.constants import LABEL_INCARNATION, LABEL_MACHINE, LABEL_ROLE

Json = Mapping[str, Any]
Row = tuple[str, ...]
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def job_rows(jobs: Iterable[Json], now: datetime, with_namespace: bool) -> list[Row]:
    """Return a header and a row for each RLJob, by namespace and name. A value that a job does not have is empty."""
    header = ("NAME", "PHASE", "ROUND", "REWARD", "MACHINES", "AGE")
    rows: list[Row] = [("NAMESPACE", *header) if with_namespace else header]
    for job in sorted(jobs, key=lambda one: (one["metadata"].get("namespace", ""), one["metadata"]["name"])):
        meta, status = job["metadata"], job.get("status") or {}
        runtime, rollout = status.get("runtime") or {}, status.get("rollout") or {}
        reward = runtime.get("reward")
        row = (
            meta["name"],
            str(status.get("phase") or "Pending"),
            f"{runtime.get('round') or 0}/{job['spec'].get('rounds')}",
            "" if reward is None else f"{reward:.3g}",
            f"{rollout.get('ready') or 0}/{rollout.get('desired') or 0}",
            age(meta.get("creationTimestamp"), now),
        )
        rows.append((meta.get("namespace", ""), *row) if with_namespace else row)
    return rows


def event_rows(events: Iterable[Json], job: str, now: datetime) -> list[Row]:
    """Return a header and a row for each event of the job or of its pods, the newest last."""
    mine = [event for event in events if _is_of(event.get("involvedObject") or event.get("regarding") or {}, job)]
    rows: list[Row] = [("AGE", "TYPE", "REASON", "OBJECT", "MESSAGE")]
    for event in sorted(mine, key=_last):
        target = event.get("involvedObject") or event.get("regarding") or {}
        count = event.get("count") or (event.get("series") or {}).get("count") or 1
        message = " ".join(str(event.get("message") or event.get("note") or "").split())
        rows.append(
            (
                age(_last(event), now) + (f" (x{count})" if count > 1 else ""),
                str(event.get("type") or ""),
                str(event.get("reason") or ""),
                f"{str(target.get('kind', '')).lower()}/{target.get('name', '')}",
                message,
            )
        )
    return rows


def _is_of(target: Json, job: str) -> bool:
    name = str(target.get("name") or "")
    roles = tuple(f"{job}-{role}-" for role in ("coordinator", "trainer", "rollout"))
    return name == job if target.get("kind") == "RLJob" else name.startswith(roles)


def _last(event: Json) -> str:
    series = event.get("series") or {}
    when = series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime")
    return str(when or event["metadata"].get("creationTimestamp") or "")


def newest_pods(pods: Iterable[Json]) -> list[Json]:
    """Return the newest pod of each machine, by role and machine."""
    newest: dict[tuple[str, str], Json] = {}
    for pod in pods:
        labels = pod["metadata"].get("labels") or {}
        key = labels.get(LABEL_ROLE, ""), labels.get(LABEL_MACHINE, pod["metadata"]["name"])
        if key not in newest or _incarnation(pod) > _incarnation(newest[key]):
            newest[key] = pod
    return [newest[key] for key in sorted(newest)]


def _incarnation(pod: Json) -> int:
    text = (pod["metadata"].get("labels") or {}).get(LABEL_INCARNATION, "0")
    return int(text) if text.isdecimal() else 0


def age(timestamp: str | None, now: datetime) -> str:
    """Return how long ago a timestamp is, in its largest unit, as kubectl shows it; empty for none."""
    if not timestamp:
        return ""
    seconds = max(0, int((now - datetime.fromisoformat(timestamp)).total_seconds()))
    size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), _UNITS[-1])
    return f"{seconds // size}{unit}"


def aligned(rows: Sequence[Row]) -> list[str]:
    """Return rows as lines with aligned columns. The last column keeps its length."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
        for row in rows
    ]
