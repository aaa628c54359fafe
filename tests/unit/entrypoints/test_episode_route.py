"""A pod serves the attempts of its open store in bounded answers, and the store's own work runs between the parts."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from rljob_api.constants import SAMPLES_KEY_HEADER, samples_key
from rljob_runtime.cli.episodes.pods import PodEpisodes
from rljob_runtime.cli.episodes.stored import StoredAttempt, stored_attempts
from rljob_runtime.coordinator.samples import attempt_rows
from rljob_runtime.coordinator.samples.attempt_lines import AttemptLines
from rljob_runtime.coordinator.samples.attempt_rows import ALL, Wanted
from rljob_runtime.coordinator.store.store import Store
from rljob_runtime.entrypoints import sample_server
from rljob_runtime.entrypoints.health import serve
from rljob_runtime.entrypoints.sample_server import sample_routes
from tests.support.kept_run import write_run

T = TypeVar("T")
KEY = b"k" * 32


class OpenStore:
    """Access to a store that this process holds. `calls`: how many there were."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.calls = 0

    async def do(self, work: Callable[[Store], T]) -> T:
        self.calls += 1
        return work(self.store)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path)
    return tmp_path


@pytest.fixture
def expected(folder: Path) -> list[StoredAttempt]:
    """What a copy of the store says, before it is open."""
    return list(stored_attempts(folder))


@pytest.fixture
async def store(folder: Path, expected: list[StoredAttempt]) -> AsyncIterator[OpenStore]:
    opened = Store(folder / "state.db", "uid-1")
    yield OpenStore(opened)
    opened.close()


@pytest.fixture
def attempts() -> AttemptLines:
    return AttemptLines()


@pytest.fixture
async def url(folder: Path, attempts: AttemptLines) -> AsyncIterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    routes = sample_routes(folder, KEY, attempts)
    async with serve("127.0.0.1", lambda: None, CollectorRegistry(), port, routes):
        yield f"http://127.0.0.1:{port}"


async def get(url: str) -> tuple[int, str]:
    headers = {SAMPLES_KEY_HEADER: samples_key(KEY)}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return response.status, await response.text()


class Client:
    """Reads the attempts as `rljob` does. `answers`: what it got."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: list[str] = []

    async def read(self, wanted: Wanted = ALL) -> list[StoredAttempt]:
        return await asyncio.to_thread(lambda: list(PodEpisodes("job", self._text).attempts(wanted)))

    def _text(self, path: str) -> str:
        status, found = asyncio.run(get(f"{self.url}/{path}"))
        assert status == 200, found
        self.answers.append(found)
        return found


async def test_a_client_reads_what_a_copy_of_the_store_says(url, attempts, store, expected, monkeypatch):
    monkeypatch.setattr(sample_server, "MOST_BYTES", 600)
    client = Client(url)
    with attempts.reading(store):
        found = await client.read()
    assert found == expected
    assert [len(one.nodes) for one in found] == [6, 2]
    assert len(client.answers) > 4
    assert max(map(len, client.answers)) <= 600


@pytest.mark.parametrize(("wanted", "numbers"), [
    (Wanted(step=1), [1, 2]), (Wanted(step=2), []), (Wanted(attempt=2), [2]), (Wanted(attempt=3), []),
])  # fmt: skip
async def test_only_the_wanted_attempts_are_read(url, attempts, store, expected, wanted, numbers):
    with attempts.reading(store):
        found = await Client(url).read(wanted)
    assert found == [one for one in expected if one.number in numbers]


async def test_sizes_tell_what_tokens_tell(url, attempts, store, expected):
    with attempts.reading(store):
        found = await Client(url).read(Wanted(tokens=False))
    assert [(one.counts, one.times) for one in found] == [(one.counts, one.times) for one in expected]


@pytest.mark.parametrize(("bound", "value"), [("PART_BYTES", 8), ("PART_ROWS", 1)])
async def test_the_stores_work_runs_between_parts(url, attempts, store, expected, monkeypatch, bound, value):
    """An answer of 10 rows; of those with tokens, no call reads more than the bound or one."""
    monkeypatch.setattr(attempt_rows, bound, value)
    client = Client(url)
    with attempts.reading(store):
        assert await client.read() == expected
    assert len(client.answers) == 2, "the second one is empty"
    assert store.calls > 6


async def test_a_line_that_is_longer_than_an_answer_is_one(url, attempts, store, expected, monkeypatch):
    monkeypatch.setattr(sample_server, "MOST_BYTES", 10)
    client = Client(url)
    with attempts.reading(store):
        assert await client.read() == expected
    assert {text.count("\n") for text in client.answers[:-1]} == {1}


async def test_an_attempt_that_is_deleted_while_it_is_read_is_left_out(url, attempts, store, expected, monkeypatch):
    monkeypatch.setattr(sample_server, "MOST_BYTES", 600)
    client = Client(url)
    read = client._text

    def text(path: str) -> str:
        found = read(path)
        if len(client.answers) == 1:
            store.store._db.execute("DELETE FROM turns WHERE episode = 1")
            store.store._db.execute("DELETE FROM episodes WHERE id = 1")
        return found

    monkeypatch.setattr(client, "_text", text)
    with attempts.reading(store):
        assert await client.read() == expected[1:]


async def test_without_an_open_store_a_client_is_told_to_try_again(url, attempts, store):
    path = f"{url}/episodes/tokens/all/0/0"
    refused = (503, "the coordinator has not opened its store: try again in some seconds\n")
    assert await get(path) == refused
    with attempts.reading(store):
        assert (await get(path))[0] == 200
    assert await get(path) == refused


@pytest.mark.parametrize(
    "path", ["episodes/tokens/all/0", "episodes/texts/all/0/0", "episodes/tokens/round-x/0/0", "episodes/sizes/1/0/0"]
)
async def test_other_paths_do_not_exist(url, path):
    assert (await get(f"{url}/{path}"))[0] == 404


@pytest.mark.parametrize("wanted", ["step = 1 AND id > 0", "id > 0"])
def test_an_attempt_is_found_by_an_index(folder, wanted):
    """What an answer costs does not grow with the attempts of a store."""
    with sqlite3.connect(folder / "state.db") as db:
        plan = db.execute(f"EXPLAIN QUERY PLAN SELECT id FROM episodes WHERE {wanted} ORDER BY id LIMIT 1").fetchall()
        assert all("SEARCH" in row[-1] for row in plan), plan
        numbers = "SELECT number FROM turns WHERE episode = 1 AND number > 0"
        assert "COVERING INDEX" in db.execute(f"EXPLAIN QUERY PLAN {numbers}").fetchone()[-1]
