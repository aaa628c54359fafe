"""Exec plug-ins: what a program gets, what its answer may be, and that it never holds up its caller."""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rljob_kube import exec_plugin
from rljob_kube.exec_plugin import VERSIONS, ExecCredential, ExecPlugin, PluginFailed, parse, run_plugin
from tests.support.slow_start import assert_cancelled_start_leaves_nothing, slow_starts, with_a_child

V1, V1BETA1 = VERSIONS
Script = Callable[..., ExecPlugin]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    """A plug-in that runs these lines of a shell."""

    def make(lines: str, **settings: Any) -> ExecPlugin:
        file = tmp_path / "plugin"
        file.write_text(f"#!/bin/sh\n{lines}\n")
        file.chmod(0o755)
        return ExecPlugin(str(file), **{"interactive_mode": "Never", **settings})

    return make


def answer(version: str = V1, kind: str = "ExecCredential", **status: Any) -> str:
    return json.dumps({"apiVersion": version, "kind": kind, "status": status})


PLUGIN = ExecPlugin("aws", ("eks", "get-token", "--cluster-name", "my lab"))


@pytest.mark.parametrize(
    ("status", "credential"),
    [
        pytest.param({"token": "t"}, ExecCredential("t"), id="token"),
        pytest.param(
            {"clientCertificateData": "c", "clientKeyData": "k"}, ExecCredential(None, "c", "k"), id="certificate"
        ),
        pytest.param(
            {"token": "t", "clientCertificateData": "c", "clientKeyData": "k"},
            ExecCredential("t", "c", "k"),
            id="both",
        ),
        pytest.param(
            {"token": "t", "expirationTimestamp": "2026-11-27T05:00:00Z"},
            ExecCredential("t", expires=datetime(2026, 11, 27, 5, tzinfo=UTC)),
            id="expiry",
        ),
        pytest.param(
            {"token": "t", "expirationTimestamp": "2026-11-27T05:00:00+02:00"},
            ExecCredential("t", expires=datetime(2026, 11, 27, 3, tzinfo=UTC)),
            id="expiry in another zone",
        ),
    ],
)
def test_an_answer_is_read(status: Mapping[str, Any], credential: ExecCredential) -> None:
    assert parse(PLUGIN, answer(**status).encode()) == credential


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        pytest.param("Welcome!", "it printed no JSON", id="text"),
        pytest.param("", "it printed no JSON", id="nothing"),
        pytest.param("[]", "it printed no ExecCredential", id="list"),
        pytest.param(answer(kind="Token", token="t"), "it printed no ExecCredential", id="other kind"),
        pytest.param(
            answer(V1BETA1, token="t"), f"it answered in {V1BETA1}, and the kubeconfig says {V1}", id="other version"
        ),
        pytest.param(answer(), "neither a token nor a certificate", id="no status"),
        pytest.param(answer(token=""), "neither a token nor a certificate", id="empty token"),
        pytest.param(answer(clientCertificateData="c"), "a certificate needs a key", id="no key"),
        pytest.param(answer(token="t", clientKeyData="k"), "a key a certificate", id="no certificate"),
        pytest.param(
            answer(token="t", expirationTimestamp="soon"), "expirationTimestamp 'soon' is no time", id="expiry"
        ),
    ],
)
def test_an_unusable_answer_names_the_command(output: str, problem: str) -> None:
    with pytest.raises(PluginFailed, match=problem) as failed:
        parse(PLUGIN, output.encode())
    assert str(failed.value).startswith("aws eks get-token --cluster-name 'my lab': ")


async def test_a_program_gets_arguments_variables_and_the_request(script: Script, tmp_path: Path) -> None:
    cluster = {"server": "https://lab", "certificate-authority-data": "QQ=="}
    plugin = script(
        f'printf "%s\\n" "$1" "$REGION" "$KUBERNETES_EXEC_INFO" > {tmp_path}/seen\n'
        f"cat >> {tmp_path}/seen\necho '{answer(token='t')}'",
        arguments=("get-token",),
        environment=(("REGION", "eu"),),
        cluster=cluster,
    )
    assert await run_plugin(plugin) == ExecCredential("t")
    argument, region, request, *rest = (tmp_path / "seen").read_text().splitlines()
    assert (argument, region, rest) == ("get-token", "eu", []), "standard input is empty"
    spec = {"interactive": False, "cluster": cluster}
    assert json.loads(request) == {"kind": "ExecCredential", "apiVersion": V1, "spec": spec}


async def test_a_request_without_cluster_information(script: Script, tmp_path: Path) -> None:
    plugin = script(f"echo $KUBERNETES_EXEC_INFO > {tmp_path}/seen; echo '{answer(V1BETA1, token='t')}'")
    await run_plugin(replace(plugin, version=V1BETA1))
    request = json.loads((tmp_path / "seen").read_text())
    assert request == {"kind": "ExecCredential", "apiVersion": V1BETA1, "spec": {"interactive": False}}


@pytest.mark.parametrize(
    ("command", "found"), [("./plugin", True), ("bin/../plugin", True), ("plugin", False)], ids=lambda one: str(one)
)
async def test_a_relative_command_is_in_the_kubeconfigs_folder(
    script: Script, tmp_path: Path, command: str, found: bool
) -> None:
    (tmp_path / "bin").mkdir()
    plugin = replace(script(f"echo '{answer(token='t')}'"), command=command, folder=tmp_path)
    if found:
        assert await run_plugin(plugin) == ExecCredential("t")
        return
    with pytest.raises(PluginFailed, match="plugin: no such program: install it, or correct"):
        await run_plugin(plugin)


async def test_a_missing_program_shows_the_kubeconfigs_hint() -> None:
    plugin = ExecPlugin("gke-gcloud-auth-plugin-absent", install_hint="Install it with gcloud.\n")
    with pytest.raises(
        PluginFailed, match=r"^gke-gcloud-auth-plugin-absent: no such program: Install it with gcloud\.$"
    ):
        await run_plugin(plugin)


async def test_a_file_that_is_no_program_is_told(script: Script) -> None:
    plugin = script("exit 0")
    os.chmod(plugin.command, 0o644)
    with pytest.raises(PluginFailed, match=r"plugin: it cannot be started: .*Permission denied"):
        await run_plugin(plugin)


async def test_a_failure_shows_status_complaint_and_a_next_step(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    plugin = script("echo 'the sign-on has ended' >&2; exit 255", arguments=("get-token",))
    with pytest.raises(PluginFailed, match="get-token: exit status 255: the sign-on has ended: sign in again"):
        await run_plugin(plugin)


async def test_a_program_that_hangs_is_killed_with_its_children(script: Script, tmp_path: Path) -> None:
    plugin = script(f"echo $$ > {tmp_path}/itself; sleep 1000 & echo $! > {tmp_path}/child; wait")
    began = time.monotonic()
    with pytest.raises(PluginFailed, match=r"no answer within 0\.5 s: run it yourself"):
        await run_plugin(plugin, seconds=0.5)
    assert time.monotonic() - began < 60
    assert not is_there(tmp_path / "itself"), "its end was waited for, and its pipes are closed"
    child = (tmp_path / "child").read_text().strip()
    await until(lambda: ended(child))


async def test_a_cancelled_request_kills_its_program(script: Script, tmp_path: Path) -> None:
    plugin = script(f"echo $$ > {tmp_path}/itself; sleep 1000 & echo $! > {tmp_path}/child; wait")
    running = asyncio.create_task(run_plugin(plugin))

    async def started() -> bool:
        return (tmp_path / "child").exists() and bool((tmp_path / "child").read_text().strip())

    await until(started)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not is_there(tmp_path / "itself")
    child = (tmp_path / "child").read_text().strip()
    await until(lambda: ended(child))


async def test_a_request_that_is_cancelled_while_its_program_starts_kills_it(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, child = slow_starts(monkeypatch), tmp_path / "child"
    running = asyncio.create_task(run_plugin(script(with_a_child(child))))
    await assert_cancelled_start_leaves_nothing(running, started, child)


def is_there(file: Path) -> bool:
    """Whether the process whose number the file has is there, or a zombie."""
    return Path(f"/proc/{file.read_text().strip()}").exists()


async def ended(process: str) -> bool:
    """Whether a process is gone, or a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    end = time.monotonic() + 60
    while not await holds():
        assert time.monotonic() < end, "not within 60 s"
        await asyncio.sleep(0.01)


async def test_the_event_loop_goes_on_meanwhile(script: Script, tmp_path: Path) -> None:
    """The program waits for a file that the event loop writes."""
    plugin = script(f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; echo '{answer(token='t')}'")
    running = asyncio.create_task(run_plugin(plugin))
    await asyncio.sleep(0.1)
    (tmp_path / "go").touch()
    assert await asyncio.wait_for(running, 60) == ExecCredential("t")


class Terminal(io.StringIO):
    """A standard input that is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("mode", "terminal", "interactive"),
    [("Never", True, False), ("IfAvailable", True, True), ("IfAvailable", False, False), ("Always", True, True)],
)
def test_when_a_program_may_ask_a_person(
    monkeypatch: pytest.MonkeyPatch, mode: str, terminal: bool, interactive: bool
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal() if terminal else io.StringIO())
    assert exec_plugin._is_interactive(replace(PLUGIN, interactive_mode=mode)) is interactive


async def test_a_program_that_must_ask_needs_a_terminal(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(PluginFailed, match="it needs a terminal, and standard input is none"):
        await run_plugin(script(f"echo '{answer(token='t')}'", interactive_mode="Always"))
