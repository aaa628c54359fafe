"""The gateway's process serves unmodified clients for a coordinator elsewhere, and says why it cannot start."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from rljob_api.gateway_bounds import MIB, GatewayBounds
from rljob_api.keys.runner_key import mint_runner_key, runners_key
from rljob_api.spec.renderers import ChatTemplateRenderer
from rljob_runtime.entrypoints.gateway import allow_descriptors, check, fitting_bounds
from rljob_runtime.gateway.capability import gateway_key
from rljob_runtime.gateway.config import BadConfig, GatewayConfig, read_config, read_key
from rljob_runtime.gateway.link.server import serve_link
from rljob_runtime.protocols.environments import Assignment
from tests.support.gateway.light_tokenizer import STRIPS_THINKING
from tests.support.gateway.stand_in_coordinator import StandInCoordinator, attempt_of
from tests.support.gateway.stand_in_environments import StandInEnvironments
from tests.support.gateway.toy_site import DATA, toy_coordinator, toy_files

SECRET = b"secret"
EPISODE = attempt_of()
START_SECONDS = 240.0
"""The process imports transformers."""
CHANGES = "TemplateNotAppendOnly: spec.data.chatTemplate: the chat template changes earlier turns"


@dataclass
class Site:
    """A process that serves, and its coordinator."""

    process: asyncio.subprocess.Process
    coordinator: StandInCoordinator
    environments: StandInEnvironments
    url: str
    metrics: str


@pytest.fixture(scope="module")
def model() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rljob-") as folder:
        yield toy_files(Path(folder))


def config_of(folder: Path, model: Path, **changes: Any) -> Path:
    """Write a config below a folder; return its file."""
    keys = {"capability_key_file": gateway_key(SECRET), "runners_key_file": runners_key(SECRET)}
    for name, key in keys.items():
        (folder / name).write_text(key.hex())
    config = GatewayConfig(
        socket=folder / "link.sock",
        model="policy",
        model_folder=model,
        data=DATA,
        context_tokens=320,
        max_tokens=64,
        port_file=folder / "port",
        bounds=GatewayBounds(512, 64 * MIB, 32 * MIB),
        **{name: folder / name for name in keys},  # type: ignore[arg-type]
    ).model_copy(update=changes)
    file = folder / "gateway.json"
    file.write_text(json.dumps(config.to_dict()))
    return file


async def start(file: Path, **options: Any) -> asyncio.subprocess.Process:
    line = (sys.executable, "-m", "rljob_runtime.entrypoints", "gateway", "--config", str(file))
    return await asyncio.create_subprocess_exec(*line, **options)


async def until_written(file: Path, process: asyncio.subprocess.Process) -> str:
    async with asyncio.timeout(START_SECONDS):
        while not file.exists() and process.returncode is None:  # noqa: ASYNC110, another process writes it
            await asyncio.sleep(0.02)
    return file.read_text()


@pytest.fixture
async def site(tmp_path: Path, model: Path) -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rljob-")))
        with socket.create_server(("127.0.0.1", 0)) as free:
            metrics = free.getsockname()[1]
        coordinator, environments = toy_coordinator(lambda prompt, turn: f"answer {turn}"), StandInEnvironments()
        await stack.enter_async_context(serve_link(folder / "link.sock", coordinator, environments))
        process = await start(config_of(folder, model, metrics_port=metrics))
        stack.callback(lambda: process.kill() if process.returncode is None else None)
        port = await until_written(folder / "port", process)
        yield Site(process, coordinator, environments, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{metrics}")


async def _post(session: aiohttp.ClientSession, url: str, **body: Any) -> Any:
    async with session.post(url, json=body) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def test_an_agent_plays_an_episode_and_what_waits_at_the_end_is_answered(site: Site) -> None:
    messages: list[Any] = [{"role": "user", "content": "3 + 4 ="}]
    far = 4_000_000_000.0
    site.coordinator.start(EPISODE)
    await site.environments.put(Assignment(EPISODE, "calc", {"answer": 7}, messages, far))
    headers = {"Authorization": f"Bearer {mint_runner_key(runners_key(SECRET), 'calc')}"}
    async with aiohttp.ClientSession(headers=headers) as session:
        leased = await _post(session, f"{site.url}/env/lease", runner="runner-0", waitSeconds=60)
        assert (leased["record"], leased["messages"]) == ({"answer": 7}, messages)
        async with openai.AsyncOpenAI(api_key=leased["apiKey"], base_url=leased["baseUrl"]) as agent:
            for turn in range(3):
                said = (
                    (await agent.chat.completions.create(model=leased["model"], messages=messages)).choices[0].message
                )
                assert said.content == f"answer {turn}"
                messages += [said.model_dump(), {"role": "user", "content": "And?"}]
        reported = {"runner": "runner-0", "episode": leased["episode"], "attempt": leased["attempt"], "reward": 0.5}
        await _post(session, f"{site.url}/env/done", **reported)
        assert site.environments.reports[EPISODE].reward == 0.5
        assert sorted(site.coordinator.loss_tokens(EPISODE)) == sorted(site.coordinator.engine.emitted)
        assert site.coordinator.episodes[EPISODE].stats.forks == 0
        async with session.get(f"{site.metrics}/metrics") as answer:
            counted = await answer.text()
        assert "rljob_gateway_turns_total 3.0" in counted
        assert 'rljob_gateway_own_seconds_bucket{le="+Inf"} 3.0' in counted
        assert "rljob_gateway_reports_total 1.0" in counted
        assert "rljob_gateway_reencoded_tokens_total 0.0" in counted
        assert "rljob_gateway_texts_given_up_total 0.0" in counted
        assert "rljob_gateway_connections_refused_total 0.0" in counted
        assert "rljob_gateway_memory_refused_total 0.0" in counted
        assert "rljob_gateway_runner_memory_refused_total 0.0" in counted
        assert "/tokenizers/" in (mapped := Path(f"/proc/{site.process.pid}/maps").read_text())
        assert "/torch/" not in mapped, "it takes seconds and half a gigabyte"
        site.environments.leases.clear()
        await _ends_with_an_answer_to_what_waits(site, session)


async def _ends_with_an_answer_to_what_waits(site: Site, session: aiohttp.ClientSession) -> None:
    async with asyncio.timeout(60):
        body = {"runner": "runner-0", "waitSeconds": 60}
        waiting = asyncio.create_task(session.post(f"{site.url}/env/lease", json=body))
        while not site.environments.leases:  # noqa: ASYNC110, the lease arrives from another process
            await asyncio.sleep(0.02)
        site.process.send_signal(signal.SIGTERM)
        async with await waiting as answer:
            assert answer.status == 503
        assert await site.process.wait() == 0


async def _refusal(file: Path) -> str:
    """Return what a process says that is told what it cannot do."""
    process = await start(file, stderr=asyncio.subprocess.PIPE)
    async with asyncio.timeout(START_SECONDS):
        _, said = await process.communicate()
    assert process.returncode == 2, said
    return said.decode().strip().splitlines()[-1]


@pytest.mark.slow  # unit/local/test_environments.py starts the same process with such a template
async def test_a_template_that_changes_earlier_turns_ends_the_process(tmp_path: Path) -> None:
    model = toy_files(tmp_path, STRIPS_THINKING)
    said = await _refusal(config_of(tmp_path, model))
    assert said.startswith(f"gateway: {CHANGES}")


@pytest.mark.parametrize(
    ("template", "renderer", "told"),
    [
        (None, None, ""),
        (STRIPS_THINKING, None, CHANGES),
        (None, "qwen3", "RendererNotUsable: spec.data.chatTemplateRenderer: the renderer qwen3 does not open"),
    ],
)
def test_a_check_opens_the_model_and_serves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], template: str | None, renderer: str | None, told: str
) -> None:
    data = DATA.model_copy(update={"chat_template_renderer": renderer and ChatTemplateRenderer(renderer)})
    file = config_of(tmp_path, toy_files(tmp_path, template), data=data)
    assert check(file) == (2 if told else 0)
    assert not (tmp_path / "port").exists()
    said = capsys.readouterr().err
    assert told in said
    assert bool(told) == ("gateway: " in said)


def test_a_wrong_config_names_its_field(tmp_path: Path, model: Path) -> None:
    file = config_of(tmp_path, model)
    given = json.loads(file.read_text())
    assert read_config(file).to_dict() == given
    for change, name in (({"port": 70_000}, "port"), ({"model": None}, "model"), ({"colour": 1}, "colour")):
        file.write_text(json.dumps({**given, **change}))
        with pytest.raises(BadConfig, match=name):
            read_config(file)
    with pytest.raises(BadConfig, match="cannot be read"):
        read_config(tmp_path / "absent")


def test_a_container_with_less_memory_has_smaller_bounds_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    wanted = GatewayBounds(4096)
    assert fitting_bounds(wanted, wanted.memory) == wanted
    assert caplog.records == []
    assert fitting_bounds(wanted, 1024 * MIB).memory <= 1024 * MIB
    assert f"may use 1024 MiB; its job may need {wanted.memory // MIB} MiB" in caplog.text


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [(1024, 524_288, 40_000), (1024, 4096, 4096), (65_536, 65_536, None)],
    ids=["raised", "as far as it may", "enough"],
)
def test_the_process_may_open_a_descriptor_for_each_connection(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, expected: int | None
) -> None:
    """Half of them are for connections."""
    was_set: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: was_set.append(limits))
    allow_descriptors(20_000)
    assert was_set == ([] if expected is None else [(expected, hard)])


def test_a_key_that_is_none_is_refused_and_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("ab" * 32 + "\n")
    assert read_key(file) == b"\xab" * 32
    for given in (b"ab" * 15, b"secret words that are long enough", b"\xff" * 64):
        file.write_bytes(given)
        with pytest.raises(BadConfig, match="at least 16 bytes") as caught:
            read_key(file)
        assert given.decode(errors="replace") not in str(caught.value)
    with pytest.raises(BadConfig, match="cannot be read"):
        read_key(tmp_path / "absent")


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]])
sys.stdin.read()
"""
CHILD = """
import os, time
from rljob_runtime.entrypoints.gateway import _tied_to
print(_tied_to(os.getppid()), flush=True)
time.sleep(600)
"""


def test_a_gateway_does_not_outlive_its_parent() -> None:
    line = (sys.executable, "-c", PARENT, CHILD)
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == "True\n"
        parent.kill()
        # The child holds the other end of the pipe as long as it lives.
        parent.communicate(timeout=60)


async def test_a_gateway_without_its_parent_does_not_start(tmp_path: Path, model: Path) -> None:
    process = await start(config_of(tmp_path, model, parent=os.getppid()))
    async with asyncio.timeout(START_SECONDS):
        assert await process.wait() == 0
    assert not (tmp_path / "port").exists()
