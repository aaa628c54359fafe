"""Credentials: they are renewed when they expire, when they are refused, and by one request for all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from rljob_kube import credentials as module
from rljob_kube.client import KubeClient
from rljob_kube.connection import Connection, NoCredentials
from rljob_kube.credentials import RELOAD_SECONDS, Credentials, find_connection
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.exec_plugin import ExecCredential, ExecPlugin, PluginFailed
from rljob_kube.resources import POD
from rljob_kube.transport import RequestLimits

NOW = datetime(2026, 11, 27, tzinfo=UTC)
LAB = Connection("http://127.0.0.1:1")


class Plugin:
    """A plug-in in place of `run_plugin`: its credentials in order, the last one for ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: ExecCredential | Exception) -> None:
        self.answers = list(answers)
        self.runs = 0
        monkeypatch.setattr(module, "run_plugin", self.run)

    async def run(self, plugin: ExecPlugin) -> ExecCredential:
        self.runs += 1
        await asyncio.sleep(0.0)  # others have their turn here
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def signed_in(wall: Callable[[], datetime] = lambda: NOW) -> Credentials:
    return Credentials(replace(LAB, plugin=ExecPlugin("aws")), wall=wall)


async def test_a_credential_is_kept_until_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    moment = [NOW]
    plugin = Plugin(monkeypatch, ExecCredential("one", expires=NOW + timedelta(minutes=15)), ExecCredential("two"))
    credentials = signed_in(lambda: moment[0])
    seen = []
    for minutes in (0, 14, 15, 500):
        moment[0] = NOW + timedelta(minutes=minutes)
        seen.append((await credentials.access()).headers["Authorization"])
    assert seen == ["Bearer one", "Bearer one", "Bearer two", "Bearer two"]
    assert plugin.runs == 2


async def test_many_requests_run_a_plug_in_once(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = Plugin(monkeypatch, ExecCredential("one"), ExecCredential("two"))
    credentials = signed_in()
    first = await asyncio.gather(*(credentials.access() for _ in range(20)))
    assert plugin.runs == 1
    assert all(await asyncio.gather(*(credentials.renew(access) for access in first)))
    assert plugin.runs == 2, "those that were refused later take what the first one got"
    assert (await credentials.access()).token == "two"


async def test_the_same_credential_again_is_no_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    Plugin(monkeypatch, ExecCredential("one"))
    credentials = signed_in()
    assert not await credentials.renew(await credentials.access())


async def test_a_failing_plug_in_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    Plugin(monkeypatch, PluginFailed("aws: exit status 1"), ExecCredential("one"))
    credentials = signed_in()
    with pytest.raises(NoCredentials, match="aws: exit status 1"):
        await credentials.access()
    assert (await credentials.access()).token == "one"


@pytest.mark.parametrize(
    ("connection", "headers"),
    [
        (LAB, {}),
        (replace(LAB, token="t", plugin=ExecPlugin("never-run")), {"Authorization": "Bearer t"}),
        (replace(LAB, username="a", password="b"), {"Authorization": "Basic YTpi"}),
    ],
)
async def test_an_identity_without_a_plug_in(connection: Connection, headers: dict[str, str]) -> None:
    assert (await Credentials(connection).access()).headers == headers


async def test_a_token_file_is_read_again_after_a_while(tmp_path: Path) -> None:
    file, clock = tmp_path / "token", [0.0]
    file.write_text("one\n")
    credentials = Credentials(replace(LAB, token_file=file), clock=lambda: clock[0])
    seen = [(await credentials.access()).token]
    file.write_text("two\n")
    for seconds in (RELOAD_SECONDS, RELOAD_SECONDS + 1):
        clock[0] = seconds
        seen.append((await credentials.access()).token)
    assert seen == ["one", "one", "two"]


async def test_a_kubeconfig_is_read_again_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(token: str) -> None:
        document = {
            "current-context": "a",
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "clusters": [{"name": "a", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "a", "user": {"token": token}}],
        }
        (tmp_path / "config").write_text(yaml.safe_dump(document))

    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    clock = [0.0]
    write("one")
    credentials = Credentials(clock=lambda: clock[0])
    first = await credentials.access()
    write("two")
    assert (await credentials.access()).token == "one"
    clock[0] = RELOAD_SECONDS + 1
    assert [first.token, (await credentials.access()).token] == ["one", "two"]


def test_without_a_cluster_the_message_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(NoCredentials, match=r"no kubeconfig: .*run in a pod with a service account, or set KUBECONFIG"):
        find_connection({"KUBECONFIG": str(tmp_path / "absent")})


# --- requests ---------------------------------------------------------------------------------------------------------


class Door:
    """A server that admits some tokens, and counts who asked."""

    def __init__(self, *admitted: str) -> None:
        self.admitted = {f"Bearer {token}" for token in admitted}
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.headers.get("Authorization", "none").removeprefix("Bearer "))
        if request.headers.get("Authorization") not in self.admitted:
            return web.json_response({"reason": "Unauthorized", "message": "who?"}, status=401)
        return web.json_response({"metadata": {"name": "p"}})

    @asynccontextmanager
    async def client(self, connection: Connection, **settings: Any) -> AsyncIterator[KubeClient]:
        app = web.Application()
        app.router.add_get("/{path:.*}", self.answer)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, port = runner.addresses[0][:2]
            found = Credentials(replace(connection, server=f"http://{host}:{port}"))
            async with KubeClient(found, **settings).opened() as kube:
                yield kube
        finally:
            await runner.cleanup()


@pytest.mark.parametrize("attempts", [1, 4])
async def test_a_refused_identity_is_renewed_once(monkeypatch: pytest.MonkeyPatch, attempts: int) -> None:
    plugin = Plugin(monkeypatch, ExecCredential("old"), ExecCredential("new"))
    door, counted = Door("new"), []
    lab = replace(LAB, plugin=ExecPlugin("aws"))
    async with door.client(
        lab, limits=RequestLimits(attempts=attempts), on_request=lambda *what: counted.append(what[:3])
    ) as kube:
        assert await kube.get(POD, "ns", "p")
        assert await kube.get(POD, "ns", "p")
    assert door.asked == ["old", "new", "new"]
    assert plugin.runs == 2
    assert counted == [("get", "pods", "401"), ("get", "pods", "2xx"), ("get", "pods", "2xx")]


async def test_an_identity_that_stays_refused_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = Plugin(monkeypatch, *(ExecCredential(f"t{number}") for number in range(9)))
    door = Door()
    async with door.client(replace(LAB, plugin=ExecPlugin("aws"))) as kube:
        with pytest.raises(ApiError, match=r"401 Unauthorized: who\?"):
            await kube.get(POD, "ns", "p")
    assert (door.asked, plugin.runs) == (["t0", "t1"], 2)


async def test_a_request_without_credentials_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    Plugin(monkeypatch, PluginFailed("aws: exit status 255: the sign-on has ended"))
    door = Door("t")
    async with door.client(replace(LAB, plugin=ExecPlugin("aws"))) as kube:
        with pytest.raises(Unreachable, match="the sign-on has ended"):
            await kube.get(POD, "ns", "p")
    assert door.asked == []


async def test_an_answer_that_is_no_json_is_not_the_api_servers() -> None:
    class Portal(Door):
        async def answer(self, request: web.Request) -> web.Response:
            return web.Response(text="<html>Sign in</html>")

    async with Portal().client(LAB) as kube:
        with pytest.raises(Unreachable, match="the answer is no JSON"):
            await kube.get(POD, "ns", "p")
