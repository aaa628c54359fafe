"""Sample server: the routes by which `rljob samples`, `rljob episodes` and `rljob timeline` read a job in a cluster.

The requests come through the API server's pod proxy.

The health port is open to every client of the cluster network, and samples hold prompts and answers. So a request
carries a key that is derived from the job's Secret: a user who may read that Secret may read the samples. The routes
only read, and each answer is bounded."""

from __future__ import annotations

import asyncio
import hmac
import sqlite3
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from aiohttp import web

from rljob_api.constants import SAMPLES_KEY_HEADER, samples_key
from rljob_runtime.coordinator.core.async_utils import in_daemon_thread
from rljob_runtime.coordinator.samples.attempt_lines import AttemptLines, NoStore
from rljob_runtime.coordinator.samples.attempt_rows import Place, Wanted
from rljob_runtime.evaluation.log import EVALUATIONS
from rljob_runtime.samples import EvaluationSampleFolder, SampleFolder
from rljob_runtime.timeline.record import FILE as TIMELINE

MOST_BYTES = 4 << 20
"""Bytes in an answer, but one line at least."""
ANSWER_SECONDS = 8.0
"""Longest wait for the volume."""
MOST_READERS = 2
"""Requests that read the volume concurrently; further ones are refused."""
TRY_AGAIN = "try again in some seconds"

EVALUATION_SAMPLES = "/evaluation-samples/{name:[-a-z0-9]{1,63}}"
"""No name can leave the folder."""
EPISODES = r"/episodes/{form:sizes|tokens}/{of:all|round-\d{1,9}|attempt-\d{1,15}}/{attempt:\d{1,15}}/{turn:\d{1,15}}"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def sample_routes(folder: Path, key: bytes, attempts: AttemptLines) -> list[web.RouteDef]:
    """Return the routes. `folder`: the job's. `key`: its relay key. `attempts`: of its episodes.

    `/samples` lists the rounds; `/samples/ROUND/OFFSET`, `/rounds/OFFSET`, `/evaluations/OFFSET` and `/timeline/OFFSET`
    return lines of a file from a byte on, and nothing at its end. `/evaluation-samples/NAME` has the samples of an
    evaluation, as `/samples` has those of rounds. `/episodes/FORM/OF/ATTEMPT/TURN` returns the lines after this place
    (`attempt_lines`), of `all` attempts, of those that `round-N` trained on, or of `attempt-N`."""
    volume = _VolumeReader(samples_key(key))

    def samples_of(request: web.Request) -> SampleFolder:
        name = request.match_info.get("name")
        return SampleFolder(folder) if name is None else EvaluationSampleFolder(folder, name)

    async def rounds(request: web.Request) -> web.Response:
        samples = samples_of(request)
        return await volume.answer(request, _apart(lambda: " ".join(map(str, samples.rounds())).encode()))

    async def one_round(request: web.Request) -> web.Response:
        samples = samples_of(request)
        number, offset = (int(request.match_info[name]) for name in ("round", "offset"))
        return await volume.answer(request, _apart(lambda: lines(samples.file(number), offset, MOST_BYTES)))

    def one_file(name: str) -> Handler:
        path = folder / name

        async def serve(request: web.Request) -> web.Response:
            offset = int(request.match_info["offset"])
            read = _apart(lambda: lines(path, offset, MOST_BYTES) if path.exists() else b"")
            return await volume.answer(request, read)

        return serve

    async def episodes(request: web.Request) -> web.Response:
        given = request.match_info
        kind, _, number = given["of"].partition("-")
        wanted = Wanted(
            step=int(number) if kind == "round" else None,
            attempt=int(number) if kind == "attempt" else None,
            tokens=given["form"] == "tokens",
        )
        after = Place(int(given["attempt"]), int(given["turn"]))
        return await volume.answer(request, partial(attempts.after, after, wanted, MOST_BYTES))

    return [
        *(
            web.get(path + rest, read)
            for path in ("/samples", EVALUATION_SAMPLES)
            for rest, read in (("", rounds), (r"/{round:\d{1,9}}/{offset:\d{1,15}}", one_round))
        ),
        web.get(r"/rounds/{offset:\d{1,15}}", one_file("rounds.jsonl")),
        web.get(r"/evaluations/{offset:\d{1,15}}", one_file(EVALUATIONS)),
        web.get(r"/timeline/{offset:\d{1,15}}", one_file(TIMELINE)),
        web.get(EPISODES, episodes),
    ]


def _apart(read: Callable[[], bytes]) -> Callable[[], Awaitable[bytes]]:
    """Return a read of the volume in a thread of its own."""
    return partial(in_daemon_thread, read, "sample-server")


class _VolumeReader:
    """Answers requests from the volume: with the key only, few concurrently, each within a time."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()
        self._reading = 0

    async def answer(self, request: web.Request, read: Callable[[], Awaitable[bytes]]) -> web.Response:
        given = request.headers.get(SAMPLES_KEY_HEADER, "")
        if not hmac.compare_digest(given.encode(), self._key):
            return web.Response(status=403, text=f"header {SAMPLES_KEY_HEADER} is missing or wrong\n")
        if self._reading >= MOST_READERS:
            return web.Response(status=503, text=f"other readers wait for the volume: {TRY_AGAIN}\n")
        self._reading += 1

        work = asyncio.ensure_future(read())
        work.add_done_callback(self._release)
        try:
            text = await asyncio.wait_for(asyncio.shield(work), ANSWER_SECONDS)
        except FileNotFoundError:
            return web.Response(status=404, text="no such round\n")
        except NoStore:
            return web.Response(status=503, text=f"the coordinator has not opened its store: {TRY_AGAIN}\n")
        except TimeoutError:
            return web.Response(
                status=504, text=f"the volume does not answer within {ANSWER_SECONDS:g} s: {TRY_AGAIN}\n"
            )
        except (OSError, sqlite3.Error) as error:
            return web.Response(status=504, text=f"the volume does not answer: {error}\n")
        return web.Response(body=text, content_type="text/plain", charset="utf-8")

    def _release(self, work: asyncio.Future[bytes]) -> None:
        self._reading -= 1
        if not work.cancelled():
            work.exception()  # it is answered, or no client waits for it


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
