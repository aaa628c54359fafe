"""The client against a real API server: sign-in by plug-ins, applies, watches that resume, and counting."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rljob_kube import kubeconfig
from rljob_kube.client import KubeClient
from rljob_kube.connection import Connection, NoCredentials
from rljob_kube.credentials import Credentials
from rljob_kube.errors import ApiError, Unreachable
from rljob_kube.exec_plugin import VERSIONS
from rljob_kube.resources import Json, Resource
from rljob_kube.transport import RequestLimits

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

CONFIG_MAP = Resource("ConfigMap", "", "v1", "configmaps")
NAMESPACE = Resource("Namespace", "", "v1", "namespaces")


@pytest.fixture
def admin(apiserver: Any) -> Connection:
    return kubeconfig.load([apiserver.kubeconfig])


@pytest.fixture
async def space(admin: Connection) -> AsyncIterator[str]:
    """A fresh namespace."""
    name = f"kube-{uuid.uuid4().hex[:8]}"
    async with KubeClient(Credentials(admin)).opened() as kube:
        await kube.create(NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name


def config_map(space: str, name: str = "c", **data: str) -> Json:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": space}, "data": data}


class Plugin:
    """A kubeconfig whose user is signed in by a program. The program prints `answer.json`, and logs its request."""

    def __init__(self, folder: Path, apiserver: Any, version: str = VERSIONS[0]) -> None:
        self._folder = folder
        self._version = version
        self._authority = apiserver.folder / "pki"
        document = json.loads(apiserver.kubeconfig.read_text())
        self.token: str = document["users"][0]["user"]["token"]
        program = folder / "plugin"
        program.write_text(f"#!/bin/sh\necho $KUBERNETES_EXEC_INFO >> {folder}/log\ncat {folder}/answer.json\n")
        program.chmod(0o755)
        entry = {"apiVersion": version, "command": "./plugin", "interactiveMode": "Never", "provideClusterInfo": True}
        document["users"][0]["user"] = {"exec": entry}
        (folder / "config").write_text(json.dumps(document))

    def answers(self, **status: Any) -> None:
        answer = {"apiVersion": self._version, "kind": "ExecCredential", "status": status}
        (self._folder / "answer.json").write_text(json.dumps(answer))

    def certificate(self, name: str) -> dict[str, str]:
        """A client certificate of an administrator, signed by the server's authority."""
        key, request, signed = (self._folder / f"{name}.{suffix}" for suffix in ("key", "csr", "crt"))
        authority = ["-CA", self._authority / "ca.crt", "-CAkey", self._authority / "ca.key", "-CAcreateserial"]
        subject = f"/O=system:masters/CN={name}"
        serial = ["-CAserial", self._folder / "serial"]
        for command in (
            ["req", "-new", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out", request, "-subj", subject],
            ["x509", "-req", "-in", request, *authority, *serial, "-days", "1", "-out", signed],
        ):
            subprocess.run(["openssl", *map(str, command)], check=True, capture_output=True)
        return {"clientCertificateData": signed.read_text(), "clientKeyData": key.read_text()}

    @property
    def runs(self) -> list[Json]:
        return [json.loads(line) for line in (self._folder / "log").read_text().splitlines()]

    def connection(self) -> Connection:
        return kubeconfig.load([self._folder / "config"])


async def who(kube: KubeClient) -> str:
    """The user that the server takes this client for."""
    review = Resource("SelfSubjectReview", "authentication.k8s.io", "v1", "selfsubjectreviews")
    body = {"apiVersion": review.api_version, "kind": review.kind, "metadata": {}}
    return str((await kube.create(review, body))["status"]["userInfo"]["username"])


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_plug_in_signs_in_by_token(tmp_path: Path, apiserver: Any, version: str) -> None:
    plugin = Plugin(tmp_path, apiserver, version)
    plugin.answers(token=plugin.token)
    async with KubeClient(Credentials(plugin.connection())).opened() as kube:
        assert await who(kube) == await who(kube) == "admin"
    assert [run["apiVersion"] for run in plugin.runs] == [version]
    assert plugin.runs[0]["spec"]["cluster"]["server"] == plugin.connection().server


async def test_a_plug_in_signs_in_by_certificate_and_a_new_one_is_used(tmp_path: Path, apiserver: Any) -> None:
    plugin = Plugin(tmp_path, apiserver)
    plugin.answers(**plugin.certificate("first"), expirationTimestamp="2020-01-01T00:00:00Z")
    async with KubeClient(Credentials(plugin.connection())).opened() as kube:
        assert await who(kube) == "first"
        plugin.answers(**plugin.certificate("second"))
        assert await who(kube) == "second", "though a connection of the first was open"
        runs = len(plugin.runs)
        assert await who(kube) == "second"
        assert len(plugin.runs) == runs, "the second one does not expire"


async def test_a_refused_token_is_renewed(tmp_path: Path, apiserver: Any) -> None:
    plugin = Plugin(tmp_path, apiserver)
    plugin.answers(token="forged")
    async with KubeClient(Credentials(plugin.connection())).opened() as kube:
        with pytest.raises(ApiError, match="401"):
            await who(kube)
        plugin.answers(token=plugin.token)
        assert await who(kube) == "admin"


async def test_a_plug_ins_broken_certificate_is_told(tmp_path: Path, apiserver: Any) -> None:
    plugin = Plugin(tmp_path, apiserver)
    plugin.answers(clientCertificateData="none", clientKeyData="none")
    with pytest.raises(NoCredentials, match="the client certificate or its key cannot be used"):
        await Credentials(plugin.connection()).access()


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"server_name": "kubernetes.default.svc"}, False),
        ({"server_name": "elsewhere"}, True),
        ({"authority": None}, True),
        ({"authority": None, "insecure": True}, False),
        ({"server_name": "elsewhere", "insecure": True}, False),
    ],
)
async def test_whom_a_connection_trusts(admin: Connection, changes: dict[str, Any], refused: bool) -> None:
    async with KubeClient(Credentials(replace(admin, **changes)), limits=RequestLimits(attempts=1)).opened() as kube:
        if not refused:
            assert await who(kube) == "admin"
            return
        with pytest.raises(Unreachable, match="certificate"):
            await who(kube)


async def test_an_apply_removes_what_it_leaves_out_and_spares_what_others_own(admin: Connection, space: str) -> None:
    one, two = (KubeClient(Credentials(admin), field_manager=name) for name in ("one", "two"))
    async with one.opened(), two.opened():
        await one.apply(CONFIG_MAP, config_map(space, a="1", b="1"))
        await two.apply(CONFIG_MAP, config_map(space, b="2", c="2"))
        await one.apply(CONFIG_MAP, config_map(space, a="3"))
        assert (await one.get(CONFIG_MAP, space, "c"))["data"] == {"a": "3", "b": "2", "c": "2"}


async def test_a_watch_resumes_where_the_last_one_ended(admin: Connection, space: str) -> None:
    async with KubeClient(Credentials(admin)).opened() as kube:
        await kube.create(CONFIG_MAP, config_map(space, "first"))
        listed, version = await kube.read_with_version(CONFIG_MAP, space, lambda item: item["metadata"]["name"])
        assert "first" in listed
        seen = []
        for name in ("second", "third"):
            await kube.create(CONFIG_MAP, config_map(space, name))
            async with aclosing(kube.watch(CONFIG_MAP, space, version, 60)) as events:
                async for kind, found in events:
                    seen.append((kind, found["metadata"]["name"]))
                    version = found["metadata"]["resourceVersion"]
                    break
        assert seen == [("ADDED", "second"), ("ADDED", "third")]


async def test_a_watch_ends_at_its_time(admin: Connection, space: str) -> None:
    async with KubeClient(Credentials(admin)).opened() as kube:
        _, version = await kube.read_with_version(CONFIG_MAP, space, lambda item: item)
        assert [event async for event in kube.watch(CONFIG_MAP, space, version, 1, fields="metadata.name=none")] == []


async def test_requests_are_counted_by_verb_resource_and_code(admin: Connection, space: str) -> None:
    counted: list[tuple[str, str, str]] = []

    def on_request(verb: str, resource: str, code: str, seconds: float) -> None:
        assert seconds > 0
        counted.append((verb, resource, code))

    async with KubeClient(Credentials(admin), on_request=on_request).opened() as kube:
        made = await kube.create(CONFIG_MAP, config_map(space))
        with pytest.raises(ApiError) as twice:
            await kube.create(CONFIG_MAP, config_map(space))
        assert twice.value.already_exists
        await kube.replace(CONFIG_MAP, made)
        await kube.merge(CONFIG_MAP, space, "c", {"data": {"a": "1"}})
        assert await kube.find(CONFIG_MAP, space, "none") is None
        with pytest.raises(ApiError) as other:
            await kube.delete(CONFIG_MAP, space, "c", uid="another")
        assert other.value.conflict
        await kube.delete(CONFIG_MAP, space, "c")
        assert "apiserver_request_total" in await kube.text("/metrics")
    assert counted == [
        ("create", "configmaps", "2xx"),
        ("create", "configmaps", "409"),
        ("update", "configmaps", "2xx"),
        ("patch", "configmaps", "2xx"),
        ("get", "configmaps", "404"),
        ("delete", "configmaps", "409"),
        ("delete", "configmaps", "2xx"),
        ("get", "metrics", "2xx"),
    ]
