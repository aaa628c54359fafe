"""A pod serves its samples to any caller with the key, in bounded pieces, and a slow volume holds nothing up."""

import asyncio
import threading
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from rljob_api.constants import SAMPLES_KEY_HEADER, samples_key
from rljob_runtime.cli.pod_files import pieces
from rljob_runtime.cli.samples.pods import PodSource
from rljob_runtime.coordinator.samples.attempt_lines import AttemptLines
from rljob_runtime.entrypoints import sample_server
from rljob_runtime.entrypoints.health import serve
from rljob_runtime.entrypoints.sample_server import lines, sample_routes
from rljob_runtime.samples import EvaluationSampleFolder, Sample, SampleFolder, SampleOutcome

KEY = b"k" * 32


def sample(number: int, text: str) -> Sample:
    return Sample(round=4, prompt_id="0.1", sample=number, attempt=1, outcome=SampleOutcome.TRAINED, response=text)


@pytest.fixture
def folder(tmp_path):
    SampleFolder(tmp_path).write(4, [sample(number, "ключ " * 50) for number in range(20)], keep=5)
    EvaluationSampleFolder(tmp_path, "sums").write(2, [sample(number, "held") for number in range(3)], keep=5)
    (tmp_path / "timeline.jsonl").write_text("".join(f"{line * 20}\n" for line in "ключ"))
    (tmp_path / "evaluations.jsonl").write_text('{"name": "sums", "round": 0}\n{"na')
    (tmp_path / "rounds.jsonl").write_text('{"round": 4, "reward": 0.5}\n{"rou')
    return tmp_path


@pytest.fixture
async def url(folder, unused_port) -> AsyncIterator[str]:
    routes: list[web.RouteDef] = sample_routes(folder, KEY, AttemptLines())
    async with serve("127.0.0.1", lambda: None, CollectorRegistry(), unused_port, routes):
        yield f"http://127.0.0.1:{unused_port}"


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


async def get(url: str, key: str = samples_key(KEY)) -> tuple[int, str]:
    headers = {SAMPLES_KEY_HEADER: key}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return response.status, await response.text()


async def test_a_client_reads_all_rounds_piece_by_piece(folder, url, monkeypatch):
    monkeypatch.setattr(sample_server, "MOST_BYTES", 900)
    pieces: list[int] = []

    def text(path: str) -> str:
        status, found = asyncio.run(get(f"{url}/{path}"))
        assert status == 200
        pieces.append(len(found))
        return found

    source = PodSource("job", text)
    rounds, samples, reports, evaluations = await asyncio.to_thread(
        lambda: (source.rounds(), list(source.samples(4)), source.reports(), source.evaluations())
    )
    assert evaluations == [{"name": "sums", "round": 0}]
    assert rounds == [4]
    assert samples == list(SampleFolder(folder).read(4))
    assert reports == [{"round": 4, "reward": 0.5}]
    assert len(pieces) > 5


async def test_a_client_reads_the_samples_of_an_evaluation(folder, url):
    def text(path: str) -> str:
        status, found = asyncio.run(get(f"{url}/{path}"))
        assert status == 200
        return found

    found = await asyncio.to_thread(lambda: PodSource("job", text, "sums").rounds())
    assert found == [2]
    samples = await asyncio.to_thread(lambda: list(PodSource("job", text, "sums").samples(2)))
    assert samples == list(EvaluationSampleFolder(folder, "sums").read(2))
    assert await asyncio.to_thread(lambda: PodSource("job", text, "other").rounds()) == []
    assert (await get(f"{url}/evaluation-samples/sums/2/0", key="wrong"))[0] == 403
    assert (await get(f"{url}/evaluation-samples/..%2Fsamples/4/0"))[0] == 404, "no other folder"


async def test_a_client_reads_the_timeline(folder, url, monkeypatch):
    monkeypatch.setattr(sample_server, "MOST_BYTES", 50)

    def text(path: str) -> str:
        return asyncio.run(get(f"{url}/{path}"))[1]

    found = await asyncio.to_thread(lambda: list(pieces(text, "timeline")))
    assert found == [f"{line * 20}\n" for line in "ключ"]


@pytest.mark.parametrize("key", ["", "wrong", KEY.decode()])
@pytest.mark.parametrize(
    "path", ["samples", "samples/4/0", "rounds/0", "evaluations/0", "timeline/0", "episodes/tokens/all/0/0"]
)
async def test_without_the_key_nothing_is_told(url, path, key):
    status, text = await get(f"{url}/{path}", key)
    assert status == 403
    assert "ключ" not in text


@pytest.mark.parametrize(
    "path", ["samples/5/0", "samples/../4/0", "samples/4/-1", "samples/..%2f..%2fetc/0", "rounds/x"]
)
async def test_other_paths_do_not_exist(url, path):
    assert (await get(f"{url}/{path}"))[0] == 404


async def test_a_job_without_a_round_has_no_reports(folder, url):
    (folder / "rounds.jsonl").unlink()
    assert await get(f"{url}/rounds/0") == (200, "")


async def test_a_volume_that_does_not_answer_is_told_and_few_requests_wait(url, monkeypatch):
    monkeypatch.setattr(sample_server, "ANSWER_SECONDS", 0.2)
    answers = threading.Event()
    monkeypatch.setattr(sample_server, "lines", lambda path, offset, most: answers.wait(20) and b"")
    first = await asyncio.gather(*(get(f"{url}/samples/4/0") for _ in range(3)))
    assert sorted(status for status, _ in first) == [503, 504, 504]
    assert (await get(f"{url}/healthz"))[0] == 200
    assert (await get(f"{url}/samples/4/0"))[0] == 503, "they still wait"
    answers.set()
    async with asyncio.timeout(10):
        while (await get(f"{url}/samples/4/0"))[0] == 503:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("offset", "most", "expected"), [
    (0, 100, b"ab\ncdefgh\n"), (0, 4, b"ab\n"), (3, 2, b"cdefgh\n"), (10, 100, b""), (99, 9, b""),
])  # fmt: skip
def test_pieces_end_with_a_line(tmp_path, offset, most, expected):
    (tmp_path / "file").write_bytes(b"ab\ncdefgh\nij")
    assert lines(tmp_path / "file", offset, most) == expected
