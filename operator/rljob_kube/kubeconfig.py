"""Kubeconfig: the files that kubectl reads, merged by kubectl's rules into one connection."""

from __future__ import annotations

import base64
import os
import urllib.request
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rljob_api import InvalidSpec
from rljob_api.parsing import text_file, yaml_text
from rljob_kube.connection import ClientCertificate, Connection, NoCredentials
from rljob_kube.exec_plugin import INTERACTIVE_MODES, VERSIONS, ExecPlugin

_PLUGIN_CONFIG = "client.authentication.k8s.io/exec"
"""The cluster's extension that a plug-in receives as its configuration."""


def files(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Return the files that kubectl would read: those of $KUBECONFIG, or the one in the home folder."""
    names = environment.get("KUBECONFIG") or "~/.kube/config"
    return [Path(name).expanduser() for name in names.split(os.pathsep) if name]


def load(paths: Sequence[Path]) -> Connection:
    """Return the connection of the current context.

    Files that do not exist are skipped. Of two entries with one name, and of two current contexts, the first counts.
    Raises `NoCredentials`.
    """
    documents = [(path, _document(path)) for path in paths if path.exists()]
    if not documents:
        raise NoCredentials(f"no kubeconfig: {', '.join(map(str, paths))} does not exist")
    name = next((str(found["current-context"]) for _, found in documents if found.get("current-context")), "")
    where = ", ".join(str(path) for path, _ in documents)
    if not name:
        raise NoCredentials(f"{where}: current-context is not set: choose one with `kubectl config use-context`")
    _, context = _entry(documents, where, "contexts", "context", name)
    folder, cluster = _entry(documents, where, "clusters", "cluster", str(context.get("cluster") or ""))
    user_name = str(context.get("user") or "")
    user_folder, user = _entry(documents, where, "users", "user", user_name) if user_name else (folder, {})
    try:
        return _connection(context, cluster, folder, user, user_folder)
    except OSError as error:
        raise NoCredentials(f"{error.filename}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NoCredentials(f"{where}: context {name}: {error}") from None


def _document(path: Path) -> Mapping[str, Any]:
    try:
        found = yaml_text.documents(text_file.read_text(path))
    except (InvalidSpec, text_file.UnreadableText) as error:
        raise NoCredentials(f"{path}: {error}") from None
    if not found or found == [None]:
        return {}
    if len(found) > 1 or not isinstance(found[0], dict):
        content = f"{len(found)} documents" if len(found) > 1 else repr(found[0])
        raise NoCredentials(f"{path}: holds {content:.40}; must be a kubeconfig")
    return found[0]


def _entry(
    documents: Sequence[tuple[Path, Mapping[str, Any]]], where: str, plural: str, kind: str, name: str
) -> tuple[Path, Mapping[str, Any]]:
    """Return (folder of its file, entry) of the first entry with this name. Raises `NoCredentials`."""
    for path, document in documents:
        for found in document.get(plural) or ():
            if isinstance(found, dict) and found.get("name") == name:
                entry = found.get(kind) or {}
                if not isinstance(entry, dict):
                    raise NoCredentials(f"{path}: {kind} {name}: holds {entry!r:.40}; must be a mapping")
                return path.parent.absolute(), entry
    raise NoCredentials(f"{where}: {kind} {name!r} is not there")


def _connection(
    context: Mapping[str, Any], cluster: Mapping[str, Any], folder: Path, user: Mapping[str, Any], user_folder: Path
) -> Connection:
    server = str(cluster.get("server") or "").rstrip("/")
    if not server:
        raise ValueError("its cluster has no server")
    if user.get("auth-provider"):
        raise ValueError("auth-provider is not supported, nor by kubectl since 1.26: use the vendor's exec plug-in")
    certificate = _pem(user, "client-certificate", user_folder)
    key = _pem(user, "client-key", user_folder)
    if (certificate is None) != (key is None):
        raise ValueError("client-certificate needs client-key, and the other way round")
    token_file = user.get("tokenFile")
    return Connection(
        server,
        authority=_pem(cluster, "certificate-authority", folder),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        server_name=cluster.get("tls-server-name") or None,
        proxy=cluster.get("proxy-url") or _system_proxy(server),
        namespace=str(context.get("namespace") or "default"),
        token_file=user_folder / token_file if token_file else None,
        token=user.get("token") or None,
        username=user.get("username") or None,
        password=user.get("password") or None,
        certificate=ClientCertificate(certificate, key) if certificate and key else None,
        plugin=_plugin(user["exec"], user_folder, cluster, folder) if user.get("exec") else None,
    )


def _pem(entry: Mapping[str, Any], key: str, folder: Path) -> str | None:
    """Return the text of `key`-data (base64), or of the file that `key` names."""
    data, file = entry.get(f"{key}-data"), entry.get(key)
    if data:
        try:
            return base64.b64decode("".join(str(data).split()), validate=True).decode("ascii")
        except ValueError:
            raise ValueError(f"{key}-data is not the base64 of a PEM text") from None
    return (folder / str(file)).read_text() if file else None


def _plugin(exec: Mapping[str, Any], folder: Path, cluster: Mapping[str, Any], cluster_folder: Path) -> ExecPlugin:
    """Return the plug-in of the entry `exec`. Raises ValueError."""
    version, mode = exec.get("apiVersion"), exec.get("interactiveMode")
    if not exec.get("command"):
        raise ValueError("exec has no command")
    if version not in VERSIONS:
        raise ValueError(f"exec.apiVersion {version!r} must be {' or '.join(VERSIONS)}: update the plug-in")
    if mode is None and version == VERSIONS[0]:
        raise ValueError(f"exec.interactiveMode must be one of {', '.join(INTERACTIVE_MODES)}")
    if mode is not None and mode not in INTERACTIVE_MODES:
        raise ValueError(f"exec.interactiveMode {mode!r} must be one of {', '.join(INTERACTIVE_MODES)}")
    return ExecPlugin(
        str(exec["command"]),
        tuple(str(argument) for argument in exec.get("args") or ()),
        tuple((str(one["name"]), str(one.get("value") or "")) for one in exec.get("env") or ()),
        version,
        mode or "IfAvailable",
        str(exec.get("installHint") or ""),
        _cluster_info(cluster, cluster_folder) if exec.get("provideClusterInfo") else None,
        folder,
    )


def _cluster_info(cluster: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return `spec.cluster` of the ExecCredential that the plug-in receives."""
    names = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url", "disable-compression")
    found = {name: cluster[name] for name in names if cluster.get(name)}
    authority = _pem(cluster, "certificate-authority", folder)
    if authority is not None:
        found["certificate-authority-data"] = base64.b64encode(authority.encode()).decode()
    for extension in cluster.get("extensions") or ():
        if extension.get("name") == _PLUGIN_CONFIG:
            found["config"] = extension.get("extension")
    return found


def _system_proxy(server: str) -> str | None:
    """Return the proxy of the environment for this server; servers on this machine have none."""
    address = urlsplit(server)
    host = address.hostname or ""
    if host == "localhost" or _is_loopback(host) or urllib.request.proxy_bypass(host):
        return None
    return urllib.request.getproxies().get(address.scheme)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
