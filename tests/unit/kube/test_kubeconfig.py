"""Kubeconfigs: kubectl's rules for files, names, paths and users."""

from __future__ import annotations

import base64
import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from rljob_kube import kubeconfig
from rljob_kube.connection import ClientCertificate, Connection, NoCredentials, in_cluster
from rljob_kube.exec_plugin import ExecPlugin

EXEC = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "command": "aws",
    "args": ["eks", "get-token"],
    "env": [{"name": "AWS_PROFILE", "value": "lab"}],
    "interactiveMode": "IfAvailable",
}
BASE: dict[str, Any] = {
    "current-context": "lab",
    "contexts": [{"name": "lab", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
    "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443/"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
}


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def written(folder: Path, name: str = "config", /, **changes: Any) -> Path:
    """A kubeconfig; `cluster` and `user` replace those of the base."""
    document = copy.deepcopy(BASE)
    if "cluster" in changes:
        document["clusters"][0]["cluster"] |= changes.pop("cluster")
    if "user" in changes:
        document["users"][0]["user"] = changes.pop("user")
    document |= changes
    (folder / name).write_text(yaml.safe_dump(document))
    return folder / name


def test_the_current_context_is_read(tmp_path: Path) -> None:
    assert kubeconfig.load([written(tmp_path)]) == Connection("https://10.0.0.1:6443", namespace="team", token="t")


def test_of_two_files_the_first_counts(tmp_path: Path) -> None:
    second = written(tmp_path, "second", **{"current-context": "other"})
    first = tmp_path / "first"
    first.write_text(yaml.safe_dump({"users": [{"name": "u", "user": {"token": "mine"}}], "current-context": "lab"}))
    assert kubeconfig.load([first, tmp_path / "absent", second]).token == "mine"


def test_paths_are_relative_to_their_own_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for name in ("ca.crt", "client.crt", "client.key"):
        (tmp_path / "a" / name).write_text(f"the {name} of a")
        (tmp_path / "b" / name).write_text(f"the {name} of b")
    user = {"client-certificate": "client.crt", "client-key": "client.key"}
    users = [{"name": "u", "user": user}]
    written(tmp_path / "a", cluster={"certificate-authority": "ca.crt"}, users=[])
    (tmp_path / "b" / "config").write_text(yaml.safe_dump({"users": users}))
    found = kubeconfig.load([tmp_path / "a" / "config", tmp_path / "b" / "config"])
    assert found.authority == "the ca.crt of a"
    assert found.certificate == ClientCertificate("the client.crt of b", "the client.key of b")


def test_embedded_data_goes_before_files(tmp_path: Path) -> None:
    cluster = {"certificate-authority": "absent", "certificate-authority-data": encoded("authority")}
    user = {"client-certificate-data": encoded("crt"), "client-key-data": encoded("key")}
    found = kubeconfig.load([written(tmp_path, cluster=cluster, user=user)])
    assert (found.authority, found.certificate) == ("authority", ClientCertificate("crt", "key"))


def test_trust_name_and_proxy_of_the_cluster(tmp_path: Path) -> None:
    cluster = {"insecure-skip-tls-verify": True, "tls-server-name": "lab", "proxy-url": "http://proxy:3128"}
    found = kubeconfig.load([written(tmp_path, cluster=cluster)])
    assert (found.insecure, found.server_name, found.proxy) == (True, "lab", "http://proxy:3128")


@pytest.mark.parametrize(
    ("server", "proxy"),
    [
        ("https://10.0.0.1:6443", "http://proxy:3128"),
        ("https://127.0.0.1:6443", None),
        ("https://[::1]:6443", None),
        ("https://localhost:6443", None),
        ("https://api.inside.lab", None),
    ],
)
def test_the_environments_proxy_is_for_other_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, proxy: str | None
) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", ".inside.lab")
    assert kubeconfig.load([written(tmp_path, cluster={"server": server})]).proxy == proxy


def test_a_plug_in_is_read(tmp_path: Path) -> None:
    expected = ExecPlugin(
        "aws", ("eks", "get-token"), (("AWS_PROFILE", "lab"),), EXEC["apiVersion"], "IfAvailable", "", None, tmp_path
    )
    assert kubeconfig.load([written(tmp_path, user={"exec": EXEC})]).plugin == expected


def test_a_plug_in_may_ask_for_the_cluster(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("authority")
    extensions = [
        {"name": "other", "extension": {"no": 1}},
        {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "lab"}},
    ]
    cluster = {"certificate-authority": "ca.crt", "tls-server-name": "lab", "extensions": extensions}
    user = {"exec": {**EXEC, "provideClusterInfo": True}}
    plugin = kubeconfig.load([written(tmp_path, cluster=cluster, user=user)]).plugin
    assert plugin is not None
    assert plugin.cluster == {
        "server": "https://10.0.0.1:6443/",
        "tls-server-name": "lab",
        "certificate-authority-data": encoded("authority"),
        "config": {"audience": "lab"},
    }


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in EXEC.items() if name != key}


def test_the_older_version_needs_no_interactive_mode(tmp_path: Path) -> None:
    user = {"exec": {**without("interactiveMode"), "apiVersion": "client.authentication.k8s.io/v1beta1"}}
    plugin = kubeconfig.load([written(tmp_path, user=user)]).plugin
    assert plugin is not None
    assert plugin.interactive_mode == "IfAvailable"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        pytest.param({"current-context": ""}, "current-context is not set", id="no context"),
        pytest.param({"current-context": "none"}, "context 'none' is not there", id="context"),
        pytest.param({"clusters": []}, "cluster 'c' is not there", id="no cluster"),
        pytest.param({"users": []}, "user 'u' is not there", id="no user"),
        pytest.param({"clusters": [{"name": "c", "cluster": {}}]}, "its cluster has no server", id="no server"),
        pytest.param({"users": [{"name": "u", "user": 7}]}, "user u: holds 7; must be a mapping", id="number"),
        pytest.param({"user": {"exec": without("command")}}, "exec has no command", id="no command"),
        pytest.param(
            {"user": {"exec": {**EXEC, "apiVersion": "client.authentication.k8s.io/v1alpha1"}}},
            "v1alpha1' must be client.authentication.k8s.io/v1 or",
            id="version",
        ),
        pytest.param(
            {"user": {"exec": without("interactiveMode")}}, "interactiveMode must be one of Never, If", id="no mode"
        ),
        pytest.param(
            {"user": {"exec": {**EXEC, "interactiveMode": "Often"}}}, "interactiveMode 'Often' must be", id="mode"
        ),
        pytest.param({"user": {"auth-provider": {"name": "gcp"}}}, "use the vendor's exec plug-in", id="auth-provider"),
        pytest.param({"user": {"client-key-data": encoded("k")}}, "client-certificate needs client-key", id="key"),
        pytest.param({"user": {"client-certificate-data": "%"}}, "client-certificate-data is not the base64", id="pem"),
        pytest.param({"cluster": {"certificate-authority": "absent"}}, "absent: cannot be read: No such", id="file"),
    ],
)
def test_an_unusable_kubeconfig_is_told(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(NoCredentials, match=problem):
        kubeconfig.load([written(tmp_path, **changes)])


def test_the_files_are_those_that_kubectl_reads() -> None:
    assert kubeconfig.files({"KUBECONFIG": "/a::~/b"}) == [Path("/a"), Path("~/b").expanduser()]
    assert kubeconfig.files({}) == [Path("~/.kube/config").expanduser()]


# --- the pod's account ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "server"),
    [
        ({"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "6443"}, "https://10.96.0.1:6443"),
        ({"KUBERNETES_SERVICE_HOST": "fd00::1"}, "https://[fd00::1]:443"),
        ({}, "https://kubernetes.default.svc"),
    ],
)
def test_a_pod_reaches_the_injected_address(tmp_path: Path, environment: dict[str, str], server: str) -> None:
    for name in ("token", "ca.crt", "namespace"):
        (tmp_path / name).write_text(f"{name}\n")
    found = in_cluster(tmp_path, environment)
    assert found == Connection(server, authority="ca.crt\n", namespace="namespace", token_file=tmp_path / "token")


def test_outside_a_pod_there_is_no_account(tmp_path: Path) -> None:
    with pytest.raises(NoCredentials, match="token does not exist"):
        in_cluster(tmp_path, {})
