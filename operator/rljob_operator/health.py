"""Health: liveness and readiness.

It detects what kopf's own probe does not: a stuck worker, a silent watch, no resync.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic

from aiohttp import web

from rljob_operator.metrics import Metrics
from rljob_operator.readers.observer import Key


@dataclass(frozen=True)
class Limits:
    """Seconds after which a part counts as stuck."""

    queue: float = 300.0
    resync: float = 1200.0
    watch: float = 120.0


class WatchLag:
    """Difference between what the watch has shown and what a LIST shows.

    A stream that delivers nothing looks healthy. A listed version that the watch does not show in time reveals it.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._behind: dict[Key, tuple[str, float]] = {}

    def listed(self, listed: Mapping[Key, str], shown: Mapping[Key, str]) -> None:
        """Record the listed versions, and the newest versions of the watch."""
        now = self._clock()
        late = {key: shown.get(key, "") for key, version in listed.items() if _older(shown.get(key, ""), version)}
        self._behind = {
            key: self._behind[key] if key in self._behind and self._behind[key][0] == version else (version, now)
            for key, version in late.items()
        }

    def check(self, shown: Mapping[Key, str]) -> float:
        """Return for how many seconds an event of the watch is overdue; 0 when none is."""
        now = self._clock()
        self._behind = {k: (v, since) for k, (v, since) in self._behind.items() if shown.get(k, "") == v}
        return max((now - since for _, since in self._behind.values()), default=0.0)


def _older(shown: str, listed: str) -> bool:
    if shown.isdigit() and listed.isdigit():
        return int(shown) < int(listed)
    return shown != listed


class Health:
    """State behind /healthz and /readyz."""

    def __init__(self, metrics: Metrics, limits: Limits | None = None, clock: Callable[[], float] = monotonic) -> None:
        self._metrics = metrics
        self._limits = limits or Limits()
        self._clock = clock
        self._started = clock()
        self.resynced: float | None = None
        self.queue_seconds: Callable[[], float] = lambda: 0.0
        self.queue_depth: Callable[[], int] = lambda: 0
        self.watch_seconds: Callable[[], float] = lambda: 0.0
        self.standby = True
        """Another replica leads: nothing can be stuck here."""
        self.problem: str | None = "starting"
        """Why the operator is not ready to serve; None when it is."""

    def resync_age(self) -> float:
        """Return the seconds since the last complete resync, or since the start."""
        return self._clock() - (self._started if self.resynced is None else self.resynced)

    def stuck(self) -> str | None:
        """Name the stuck part, or return None."""
        if self.standby:
            return None
        for what, age, limit in (
            ("the queue's oldest entry", self.queue_seconds(), self._limits.queue),
            ("the last resync", self.resync_age(), self._limits.resync),
            ("an overdue event of the watch", self.watch_seconds(), self._limits.watch),
        ):
            if age > limit:
                return f"{what} is {age:.0f} s old, more than {limit:.0f} s"
        return None

    def application(self) -> web.Application:
        """Make the HTTP endpoints: /healthz, /readyz, /metrics."""

        async def healthz(_: web.Request) -> web.Response:
            stuck = self.stuck()
            return web.Response(text=stuck or "ok", status=200 if stuck is None else 503)

        async def readyz(_: web.Request) -> web.Response:
            why = self.problem or ("standby" if self.standby else "leading")
            return web.Response(text=why, status=200 if self.problem is None else 503)

        async def metrics(_: web.Request) -> web.Response:
            self._metrics.queue_depth.set(self.queue_depth())
            self._metrics.queue_oldest.set(self.queue_seconds())
            self._metrics.resync_age.set(self.resync_age())
            return web.Response(body=self._metrics.render(), content_type="text/plain", charset="utf-8")

        app = web.Application()
        app.router.add_get("/healthz", healthz)
        app.router.add_get("/readyz", readyz)
        app.router.add_get("/metrics", metrics)
        return app
