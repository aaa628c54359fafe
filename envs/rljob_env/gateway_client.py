"""Gateway client: leases, heartbeats and reports, sent again while the gateway is away."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import httpx

from rljob_env.episode import Assignment, Attempt, ExecutedCall, Json, Report
from rljob_env.failures import EpisodeOver, GatewayAway, GatewayRefused
from rljob_env.retrying import answered, error_of

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 15.0
"""Longest time of an answer, beyond what the gateway is asked to wait."""


@dataclass
class ClientStats:
    """Totals of a client."""

    sent_again: int = 0
    """Requests that were sent again after a failure."""


class GatewayClient:
    """One runner's requests. `patience_seconds`: for so long a request is sent again."""

    def __init__(
        self, http: httpx.AsyncClient, url: str, key: str, runner: str, wait_seconds: float, patience_seconds: float
    ) -> None:
        self.stats = ClientStats()
        self._http = http
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"}
        self._runner = runner
        self._wait_seconds = wait_seconds
        self._patience_seconds = patience_seconds
        self._takes_seconds = True
        """Whether the gateway takes the seconds of calls."""

    async def lease(self, most: int) -> list[Assignment]:
        """Return attempts to run, `most` at most; none if there was none for the time of a wait."""
        body: Json = {"waitSeconds": self._wait_seconds, "most": most, "journals": True}
        response = await self._send_again("lease", body, self._wait_seconds)
        if response.status_code == 204:
            return []
        try:
            now = time.monotonic()
            return [Assignment.parse(one, now) for one in response.json()["assignments"]]
        except (ValueError, KeyError, TypeError) as error:
            raise GatewayRefused(f"{self._url} answers no assignments ({error!r}): {response.text[:200]}") from error

    async def heartbeat(self, attempts: Iterable[Attempt]) -> list[Attempt]:
        """Say that the runner lives. Return the attempts to stop. It is sent once: the next one says the same."""
        body: Json = {"episodes": [attempt.as_json() for attempt in attempts]}
        response = await self._send("heartbeat", body, 0.0)
        if response.status_code != 200:
            raise GatewayAway(error_of(response)[1])
        return [Attempt.parse(one) for one in response.json()["stop"]]

    async def called(self, attempt: Attempt, call: ExecutedCall) -> None:
        """Report an executed call; return when it is stored. Raises `EpisodeOver` if the attempt has ended, or ends."""
        said = {"call": call.id, "name": call.name, "arguments": call.arguments, "observation": call.observation}
        body, seconds = attempt.as_json() | said, {"seconds": call.seconds} if self._takes_seconds else {}
        try:
            await self._send_again("call", body | seconds, 0.0)
        except GatewayRefused:
            if not seconds:
                raise
            # A gateway before calls had seconds lives as long as its coordinator's pod.
            await self._send_again("call", body, 0.0)
            self._takes_seconds = False

    async def done(self, attempt: Attempt, report: Report) -> None:
        """Report the end of an attempt. Raises `EpisodeOver` if it had ended without this runner."""
        await self._send_again("done", attempt.as_json() | report.as_json(), 0.0)

    async def _send_again(self, route: str, body: Json, wait: float) -> httpx.Response:
        """Send a request until the gateway answers it, or patience ends."""
        since = time.monotonic()

        def bound(seconds: float, why: str) -> None:
            if time.monotonic() - since + seconds > self._patience_seconds:
                raise GatewayAway(f"{self._url} did not answer for {self._patience_seconds:g} s: {why}")
            self.stats.sent_again += 1

        response = await answered(lambda tries: self._send(route, body, wait), bound)
        return _accepted(response, f"{self._url}/env/{route}")

    async def _send(self, route: str, body: Json, wait: float) -> httpx.Response:
        timeout = httpx.Timeout(wait + ANSWER_SECONDS, connect=CONNECT_SECONDS)
        content = {"runner": self._runner, **body}
        return await self._http.post(f"{self._url}/env/{route}", json=content, headers=self._headers, timeout=timeout)


def _accepted(response: httpx.Response, where: str) -> httpx.Response:
    if response.status_code == 410:
        raise EpisodeOver(error_of(response)[1])
    if response.status_code not in (200, 204):
        raise GatewayRefused(f"{where}: {error_of(response)[1]}")
    return response
