"""Sample server: the routes by which `rljob samples JOB` reads a job in a cluster, through the API server's pod proxy.

The health port is open to every client of the cluster network, and samples hold prompts and answers. So a request
carries a key that is derived from the job's Secret: a user who may read that Secret may read the samples. The routes
only read, and each answer is bounded."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from rljob_api.constants import SAMPLES_KEY_HEADER, samples_key
from rljob_runtime.coordinator.core.async_utils import in_daemon_thread
from rljob_runtime.samples import SampleFolder

MOST_BYTES = 4 << 20
"""Bytes in an answer, but one line at least."""
ANSWER_SECONDS = 8.0
"""Longest wait for the volume."""
AT_ONCE = 2
"""Requests that read the volume concurrently; further ones are refused."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def sample_routes(folder: Path, key: bytes) -> list[web.RouteDef]:
    """Return the routes. `folder`: the job's. `key`: its relay key.

    `/samples` lists the rounds; `/samples/ROUND/OFFSET` and `/rounds/OFFSET` return lines of a file from a byte on, and
    nothing at its end."""
    samples, reported, expected = SampleFolder(folder), folder / "rounds.jsonl", samples_key(key)
    reading = 0

    async def answer(request: web.Request, read: Callable[[], bytes]) -> web.Response:
        nonlocal reading
        given = request.headers.get(SAMPLES_KEY_HEADER, "")
        if not hmac.compare_digest(given.encode(), expected.encode()):
            return web.Response(status=403, text=f"header {SAMPLES_KEY_HEADER} is missing or wrong\n")
        if reading >= AT_ONCE:
            return web.Response(status=503, text="other readers wait for the volume\n")
        reading += 1

        work = asyncio.ensure_future(in_daemon_thread(read, "sample-server"))
        work.add_done_callback(release)
        try:
            text = await asyncio.wait_for(asyncio.shield(work), ANSWER_SECONDS)
        except FileNotFoundError:
            return web.Response(status=404, text="no such round\n")
        except (TimeoutError, OSError) as error:
            return web.Response(status=504, text=f"the volume does not answer: {error}\n")
        return web.Response(body=text, content_type="text/plain", charset="utf-8")

    def release(work: asyncio.Future[bytes]) -> None:
        nonlocal reading
        reading -= 1
        if not work.cancelled():
            work.exception()  # it is answered, or no client waits for it

    async def rounds(request: web.Request) -> web.Response:
        return await answer(request, lambda: " ".join(map(str, samples.rounds())).encode())

    async def one_round(request: web.Request) -> web.Response:
        number, offset = (int(request.match_info[name]) for name in ("round", "offset"))
        return await answer(request, lambda: lines(samples.file(number), offset, MOST_BYTES))

    async def reports(request: web.Request) -> web.Response:
        offset = int(request.match_info["offset"])
        return await answer(request, lambda: lines(reported, offset, MOST_BYTES) if reported.exists() else b"")

    return [
        web.get("/samples", rounds),
        web.get(r"/samples/{round:\d{1,9}}/{offset:\d{1,15}}", one_round),
        web.get(r"/rounds/{offset:\d{1,15}}", reports),
    ]


def lines(path: Path, offset: int, most: int) -> bytes:
    """Return complete lines of a file from a byte on: `most` bytes, or one line that is longer.

    Raises `OSError`.
    """
    with path.open("rb") as file:
        file.seek(offset)
        text = file.read(most)
        if len(text) == most and b"\n" not in text:
            text += file.readline()
    return text[: text.rfind(b"\n") + 1]
