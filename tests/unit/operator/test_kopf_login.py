"""kopf's login: it shows the same identity as the client, and a new one when the API server refuses it."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import kopf
import pytest

from rljob_kube import credentials
from rljob_kube.connection import Connection
from rljob_kube.exec_plugin import ExecCredential, ExecPlugin
from rljob_operator.kopf_login import KopfLogin

LATER = datetime(2126, 1, 1, tzinfo=UTC)
LAB = Connection("https://10.0.0.1:6443", namespace="team", proxy="http://proxy:3128", insecure=True)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    """A certificate, as tools write it with a text above, and its key."""
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=a", "-days", "1"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return f"Subject: a\n{certificate.read_text()}", key.read_text()


async def test_kopf_gets_the_connection_and_the_token() -> None:
    found: kopf.ConnectionInfo = await KopfLogin(replace(LAB, token="t")).connect()
    assert (found.server, found.default_namespace, found.proxy_url) == (LAB.server, "team", LAB.proxy)
    assert found.as_http_headers() == {"Authorization": "Bearer t"}
    assert found.as_ssl_context().verify_mode == ssl.CERT_NONE


async def test_kopf_gets_a_plug_ins_certificate_and_its_expiry(
    monkeypatch: pytest.MonkeyPatch, pair: tuple[str, str]
) -> None:
    async def run(plugin: ExecPlugin) -> ExecCredential:
        return ExecCredential(None, *pair, expires=LATER)

    monkeypatch.setattr(credentials, "run_plugin", run)
    found: kopf.ConnectionInfo = await KopfLogin(replace(LAB, plugin=ExecPlugin("p"), authority=pair[0])).connect()
    assert found.expiration == LATER
    assert found.as_http_headers() == {}
    assert found.as_ssl_context().cert_store_stats()["x509"] == 1


async def test_kopf_gets_another_token_when_the_first_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = iter(["one", "two"])

    async def run(plugin: ExecPlugin) -> ExecCredential:
        return ExecCredential(next(tokens))

    monkeypatch.setattr(credentials, "run_plugin", run)
    login = KopfLogin(replace(LAB, plugin=ExecPlugin("p")))
    assert [(await login.connect()).token, (await login.connect()).token] == ["one", "two"]
